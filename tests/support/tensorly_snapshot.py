"""Describe TensorLy's functions, classes and modules, to compare before and after an import."""

import importlib
import inspect
import pkgutil
import sys

import tensorly


def import_all():
    """Import every module of TensorLy except its tests and backends."""
    for module in pkgutil.walk_packages(tensorly.__path__, "tensorly."):
        if ".tests" not in module.name and not module.name.endswith("_backend"):
            importlib.import_module(module.name)


def list_modules():
    """Return TensorLy's loaded modules by name."""
    return {name: m for name, m in sys.modules.items() if name.partition(".")[0] == "tensorly"}


def describe_objects():
    """Return a description of every function and class in TensorLy's modules, by object.

    Functions are described by code, defaults, attributes and signature; classes by attributes.
    """
    found = {}
    for module in list_modules().values():
        for value in list(vars(module).values()):
            owner = getattr(value, "__module__", None) or ""
            if owner.startswith("tensorly") and (
                inspect.isfunction(value) or inspect.isclass(value)
            ):
                found[value] = _describe(value)
                if inspect.isclass(value):
                    methods = [m for m in vars(value).values() if inspect.isfunction(m)]
                    found.update((method, _describe(method)) for method in methods)
    return found


def describe_attributes():
    """Return the attributes of every module of TensorLy."""
    return {name: dict(vars(module)) for name, module in list_modules().items()}


def _describe(value):
    if inspect.isclass(value):
        return dict(vars(value))
    signature = str(inspect.signature(value))
    names = ("__code__", "__defaults__", "__kwdefaults__", "__doc__")
    return [*(getattr(value, name) for name in names), dict(vars(value)), signature]
