"""What is timed. Times are compared as ratios inside one run; results with their hardware are in results/."""
