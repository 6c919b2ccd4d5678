"""Describe a tensor before a decomposition, watch the decomposition, and list versions."""
