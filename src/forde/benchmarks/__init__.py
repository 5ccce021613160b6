"""What is measured by `forde bench`: training steps, predictions, growth with size, and the repulsion alone."""
