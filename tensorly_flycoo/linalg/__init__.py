"""Linear algebra for decompositions: tall factors, small matrices and sparse matrices."""
