"""Following correlations: deviations, correlations and class posteriors by every method, against many draws."""
