"""The sparse tensor: constructors, indexing, arithmetic, memory, and a cache of converted COOs."""
