"""Results of decompositions: models with names, their fit, and their rows for new data."""
