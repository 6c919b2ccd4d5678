"""The interface of an engine, which computes everything on one kind of device."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from ..array_modules import Array, move
from ..format.layout import Cut, Layout, Step
from ..format.layouts import LAYOUT_CLASSES
from ..format.primitives import Primitives

_logger = logging.getLogger("tensorly_flycoo")

#: Numbers that are drawn before they are rounded to float32: as many as the nearest cache holds.
_DRAW_BLOCK = 2**12


#: A float32 matrix (R, R), or one row or column that repeats; and its strides, in numbers, from row
#: to row and from column to column: 0 where it repeats.
Scale: TypeAlias = tuple[Array, int, int]


class Blocks(Protocol):
    """Sums over blocks of rows, float64 (n, ...), on the engine's device."""

    def to_array(self) -> Array:
        """Return them as an array, whose first axis is to be summed over."""


class TallKernels(Protocol):
    """Products of tall matrices (I_n, R) that an engine computes faster than its array module."""

    #: The most Gram matrices, and other matrices, of a product.
    MAX_GRAMS: int
    MAX_SCALES: int

    def suits_tensor_cores(self, x: Array) -> bool:
        """Return whether the kernels other than `inner_blocks` suit `x` and its device."""

    def suits_rank(self, rank: int, dtype: np.dtype) -> bool:
        """Return whether they suit a rank, and the current device."""

    def gram_blocks(self, x: Array) -> Any:
        """Compute ``x.T @ x`` of some blocks of rows, `Blocks` (n, R, R)."""

    def solve_rows(self, x: Array, inverse: Any) -> tuple[Array, Any, Any]:
        """Compute ``y = x @ inverse`` with rows aligned for MTTKRP.

        Return it, ``y.T @ y`` as from `gram_blocks`, and the inner product of `x` and `y` as from
        `inner_blocks`.
        """

    def invert(self, matrix: Array) -> Any:
        """Return the inverse of a small matrix, `Blocks` (1, R, R).

        If the matrix is singular to rounding, return its pseudo-inverse.
        """

    def invert_product(self, grams: Sequence[Any], scales: Sequence[Scale], rank: int) -> Any:
        """Invert an elementwise product of Gram matrices, as `Blocks`, and of small matrices."""

    def compute_fit(
        self,
        grams: Sequence[Any],
        scales: Sequence[Scale],
        rank: int,
        inner: Any,
        norm_square: float,
    ) -> float:
        """Compute the norm of a residual from the product of all Gram matrices."""

    def inner_blocks(self, a: Array, b: Array) -> Any:
        """Compute the inner product of some blocks of rows, `Blocks` (n,)."""

    def multiply_blocks(self, a: Array, b: Array, num_blocks: int) -> Array:
        """Compute ``a.T @ b`` of each block of rows, (num_blocks, a's columns, b's columns)."""

    def add_product(self, out: Array, a: Array, b: Array, factor: float = 1) -> None:
        """Add ``factor * a @ b`` to `out`, in place."""

    def find_extremes(self, x: Array) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and the smallest element of each column, on the host."""

    def choose_row_nbytes(self, row_nbytes: int) -> int:
        """Choose the row pitch in bytes that MTTKRP reads fastest."""


class Engine(Primitives, ABC):
    """Everything that is computed on one kind of device; each engine has one instance.

    An engine is also the `Primitives` that build layouts. Callers check the arguments.

    Attributes
    ----------
    name : str
        What users call the device: "cpu" or "cuda".
    array_type : type
        The type of the engine's arrays.
    tall : TallKernels or None
        None if the functions of `xp` are as fast.
    """

    name: ClassVar[str]
    array_type: type
    tall: TallKernels | None = None

    # Building

    @abstractmethod
    def choose_cut(self, shape: Sequence[int], dtype: np.dtype) -> Cut:
        """Choose the record format, and the sizes of a tile and of a bucket."""

    @abstractmethod
    def receive(self, coords: Array, values: Array) -> tuple[Array, Array]:
        """Return nonzeros as `pack` takes them; refuse those on another GPU."""

    def build_layout(self, name: str, coords: Array, values: Array, shape: Sequence[int]) -> Layout:
        """Build the layout `name` from coords (ndim, nnz) and values (nnz,) on any device."""
        coords, values = self.receive(coords, values)
        cut = self.choose_cut(shape, values.dtype)
        sizes = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
        self.log("build", name, shape=tuple(shape), nnz=values.size, **sizes)
        return LAYOUT_CLASSES[name].build(coords, values, cut, self)

    def estimate_layout(
        self, name: str, nnz: int, shape: Sequence[int], dtype: np.dtype
    ) -> tuple[int, int]:
        """Return the bytes of a layout, and the most bytes in use while it is built."""
        return LAYOUT_CLASSES[name].estimate(nnz, self.choose_cut(shape, dtype), self)

    @abstractmethod
    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Raise if the engine cannot read one of the arrays, given by name, where it is."""

    @abstractmethod
    def count_free_nbytes(self) -> int | None:
        """Count the bytes that could still be allocated; None if that is unknown."""

    def log(self, function: str, layout: str, **details: object) -> None:
        """Log the details of a call at level DEBUG."""
        if _logger.isEnabledFor(logging.DEBUG):
            used = {"engine": self.name, "layout": layout, **details}
            text = ", ".join(f"{name}={value!r}" for name, value in used.items())
            _logger.debug("%s: %s", function, text)

    # Computing

    def mttkrp(
        self,
        layout: Layout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        weights: Array | None = None,
    ) -> None:
        """Write the MTTKRP of `mode` to `out`, its columns times the weights.

        A `RemapLayout` that is resident in another mode is first remapped to `mode` without
        computing; afterwards the next mode is resident. If memory runs out, the layout does not
        change.
        """
        workspace = self.allocate_workspace(layout, factors, mode, out)

        def compute(step: Step) -> None:
            self.compute_mode(layout, step, workspace, mode, out, weights)

        layout.take_step(mode, compute, self)

    @abstractmethod
    def allocate_workspace(
        self,
        layout: Layout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        has_own: bool = False,
    ) -> Any:
        """Allocate what `compute_mode` needs, before anything is moved or written.

        If the factor of `mode` is read too (`has_own`), what `compute_ratios` needs.
        """

    @abstractmethod
    def compute_mode(
        self,
        layout: Layout,
        step: Step,
        workspace: Any,
        mode: int,
        out: Array,
        weights: Array | None = None,
    ) -> None:
        """Compute the MTTKRP of `mode` from a step's records; remap them if it has a `spare`."""

    def mttkrp_of_ratios(
        self,
        layout: Layout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        smallest: float,
        *,
        wants_logs: bool = False,
        stays: bool = False,
    ) -> Array | None:
        """Write to `out` the MTTKRP of the nonzeros divided by the values of the model there.

        Parameters
        ----------
        factors : sequence of array (I_n, R)
            The CP model. That of `mode` is read too.
        out : array (I_mode, R)
            None of the factors.
        smallest : float
            The model's values divide as this one where they are smaller.
        wants_logs : bool
            Whether to add up ``value * log(model)`` over the nonzeros.
        stays : bool
            Whether a `RemapLayout` stays in `mode`; otherwise it moves as in `mttkrp`.

        Returns
        -------
        float64 array () or None
            That sum, on the engine's device. It is -inf if the model is zero at a nonzero, nan if
            it is negative.
        """
        workspace = self.allocate_workspace(layout, factors, mode, out, has_own=True)
        sums: list[Array | None] = []

        def compute(step: Step) -> None:
            options = (smallest, wants_logs)
            sums.append(self.compute_ratios(layout, step, workspace, mode, out, *options))

        if stays:
            with layout.hold_mode(mode, self) as step:
                compute(step)
        else:
            layout.take_step(mode, compute, self)
        return sums[0]

    @abstractmethod
    def compute_ratios(
        self,
        layout: Layout,
        step: Step,
        workspace: Any,
        mode: int,
        out: Array,
        smallest: float,
        wants_logs: bool,
    ) -> Array | None:
        """Do what `mttkrp_of_ratios` does from a step's records; remap them if it has `spare`."""

    def scale_rows(self, product: Array, factor: Array, scales: Array) -> Array:
        """Multiply `product` (I, R) by `factor` and `scales`, in place; return its column sums.

        The scales are (1, R) or (I, R), the sums float64 (R,).
        """
        product *= factor
        product *= scales
        return product.sum(axis=0, dtype=np.float64)

    @abstractmethod
    def count_workspace_nbytes(self, layout: Layout, factors: Sequence[Array], mode: int) -> int:
        """Count the bytes that `mttkrp` allocates while it runs."""

    @abstractmethod
    def ttmc(
        self,
        layout: Layout,
        mode: int,
        inputs: Mapping[int, Array],
        out: Array,
        slots: Array | None = None,
    ) -> None:
        """Write the TTMc of `mode` to `out`.

        Parameters
        ----------
        layout : Layout
            A `RemapLayout` is remapped to `mode` if another one is resident, and stays there.
        mode : int
        inputs : dict of int to array (I_n, K_n)
            The factor of each other mode. The columns of `out` are those of their Kronecker
            product: the last factor's columns vary fastest.
        out : array (num_slots, prod K_n)
            C-contiguous. Rows of indices without a nonzero are not written.
        slots : unsigned integer array (I_mode,), optional
            The row of `out` for each index that has nonzeros; by default the index itself.
        """

    @abstractmethod
    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        """Compute the Gram matrix (size, size) of a matrix's rows from its columns.

        Parameters
        ----------
        coords : int64 array (2, n)
            The column and the row of each entry, column by column with ascending rows.
        values : float64 array (n,)
        diagonal : float64 array (size,)
            Added to that of the Gram matrix.

        Returns
        -------
        float64 array (size, size)
            On the host, elements above the diagonal are arbitrary.
        """

    def gram_nbytes(self, size: int, num_columns: int) -> int:
        """Count the bytes that `gram` allocates, its result included."""
        return 8 * size**2

    def draw_uniform(self, random: Any, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Draw from [0, 1), the same numbers as ``random.random_sample(shape).astype(dtype)``.

        Parameters
        ----------
        random : numpy.random.RandomState, or a generator of CuPy
            The latter draws numbers of `dtype` on its GPU.
        shape : tuple of int
        dtype : numpy.dtype
            float32 or float64.
        """
        if isinstance(random, np.random.RandomState):
            return move(_draw_on_host(random, shape, dtype), self.xp)
        return move(random.random_sample(shape, dtype=dtype), self.xp)

    def is_gram_cheap(self, size: int, num_groups: int) -> bool:
        """Say whether `gram` costs less than multiplying by the matrix in an iteration would."""
        return True

    def invert_products(self, grams: Sequence[Array], dtype: np.dtype) -> Array | None:
        """Invert elementwise products of stacks (n, R, R) of the Gram matrices of factors.

        Parameters
        ----------
        grams : sequence of float64 array (n, R, R)
        dtype : numpy.dtype
            Of the factors. Products that are singular to its rounding are pseudo-inverted.

        Returns
        -------
        float64 array (n, R, R), or None
            None if the functions of `xp` do as well, or the engine has none for these sizes.
        """
        return None

    @abstractmethod
    def sweep_nonnegative(
        self, targets: Array, gram: Array, rows: Array, shift: float, ridge: float, smallest: float
    ) -> tuple[float, int]:
        """Update each column of `rows` (I, R) once, in place, by hierarchical ALS.

        Arrays are C-contiguous and of one dtype. Return the sum of squares that TensorLy compares
        with its tolerance (of the distances of all columns from each new one), and the number of
        elements that changed.
        """


def _draw_on_host(
    random: np.random.RandomState, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    if dtype == np.float64:
        return random.random_sample(shape)
    numbers = np.empty(shape, dtype)
    flat = numbers.reshape(-1)
    for start in range(0, flat.size, _DRAW_BLOCK):
        block = flat[start : start + _DRAW_BLOCK]
        block[:] = random.random_sample(block.size)
    return numbers
