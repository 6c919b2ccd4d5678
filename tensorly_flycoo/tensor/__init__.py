"""The sparse tensor: constructors, indexing, memory, and the cache of converted COOs."""
