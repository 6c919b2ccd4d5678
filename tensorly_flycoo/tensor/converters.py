"""Sparse arrays of other libraries: how to know them, and how each becomes a `FlycooTensor`."""

import functools
from collections.abc import Callable
from typing import Any

#: For the sparse arrays of each library: how to know one, and the constructor of `FlycooTensor`.
CONVERTERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "scipy": (lambda x: hasattr(x, "tocoo"), "from_scipy"),
    "torch": (lambda x: str(getattr(x, "layout", "")).startswith("torch.sparse"), "from_torch"),
    "nvmath": (lambda x: hasattr(x, "crd"), "from_ust"),
    "pyttb": (lambda x: hasattr(x, "subs") and hasattr(x, "vals"), "from_coo"),
}

#: Libraries whose tables and arrays are refused with a line that converts them: `_INSTEAD_OF` is
#: looked at for these alone.
_TABLE_LIBRARIES = (
    "pandas",
    "polars",
    "pyarrow",
    "xarray",
    "duckdb",
    "_duckdb",
    "dask",
    "jax",
    "pyttb",
)

_FROM_TABLE = "tensorly_flycoo.from_dataframe(x, columns)"

#: What to pass instead of an object of these libraries, by the name of its class.
_INSTEAD_OF = {
    "Array": "x.compute()",
    "BCOO": "FlycooTensor(x.indices.T, x.data, x.shape)",
    "BCSR": "x.to_bcoo()",
    "tensor": "x.data",
    "DataArray": "tensorly_flycoo.from_xarray(x)",
    "Series": "tensorly_flycoo.from_dataframe(x.reset_index(), columns, values)",
    "DataFrame": _FROM_TABLE,
    "LazyFrame": _FROM_TABLE,
    "Table": _FROM_TABLE,
    "DuckDBPyRelation": _FROM_TABLE,
}


@functools.cache
def library_of(kind: type) -> str:
    """Return the package that defines a class; "scipy" for CuPy's twin of SciPy too."""
    return kind.__module__.removeprefix("cupyx.").partition(".")[0]


@functools.cache
def is_raw_kind(kind: type) -> bool:
    """Return whether a class is one of pydata/sparse's arrays, without importing that package."""
    return library_of(kind) == "sparse" and hasattr(kind, "todense")


def is_raw_sparse(x: object) -> bool:
    """Return whether `x` is an array of pydata/sparse, without importing that package."""
    kind: type = type(x)
    return is_raw_kind(kind)


def find_converter(x: Any) -> str | None:
    """Name the constructor of `FlycooTensor` for a sparse array of a library in `CONVERTERS`.

    >>> import scipy.sparse
    >>> find_converter(scipy.sparse.eye_array(3))
    'from_scipy'
    """
    kind: type = type(x)
    library = library_of(kind)
    if library not in CONVERTERS:
        return None
    is_known, constructor = CONVERTERS[library]
    return constructor if is_known(x) else None


def find_instead(x: object) -> str | None:
    """Name the type to pass in place of a table or an array of another library; None for others."""
    kind: type = type(x)
    library = library_of(kind)
    if library == "finch":
        return "a sparse.COO, which sparse makes without the environment variable SPARSE_BACKEND"
    if library not in _TABLE_LIBRARIES:
        return None
    return _INSTEAD_OF.get(kind.__name__)


def not_sparse_error(x: object) -> TypeError:
    """Build the error for an `x` that is no sparse tensor; say how to convert it, if possible."""
    kind = type(x)
    name = kind.__name__
    instead = find_instead(x)
    constructor = find_converter(x)
    if instead is not None:
        hint = f": pass {instead}"
    elif constructor is not None:
        public_module, *_ = kind.__module__.partition("._")
        name = f"sparse {public_module}.{name}"
        hint = f": pass FlycooTensor.{constructor}(x)"
    elif isinstance(x, list | tuple) and any(map(find_converter, x)):
        hint = ": pass sparse.stack([sparse.COO(a), sparse.COO(b), ...])"
    elif hasattr(x, "_instead"):  # a lazy view
        hint = f"; {x._instead}"
    else:
        hint = ""
    return TypeError(f"x is a {name}, expected a FlycooTensor or a sparse.COO{hint}")
