"""Dense linear algebra of the shapes that decompositions have: tall factors and small matrices."""
