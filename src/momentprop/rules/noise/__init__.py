"""Rules of noise and of stochastic units."""
