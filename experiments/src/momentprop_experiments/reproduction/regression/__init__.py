"""Regression with noisy inputs: likelihood and coverage."""
