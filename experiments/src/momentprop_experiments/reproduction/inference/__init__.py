"""Feed-forward inference beside iterative inference, in sigmoid belief networks with exact sums."""
