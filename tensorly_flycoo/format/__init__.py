"""The FLYCOO format: packed records, row-sorted orders, tiles, buckets and remap ids.

Everything here is written on an array module (NumPy or CuPy) and on the primitives of
`primitives.Primitives`, which an engine may replace with faster ones.
"""
