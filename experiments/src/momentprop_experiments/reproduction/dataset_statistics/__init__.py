"""Statistics of a data set, propagated as one pixel."""
