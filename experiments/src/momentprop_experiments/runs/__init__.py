"""Training runs: the configuration, one run, many runs side by side, and the trained networks of the repository."""
