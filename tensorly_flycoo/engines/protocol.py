"""The interface of an engine, which computes everything on one kind of device."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array, invert_positive, move
from ..devices import Devices, OneDevice
from ..format.layout import Cut, Layout, Step
from ..format.layouts import LAYOUT_CLASSES
from ..format.primitives import Primitives
from ..format.slab_layout import AnyLayout, SlabLayout, SpreadLayout
from ..format.streamed import Stager, make_keep_aside
from ..format.tree import Tree, add_parts
from ..shards.row_shards import RowShards
from . import slab_plan, slabs

_logger = logging.getLogger("tensorly_flycoo")

#: Numbers that are drawn before they are rounded to float32: as many as the nearest cache holds.
_DRAW_BLOCK = 2**12


class Engine(Primitives, ABC):
    """Everything that is computed on one kind of device; each engine has one instance.

    An engine is also the `Primitives` that build layouts. Callers check the arguments.
    """

    name: ClassVar[str]  # what users call the device: "cpu" or "cuda"
    array_type: type
    tall: ModuleType | None = None  # as `cuda.tall`; None if the functions of `xp` are as fast
    # Makes what brings records from the host to the current device; None if they are always there.
    make_stager: Callable[[], Stager] | None = None
    devices: Devices | None = None  # that new tensors are spread over; None for the current one

    # Building

    @abstractmethod
    def choose_cut(self, shape: Sequence[int], dtype: np.dtype) -> Cut:
        """Choose the record format, and the sizes of a tile and of a bucket."""

    @abstractmethod
    def receive(self, coords: Array, values: Array) -> tuple[Array, Array]:
        """Return nonzeros as `pack` takes them; refuse those on another GPU."""

    def build_layout(
        self,
        name: str,
        coords: Array,
        values: Array,
        shape: Sequence[int],
        num_slabs: int | None = None,
        keep: str = "device",
    ) -> AnyLayout:
        """Build the layout `name` from coords (ndim, nnz) and values (nnz,) on any device.

        By default there are as few slabs as `MAX_SLAB_NNZ` allows, and one for each of `devices`;
        with ``keep="host"`` see `plan_streaming`.
        """
        coords, values = self.receive(coords, values)
        cut = self.choose_cut(shape, values.dtype)
        nnz, dtype, keep_aside = values.shape[0], values.dtype, None
        if keep == "host" and self.make_stager is not None:
            num_slabs, num_resident = self.plan_streaming(name, nnz, shape, dtype, num_slabs)
            keep_aside = make_keep_aside(self.make_stager, num_resident)
        elif not num_slabs:
            num_slabs = self.choose_num_slabs(nnz)
        sizes = {"tile_size": cut.tile_size, "bucket_size": cut.bucket_size}
        if num_slabs > 1:
            sizes["slabs"] = num_slabs
        self.log("build", name, shape=tuple(shape), nnz=values.size, **sizes)
        cls = LAYOUT_CLASSES[name]
        if num_slabs == 1 and self.devices is None and keep_aside is None:
            return cls.build(coords, values, cut, self)
        slab_class = SlabLayout if self.devices is None else SpreadLayout
        devices = self.devices or OneDevice(self.xp)
        options = (cut.record_format, num_slabs, self, devices)
        layout = slab_class.build(cls, coords, values, *options, keep_aside)
        slab_plan.warn_of_long_slabs(layout)
        if layout.num_streamed:
            _logger.info("the records of %d slabs stay on the host", layout.num_streamed)
        return layout

    def choose_num_slabs(self, nnz: int) -> int:
        """Choose the fewest slabs for a tensor, whatever memory is free."""
        return slab_plan.choose_num_slabs(nnz, self.num_devices)

    @property
    def local_device(self) -> str:
        """The device, as users call it, of small tensors that are made beside a large one."""
        return self.name

    @property
    def num_devices(self) -> int:
        """The number of devices over which tensors are spread that are made from now on."""
        return 1 if self.devices is None else self.devices.count

    def plan_streaming(
        self,
        name: str,
        nnz: int,
        shape: Sequence[int],
        dtype: np.dtype,
        num_slabs: int | None = None,
    ) -> tuple[int, int]:
        """Return the number of slabs with ``keep="host"``, and how many stay on each device."""
        record_nbytes = self.choose_cut(shape, dtype).record_format.record_nbytes
        num_slabs = num_slabs or slab_plan.choose_num_slabs(nnz, self.num_devices, record_nbytes)
        estimate = self.estimate_layout(name, nnz, shape, dtype, num_slabs)
        free_nbytes = self.count_free_nbytes()
        return num_slabs, slab_plan.count_resident_slabs(*estimate, num_slabs, free_nbytes)

    def share_nbytes(self, nbytes: int, num_slabs: int) -> int:
        """Return how many of the bytes that `num_slabs` slabs take are on the fullest device."""
        return -(-nbytes * -(-num_slabs // self.num_devices) // num_slabs)

    def build_piece(self, name: str, coords: Array, values: Array, shape: Sequence[int]) -> Layout:
        """Build the layout `name` in one piece, on the current device, whatever `devices` are."""
        coords, values = self.receive(coords, values)
        cut = self.choose_cut(shape, values.dtype)
        return LAYOUT_CLASSES[name].build(coords, values, cut, self)

    def estimate_layout(
        self,
        name: str,
        nnz: int,
        shape: Sequence[int],
        dtype: np.dtype,
        num_slabs: int | None = None,
    ) -> tuple[int, int]:
        """Return the bytes of a layout, and the most bytes in use on a device while it is built."""
        num_slabs = num_slabs or self.choose_num_slabs(nnz)
        cls, cut = LAYOUT_CLASSES[name], self.choose_cut(shape, dtype)
        if num_slabs == 1:
            return cls.estimate(nnz, cut, self)
        options = (cut.record_format, num_slabs, self)
        return SlabLayout.estimate(cls, nnz, *options, self.num_devices)

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
        layout: AnyLayout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        weights: Array | None = None,
    ) -> None:
        """Write the MTTKRP of `mode` to `out`, its columns times the weights.

        A `RemapLayout` that is resident in another mode is first remapped to `mode` without
        computing; afterwards the next mode is resident. If memory runs out, the layout does not
        change; of slabs, each either has changed or not.
        """
        if isinstance(layout, SlabLayout):
            slabs.mttkrp(self, layout, factors, mode, out, weights)
            return
        workspace = self.allocate_workspace(layout, factors, mode, out)

        def compute(step: Step) -> None:
            self.compute_mode(layout, step, workspace, mode, out, weights)

        layout.take_step(mode, compute, self)

    def mttkrp_shards(
        self,
        layout: SpreadLayout,
        factors: Sequence[Array | RowShards],
        mode: int,
        weights: Array | None = None,
    ) -> RowShards:
        """Return what `mttkrp` computes, of slabs on several devices."""
        return slabs.mttkrp_shards(self, layout, factors, mode, weights)

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

    def add_rows(self, rows: Array, others: Array) -> None:
        """Add a matrix to `rows`, in place."""
        rows += others

    def add_parts(self, rows: Array, tree: Tree) -> Array:
        """Run `tree.add_parts` on a contiguous matrix."""
        return add_parts(rows, tree)

    def ttmc(
        self,
        layout: AnyLayout,
        mode: int,
        inputs: Mapping[int, Array],
        out: Array,
        slots: Array | None = None,
    ) -> None:
        """Write the TTMc of `mode` to `out` (num_slots, prod K_n), C-contiguous.

        `inputs` are the factors (I_n, K_n) of all other modes; the columns are those of their
        Kronecker product, the last factor's fastest. Index i has the row ``slots[i]``, by default
        i; rows of indices without a nonzero are not written, or with zeros. A `RemapLayout` is
        remapped to `mode` if another one is resident, and stays there.
        """
        if isinstance(layout, SlabLayout):
            slabs.ttmc(self, layout, mode, inputs, out, slots)
        else:
            self.compute_ttmc(layout, mode, inputs, out, slots)

    @abstractmethod
    def compute_ttmc(
        self,
        layout: Layout,
        mode: int,
        inputs: Mapping[int, Array],
        out: Array,
        slots: Array | None = None,
    ) -> None:
        """Write the TTMc of a tensor in one piece, as `ttmc`."""

    @abstractmethod
    def gram(self, coords: Array, values: Array, diagonal: Array) -> Array:
        """Compute the Gram matrix (size, size) of a matrix's rows from its columns.

        `coords` (2, n) are the column and the row of each entry, column by column with ascending
        rows; `diagonal` is added. On the host, elements above the diagonal are arbitrary.
        """

    def gram_nbytes(self, size: int, num_columns: int) -> int:
        """Count the bytes that `gram` allocates, its result included."""
        return 8 * size**2

    def draw_uniform(self, random: Any, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Draw from [0, 1), the same numbers as ``random.random_sample(shape).astype(dtype)``.

        A generator of CuPy draws numbers of `dtype` on its GPU.
        """
        if isinstance(random, np.random.RandomState):
            return move(_draw_on_host(random, shape, dtype), self.xp)
        return move(random.random_sample(shape, dtype=dtype), self.xp)

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
    def sweep_nonnegative(
        self, targets: Array, gram: Array, rows: Array, shift: float, ridge: float, smallest: float
    ) -> tuple[float, int]:
        """Update each column of `rows` (I, R) once, in place, by hierarchical ALS.

        Arrays are C-contiguous and of one dtype. Return the sum of squares that TensorLy compares
        with its tolerance (of the distances of all columns from each new one), and the number of
        elements that changed.
        """

    # Counts

    def mttkrp_of_ratios(
        self,
        layout: AnyLayout,
        factors: Sequence[Array],
        mode: int,
        out: Array,
        smallest: float,
        *,
        wants_logs: bool = False,
        stays: bool = False,
    ) -> Array | None:
        """Write to `out` the MTTKRP of the nonzeros divided by the values of the model there.

        `factors` are the CP model; that of `mode` is read too, and `out` is none of them. The
        model's values divide as `smallest` where they are smaller. With `stays` a `RemapLayout`
        stays in `mode`; otherwise it moves as in `mttkrp`.

        With `wants_logs` returns the sum of ``value * log(model)`` over the nonzeros, on the
        engine's device. It is -inf if the model is zero at a nonzero, nan if it is negative.
        """
        if isinstance(layout, SlabLayout):
            options = {"wants_logs": wants_logs, "stays": stays}
            return slabs.mttkrp_of_ratios(self, layout, factors, mode, out, smallest, **options)
        workspace = self.allocate_workspace(layout, factors, mode, out, has_own=True)
        sums: list[Array | None] = []

        def compute(step: Step) -> None:
            last = (out, smallest, wants_logs)
            sums.append(self.compute_ratios(layout, step, workspace, mode, *last))

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
        """Compute `mttkrp_of_ratios` from a step's records, remapping as `compute_mode`."""

    def invert_sums(self, sums: Array, mode: int, dtype: DTypeLike) -> Array:
        """Return the reciprocals of products of column sums, (1, R); 0 for what is not positive.

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
