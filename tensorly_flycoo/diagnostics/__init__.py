"""Watch a decomposition run, and look at a tensor before it does."""
