"""How good predictions are: pure functions of numbers. Users find them in `forde.evaluation`."""
