"""Put hooks around functions of TensorLy, which act under "flycoo" and only there."""

import functools

from tensorly.backend import BackendManager

from .arrays import find_sparse
from .known import DEPENDENTS, find_module, find_problem, refuse_unknown
from .redirect import can_redirect, redirect


def hook_method(tenalg, name, ours, check_dense=None):
    """Put a hook around a function of a backend of the tensor algebra, if it has that."""
    original = getattr(tenalg, name, None)
    if original is None:  # who calls it will say so
        return
    problem = find_problem(f"tensorly.tenalg.{name}", original)
    if problem:
        ours, check_dense = refuse_unknown(problem), None
    tenalg.register_method(name, hook(original, ours, check_dense=check_dense))


def hook_function(module_name, name, make_ours, takes_dense=False):
    """Put a hook around the function that a module has by that name.

    ``make_ours(original)`` is what is called; see `hook`. Where there is none that is known, the
    decompositions that depend on it refuse sparse tensors.
    """
    label, module = f"{module_name}.{name}", find_module(module_name)
    original = getattr(module, name, None)
    problem = find_problem(label, original)
    if problem and (original is None or takes_dense):
        for dependent in DEPENDENTS.get(label, ()):
            hook_everywhere(dependent, lambda original: refuse_unknown(problem))
        return
    ours = refuse_unknown(problem) if problem else make_ours(original)
    setattr(module, name, hook(original, ours, takes_dense=takes_dense))


def hook_everywhere(name, make_ours):
    """Put a hook into a decomposition itself, so that names bound to it before have it too."""
    module_name = "tensorly.decomposition"
    module = find_module(module_name)
    original = getattr(module, name, None)
    if original is None:
        return
    problem = find_problem(f"{module_name}.{name}", original)
    if problem or not can_redirect(original):
        refuse = refuse_unknown(problem or f"{name} is no plain function")
        setattr(module, name, hook(original, refuse))
        return
    redirect(original, lambda original: hook(original, make_ours(original)))


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
