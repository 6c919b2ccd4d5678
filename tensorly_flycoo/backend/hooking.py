"""Put hooks around functions of TensorLy, which act under "flycoo" and only there."""

import functools

from tensorly.backend import BackendManager

from .arrays import find_sparse
from .redirect import redirect


def hook_method(tenalg, name, ours, check_dense=None):
    """Put a hook around a function of a backend of the tensor algebra."""
    tenalg.register_method(name, hook(getattr(tenalg, name), ours, check_dense=check_dense))


def hook_function(module, name, make_ours, always=False):
    """Put a hook around the function that a module has by that name.

    ``make_ours(original)`` is what is called under flycoo.
    """
    original = getattr(module, name)
    setattr(module, name, hook(original, make_ours(original), always=always))


def hook_everywhere(function, make_ours):
    """Put a hook into a function itself, so that names that were bound to it before have it too."""
    redirect(function, lambda original: hook(original, make_ours(original)))


def hook(original, ours, always=False, check_dense=None):
    """Call `ours` under flycoo where an argument is sparse, or `always`; else `original`.

    Under flycoo `check_dense` looks at dense arguments first.
    """
    if hasattr(original, "_flycoo_hook"):
        return original

    @functools.wraps(original)
    def hooked(*args, **kwargs):
        if BackendManager.get_backend() == "flycoo":
            if always or find_sparse((*args, *kwargs.values())) is not None:
                return ours(*args, **kwargs)
            if check_dense is not None:
                check_dense(*args, **kwargs)
        return original(*args, **kwargs)

    hooked._flycoo_hook = True
    return hooked
