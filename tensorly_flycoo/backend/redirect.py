"""Let functions of TensorLy do something else, also where they were bound to a name before."""

import inspect
import types


def redirect(function, make):
    """Make a function do what ``make(original)`` does, once and for all.

    Who wrote ``from tensorly.decomposition import tucker`` before importing this package holds the
    function itself. So the function stays, and its code is exchanged. Its signature, documentation
    and pickle stay as they are.

    The first time counts and others change nothing: hooks may be installed again, and a function
    that refuses sparse tensors, since it needs what this TensorLy has not, goes on refusing them.

    Parameters
    ----------
    function : function
        Without a closure, as those that a module defines are.
    make : callable
        Takes the original, as a function of its own, and returns what is called in its place.

    Examples
    --------
    >>> def double(x):
    ...     return 2 * x
    >>> bound_before = double
    >>> redirect(double, lambda original: lambda x: original(x) + 1)
    >>> bound_before(3)
    7
    """
    function = _below_hooks(function)
    if hasattr(function, "_flycoo_original"):
        return
    original = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__doc__, original.__module__ = function.__doc__, function.__module__
    replacement = make(original)
    function._flycoo_original = original
    function.__signature__ = inspect.signature(original)
    function.__defaults__, function.__kwdefaults__ = None, {"_replacement": replacement}
    function.__code__ = _call.__code__


def can_redirect(function):
    """Say whether it is a plain function, without a closure."""
    function = _below_hooks(function)
    return isinstance(function, types.FunctionType) and function.__closure__ is None


def _below_hooks(function):
    """Return what is below the hook that the namespace of its module has around a function."""
    return inspect.unwrap(function, stop=lambda f: not hasattr(f, "_flycoo_hook"))


def _call(*args, _replacement, **kwargs):
    return _replacement(*args, **kwargs)
