"""The CPU engine, compiled by numba."""
