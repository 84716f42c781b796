"""Training runs: a configuration, its folder, many of them side by side, and the networks that are kept."""
