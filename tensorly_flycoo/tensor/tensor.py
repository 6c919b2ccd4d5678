"""FlycooTensor: a sparse tensor in the FLYCOO format, on one device."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, array_module, as_array, is_cupy, move, read_into_memory
from ..base.checks import (
    DensifyError,
    check_coords,
    check_count,
    check_dtype,
    check_fill_value,
    check_keep,
    check_place,
    check_shape,
    check_values,
    densify_error,
    num_cells,
)
from ..base.notebooks import make_tensor_table
from ..base.watching import note_stage, watch
from ..engines import Engine, select_engine
from ..format.packing import Groups
from ..spread.slab_layout import AnyLayout, SlabLayout
from ..spread.whole_layout import build_layout
from . import pieces
from .converters import find_converter
from .indexing import Index, find_kept, find_value, is_whole, order_kept, parse_index
from .pieces import Piece, map_pieces, read_nonzeros

if TYPE_CHECKING:
    import sparse

_USE_NONZEROS = "use x.to_coo() for the nonzeros"

#: What to use for products with a matrix.
USE_MODE_DOT = "tl.tenalg.mode_dot(x, matrix, mode) multiplies x by a matrix in a mode"

#: Functions whose results are small, but that sparse tensors do not have; and what to use.
FINDS_ELEMENTS = {"all", "any", "argmax", "argmin", "argsort", "sort"}
USE_EXTREMES = (
    "x.max() and x.min() count the zeros too, and tl.tensor(x).nonzeros() has what is stored"
)

#: Also for differences, which most often are residuals.
_USE_FIT = (
    f"{_USE_NONZEROS}, x - cp for the difference from a CPTensor, which is never formed, and "
    "tensorly_flycoo.cp_fit(x, cp) for the error of a CP model"
)

#: Replacements for attributes that arrays have.
_INSTEAD = {
    "coords": "x.nonzeros()[0]",
    "data": "x.nonzeros()[1]",
    "values": "x.nonzeros()[1]",
    "todense": "x.to_coo().todense()",
    "toarray": "x.to_coo().todense()",
    "size": "x.nnz, or math.prod(x.shape)",
    "std": "x.to_coo().std()",
    "var": "x.to_coo().var()",
}


class FlycooTensor:
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
    layout : {"auto", "remap", "replicated", "indexed"}
        "remap" keeps two copies of the nonzeros and remaps them from mode to mode while computing
        (the FLYCOO algorithm); "replicated" keeps one sorted copy for each mode; "indexed" keeps
        one copy and, for each mode but the first, an index into it: the least memory. "auto", the
        default, is "replicated" with ``keep="host"``, or with at most two modes or groups; else
        "remap" on a GPU, and on a CPU "replicated" where it takes no more memory than "remap"
        would, else "indexed".
    device : {"auto", "cpu", "cuda"}, optional
        By default the one set by `set_device`, initially "auto". With "auto", data on a GPU stay
        there; "cpu" and "cuda" copy data from elsewhere. A "cuda" tensor is on CuPy's current
        device, and its factors are CuPy arrays there.
    slabs : int, optional
        Cuts the longest mode into so many parts with about equally many nonzeros. Results depend
        on this number within rounding errors. Rows are not split, so there are never more slabs
        than rows. By default 1, or one for each 2**32 nonzeros; if memory runs out while the tensor
        is built, or would, 2 times as many, 4 times, and so on.
    keep : {"device", "host"}
        "host" is for tensors larger than a GPU: slabs that do not fit in half of its free memory
        stay in pinned host memory and visit it in turn. On a CPU both are the same.
    groups : {"auto"}, None or sequence of sequences of int
        Divides the modes into groups of neighbours, such as ``[(0, 1, 2), (3, 4)]``. The modes of a
        group share one pass over the nonzeros, which reads one row for each other group. Results
        are the same within rounding errors. "auto" merges modes with few combinations of indices:
        few possible ones, or, of the first modes, few that occur in a slab. It depends on `shape`
        and the numbers of these combinations, of nonzeros and of slabs, but not on the device. None
        merges none.

    Attributes
    ----------
    shape : tuple of int
    ndim, nnz, nbytes : int
    dtype : numpy.dtype
    density : float
    layout, device, keep : str, slabs : int
    groups : tuple of tuple of int

    Raises
    ------
    TypeError
        If coords, `slabs` or `groups` are not integers, values are complex, objects or of another
        unsupported type, or only one of the two is on a GPU.
    ValueError
        If a coordinate lies outside `shape`, lengths do not match, entries are masked, a value is
        not finite, an integer is too large for float64, `layout` or `device` is unknown, `slabs` is
        less than 1, `groups` do not divide the modes or have over 2**32 combinations of indices, or
        arrays are on a GPU other than the current one.
    ImportError, RuntimeError
        If `device` is "cuda" and cannot be used.
    MemoryError
        If memory runs out, or clearly would, even with 64 times as many slabs; the message says
        what was asked for, what is free and what takes less.

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
        groups: Sequence[Sequence[int]] | str | None = "auto",
    ) -> None:
        shape = check_shape(shape)
        coords = check_coords(coords, shape)
        values = check_values(values, coords.shape[1], dtype)
        check_place(values, "values", is_cupy(coords), "coords")
        layout = check_keep(keep, layout)
        slabs = None if slabs is None else check_count(slabs, "slabs")
        engine = select_engine(device, is_on_gpu=is_cupy(coords))
        with watch("FlycooTensor"):
            note_stage(f"building a tensor of {values.shape[0]:,} nonzeros")
            built = build_layout(engine, layout, coords, values, shape, groups, slabs, keep)
        self._set(engine, built)

    @classmethod
    def _of(cls, engine: Engine, layout: AnyLayout) -> Self:
        """Make a tensor of a layout that is there."""
        x = object.__new__(cls)
        x._set(engine, layout)
        return x

    def _set(self, engine: Engine, layout: AnyLayout) -> None:
        self._engine = engine
        self._layout = layout
        # The norm tells whether all values are finite; if not, look for the one that is not.
        if not math.isfinite(layout.norm):
            list(map_pieces(pieces.check_piece, layout, engine))

    @classmethod
    def from_coo(cls, coo: Any, **options: Any) -> Self:
        """Make a tensor from a `sparse.COO` (or GCXS, DOK) array with fill_value 0.

        Parameters
        ----------
        coo : sparse.SparseArray, dask.array.Array of these, or pyttb.sptensor
        **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

        Raises
        ------
        TypeError
            If `coo` is not such an array.
        ValueError
            If fill_value is not 0, or `FlycooTensor` refuses the nonzeros.

        Examples
        --------
        >>> import sparse
        >>> FlycooTensor.from_coo(sparse.eye(3))
        <FlycooTensor: shape=(3, 3), dtype=float64, nnz=3, layout='replicated', device='cpu'>
        """
        if hasattr(coo, "subs") and hasattr(coo, "vals"):
            coords = coo.subs.reshape(-1, len(coo.shape)).T
            return cls(coords.astype(np.int64), coo.vals.reshape(-1), coo.shape, **options)
        coo = read_into_memory(coo)
        if not hasattr(coo, "coords") and hasattr(coo, "asformat"):
            coo = coo.asformat("coo")
        if not (hasattr(coo, "coords") and hasattr(coo, "data") and hasattr(coo, "fill_value")):
            raise TypeError(f"coo is a {type(coo).__name__}, expected a sparse.COO")
        check_fill_value(coo.fill_value)
        return cls(coo.coords, coo.data, coo.shape, **options)

    @classmethod
    def from_scipy(cls, matrix: Any, **options: Any) -> Self:
        """Make a tensor from a sparse array or matrix of SciPy or CuPy.

        Parameters
        ----------
        matrix : sparray or spmatrix, of scipy.sparse or cupyx.scipy.sparse
            Of any number of modes, which a `scipy.sparse.coo_array` may have from SciPy 1.15 on.
            Those of CuPy 14.2 have one or two.
        **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

        Raises
        ------
        TypeError
            If `matrix` is not a sparse matrix.

        Examples
        --------
        >>> import scipy.sparse
        >>> FlycooTensor.from_scipy(scipy.sparse.eye_array(3)).nnz
        3
        """
        if not hasattr(matrix, "tocoo"):
            raise TypeError(
                f"matrix is a {type(matrix).__name__}, expected a SciPy sparse matrix; "
                "sparse.stack([sparse.COO(a), sparse.COO(b), ...]) makes a tensor of several"
            )
        coo = matrix.tocoo()
        coords = getattr(coo, "coords", None)
        if coords is None:  # of CuPy, and of old versions of SciPy
            coords = (coo.row, coo.col)
        return cls(np.stack(coords), coo.data, coo.shape, **options)

    @classmethod
    def from_torch(cls, tensor: Any, **options: Any) -> Self:
        """Make a tensor from a sparse PyTorch tensor: COO, or a matrix in CSR, CSC and so on.

        Parameters
        ----------
        tensor : torch.Tensor
            With a sparse layout, on a CPU or a GPU; autograd does not track the result.
        **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

        Raises
        ------
        TypeError
            If `tensor` is not sparse; `from_dense` takes dense ones.
        ValueError
            If some of its modes are dense.
        """
        layout = str(getattr(tensor, "layout", ""))
        if not layout.startswith("torch.sparse"):
            described = f"{type(tensor).__name__} {layout}".strip()
            raise TypeError(f"tensor is a {described}, expected a sparse torch.Tensor")
        coo = tensor.detach().to_sparse_coo().coalesce()
        if coo.dense_dim():
            raise ValueError(f"tensor has {coo.dense_dim()} dense modes, expected none")
        return cls(coo.indices(), coo.values(), coo.shape, **options)

    @classmethod
    def from_ust(cls, tensor: Any, **options: Any) -> Self:
        """Make a tensor from a Universal Sparse Tensor of nvmath-python, in its format COO.

        Parameters
        ----------
        tensor : nvmath.sparse.ust.Tensor
            On a CPU or a GPU, of any number of modes: a view of a COO tensor of PyTorch, SciPy or
            CuPy, or what its method `convert` makes.
        **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

        Raises
        ------
        TypeError
            If `tensor` is not such a tensor.
        ValueError
            If it has another format. The error names nvmath's conversion, which is slow: 55 us for
            each nonzero.
        """
        if not hasattr(tensor, "crd"):
            raise TypeError(
                f"tensor is a {type(tensor).__name__}, expected a nvmath.sparse.ust.Tensor"
            )
        ndim = tensor.num_dimensions
        name = tensor.tensor_format.name
        if re.fullmatch(r"COO\d*", name) is None:
            raise ValueError(
                f"tensor has the format {name}, expected COO: pass tensor.base, if that is of "
                "another library, or "
                f"tensor.convert(tensor_format=nvmath.sparse.ust.NamedFormats.COOd({ndim}))"
            )
        coords = [as_array(tensor.crd(mode)) for mode in range(ndim)]
        xp = array_module(coords[0])
        return cls(xp.stack(coords), tensor.val, tensor.shape, **options)

    @classmethod
    def from_dense(cls, array: Array, **options: Any) -> Self:
        """Make a tensor from the nonzeros of a dense array.

        Parameters
        ----------
        array : array_like
            From NumPy, CuPy, or another library that exports DLPack.
        **options : those of `FlycooTensor`, such as ``dtype``, ``layout`` and ``device``

        Raises
        ------
        TypeError
            If `array` is sparse, or its values are complex or of another unsupported type.
        ValueError
            If `array` has no modes or one of size 0, or a value is not finite.

        Examples
        --------
        >>> FlycooTensor.from_dense(np.eye(3))
        <FlycooTensor: shape=(3, 3), dtype=float64, nnz=3, layout='replicated', device='cpu'>
        """
        constructor = find_converter(array)
        if constructor is not None:
            raise TypeError(
                f"array is a {type(array).__name__}, expected a dense array: call {constructor} "
                "instead"
            )
        array = as_array(array)
        check_shape(array.shape)
        xp = array_module(array)
        places = xp.nonzero(array)
        return cls(xp.stack(places), array[places], array.shape, **options)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.record_format.shape

    @property
    def ndim(self) -> int:
        return self._layout.record_format.ndim

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
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return self._layout.groups

    @property
    def slabs(self) -> int:
        return self._layout.num_slabs

    @property
    def device(self) -> str:
        return self._engine.name

    @property
    def keep(self) -> str:
        if isinstance(self._layout, SlabLayout) and self._layout.num_streamed:
            return "host"
        return "device"

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def norm(self) -> Any:
        """Return the Frobenius norm, summed in float64, as a scalar of the tensor's dtype.

        Examples
        --------
        >>> FlycooTensor([[0, 1], [2, 0]], [3.0, 4.0], (3, 3)).norm()
        np.float64(5.0)
        """
        layout = self._layout
        return layout.record_format.dtype.type(layout.norm)

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
        """Return the arrays of `nonzeros` on the tensor's device."""
        primitives = self._engine
        record_format = self._layout.record_format
        with self._layout.hold_first_order(primitives) as (records, places):
            if places is not None:
                records = primitives.gather(records, places)
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
        return self._derive(lambda x: rebuild(x, read_nonzeros, dtype=dtype))

    def __repr__(self) -> str:
        text = f"<FlycooTensor: shape={self.shape}, dtype={self.dtype}, nnz={self.nnz}, "
        text += f"layout={self.layout!r}, device={self.device!r}"
        if self.slabs > 1:
            text += f", slabs={self.slabs}"
        if len(self.groups) < self.ndim:
            text += f", groups={self.groups}"
        return text + ">"

    def _repr_html_(self) -> str:
        return make_tensor_table(self, "FlycooTensor")

    def __reduce__(self) -> tuple[Callable, tuple]:
        # Through host memory; unpickling moves the tensor to the device chosen there.
        make = functools.partial(
            FlycooTensor, layout=self.layout, slabs=self.slabs, groups=self.groups
        )
        return make, (*self.nonzeros(), self.shape)

    def __copy__(self, memo: Any = None) -> FlycooTensor:
        return self  # it is immutable

    __deepcopy__ = __pos__ = __copy__

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
        selectors = tuple(parse_index(index, self.shape))
        if all(map(is_whole, selectors, self.shape)):
            return self
        kept = order_kept(selectors)
        if not kept:
            parts = map_pieces(find_value, self._layout, self._engine, self.shape, selectors)
            return sum(parts)  # only one piece has the cell
        shape = [len(selectors[mode]) for mode in kept]  # type: ignore[arg-type]  # no int is kept
        return self._derive(lambda x: rebuild(x, find_kept, x.shape, selectors, kept, shape=shape))

    def __iter__(self) -> Iterator[FlycooTensor | Array]:
        """Yield ``x[0]``, ``x[1]``, ...; the nonzeros are sorted once for all of them."""
        if self.ndim == 1:
            yield from (self[i] for i in range(len(self)))
            return
        coords, values = self._sorted_nonzeros()
        counts = self._engine.xp.bincount(coords[0], minlength=len(self))
        host_counts = move(counts, np)
        ends = np.cumsum(host_counts)
        for start, end in zip(ends - host_counts, ends, strict=True):
            yield self._rebuild(coords[1:, start:end], values[start:end], self.shape[1:])

    def _rebuild(
        self,
        coords: Array,
        values: Array,
        shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        groups: Groups | str | None = "auto",
    ) -> FlycooTensor:
        """Make a tensor of other nonzeros with its options and, by default, shape and groups."""
        if shape is None:
            shape = self.shape
            groups = self.groups
        return FlycooTensor(
            coords,
            values,
            shape,
            dtype=dtype,
            layout=self.layout,
            device=self.device,
            slabs=self.slabs,
            keep=self.keep,
            groups=groups,
        )

    def transpose(self, *axes: Any) -> FlycooTensor:
        """Reorder the modes; `tl.transpose` makes a lazy view instead.

        Parameters
        ----------
        *axes : int, or one sequence of int
            Mode n of the result is mode ``axes[n]`` of this one; by default reversed: ``x.T``.

        Returns
        -------
        FlycooTensor
            With this one's layout and device; this tensor itself if the order is unchanged. Costs
            as much as building it.

        Raises
        ------
        TypeError, ValueError
            If `axes` are not all modes, each once.

        Examples
        --------
        >>> x = FlycooTensor([[0, 1], [2, 0], [1, 1]], [2.0, 3.0], shape=(3, 4, 2))
        >>> x.T.shape, x.transpose(1, 0, 2).shape, x.transpose((-1, 0, 1)).shape
        ((2, 4, 3), (4, 3, 2), (2, 3, 4))
        """
        order = check_order(unpack_axes(axes), self.ndim)
        if order == list(range(self.ndim)):
            return self
        shape = [self.shape[mode] for mode in order]
        return self._derive(lambda x: rebuild(x, _permute, order, shape=shape))

    T = property(transpose)

    # Over all modes or some

    # `axis` decides what results: a number, a vector or a tensor.

    def sum(self, axis: int | Iterable[int] | None = None) -> Any:
        """Sum the elements over all or some modes.

        Parameters
        ----------
        axis : int or sequence of int, optional
            The modes to sum over; negative ones count from the last. By default all.

        Returns
        -------
        FlycooTensor, array (I,) or scalar
            A sparse tensor with this one's layout and device if two or more modes are left, a dense
            vector if one is, and a number if none is.

        Raises
        ------
        TypeError, ValueError
            If an axis is not an integer, out of range or repeated.

        Notes
        -----
        A number is summed in float64. The elements of a vector or tensor are summed in the dtype of
        the tensor in a fixed order, with an error of at most ``count * eps`` times the sum of
        absolute values: the result is the same in every run. Costs as much as building the result.

        Examples
        --------
        >>> x = FlycooTensor([[0, 1, 1], [2, 0, 0], [1, 1, 0]], [2.0, 3.0, 4.0], shape=(3, 3, 2))
        >>> x.sum(), x.sum(axis=(1, 2))
        (np.float64(9.0), array([2., 7., 0.]))
        >>> x.sum(axis=2).nonzeros()[1]
        array([2., 7.])
        """
        modes = check_axes(axis, self.ndim)
        if len(modes) == self.ndim:
            total_sum = pieces.sum_values(self._layout, self._engine)
            return self._engine.xp.asarray(total_sum, self.dtype)[()]
        kept = [mode for mode in range(self.ndim) if mode not in modes]
        shape = [self.shape[mode] for mode in kept]
        summed = self._derive(lambda x: rebuild(x, _keep_modes, kept, x._engine, shape=shape))
        return summed._flatten()

    def mean(self, axis: int | Iterable[int] | None = None) -> Any:
        """Average the elements, including zeros, over all or some modes.

        Parameters, results and errors are those of `FlycooTensor.sum`.

        Examples
        --------
        >>> FlycooTensor([[0, 1], [2, 0]], [2.0, 4.0], shape=(3, 4)).mean()
        np.float64(0.5)
        """
        modes = check_axes(axis, self.ndim)
        num_summed = math.prod(self.shape[mode] for mode in modes)
        return self.sum(modes) / float(num_summed)

    def max(self, axis: int | Iterable[int] | None = None) -> Any:
        """Find the largest element, zeros included.

        Raises
        ------
        ValueError
            If `axis` leaves a mode: ``x.to_coo().max(axis)`` has the largest over some modes.

        Examples
        --------
        >>> x = FlycooTensor([[0, 1, 1], [0, 0, 1]], [2.0, -3.0, -4.0], shape=(3, 2))
        >>> x.max(), x.min(), x[1:2].max()
        (np.float64(2.0), np.float64(-4.0), np.float64(-3.0))
        """
        return self._find_extreme(axis, "max")

    def min(self, axis: int | Iterable[int] | None = None) -> Any:
        """Find the smallest element, zeros included; see `FlycooTensor.max`."""
        return self._find_extreme(axis, "min")

    def _find_extreme(
        self, axis: int | Iterable[int] | None, name: str, num_zeros: int | None = None
    ) -> Any:
        """Find the "max" or "min" of the nonzeros and of so many zeros, by default all."""
        if len(check_axes(axis, self.ndim)) < self.ndim:
            instead = f"x.to_coo().{name}(axis) gives it over some"
            raise ValueError(f"axis is {axis!r}, expected all modes, or None: {instead}")
        if num_zeros is None:
            num_zeros = math.prod(self.shape) - self.nnz
        extremes = map_pieces(pieces.find_extreme, self._layout, self._engine, name)
        candidates = [float(extreme) for extreme in extremes if extreme.size]
        if num_zeros > 0:
            candidates.append(0.0)
        extreme = getattr(np, name)(candidates or [np.nan])
        return self._engine.xp.asarray(extreme, self.dtype)[()]

    def _flatten(self) -> FlycooTensor | Array:
        """Return a tensor of one mode as a dense vector; return another one as it is."""
        if self.ndim > 1:
            return self
        parts = map_pieces(_read_rows, self._layout, self._engine)
        return self._engine.xp.concatenate(list(parts))

    # Arithmetic that keeps zeros zero. Everything else would make a dense array.

    def map(self, function: Callable[[Array], Array], name: str | None = None) -> FlycooTensor:
        """Apply an elementwise function that keeps zero to all elements.

        NumPy's own functions do this too: ``numpy.log1p(x)`` is ``x.map(numpy.log1p)``.

        Parameters
        ----------
        function : callable
            Takes the values of some nonzeros, an array (count,) in any order, NumPy's or CuPy's,
            and returns as many real numbers. ``function(0)`` must be 0, which is checked.
        name : str, optional
            The function's name in error messages.

        Returns
        -------
        FlycooTensor
            With this one's layout, device and dtype. Elements that have become zero are not stored;
            else nothing is sorted.

        Raises
        ------
        DensifyError
            If ``function(0)`` is not 0.
        TypeError
            If the function returns anything but an array (count,) of real numbers.
        ValueError
            If a result is not finite.

        Examples
        --------
        >>> x = FlycooTensor([[0, 1], [2, 0]], [3.0, 8.0], shape=(3, 3))
        >>> x.map(lambda values: np.minimum(values, 5)).nonzeros()[1], np.sqrt(x * 3).max()
        (array([3., 5.]), np.float64(4.898979485566356))
        """
        if name is None:
            name = str(getattr(function, "__name__", function))

        def apply(values: Array) -> Array:
            with np.errstate(all="ignore"):  # what is not finite is an error below
                mapped = function(values)
                _check_mapped(mapped, values, name)
                return mapped.astype(values.dtype, copy=False)

        zero = apply(self._engine.xp.zeros(1, self.dtype))[0]
        if zero != 0:
            instead = (
                f"{name}(0) is {zero}, not 0; for the stored nonzeros alone, x.map(lambda values: "
                "numpy.where(values, function(values), 0))"
            )
            raise densify_error(name, self.shape, instead)
        return self._map_values(apply)

    def _map_values(self, function: Callable[[Array], Array], scale: float = 0.0) -> FlycooTensor:
        """Apply a function to the values (count,) of nonzeros, and drop the zeros that it gives.

        If it is known to, it multiplies the norm by `scale`.
        """

        def apply(x: FlycooTensor) -> FlycooTensor:
            layout = x._layout.map_values(function, scale)
            if not scale:
                norms = map_pieces(pieces.find_norm, layout, x._engine, x._engine)
                layout.norm = math.hypot(*map(float, norms))
            mapped = FlycooTensor._of(x._engine, layout)
            if any(map_pieces(pieces.has_zeros, layout, x._engine)):
                return rebuild(mapped, read_nonzeros)
            return mapped

        return self._derive(apply)

    #: Above CuPy's, so that its scalars defer ``scalar * x``; NumPy's call `__array_ufunc__`.
    __array_priority__ = 1000

    #: Whether the caller has it on the host, where its results go: see `tensor/entrance.py`.
    _is_callers = False

    def _derive(self, function: Callable[[FlycooTensor], FlycooTensor]) -> FlycooTensor:
        """Return ``function(self)``; a tensor that can be lost remembers how it was made."""
        derived = function(self)
        derived._is_callers = self._is_callers
        return derived

    def _scale(self, operation: Callable[[Any, Any], Any], scalar: object) -> FlycooTensor:
        """Multiply or divide by a number; `operation` is that of Python's `operator`."""
        number = _as_real(scalar)
        if number is None:
            return NotImplemented
        if operation is operator.truediv and number == 0:
            raise ZeroDivisionError("FlycooTensor / 0 would make every stored value infinite")
        factor = self.dtype.type(number)
        scale = abs(operation(1.0, float(number)))
        return self._map_values(lambda values: operation(values, factor), scale)

    def __mul__(self, other: Any) -> FlycooTensor:
        if isinstance(other, FlycooTensor) or hasattr(other, "fill_value"):
            raise TypeError(
                "FlycooTensor * FlycooTensor is not provided: x.to_coo() * y.to_coo() is the "
                "elementwise product, tl.tenalg.inner(x, y) its sum, and x**2 the square"
            )
        return self._scale(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> FlycooTensor:
        if isinstance(other, FlycooTensor):
            instead = "0 / 0 is nan: divide the values of x.nonzeros() instead"
            raise densify_error("FlycooTensor / FlycooTensor", self.shape, instead)
        return self._scale(operator.truediv, other)

    def __pow__(self, exponent: Any) -> FlycooTensor:
        number = _as_real(exponent)
        if number is None:
            return NotImplemented
        if not number > 0:
            instead = "only positive exponents keep zeros zero"
            raise densify_error(f"FlycooTensor ** {number}", self.shape, instead)
        power = self.dtype.type(number)
        return self._map_values(lambda values: values**power)

    def __neg__(self) -> FlycooTensor:
        return self._map_values(operator.neg, 1.0)

    def __abs__(self) -> FlycooTensor:
        return self._map_values(np.abs, 1.0)

    def __add__(self, other: Any) -> FlycooTensor:
        return self._add(other, sign=1, operation="FlycooTensor + array")

    def __radd__(self, other: Any) -> FlycooTensor:
        return self._add(other, sign=1, operation="array + FlycooTensor")

    #: Makes a `ResidualTensor` of the tensor and a CP model; `ops/residual.py` sets it.
    _subtract_model: ClassVar[Callable[..., Any]]

    def __sub__(self, other: Any) -> Any:
        if hasattr(other, "factors"):
            return self._subtract_model(other)
        return self._add(other, sign=-1, operation="FlycooTensor - array")

    def _add(self, other: Any, sign: int, operation: str) -> FlycooTensor:
        """Compute ``self + sign * other``; errors name the `operation`."""
        if hasattr(other, "labels"):  # a LabelledTensor
            return other._label(self._add(other.tensor, sign, operation))
        number = _as_real(other)
        if number == 0:  # as in Python's `sum`
            return self
        if number is not None:
            instead = (
                f"zeros would become {sign * number}; numpy.log1p(x) is log(x + 1), and "
                "x.map(function) changes the stored values alone"
            )
            name = operation.replace("array", f"{number}")
            raise densify_error(name, self.shape, instead)
        other = self._take_coo(other)
        if not isinstance(other, FlycooTensor):
            raise densify_error(operation, self.shape, _USE_FIT)
        self._check_addend(other, operation)
        xp = self._engine.xp
        coords1, values1 = self._sorted_nonzeros()
        coords2, values2 = other._sorted_nonzeros()
        coords = xp.concatenate([coords1, coords2], axis=1)
        values = xp.concatenate([values1, sign * values2])
        # Building the tensor sums the values of cells that both have.
        return self._rebuild(coords, values)

    def _check_addend(self, other: FlycooTensor, operation: str) -> None:
        """Refuse a tensor of another shape or on another device."""
        if other.shape != self.shape:
            try:
                shape = np.broadcast_shapes(self.shape, other.shape)
            except ValueError:
                differ = f"shapes {self.shape} and {other.shape} differ"
                raise ValueError(f"{operation}: {differ}") from None
            raise densify_error(f"{operation}, broadcast,", shape, "give both one shape")
        if other.device != self.device:
            raise TypeError(f"{operation}: devices {self.device!r} and {other.device!r} differ")

    def _take_coo(self, other: Any) -> Any:
        """Return a sparse.COO as a tensor on the same device, and anything else as it is."""
        if hasattr(other, "fill_value") and hasattr(other, "coords"):
            return FlycooTensor.from_coo(other, device=self._engine.local_device)
        return other

    def _refuse(self, operation: str, instead: str, *_: Any, **__: Any) -> NoReturn:
        raise densify_error(operation, self.shape, instead)

    __rsub__ = functools.partialmethod(_refuse, "array - FlycooTensor", _USE_FIT)
    __rtruediv__ = functools.partialmethod(_refuse, "number / FlycooTensor", _USE_NONZEROS)
    __rpow__ = functools.partialmethod(_refuse, "number ** FlycooTensor", _USE_NONZEROS)
    __array__ = functools.partialmethod(_refuse, "numpy.asarray", _USE_NONZEROS)

    # Comparisons with numbers are elementwise, as NumPy's functions are; tensors are not compared.

    def _operate(self, ufunc: np.ufunc, other: Any) -> Any:
        if not isinstance(other, Real):
            return NotImplemented
        return ufunc(self, other)

    __lt__ = functools.partialmethod(_operate, np.less)
    __le__ = functools.partialmethod(_operate, np.less_equal)
    __gt__ = functools.partialmethod(_operate, np.greater)
    __ge__ = functools.partialmethod(_operate, np.greater_equal)
    __eq__ = functools.partialmethod(_operate, np.equal)
    __ne__ = functools.partialmethod(_operate, np.not_equal)
    __floordiv__ = functools.partialmethod(_operate, np.floor_divide)
    __mod__ = functools.partialmethod(_operate, np.remainder)
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise ValueError("the truth value of a FlycooTensor is ambiguous: use x.nnz, x.max() ...")

    if not TYPE_CHECKING:  # or unknown attributes would have a type

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _INSTEAD:
                message += f"; use {_INSTEAD[name]}"
            raise AttributeError(message, name=name, obj=self)

    def reshape(self, *shape: Any) -> NoReturn:
        """Refuse NumPy's method: `tl.reshape` makes a lazy view, which is no tensor."""
        raise densify_error("FlycooTensor.reshape", self.shape, "use tl.reshape for a lazy view")

    def __array_ufunc__(self, *arguments: Any, **kwargs: Any) -> FlycooTensor:
        if any(hasattr(argument, "labels") for argument in arguments):
            return NotImplemented  # a LabelledTensor comes next
        return self._apply_ufunc(*arguments, **kwargs)

    # Tests check that the backend calls this by itself, not through NumPy.
    def _apply_ufunc(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> FlycooTensor:
        """Apply a ufunc to one tensor and numbers, or add or subtract two tensors."""
        operands = [self._take_operand(operand) for operand in inputs]
        are_tensors_or_numbers = all(isinstance(x, type(self) | Real) for x in operands)
        name = f"numpy.{ufunc.__name__}"
        if method != "__call__" or kwargs or not are_tensors_or_numbers:
            instead = _USE_NONZEROS
            if ufunc is np.subtract:
                instead = _USE_FIT
            raise densify_error(name, self.shape, instead)
        if ufunc in _OPERATORS:
            return _OPERATORS[ufunc](*operands)
        # The place of the tensor is None, for its values. Without `self`, as the function may go to
        # other processes.
        numbers = [None if isinstance(x, type(self)) else x for x in operands]
        if numbers.count(None) != 1 or ufunc.nout != 1:
            raise densify_error(name, self.shape, _USE_NONZEROS)

        def function(values: Array) -> Array:
            return ufunc(*(values if number is None else number for number in numbers))

        return self.map(function, name)

    def _take_operand(self, operand: Any) -> Any:
        """Return a COO as a tensor, and a NumPy scalar as Python's number, as operators take them.

        With NumPy's they would call NumPy again.
        """
        if getattr(operand, "ndim", None) != 0:
            return self._take_coo(operand)
        number = operand.item()
        if isinstance(number, np.longdouble):  # its item is NumPy's too
            return float(number)
        return number

    def __array_function__(self, function: Callable, types: Any, args: tuple, kwargs: dict) -> Any:
        """Call our twin of a function of NumPy that is no ufunc."""
        ours = _FUNCTIONS.get(function)
        if not args and "a" in kwargs:
            args = (kwargs.pop("a"),)
        # The tensors that are joined come in a list, of which only some may be ours.
        is_first = function is np.concatenate or (args and isinstance(args[0], type(self)))
        if ours is None or not args or not is_first:
            name = f"{function.__module__}.{function.__name__}"
            if function.__name__ in FINDS_ELEMENTS:
                raise DensifyError(f"{name} takes no sparse tensor; {USE_EXTREMES}")
            instead = "x.map(function) does if it keeps zeros, and x.to_coo() gives the nonzeros"
            if function in (np.einsum, np.tensordot, np.dot, np.matmul):
                instead = USE_MODE_DOT
            raise densify_error(name, self.shape, instead)
        for option in kwargs:
            if option not in signature(ours).parameters:
                name = f"numpy.{function.__name__}"
                raise TypeError(f"{name} of a FlycooTensor has no option {option!r}")
        return ours(*args, **kwargs)


def _check_mapped(mapped: Any, values: Array, name: str) -> None:
    """Raise a TypeError if the result of a function `name` is no real array like `values`."""
    dtype = getattr(mapped, "dtype", None)
    if dtype is None:
        kind = type(mapped).__name__
    elif dtype.kind in "biuf" and mapped.shape == values.shape:
        return
    else:
        kind = f"{dtype} array of {getattr(mapped, 'shape', None)}"
    raise TypeError(
        f"{name} returned a {kind}, expected an array of real numbers of {values.shape}: it must "
        "be elementwise"
    )


def check_axes(axis: int | Iterable[int] | None, ndim: int) -> list[int]:
    """Return `axis`, one integer, several or None for all, as a list of different modes."""
    if axis is None:
        return list(range(ndim))
    listed = axis if isinstance(axis, Iterable) else [axis]
    try:
        axes = [operator.index(n) for n in listed]
    except TypeError:
        raise TypeError(f"axis is {axis!r}, expected integers") from None
    for n in axes:
        if not -ndim <= n < ndim:
            raise ValueError(f"axis {n} is out of bounds for array of dimension {ndim}")
    modes = [n % ndim for n in axes]
    if len(set(modes)) < len(modes):
        raise ValueError(f"axis is {axis!r}, expected each mode once")
    return modes


def unpack_axes(axes: tuple) -> Any:
    """Return the axes of ``x.transpose(*axes)``: several, or one sequence of them; None without."""
    if len(axes) == 1:
        return axes[0]
    return axes or None


def check_order(axes: int | Sequence[int] | None, ndim: int) -> list[int]:
    """Return `axes`, by default reversed, as a list of all modes from 0 to ndim - 1."""
    if axes is None:
        return list(reversed(range(ndim)))
    order = check_axes(axes, ndim)
    if len(order) != ndim:
        raise ValueError(f"axes is {tuple(order)}, expected each of the {ndim} axes once")
    return order


def check_has_nonzeros(x: FlycooTensor) -> None:
    """Refuse a tensor without nonzeros."""
    if x.nnz == 0:
        raise ValueError(f"tensor of shape {x.shape} has no nonzeros, expected at least one")


def total(values: Array) -> Any:
    """Sum values in float64; return a scalar of their dtype."""
    return values.sum(dtype=np.float64).astype(values.dtype)


def group_cells(
    coords: Array, values: Array, shape: Sequence[int], engine: Engine
) -> tuple[Array, Array, Array]:
    """Sort entries by their coordinates (ndim, count) in `shape`; group those with the same ones.

    Return the coordinates of each group, the values (count,) sorted by group, in the given order
    within each, and where each group starts. All are on the device of `engine`.
    """
    xp = engine.xp
    record_format = engine.choose_cut(shape, values.dtype).record_format
    records, *_ = engine.pack(coords, values, record_format)
    last_to_first = reversed(range(len(shape)))  # the mode that is sorted last counts most
    places = engine.sort_places(records, record_format, last_to_first)
    records = engine.gather(records, places)
    is_first = xp.ones(values.shape[0], bool)
    is_first[1:] = ~engine.find_duplicates(records, record_format)
    starts = xp.flatnonzero(is_first)
    group_coords = record_format.coords(records[starts], xp)
    sorted_values = record_format.values(records).copy()
    return group_coords, sorted_values, starts


def _as_real(scalar: Any) -> Any:
    """Return `scalar`, or the item of a 0-dimensional CuPy array, if it is real; else None."""
    if is_cupy(scalar) and scalar.ndim == 0:
        scalar = scalar.item()
    if not isinstance(scalar, Real):
        return None
    return scalar


def rebuild(
    x: FlycooTensor,
    find: Callable[..., tuple[Array, Array]],
    *args: Any,
    shape: Sequence[int] | None = None,
    dtype: np.dtype | None = None,
    groups: Groups | str | None = "auto",
) -> FlycooTensor:
    """Make a tensor of the coords (ndim, n) and values (n,) that ``find(piece, *args)`` returns.

    It is called where each piece of `x` is: maybe in another process. Values at repeated
    coordinates are added in the sequence in which they are returned, piece by piece. The tensor has
    the options of `x` and, by default, its shape and dtype.
    """
    layout = x._layout
    parts = pieces.run(find, layout, x._engine, *args)
    if isinstance(layout, SlabLayout):
        if layout.build_elsewhere is not None:
            if shape is None:
                shape = x.shape
                groups = x.groups
            built = layout.build_elsewhere(parts, x.layout, shape, dtype or x.dtype, groups)
            return FlycooTensor._of(x._engine, built)
        # To the first device.
        parts = ([layout.devices.bring(array, 0) for array in part] for part in parts)
    coord_parts, value_parts = zip(*parts, strict=True)
    coords = _join(coord_parts, x._engine)
    values = _join(value_parts, x._engine)
    return x._rebuild(coords, values, shape, dtype, groups)


def _join(parts: Sequence[Array], engine: Engine) -> Array:
    """Concatenate the nonzeros of several pieces; those of one are not copied."""
    if len(parts) == 1:
        return parts[0]
    return engine.xp.concatenate(parts, axis=-1)


def _permute(piece: Piece, order: Sequence[int]) -> tuple[Array, Array]:
    """Return the nonzeros of a piece with its modes reordered."""
    coords, values = read_nonzeros(piece)
    return coords[order], values


def _keep_modes(piece: Piece, kept: Sequence[int], engine: Engine) -> tuple[Array, Array]:
    """Return the other coordinates and the values, in the order of modes 0, 1, ..., ndim - 1."""
    records = piece.sort_records(engine)
    return piece.read_coords(records)[kept], piece.read_values(records).copy()


def _read_rows(piece: Piece) -> Array:
    """Return a piece of a tensor of one mode as a dense vector."""
    record_format = piece.layout.record_format
    vector = piece.xp.zeros(record_format.shape, record_format.dtype)
    with piece.hold_records() as records:
        rows = record_format.rows(records, 0, piece.xp)  # of the piece, not of the tensor
        vector[rows] = piece.read_values(records)
    return vector


def _clip(  # `min` and `max` are NumPy's newer names
    x: FlycooTensor, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> FlycooTensor:
    if a_min is None:
        a_min = min
    if a_max is None:
        a_max = max
    return x.map(lambda values: np.clip(values, a_min, a_max), "numpy.clip")


def _transpose(x: FlycooTensor, axes: Sequence[int] | None = None) -> FlycooTensor:
    return x.transpose(axes)


def _round(x: FlycooTensor, decimals: int = 0) -> FlycooTensor:
    return x.map(lambda values: np.round(values, decimals), "numpy.round")


def _concatenate(tensors: Sequence[Any], axis: int = 0) -> FlycooTensor:
    """Join tensors along a mode; at least one is a FlycooTensor, maybe others are sparse.COO."""
    first = next(x for x in tensors if isinstance(x, FlycooTensor))
    (mode,) = check_axes(axis, first.ndim)
    joined = [first._take_coo(x) for x in tensors]
    for n, x in enumerate(joined):
        _check_joinable(n, x, first, mode)
    size = 0  # of the mode, of the tensors before
    coord_parts = []
    value_parts = []
    for x in joined:
        coords, values = x._sorted_nonzeros()
        coords[mode] += size
        coord_parts.append(coords)
        value_parts.append(values)
        size += x.shape[mode]
    coords = _join(coord_parts, first._engine)
    values = _join(value_parts, first._engine)
    shape = list(first.shape)
    shape[mode] = size
    return first._rebuild(coords, values, shape)


def _check_joinable(n: int, x: Any, first: FlycooTensor, mode: int) -> None:
    """Refuse tensor n of those to join along a mode, if it does not fit the first one."""
    if not isinstance(x, FlycooTensor):
        raise densify_error("numpy.concatenate", np.shape(x), "make all of them sparse")
    has_same_sizes_before = x.shape[:mode] == first.shape[:mode]
    has_same_sizes_after = x.shape[mode + 1 :] == first.shape[mode + 1 :]
    if not (has_same_sizes_before and has_same_sizes_after):
        expected = f"expected {first.shape}, but for the size of mode {mode}"
        raise ValueError(f"numpy.concatenate: tensor {n} has shape {x.shape}, {expected}")
    if x.device != first.device:
        raise TypeError(f"numpy.concatenate: devices {first.device!r} and {x.device!r} differ")


_OPERATORS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.power: operator.pow,
    np.square: lambda x: x**2,
    np.negative: operator.neg,
    np.positive: operator.pos,
    np.absolute: operator.abs,
}

_FUNCTIONS: dict[Callable, Callable[..., Any]] = {
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.linalg.norm: lambda x: x.norm(),
    np.sum: FlycooTensor.sum,
    np.mean: FlycooTensor.mean,
    np.max: FlycooTensor.max,
    np.amax: FlycooTensor.max,
    np.min: FlycooTensor.min,
    np.amin: FlycooTensor.min,
    np.transpose: _transpose,
    np.clip: _clip,
    np.concatenate: _concatenate,
    np.round: _round,
    np.around: _round,
}
