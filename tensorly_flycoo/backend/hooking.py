"""Put hooks around functions of TensorLy, which act under "flycoo" and only there."""

import functools

from tensorly.backend import BackendManager

from .arrays import find_sparse
from .redirect import redirect


def hook_method(tenalg, name, ours, check_dense=None):
    """Put a hook around a function of a backend of the tensor algebra."""
    tenalg.register_method(name, hook(getattr(tenalg, name), ours, check_dense=check_dense))


def hook_function(module, name, make_ours, takes_dense=False):
    """Put a hook around the function that a module has by that name.

    ``make_ours(original)`` is what is called; see `hook`.
    """
    original = getattr(module, name)
    setattr(module, name, hook(original, make_ours(original), takes_dense=takes_dense))


def hook_everywhere(function, make_ours):
    """Put a hook into a function itself, so that names that were bound to it before have it too."""
    redirect(function, lambda original: hook(original, make_ours(original)))


def hook(original, ours, takes_dense=False, check_dense=None):
    """Call `ours` under flycoo where an argument is sparse, else `original`.

    With `takes_dense` it is the other way round: `ours` is another way to do it for dense arguments
    under flycoo. Else these are looked at by `check_dense` first, if that is given.
    """
    if hasattr(original, "_flycoo_hook"):
        return original

    @functools.wraps(original)
    def hooked(*args, **kwargs):
        if BackendManager.get_backend() != "flycoo":
            return original(*args, **kwargs)
        is_dense = find_sparse((*args, *kwargs.values())) is None
        if is_dense == takes_dense:
            return ours(*args, **kwargs)
        if is_dense and check_dense is not None:
            check_dense(*args, **kwargs)
        return original(*args, **kwargs)

    hooked._flycoo_hook = True
    return hooked
