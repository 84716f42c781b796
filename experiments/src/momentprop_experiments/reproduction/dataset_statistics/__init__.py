"""The statistics of a data set, propagated through a network as one pixel."""
