"""MTTKRP of the nonzeros divided by a model: a step of Poisson CP decompositions."""

from collections.abc import Sequence
from typing import Any

from ..base.array_modules import Array
from ..tensor.memory import attempt
from ..tensor.tensor import FlycooTensor
from .group_passes import contract_rows, merge_factors


def mttkrp_of_ratios(
    x: FlycooTensor,
    factors: Sequence[Array],
    mode: int,
    smallest: float | None,
    *,
    wants_logs: bool = False,
    stays: bool = False,
) -> tuple[Array, Array | None]:
    r"""Compute the MTTKRP of :math:`v_k / m_k`, with the values m of a CP model at the nonzeros.

    The model divides as `smallest` where it is smaller; if that is None, values are multiplied by
    the model: :math:`v_k m_k`. With `wants_logs` the second result is the sum of
    :math:`v_k \log m_k`, a float64 array () on the device. With `stays`, layout "remap" stays in
    `mode`, which is best if `mode` is computed again.

    One pass over the nonzeros, with the workspace of `mttkrp`. Results have the same bits in every
    layout and for any number of threads.

    >>> import numpy as np
    >>> x = FlycooTensor([[0, 1], [1, 0]], [6.0, 8.0], shape=(2, 2))
    >>> factors = [np.ones((2, 1)), np.array([[2.0], [3.0]])]
    >>> product, _ = mttkrp_of_ratios(x, factors, 1, 0.0)
    >>> product
    array([[4.],
           [2.]])
    """
    engine, (rank, size) = x._engine, (factors[0].shape[1], x.shape[mode])

    layout, record_format = x._layout, x._layout.record_format
    number, _ = record_format.find_place(mode)
    group = record_format.groups[number]
    options: dict[str, Any] = {"smallest": smallest, "wants_sum": wants_logs, "stays": stays}

    def compute() -> tuple[Array, Array | None]:
        rows = engine.xp.empty((layout.merged.shape[number], rank), x.dtype)
        inputs = merge_factors(factors, layout, engine)
        logs = layout.apply("mttkrp_of_ratios", engine, inputs, number, rows, **options)
        if len(group) == 1:
            return rows, logs
        out = engine.xp.empty((size, rank), x.dtype)
        contract_rows(rows, factors, mode, layout, engine, out)
        return out, logs

    return attempt(f"an MTTKRP of ratios of mode {mode} and rank {rank}", compute)
