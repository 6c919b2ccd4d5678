"""The interface of an engine, which computes everything on one kind of device."""

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, invert_positive, move
from ..base.devices import Devices, OneDevice
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.packed_records import PackedRecords
from ..format.packing import RecordOrder
from ..format.primitives import Primitives
from ..format.tree import Tree, add_parts
from .entries import PieceEntries
from .narrow_rows import NarrowRows
from .row_rules import ReadMeasures, RowRule

_logger = logging.getLogger("tensorly_flycoo")

#: Matrices (I_n, K_n) by their modes.
Factors: TypeAlias = Mapping[int, Array]

#: The factors of a group of modes; None for a mode that is left out.
Group: TypeAlias = Sequence[Array | None]

#: Numbers that are drawn before they are rounded to float32: as many as the nearest cache holds.
_DRAW_BLOCK = 2**12


class Engine(Primitives, ABC):
    """Everything that is computed on one kind of device; each engine has one instance.

    An engine is also the `Primitives` that build layouts. Callers check the arguments.
    """

    name: ClassVar[str]  # what users call the device: "cpu" or "cuda"
    array_type: type
    tall: ModuleType | None = None  # as `cuda.tall`; None if the functions of `xp` are as fast
    # Makes what copies host records to the current device, a `CudaStager`; None on the CPU.
    make_stager: Callable[[], Any] | None = None
    # Packs sorted records, unless little were gained; None on the CPU, where unpacking them takes
    # longer than what it saves.
    pack_records: Callable[[Array, RecordOrder], PackedRecords | None] | None = None
    entries: type[PieceEntries] = PieceEntries
    devices: Devices | None = None  # that new tensors are spread over; None for the current one
    most_row_blocks: int = 1  # of the `RowBlocks` that an operation on nonzeros writes to

    # Building

    @abstractmethod
    def receive(self, coords: Array, values: Array) -> tuple[Array, Array]:
        """Return nonzeros as `pack` takes them; refuse those on another GPU."""

    @property
    def local_device(self) -> str:
        """The device, as users call it, of small tensors that are made beside a large one."""
        return self.name

    @property
    def num_devices(self) -> int:
        """The number of devices over which tensors are spread that are made from now on."""
        return 1 if self.devices is None else self.devices.count

    def choose_builders(self, num_slabs: int) -> Devices:
        """Choose what builds the slabs of a tensor: the devices, or the current one."""
        return self.devices or OneDevice(self.xp)

    def spreads(self, nnz: int) -> bool:
        """Return whether a tensor of `nnz` nonzeros is spread over `devices` by default."""
        return self.devices is not None and nnz >= self.devices.least_nnz

    def build_piece(self, name: str, coords: Array, values: Array, shape: Sequence[int]) -> Layout:
        """Build the layout `name` in one piece, on the current device, whatever `devices` are."""
        coords, values = self.receive(coords, values)
        cut = self.choose_cut(shape, values.dtype)
        return LAYOUT_CLASSES[name].build(coords, values, cut, self)

    @abstractmethod
    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Raise if the engine cannot read one of the arrays, given by name, where it is."""

    @abstractmethod
    def count_free_nbytes(self) -> int | None:
        """Count the bytes that could still be allocated; None if that is unknown."""

    #: Whether calls are logged. Small tensors would wait for the arguments of `log`.
    is_logging = staticmethod(functools.partial(_logger.isEnabledFor, logging.DEBUG))

    def log(self, function: str, layout: str, **details: object) -> None:
        """Log the details of a call at level DEBUG."""
        if self.is_logging():
            facts = {"engine": self.name, "layout": layout, **details}
            text = ", ".join(f"{name}={value!r}" for name, value in facts.items())
            _logger.debug("%s: %s", function, text)

    # Operations on nonzeros, called by `Layout.apply`. Each allocates its memory, and then, inside
    # `layout.step`, computes the result, and remaps the records if the step has a `spare`. With
    # `stays` the mode remains the resident one.

    @abstractmethod
    def mttkrp(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Array,
        weights: Array | None = None,
        stays: bool = False,
    ) -> None:
        """Write the MTTKRP of `mode` to `out`, its columns times the weights.

        The factors may be narrow, all of them: the `rows` of `round_rows`, without the scales.
        With `stays`, the layout "remap" stays in `mode`.
        """

    @abstractmethod
    def mttkrp_of_ratios(
        self,
        layout: Layout,
        factors: Factors,
        mode: int,
        out: Array,
        smallest: float | None,
        wants_sum: bool = False,
        stays: bool = False,
    ) -> Array | None:
        """Write to `out` the MTTKRP of the nonzeros divided by the values of the model there.

        `factors` are the CP model, that of `mode` too; `out` is none of them. The model's values
        divide as `smallest` where they are smaller. If that is None, the nonzeros are multiplied by
        the model's values instead.

        With `wants_sum` returns the sum of ``value * log(model)`` over the nonzeros, on the
        engine's device. It is -inf if the model is zero at a nonzero, nan if it is negative.
        """

    @abstractmethod
    def ttmc(
        self, layout: Layout, inputs: Factors, mode: int, out: Array, slots: Array | None = None
    ) -> None:
        """Write the TTMc of `mode` to `out` (num_slots, prod K_n), C-contiguous.

        `inputs` are the factors of all other modes; the columns are those of their Kronecker
        product, the last factor's fastest. Index i has row ``slots[i]``, or i; other rows are zero.
        The mode remains the resident one.
        """

    # Computing

    @abstractmethod
    def find_scales(self, factor: Array) -> Array:
        """Return the scales (R,) of the columns of a factor (I, R): see `narrow_rows`.

        With ``m * 2**e`` the largest magnitude of a column, m from 0.5 to 1, its scale is ``2**e``;
        but 1 if e is one of the usual exponents, or all are zeros, and no less than the format's
        least. A column with an inf or nan, or of which the scale would overflow, has the scale nan.
        """

    @abstractmethod
    def round_rows(self, factor: Array, scales: Array) -> NarrowRows:
        """Round a factor (I, R), in place, to numbers that fit narrow rows; return these rows.

        The scales are those of `find_scales`, for this factor or one of which it is a part. Halves
        are rounded to even, magnitudes of 1 in fixed point down. What float32 would make subnormal
        becomes 0. A column with the scale nan becomes nan, and its narrow numbers are arbitrary.
        """

    @abstractmethod
    def narrow_pays(self, shape: Sequence[int], nnz: int, rank: int, dtype: np.dtype) -> bool:
        """Say whether narrow rows make MTTKRPs of a tensor faster, rounding included.

        The answer depends on nothing else, so that results do not.
        """

    @abstractmethod
    def combine_rows(self, factors: Sequence[Array], bits: Sequence[int]) -> Array:
        """Return the Khatri-Rao product of the factors (I_n, R) of a group.

        Its row for the indices ``i_n`` is the sum of ``i_n << bits[n]``. Rows that stand for no
        indices are arbitrary.
        """

    def make_group_factor(self, layout: Layout, factors: Sequence[Array], number: int) -> Any:
        """Return the factor of a group of a layout, as the engine's passes take it.

        It stands for `combine_rows` of the factors of the group's modes, but rows of indices
        without nonzeros, which no pass reads, may be arbitrary too.
        """
        return self.combine_rows(factors, layout.record_format.bits_below[number])

    @abstractmethod
    def contract_rows(
        self,
        rows: Array,
        factors: Group,
        bits: Sequence[int],
        out: Array,
        weights: Array | None = None,
    ) -> None:
        """Write the MTTKRP of one mode of a group to `out`, its columns times the weights.

        `rows` are the MTTKRP of the group, numbered as by `combine_rows`; rows that stand for no
        indices are zero. `factors` are those of the group, None for the mode.
        """

    def add_parts(self, rows: Array, tree: Tree, out: Array | None = None) -> Array:
        """Run `tree.add_parts` on a contiguous matrix."""
        return add_parts(rows, tree, out)

    @abstractmethod
    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        """Compute the Gram matrix (size, size) of a matrix's rows from its columns.

        `coords` (2, n) are the column and the row of each entry, column by column with ascending
        rows; `diagonal` is added. With values (n, K) it is the sum of those of K matrices that have
        their entries at the same places. On the host, elements above the diagonal are arbitrary.
        """

    def draw_uniform(self, random: Any, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Draw from [0, 1), the same numbers as ``random.random_sample(shape).astype(dtype)``."""
        if dtype == np.float64:
            numbers = random.random_sample(shape)
        else:
            # Rounded block by block, while they are in a cache, without a copy of all in float64.
            numbers = np.empty(shape, dtype)
            flat = numbers.reshape(-1)
            for start in range(0, flat.size, _DRAW_BLOCK):
                block = flat[start : start + _DRAW_BLOCK]
                block[:] = random.random_sample(block.size)
        return numbers if self.xp is np else move(numbers, self.xp)

    def is_gram_cheap(self, size: int, num_groups: int) -> bool:
        """Say whether `gram` costs less than multiplying by the matrix in an iteration would."""
        return True

    def invert_products(self, grams: Sequence[Array], dtype: np.dtype) -> Array | None:
        """Invert elementwise products of stacks (n, R, R) of the Gram matrices of factors.

        Products that are singular to the rounding of the factors' `dtype` are pseudo-inverted.
        Returns None if the functions of `xp` do as well, or the engine has none for these sizes.
        """
        return None

    @abstractmethod
    def update_rows(
        self,
        rule: RowRule,
        targets: Array,
        rows: Array,
        dual: Array | None,
        num_steps: int,
        penalty: Array | None,
        matrix: Array,
    ) -> tuple[Array, Array | None, Array]:
        """Update each row of a factor by some steps of a rule; return new arrays.

        `targets` is the MTTKRP (I, R), `rows` the factor and `dual` ADMM's dual variable (I, R),
        None for other rules; all of one dtype, with neighbouring columns. `matrix`, float64 (R, R),
        is the Gram matrix, or for ADMM what `invert_penalized` returns, beside the `penalty`.

        Return the rows, the dual variable, and what each step measured, added up over all rows in
        an order that depends on the shape alone: float64 (num_steps, K), on the engine's device.
        """

    def update_rows_until(
        self,
        rule: RowRule,
        targets: Array,
        rows: Array,
        dual: Array | None,
        num_steps: int,
        penalty: Array | None,
        matrix: Array,
        tolerance: float,
        wants_measures: bool,
    ) -> tuple[Array, Array | None, ReadMeasures | None] | None:
        """Update rows as `update_rows` does, by no more steps than TensorLy would take.

        The engine decides that as `loop.row_updates.run_steps` would, but the host waits for
        nothing. Return the rows, the dual variable and, if wanted, a function that reads what the
        steps measured. None if the host has to decide: on CPUs, or if the steps are too many.
        """
        return None

    @abstractmethod
    def find_peaks(
        self,
        rule: RowRule,
        targets: Array,
        rows: Array,
        dual: Array,
        penalty: Array,
        matrix: Array,
    ) -> Array:
        """Return the largest element of each column before each step projects it, (num_steps, R).

        They are float64, on the engine's device; all of a step are nan if one is, and -inf without
        rows. The arguments are those of `update_rows`, of ADMM with a level for each step, or nan.
        """

    def invert_penalized(self, gram: Array) -> tuple[Array, Array]:
        """Return the inverse of ``gram + p * I``, float64 (R, R), and p, float64 (), for ADMM.

        p is the mean of the diagonal, so that the condition number is at most R + 1. If p is 0, so
        is the Gram matrix; the inverse is then 0 too.
        """
        exact = move(gram, np).astype(np.float64)
        penalty = exact.trace() / len(exact)
        inverse = np.zeros_like(exact)
        if penalty != 0:
            inverse = np.linalg.inv(exact + penalty * np.eye(len(exact)))
        return self.xp.asarray(inverse), self.xp.asarray(penalty)

    # Counts

    def invert_sums(self, sums: Array, mode: int, dtype: DTypeLike) -> Array:
        """Return the reciprocals of products of column sums, (1, R); 0 where one is not positive.

        `sums`, float64 (ndim, R), are those of all factors; those of `mode` are left out.
        """
        products = np.prod(np.delete(sums, mode, axis=0), axis=0)
        return invert_positive(products[None], 0.0).astype(dtype)

    @abstractmethod
    def scale_rows(self, product: Array, factor: Array, scales: Array, sums: Array) -> None:
        """Multiply `product` (I, R) by `factor` and `scales`, in place; write its column sums.

        The scales are (1, R) or (I, R), the sums float64 (R,).
        """

    @abstractmethod
    def measure_steps(self, factors: Sequence[Array], sums: Array) -> None:
        """Write the sums of squares of the columns of t1 - t0 and of t2 - 2 t1 + t0 to `sums`.

        The factors are t0, t1 and t2, (I, R) each; the sums float64 (2, R).
        """

    @abstractmethod
    def extrapolate(self, factors: Sequence[Array], step: float, sums: Array) -> Array:
        """Return t0 + 2 a (t1 - t0) + a^2 (t2 - 2 t1 + t0), and write its column sums.

        The factors are t0, t1 and t2, (I, R) each; a is `step`, the sums are float64 (R,). Where
        the result is not above 0, it is t2 instead.
        """
