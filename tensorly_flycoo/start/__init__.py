"""The start of decompositions from singular vectors of unfoldings (init="svd")."""
