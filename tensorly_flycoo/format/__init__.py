"""The FLYCOO format: packed records, row-sorted orders, tiles, buckets and remap ids.

Everything here runs on an array module (NumPy or CuPy) and on `primitives.Primitives`, whose
methods an engine overrides with faster ones.
"""
