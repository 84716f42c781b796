"""The moments of single nonlinear units against the mean of their input."""
