"""Approximations of logistic units and of small belief networks against exact sums."""
