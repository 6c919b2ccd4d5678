"""Parts of an iteration: starts, the loop, and updates of a factor in it."""
