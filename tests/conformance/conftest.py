import tensorly as tl

import tensorly_flycoo  # noqa: F401 (registers the backend)

# The patches in docs/upstream are for TensorLy 0.10.
collect_ignore = [] if tl.__version__.startswith("0.10.") else ["test_upstream_patches.py"]
