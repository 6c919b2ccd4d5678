"""FlycooTensor: a sparse tensor in the FLYCOO format, on one device."""

import math
import operator
from numbers import Real

import numpy as np

from ..array_modules import is_cupy, move
from ..checks import (
    check_coords,
    check_dtype,
    check_finite,
    check_layout,
    check_place,
    check_shape,
    check_values,
    densify_error,
    num_cells,
)
from ..engines import select_engine
from .constructors import FromOthers
from .indexing import Sliceable
from .memory import build_layout

_USE_NONZEROS = "use x.to_coo() for the nonzeros"


class FlycooTensor(FromOthers, Sliceable):
    """Hold a sparse tensor ready for MTTKRP of any mode, without ever forming it densely.

    Duplicate coordinates are summed and explicit zeros dropped, once, here. Integers and bools are
    counts and become float64. The tensor is immutable: dynamic remapping moves its nonzeros about
    in memory, but never changes what it stands for. It may be used from several threads.

    Parameters
    ----------
    coords : integer array_like (ndim, nnz)
        The index of each nonzero in each mode, in any order. In host memory, or on a GPU: a CuPy
        array, or one of another library that exports DLPack.
    values : array_like (nnz,)
        float32, float64, integers (up to 2**53) or bools; finite. Where `coords` are.
    shape : sequence of int
        Sizes of the modes, from 1 to 2**32. Their product may have any size.
    dtype : {float32, float64}, optional
        Of the values that are kept; by default that of `values`.
    layout : {"remap", "replicated", "indexed"}
        "remap" keeps two copies of the nonzeros and remaps them from mode to mode while computing
        (the FLYCOO algorithm); "replicated" keeps one sorted copy for each mode; "indexed" keeps
        one copy and for each mode but the first an index into it, which takes the least memory.
    device : {"auto", "cpu", "cuda"}, optional
        By default the one that `set_device` chose, which is "auto" unless it was called. With
        "auto" data on a GPU stay there; "cpu" and "cuda" copy data that are elsewhere. A tensor on
        "cuda" lies on CuPy's current device, and so do its factors, which are CuPy arrays.

    Attributes
    ----------
    shape : tuple of int
    ndim, nnz, nbytes : int
    dtype : numpy.dtype
    density : float
    layout, device : str

    Raises
    ------
    TypeError
        If coords are not integers, values are complex, objects or of another unsupported type, or
        one of the two is on a GPU and the other is not.
    ValueError
        If a coordinate lies outside `shape`, lengths do not fit, a value is not finite, an integer
        is too large for float64, `layout` or `device` is unknown, or arrays are on another GPU than
        the current one.
    ImportError, RuntimeError
        If `device` is "cuda" and it cannot be used.
    MemoryError
        If there is too little memory; says what was needed and free, and what would fit.

    Notes
    -----
    Building costs a sort per mode: O(ndim * (nnz + size of the mode)) time. Records take
    ``record bytes * nnz`` twice ("remap", plus 6 bytes per nonzero and mode on a CPU, 10 on a GPU),
    once per mode ("replicated"), or once ("indexed", plus 4 bytes per nonzero and mode but the
    first); `nbytes` is exact, and `estimate_memory` says it beforehand. The result does not depend
    on the number of threads.

    References
    ----------
    Wijeratne, Kannan, Prasanna, "Sparse MTTKRP Acceleration for Tensor Decomposition on GPU",
    Computing Frontiers 2024, doi 10.1145/3649153.3649187, section 3.

    Examples
    --------
    >>> from tensorly_flycoo import FlycooTensor
    >>> x = FlycooTensor([[0, 1, 0], [2, 0, 2]], [1.0, 2.0, 3.0], shape=(3, 4))
    >>> x.nnz
    2
    >>> x.to_coo().todense()
    array([[0., 0., 4., 0.],
           [2., 0., 0., 0.],
           [0., 0., 0., 0.]])
    """

    def __init__(self, coords, values, shape, *, dtype=None, layout="remap", device=None):
        shape = check_shape(shape)
        coords = check_coords(coords, shape)
        values = check_values(values, coords.shape[1], dtype)
        check_place(values, "values", is_cupy(coords), "coords")
        check_layout(layout)
        engine = select_engine(device, is_on_gpu=is_cupy(coords))
        self._set(engine, build_layout(engine, layout, coords, values, shape))

    def _set(self, engine, layout):
        self._engine = engine
        self._layout = layout
        if not math.isfinite(layout.norm):
            values = layout.record_format.values(layout.records)
            check_finite(values, "the tensor would hold values that are not finite: values")

    @property
    def shape(self):
        return self._layout.record_format.shape

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def nnz(self):
        return self._layout.records.shape[0]

    @property
    def dtype(self):
        return self._layout.record_format.dtype

    @property
    def density(self):
        return self.nnz / num_cells(self.shape)

    @property
    def layout(self):
        return self._layout.name

    @property
    def device(self):
        return self._engine.name

    @property
    def nbytes(self):
        return self._layout.nbytes

    def norm(self):
        """Return the Frobenius norm, added up in float64, as a scalar of the dtype of x.

        Examples
        --------
        >>> FlycooTensor([[0, 1], [2, 0]], [3.0, 4.0], (3, 3)).norm()
        np.float64(5.0)
        """
        return self.dtype.type(self._layout.norm)

    def nonzeros(self):
        """Return coords (ndim, nnz), int64 and sorted mode 0 first, and values (nnz,).

        They are NumPy arrays, copied to host memory from wherever the tensor is.

        Examples
        --------
        >>> FlycooTensor([[1, 0], [0, 2]], [4.0, 3.0], (3, 3)).nonzeros()
        (array([[0, 1],
               [2, 0]]), array([3., 4.]))
        """
        coords, values = self._sorted_nonzeros()
        return move(coords, np), move(values, np)

    def _sorted_nonzeros(self):
        """Return what `nonzeros` returns, but as arrays on the device of this tensor."""
        primitives, record_format = self._engine, self._layout.record_format
        with self._layout.hold_order(0, primitives) as (records, places):
            records = records if places is None else primitives.gather(records, places)
            values = record_format.values(records).copy()
            return record_format.coords(records, primitives.xp), values

    def to_coo(self):
        """Return a `sparse.COO` with the same nonzeros, in host memory.

        Also for shapes with more than 2**63 cells, where pydata/sparse itself makes a COO only
        from sorted, unique coordinates.
        """
        import sparse

        coords, values = self.nonzeros()
        return sparse.COO(coords, values, self.shape, sorted=True, has_duplicates=False)

    def astype(self, dtype):
        """Return this tensor with values of `dtype`; itself if they are already."""
        dtype = check_dtype(dtype)
        if dtype == self.dtype:
            return self
        return self._rebuild(*self._sorted_nonzeros(), dtype)

    def __repr__(self):
        return (
            f"<FlycooTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.nnz}, "
            f"layout={self.layout!r}, device={self.device!r}>"
        )

    def _repr_html_(self):
        facts = {
            "shape": " x ".join(str(size) for size in self.shape),
            "dtype": self.dtype,
            "nonzeros": f"{self.nnz:,}",
            "density": f"{self.density:.3g}",
            "memory": f"{self.nbytes / 1e6:,.1f} MB",
            "layout": self.layout,
            "device": self.device,
        }
        rows = "".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts.items())
        return f"<table><caption>FlycooTensor</caption>{rows}</table>"

    def __reduce__(self):
        # Through host memory, to the device that is chosen where it is unpickled.
        return _unpickle, (*self.nonzeros(), self.shape, self.layout)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def _rebuild(self, coords, values, dtype=None):
        """Make a tensor of other nonzeros with the shape, layout and device of this one."""
        return FlycooTensor(
            coords, values, self.shape, dtype=dtype, layout=self.layout, device=self.device
        )

    # Arithmetic that keeps zeros zero. All else would make a dense array.

    #: Above CuPy's, whose scalars then leave ``scalar * x`` to us; NumPy asks `__array_ufunc__`.
    __array_priority__ = 1000

    def _map_values(self, function, scale=1.0):
        mapped = object.__new__(FlycooTensor)
        mapped._set(self._engine, self._layout.map_values(function, scale))
        return mapped

    def _scale(self, operation, scalar):
        if is_cupy(scalar) and scalar.ndim == 0:
            scalar = scalar.item()
        if not isinstance(scalar, Real):
            return NotImplemented
        if operation is operator.truediv and scalar == 0:
            raise ZeroDivisionError("FlycooTensor / 0 would make every stored value infinite")
        factor = self.dtype.type(scalar)
        scale = abs(operation(1.0, float(scalar)))
        mapped = self._map_values(lambda values: operation(values, factor), scale)
        # A factor of 0, or underflow, leaves zeros that are not to be kept as nonzeros.
        if np.any(mapped._layout.record_format.values(mapped._layout.records) == 0):
            return self._rebuild(*mapped._sorted_nonzeros())
        return mapped

    def __mul__(self, other):
        return self._scale(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self._scale(operator.truediv, other)

    def __rtruediv__(self, other):
        raise densify_error("number / FlycooTensor", self.shape, _USE_NONZEROS)

    def __neg__(self):
        return self._map_values(operator.neg)

    def __pos__(self):
        return self

    def __abs__(self):
        return self._map_values(np.abs)

    def _add(self, other, sign, operation):
        if not isinstance(other, FlycooTensor):
            raise densify_error(operation, self.shape, _USE_NONZEROS)
        if other.shape != self.shape:
            raise ValueError(f"{operation}: shapes {self.shape} and {other.shape} differ")
        if other.device != self.device:
            raise TypeError(f"{operation}: devices {self.device!r} and {other.device!r} differ")
        xp, (coords, values) = self._engine.xp, self._sorted_nonzeros()
        coords2, values2 = other._sorted_nonzeros()
        return self._rebuild(
            xp.concatenate([coords, coords2], axis=1), xp.concatenate([values, sign * values2])
        )

    def __add__(self, other):
        return self._add(other, 1, "FlycooTensor + array")

    def __radd__(self, other):
        return self._add(other, 1, "array + FlycooTensor")

    def __sub__(self, other):
        return self._add(other, -1, "FlycooTensor - array")

    def __rsub__(self, other):
        raise densify_error("array - FlycooTensor", self.shape, _USE_NONZEROS)

    def __array__(self, dtype=None, copy=None):
        raise densify_error("numpy.asarray", self.shape, _USE_NONZEROS)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        function = _OPERATORS.get(ufunc)
        # NumPy's scalars become Python's, whose operators leave ours the last word.
        inputs = [x.item() if getattr(x, "ndim", None) == 0 else x for x in inputs]
        is_ours = all(isinstance(x, FlycooTensor | Real) for x in inputs)
        if function is None or method != "__call__" or kwargs or not is_ours:
            raise densify_error(f"numpy.{ufunc.__name__}", self.shape, _USE_NONZEROS)
        return function(*inputs)

    def __array_function__(self, function, types, args, kwargs):
        answers = {np.shape: self.shape, np.ndim: self.ndim}
        if function in answers:
            return answers[function]
        name = f"{function.__module__}.{function.__name__}"
        raise densify_error(name, self.shape, _USE_NONZEROS)


_OPERATORS = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: operator.abs,
}


def _unpickle(coords, values, shape, layout):
    return FlycooTensor(coords, values, shape, layout=layout)
