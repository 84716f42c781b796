"""Stability of trained networks under noise and gradient attacks."""
