"""Noisy and missing pixels in trained networks."""
