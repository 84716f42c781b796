"""Plain training, sampled and analytic dropout."""
