"""Noise: named distributions, and the gradients of draws."""
