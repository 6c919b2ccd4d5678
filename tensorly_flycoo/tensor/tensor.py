"""FlycooTensor: a sparse tensor in the FLYCOO format, on one device."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array, is_cupy, move
from ..checks import (
    check_coords,
    check_count,
    check_dtype,
    check_keep,
    check_place,
    check_shape,
    check_values,
    densify_error,
    num_cells,
)
from ..engines import select_engine
from ..format.slab_layout import SlabLayout
from .arithmetic import add, map_elements, map_values, raise_to, scale
from .constructors import FromOthers
from .indexing import Index, find_part, iterate_parts
from .memory import build_layout
from .numpy_protocol import USE_FIT, USE_NONZEROS, apply_function, apply_ufunc, refuse_attribute
from .pieces import check_all_values, read_nonzeros, rebuild
from .reductions import average_modes, find_largest, find_smallest, sum_modes
from .showing import to_html
from .transposing import transpose

if TYPE_CHECKING:
    import sparse

    from ..engines.protocol import Engine
    from ..format.slab_layout import AnyLayout


def _make_operator(ufunc: np.ufunc) -> Callable[[FlycooTensor, Any], Any]:
    def operate(x: FlycooTensor, other: Any) -> Any:
        return ufunc(x, other) if isinstance(other, Real) else NotImplemented

    return operate


class FlycooTensor(FromOthers):
    """A sparse tensor ready for MTTKRP of any mode, and never made dense.

    Building it sums duplicate coordinates, drops explicit zeros, and converts integers and bools
    to float64. The tensor is immutable: dynamic remapping moves its nonzeros in memory but
    never changes their coordinates or values. Several threads may use it at once.

    Parameters
    ----------
    coords : integer array_like (ndim, nnz)
        The index of each nonzero in each mode, in any order. In host memory, or on a GPU: a CuPy
        array, or one of another library that exports DLPack.
    values : array_like (nnz,)
        float32, float64, integers (up to 2**53) or bools; finite. On the device of `coords`.
    shape : sequence of int
        Sizes of the modes, from 1 to 2**32. Their product may have any size.
    dtype : {float32, float64}, optional
        Of the stored values; by default that of `values`.
    layout : {"remap", "replicated", "indexed"}
        "remap" keeps two copies of the nonzeros and remaps them from mode to mode while computing
        (the FLYCOO algorithm); "replicated" keeps one sorted copy for each mode; "indexed" keeps
        one copy and, for each mode but the first, an index into it: the least memory. By default
        "remap", or "replicated" with ``keep="host"``.
    device : {"auto", "cpu", "cuda"}, optional
        By default the one set by `set_device`, initially "auto". With "auto", data on a GPU stay
        there; "cpu" and "cuda" copy data from elsewhere. A "cuda" tensor is on CuPy's current
        device, and its factors are CuPy arrays there.
    slabs : int, optional
        Cuts the longest mode into so many parts with about equally many nonzeros. Results depend
        on this number within rounding errors. By default 1, or one for each 2**32 nonzeros, or as
        many more (times 2, 4, ...) as let the tensor be built in the free memory.
    keep : {"device", "host"}
        "host" is for tensors larger than a GPU: slabs that do not fit in half of its free memory
        stay in pinned host memory and visit it in turn. On a CPU both are the same.

    Attributes
    ----------
    shape : tuple of int
    ndim, nnz, nbytes : int
    dtype : numpy.dtype
    density : float
    layout, device, keep : str, slabs : int

    Raises
    ------
    TypeError
        If coords or `slabs` are not integers, values are complex, objects or of another unsupported
        type, or only one of the two is on a GPU.
    ValueError
        If a coordinate lies outside `shape`, lengths do not match, entries are masked, a value is
        not finite, an
        integer is too large for float64, `layout` or `device` is unknown, `slabs` is less than 1,
        or arrays are on a GPU other than the current one.
    ImportError, RuntimeError
        If `device` is "cuda" and cannot be used.
    MemoryError
        If memory runs out, or clearly would; the message says what is needed and free, and what
        would fit.

    Notes
    -----
    Building costs a sort per mode: O(ndim * (nnz + size of the mode)) time. Records take
    ``record bytes * nnz`` twice ("remap", plus 6 bytes per nonzero and mode on a CPU, 4 to 8 on a
    GPU), once per mode ("replicated"), or once ("indexed", plus 4 bytes per nonzero for each mode
    but the first). `nbytes` is exact; `estimate_memory` predicts it. The result does not depend on
    the number of threads.

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

    def __init__(
        self,
        coords: Array,
        values: Array,
        shape: Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        layout: str | None = None,
        device: str | None = None,
        slabs: int | None = None,
        keep: str = "device",
    ) -> None:
        shape = check_shape(shape)
        coords = check_coords(coords, shape)
        values = check_values(values, coords.shape[1], dtype)
        check_place(values, "values", is_cupy(coords), "coords")
        layout = check_keep(keep, layout)
        slabs = None if slabs is None else check_count(slabs, "slabs")
        engine = select_engine(device, is_on_gpu=is_cupy(coords))
        self._set(engine, build_layout(engine, layout, coords, values, shape, slabs, keep))

    def _set(self, engine: Engine, layout: AnyLayout) -> None:
        self._engine = engine
        self._layout = layout
        if not math.isfinite(layout.norm):
            check_all_values(layout, engine)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.record_format.shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nnz(self) -> int:
        return self._layout.nnz

    @property
    def dtype(self) -> np.dtype:
        return self._layout.record_format.dtype

    @property
    def density(self) -> float:
        return self.nnz / num_cells(self.shape)

    @property
    def layout(self) -> str:
        return self._layout.name

    @property
    def slabs(self) -> int:
        return self._layout.num_slabs

    @property
    def device(self) -> str:
        return self._engine.name

    @property
    def keep(self) -> str:
        layout = self._layout
        return "host" if isinstance(layout, SlabLayout) and layout.num_streamed else "device"

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def norm(self) -> np.floating:
        """Return the Frobenius norm, summed in float64, as a scalar of the tensor's dtype.

        Examples
        --------
        >>> FlycooTensor([[0, 1], [2, 0]], [3.0, 4.0], (3, 3)).norm()
        np.float64(5.0)
        """
        return self.dtype.type(self._layout.norm)

    def nonzeros(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the nonzeros as NumPy arrays, copied to host memory if the tensor is on a GPU.

        Returns
        -------
        coords : int64 array (ndim, nnz)
            Sorted by mode 0, then mode 1, and so on.
        values : array (nnz,)

        Examples
        --------
        >>> FlycooTensor([[1, 0], [0, 2]], [4.0, 3.0], (3, 3)).nonzeros()
        (array([[0, 1],
               [2, 0]]), array([3., 4.]))
        """
        coords, values = self._sorted_nonzeros()
        return move(coords, np), move(values, np)

    def _sorted_nonzeros(self) -> tuple[Array, Array]:
        """Return what `nonzeros` does, as arrays on the tensor's device."""
        primitives, record_format = self._engine, self._layout.record_format
        with self._layout.hold_order(0, primitives) as (records, places):
            records = records if places is None else primitives.gather(records, places)
            values = record_format.values(records).copy()
            return record_format.coords(records, primitives.xp), values

    def to_coo(self) -> sparse.COO:
        """Return a `sparse.COO` with the same nonzeros, in host memory.

        The shape may have more than 2**63 cells.
        """
        import sparse

        coords, values = self.nonzeros()
        # pydata/sparse cannot sort coordinates of more than 2**63 cells.
        return sparse.COO(coords, values, self.shape, sorted=True, has_duplicates=False)

    def astype(self, dtype: DTypeLike) -> FlycooTensor:
        """Return a tensor with values of `dtype`: this one if it has that dtype."""
        dtype = check_dtype(dtype)
        if dtype == self.dtype:
            return self
        return self._derive(lambda x: rebuild(x._layout, x, read_nonzeros, dtype=dtype))

    def __repr__(self) -> str:
        slabs = f", slabs={self.slabs}" if self.slabs > 1 else ""
        return (
            f"<FlycooTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.nnz}, "
            f"layout={self.layout!r}, device={self.device!r}{slabs}>"
        )

    _repr_html_ = to_html

    def __reduce__(self) -> tuple[Callable, tuple]:
        # Through host memory; unpickling moves the tensor to the device chosen there.
        return _unpickle, (*self.nonzeros(), self.shape, self.layout, self.slabs)

    def __copy__(self) -> FlycooTensor:
        return self

    def __deepcopy__(self, memo: dict) -> FlycooTensor:
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Index) -> FlycooTensor | Array:
        """Index by integers, slices, `...` and a list: return a tensor, or a number.

        Negative indices, steps and bounds work as in NumPy, as does a list of integers, which may
        repeat some; ``x[...]`` is `x`. Costs one scan of the nonzeros, plus building a tensor from
        those selected. The result is a number if no mode is left.

        Examples
        --------
        >>> x = FlycooTensor([[1, 0, 1], [0, 2, 2]], [4.0, 3.0, 5.0], (3, 3))
        >>> x[1].nonzeros(), x[-2, ::2].shape, x[0, 2], x[2, 2]
        ((array([[0, 2]]), array([4., 5.])), (2,), np.float64(3.0), np.float64(0.0))
        >>> x[[2, 1, 1]].to_coo().todense()
        array([[0., 0., 0.],
               [4., 0., 5.],
               [4., 0., 5.]])
        """
        return find_part(self, index)

    def __iter__(self) -> Iterator[FlycooTensor | Array]:
        """Yield ``x[0]``, ``x[1]``, ...; the nonzeros are sorted once for all of them."""
        return iterate_parts(self)

    def _rebuild(
        self,
        coords: Array,
        values: Array,
        shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
    ) -> FlycooTensor:
        """Make a tensor of other nonzeros, with this one's options and, by default, shape."""
        shape = self.shape if shape is None else shape
        options: dict[str, Any] = {"layout": self.layout, "device": self.device}
        options |= {"slabs": self.slabs, "dtype": dtype, "keep": self.keep}
        return FlycooTensor(coords, values, shape, **options)

    @property
    def T(self) -> FlycooTensor:
        """The tensor with its modes reversed; see `transpose`."""
        return transpose(self)

    transpose = transpose

    # Over all modes or some

    sum = sum_modes
    mean = average_modes
    max = find_largest
    min = find_smallest

    # Arithmetic that keeps zeros zero. Everything else would make a dense array.

    map = map_elements

    #: Above CuPy's, so that its scalars defer ``scalar * x``; NumPy's call `__array_ufunc__`.
    __array_priority__ = 1000

    def _derive(self, function: Callable[[FlycooTensor], FlycooTensor]) -> FlycooTensor:
        """Return ``function(self)``; a tensor that can be lost remembers how it was made."""
        return function(self)

    def _replace_layout(self, layout: AnyLayout) -> FlycooTensor:
        other = object.__new__(FlycooTensor)
        other._set(self._engine, layout)
        return other

    def __mul__(self, other: Any) -> FlycooTensor:
        if isinstance(other, FlycooTensor):
            raise TypeError(
                "FlycooTensor * FlycooTensor is not provided: x.to_coo() * y.to_coo() is the "
                "elementwise product, tl.tenalg.inner(x, y) its sum, and x**2 the square"
            )
        return scale(self, operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> FlycooTensor:
        if isinstance(other, FlycooTensor):
            instead = "0 / 0 is nan: divide the values of x.nonzeros() instead"
            raise densify_error("FlycooTensor / FlycooTensor", self.shape, instead)
        return scale(self, operator.truediv, other)

    def __rtruediv__(self, other: Any) -> NoReturn:
        raise densify_error("number / FlycooTensor", self.shape, USE_NONZEROS)

    def __pow__(self, exponent: Any) -> FlycooTensor:
        return raise_to(self, exponent)

    def __rpow__(self, other: Any) -> NoReturn:
        raise densify_error("number ** FlycooTensor", self.shape, USE_NONZEROS)

    def __neg__(self) -> FlycooTensor:
        return map_values(self, operator.neg)

    def __pos__(self) -> FlycooTensor:
        return self

    def __abs__(self) -> FlycooTensor:
        return map_values(self, np.abs)

    def _add(self, other: Any, sign: int, operation: str) -> FlycooTensor:
        if hasattr(other, "fill_value") and hasattr(other, "coords"):  # a sparse.COO
            other = FlycooTensor.from_coo(other, device=self.device)
        if not isinstance(other, FlycooTensor):
            raise densify_error(operation, self.shape, USE_FIT)
        return add(self, other, sign, operation)

    def __add__(self, other: Any) -> FlycooTensor:
        return self._add(other, 1, "FlycooTensor + array")

    def __radd__(self, other: Any) -> FlycooTensor:
        return self._add(other, 1, "array + FlycooTensor")

    def __sub__(self, other: Any) -> FlycooTensor:
        return self._add(other, -1, "FlycooTensor - array")

    def __rsub__(self, other: Any) -> NoReturn:
        raise densify_error("array - FlycooTensor", self.shape, USE_FIT)

    # Comparisons with numbers are elementwise, as NumPy's functions are; tensors are not compared.

    __lt__ = _make_operator(np.less)
    __le__ = _make_operator(np.less_equal)
    __gt__ = _make_operator(np.greater)
    __ge__ = _make_operator(np.greater_equal)
    __eq__ = _make_operator(np.equal)
    __ne__ = _make_operator(np.not_equal)
    __floordiv__ = _make_operator(np.floor_divide)
    __mod__ = _make_operator(np.remainder)
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise ValueError("the truth value of a FlycooTensor is ambiguous: use x.nnz, x.max() ...")

    if not TYPE_CHECKING:  # or unknown attributes would have a type
        __getattr__ = refuse_attribute

    def reshape(self, *shape: Any) -> NoReturn:
        """Refuse NumPy's method: `tl.reshape` makes a lazy view, which is no tensor."""
        raise densify_error("FlycooTensor.reshape", self.shape, "use tl.reshape for a lazy view")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        raise densify_error("numpy.asarray", self.shape, USE_NONZEROS)

    __array_ufunc__ = apply_ufunc
    __array_function__ = apply_function


def _unpickle(
    coords: np.ndarray, values: np.ndarray, shape: tuple[int, ...], layout: str, slabs: int = 1
) -> FlycooTensor:
    return FlycooTensor(coords, values, shape, layout=layout, slabs=slabs)
