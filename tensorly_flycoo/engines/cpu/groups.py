"""Khatri-Rao products of the factors of a group of modes, and contractions with them."""

from collections.abc import Sequence

import numpy as np

from ...base.array_modules import Array
from . import threads
from .compiling import kernel


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    combined = factors[-1]
    for n in range(len(factors) - 2, -1, -1):
        factor, num_rows = factors[n], 1 << bits[n]
        rows = np.zeros((factor.shape[0], num_rows, factor.shape[1]), factor.dtype)
        np.multiply(factor[:, None], combined, out=rows[:, : combined.shape[0]])
        combined = rows.reshape(-1, factor.shape[1])
    return combined


def contract_rows(
    rows: Array,
    factors: Sequence[Array | None],
    bits: Sequence[int],
    out: Array,
    weights: Array | None = None,
) -> None:
    """See `Engine.contract_rows`."""
    place = next(n for n, factor in enumerate(factors) if factor is None)
    before, after = factors[:place], factors[place + 1 :]
    rank, ones = out.shape[1], np.ones((1, out.shape[1]), out.dtype)
    outer = _combine(before, [b - bits[place - 1] for b in bits[:place]]) if before else ones
    inner = _combine(after, bits[place + 1 :]) if after else ones
    size = 1 << (bits[place - 1] - bits[place]) if before else out.shape[0]
    blocks = rows.reshape(-1, size, 1 << bits[place], rank)
    work_ns = rows.size / 4  # four multiplications and additions in a nanosecond
    threads.launch(_contract, out.shape[0], blocks, outer, inner, out, work_ns=work_ns)
    if weights is not None:
        np.multiply(out, weights, out=out)


def _combine(factors: Sequence[Array | None], bits: Sequence[int]) -> Array:
    given = [factor for factor in factors if factor is not None]
    return np.ascontiguousarray(combine_rows(given, bits))


@kernel
def _contract(first: int, last: int, blocks: Array, outer: Array, inner: Array, out: Array) -> None:
    """Compute ``out[i] = sum over a of outer[a] * sum over b of blocks[a, i, b] * inner[b]``."""
    rank = out.shape[1]
    total = np.empty(rank, out.dtype)
    for i in range(first, last):
        for r in range(rank):
            out[i, r] = 0
        for a in range(outer.shape[0]):
            for r in range(rank):
                total[r] = 0
            for b in range(inner.shape[0]):
                for r in range(rank):
                    total[r] += blocks[a, i, b, r] * inner[b, r]
            for r in range(rank):
                out[i, r] += total[r] * outer[a, r]
