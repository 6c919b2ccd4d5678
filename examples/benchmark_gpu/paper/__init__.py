"""The paper's kernel as published, and the paper's experiments with it and with ours.

The paper: S. Wijeratne, R. Kannan, V. Prasanna, "Sparse MTTKRP Acceleration for Tensor
Decomposition on GPU", Computing Frontiers 2024, doi 10.1145/3649153.3649187. docs/paper.md has the
results.
"""
