"""Noise: named distributions, and gradients of draws."""

from momentprop.noise.named import noise

__all__ = ["noise"]
