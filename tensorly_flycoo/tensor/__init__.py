"""The sparse tensor: constructors, parts, arithmetic, memory, and the cache of converted COOs."""
