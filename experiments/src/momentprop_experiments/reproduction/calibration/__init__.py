"""Calibrated AP2 on held-out images, under other noise, and its class posteriors."""
