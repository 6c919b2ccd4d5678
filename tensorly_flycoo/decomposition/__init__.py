"""Decompositions of sparse tensors, one a file, with TensorLy's names and parameters."""
