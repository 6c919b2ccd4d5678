"""A cache of the FlycooTensors built from raw `sparse.COO` arrays, kept while each COO lives.

A COO is mutable: every call compares its values, and the start of a computation also compares its
coordinates. If either has changed, the FlycooTensor is rebuilt. Threads that ask for the same COO
wait for one of them to build; different ones are built side by side.
"""

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..base.reporting import report, span
from ..engines import select_engine
from ..format.locks import make_lock
from .converters import find_converter, library_of
from .labelled import LabelledTensor, drop_labels
from .tensor import FlycooTensor

if TYPE_CHECKING:
    from sparse import SparseArray

#: A sparse tensor as functions take it: without or with labels; and its missing entries.
SparseData: TypeAlias = "FlycooTensor | SparseArray"
LabelledData: TypeAlias = "FlycooTensor | LabelledTensor | SparseArray"
Mask: TypeAlias = "SparseArray | None"

#: Guards the look-up alone, never the building of a tensor.
_lock = make_lock()
_plans: dict[int, "_Plan"] = {}


def is_raw_sparse(x: object) -> bool:
    """Return whether `x` is an array of pydata/sparse, without importing that package."""
    kind: type = type(x)
    return library_of(kind) == "sparse" and hasattr(x, "fill_value")


def find_instead(x: object) -> str | None:
    """Say what to pass in place of a table or an array of another library; else return None."""
    kind: type = type(x)
    if library_of(kind) == "finch":
        return "a sparse.COO, which sparse makes without the environment variable SPARSE_BACKEND"
    known = ("pandas", "polars", "pyarrow", "xarray", "duckdb", "_duckdb", "dask", "jax", "pyttb")
    if library_of(kind) not in known:
        return None
    table = "tensorly_flycoo.from_dataframe(x, columns)"
    return {
        "Array": "x.compute()",
        "BCOO": "FlycooTensor(x.indices.T, x.data, x.shape)",
        "BCSR": "x.to_bcoo()",
        "tensor": "x.data",
        "DataArray": "tensorly_flycoo.from_xarray(x)",
        "Series": "tensorly_flycoo.from_dataframe(x.reset_index(), columns, values)",
        **dict.fromkeys(("DataFrame", "LazyFrame", "Table", "DuckDBPyRelation"), table),
    }.get(kind.__name__)


def not_sparse_error(x: object) -> TypeError:
    """Build the error for an `x` that is no sparse tensor; say how to convert it, if possible."""
    kind = type(x)
    name, hint = kind.__name__, f"; {x._instead}" if hasattr(x, "_instead") else ""  # lazy views
    if instead := find_instead(x):
        hint = f": pass {instead}"
    elif converter := find_converter(x):
        name = f"sparse {kind.__module__.partition('._')[0]}.{name}"
        hint = f": pass FlycooTensor.{converter}(x)"
    elif isinstance(x, list | tuple) and any(map(find_converter, x)):
        hint = ": pass sparse.stack([sparse.COO(a), sparse.COO(b), ...])"
    return TypeError(f"x is a {name}, expected a FlycooTensor or a sparse.COO{hint}")


def is_sparse(x: object) -> bool:
    """Return whether `x` is a sparse tensor of this package or of pydata/sparse."""
    return isinstance(x, (FlycooTensor, LabelledTensor)) or is_raw_sparse(x)


def unwrap(x: Any) -> Any:
    """Return the tensor of a LabelledTensor or view, the matrix of a RaggedTensor, or else `x`."""
    return getattr(x, "tensor", getattr(x, "matrix", x))


def as_flycoo(x: Any, *, check_coords: bool = False) -> FlycooTensor:
    """Return a sparse tensor as a FlycooTensor; convert a raw COO once, to the chosen device.

    With `check_coords`, compare the coordinates of a raw COO too, not only its values.
    """
    x = drop_labels(x)
    if isinstance(x, FlycooTensor):
        return x
    if not is_raw_sparse(x):
        raise not_sparse_error(x)
    if not hasattr(x, "coords") or x.dtype.hasobject or x.dtype.itemsize > 8:
        return FlycooTensor.from_coo(x)  # GCXS and DOK are not cached, such values refused
    with _lock:
        plan = _plans.get(id(x))
        if plan is None or plan.reference() is not x:
            plan = _plans[id(x)] = _Plan(x)
    return plan.find_tensor(x, check_coords)


def find_converted(x: Any) -> FlycooTensor | None:
    """Return the FlycooTensor last made of a sparse tensor, unchecked, or None."""
    if is_raw_sparse(x):
        plan = _plans.get(id(x))
        return None if plan is None else plan.tensor
    x = unwrap(x)
    return x if isinstance(x, FlycooTensor) else None


class _Plan:
    """The FlycooTensor of one COO, with fingerprints of the arrays it was built from."""

    tensor: FlycooTensor | None = None
    _facts: tuple = ()
    _coords_print = 0

    def __init__(self, coo: Any) -> None:
        self._lock = make_lock()
        key = id(coo)
        self.reference = weakref.ref(coo, lambda _: _plans.pop(key, None))

    def find_tensor(self, coo: Any, check_coords: bool) -> FlycooTensor:
        """Return the tensor; build it if there is none that matches `coo` on the chosen device."""
        with self._lock:
            fill_value = np.asarray(coo.fill_value).tobytes()
            arrays = id(coo.coords), id(coo.data), _fingerprint(coo.data)
            facts = coo.shape, fill_value, arrays, select_engine().name
            coords_print = self._coords_print
            if check_coords or facts != self._facts:
                coords_print = _fingerprint(coo.coords)
            if self.tensor is None or (facts, coords_print) != (self._facts, self._coords_print):
                report(f"building a tensor of {coo.nnz:,} nonzeros")
                self.tensor = None  # its memory may be needed
                with span("conversion"):
                    self.tensor = FlycooTensor.from_coo(coo)
                self._facts = facts
                self._coords_print = coords_print
            return self.tensor


def _fingerprint(array: np.ndarray) -> int:
    """Hash the bits of a host array; arrays that differ in one element have different hashes."""
    from ..engines.cpu import mttkrp, threads

    words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    block_size = 2**16  # that a thread hashes at a time
    hashes = np.zeros(-(-words.size // block_size), np.uint64)
    threads.launch(mttkrp.hash_words, hashes.size, words, block_size, hashes, work_ns=words.size)
    return int(hashes.sum())
