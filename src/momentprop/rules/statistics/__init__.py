"""Rules for the statistics of a data set."""
