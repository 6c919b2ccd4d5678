"""What a decomposition returns: a model with names, its fit, and its rows for new data."""
