"""Moments of single nonlinear units against the mean of their input."""
