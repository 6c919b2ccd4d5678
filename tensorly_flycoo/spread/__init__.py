"""Many of one: tensors in slabs on several devices."""
