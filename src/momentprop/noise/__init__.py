"""Noise: named distributions, and gradients of draws."""
