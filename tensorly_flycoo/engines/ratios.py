"""What an engine computes for counts: MTTKRP of nonzeros divided by a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike

from ..array_modules import Array, invert_positive
from ..format.layout import Layout, Step
from ..format.slab_layout import AnyLayout, SlabLayout
from . import slabs

if TYPE_CHECKING:
    from .protocol import Engine


class RatioOperations(ABC):
    """The part of `Engine` for decompositions of counts."""

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
        engine = cast("Engine", self)
        if isinstance(layout, SlabLayout):
            options = {"wants_logs": wants_logs, "stays": stays}
            return slabs.mttkrp_of_ratios(engine, layout, factors, mode, out, smallest, **options)
        workspace = engine.allocate_workspace(layout, factors, mode, out, has_own=True)
        sums: list[Array | None] = []

        def compute(step: Step) -> None:
            last = (out, smallest, wants_logs)
            sums.append(engine.compute_ratios(layout, step, workspace, mode, *last))

        if stays:
            with layout.hold_mode(mode, engine) as step:
                compute(step)
        else:
            layout.take_step(mode, compute, engine)
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
