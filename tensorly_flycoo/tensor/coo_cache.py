"""A cache of the FlycooTensors built from raw `sparse.COO` arrays, kept while each COO lives.

A COO is mutable: every call compares its values, and the start of a computation also compares its
coordinates (`check_coords`). If either has changed, the FlycooTensor is rebuilt. The hooks that
TensorLy calls in each iteration (`unfolding_dot_khatri_rao`, `multi_mode_dot`) compare values only:
called alone, they miss coordinates that were changed in place. Threads that ask for the same COO
wait for one of them to build; different ones are built side by side.
"""

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..base.locks import make_lock
from ..base.reporting import report, span
from ..engines import select_engine
from .converters import is_raw_kind, is_raw_sparse, not_sparse_error
from .labelled import LabelledTensor
from .tensor import FlycooTensor

if TYPE_CHECKING:
    from sparse import SparseArray

#: A sparse tensor as functions take it: without or with labels; and its missing entries.
SparseData: TypeAlias = "FlycooTensor | SparseArray"
LabelledData: TypeAlias = "FlycooTensor | LabelledTensor | SparseArray"
Mask: TypeAlias = "SparseArray | None"

#: Guards the look-up alone, never the building of a tensor.
_lock = make_lock()

#: By the id of the COO. An entry goes when its COO dies, before Python can give that id again.
_cached_coos: dict[int, "_CachedCoo"] = {}


def as_flycoo(x: Any, *, check_coords: bool = False) -> FlycooTensor:
    """Return a sparse tensor as a FlycooTensor; convert a raw COO once, to the chosen device.

    With `check_coords`, compare the coordinates of a raw COO too, not only its values.
    """
    if isinstance(x, FlycooTensor):
        return x
    if isinstance(x, LabelledTensor):
        return x.tensor
    kind: type = type(x)
    if not is_raw_kind(kind):
        raise not_sparse_error(x)
    is_coo = hasattr(x, "coords")
    if not is_coo or x.dtype.hasobject or x.dtype.itemsize > 8:
        return FlycooTensor.from_coo(x)  # GCXS and DOK are not cached, such values refused
    with _lock:
        cached = _cached_coos.get(id(x))
        if cached is None or cached.reference() is not x:
            cached = _cached_coos[id(x)] = _CachedCoo(x)
    return cached.find_tensor(x, check_coords)


def find_converted(x: Any) -> FlycooTensor | None:
    """Return the FlycooTensor last made of a sparse tensor, unchecked, or None."""
    if is_raw_sparse(x):
        cached = _cached_coos.get(id(x))
        return None if cached is None else cached.tensor
    tensor = unwrap(x)
    return tensor if isinstance(tensor, FlycooTensor) else None


def unwrap(x: Any) -> Any:
    """Return the tensor of a LabelledTensor or view, the matrix of a RaggedTensor, or else `x`."""
    if isinstance(x, FlycooTensor):
        return x
    if hasattr(x, "tensor"):
        return x.tensor
    return getattr(x, "matrix", x)


class _CachedCoo:
    """The FlycooTensor of one COO, with fingerprints of the arrays it was built from."""

    def __init__(self, coo: Any) -> None:
        key = id(coo)
        self.reference = weakref.ref(coo, lambda _: _cached_coos.pop(key, None))
        self.tensor: FlycooTensor | None = None
        self._lock = make_lock()  # one thread builds, others wait
        self._facts: tuple = ()  # shape, fill_value, arrays with a hash of the values, and device
        self._coords_print = 0  # a hash of the coordinates

    def find_tensor(self, coo: Any, check_coords: bool) -> FlycooTensor:
        """Return the tensor; build it if there is none that matches `coo` on the chosen device."""
        with self._lock:
            fill_value = np.asarray(coo.fill_value).tobytes()
            arrays = (id(coo.coords), id(coo.data), _fingerprint(coo.data))
            facts = (coo.shape, fill_value, arrays, select_engine().name)
            coords_print = self._coords_print
            if check_coords or facts != self._facts:
                coords_print = _fingerprint(coo.coords)
            is_same = facts == self._facts and coords_print == self._coords_print
            if self.tensor is None or not is_same:
                report(f"building a tensor of {coo.nnz:,} nonzeros")
                self.tensor = None  # its memory may be needed
                with span("conversion"):
                    self.tensor = FlycooTensor.from_coo(coo)
                self._facts = facts
                self._coords_print = coords_print
            return self.tensor


def _fingerprint(array: np.ndarray) -> int:
    """Hash the bits of a host array; arrays that differ in one element have different hashes."""
    # Imported here: the first one loads numba.
    from ..engines.cpu import mttkrp, threads

    words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    block_size = 2**16  # that a thread hashes at a time
    hashes = np.zeros(-(-words.size // block_size), np.uint64)
    threads.launch(mttkrp.hash_words, hashes.size, words, block_size, hashes, work_ns=words.size)
    return int(hashes.sum())
