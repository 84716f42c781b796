"""Gradients of deep networks of Bernoulli units."""
