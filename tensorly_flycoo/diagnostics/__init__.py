"""Statistics of a tensor, progress of a decomposition, and versions for bug reports."""
