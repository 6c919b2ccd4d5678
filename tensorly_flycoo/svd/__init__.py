"""Singular vectors of unfoldings, which `init="svd"` and Tucker decompositions take."""
