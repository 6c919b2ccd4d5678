"""Khatri-Rao products of the factors of a group of modes, and contractions with them."""

from collections.abc import Sequence

import cupy

from ...base.array_modules import Array
from . import launch, tuning

#: Terms that each warp of a block has at least, and the most warps of a block.
_LEAST_TERMS, _MOST_WARPS = 4, 32


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    first, rank = factors[0], factors[0].shape[1]
    out = cupy.empty((first.shape[0] << bits[0], rank), first.dtype)
    kernel = _get_kernel("combine_rows", len(factors), 1, "qiQ", out)
    grid = min(-(-out.size // tuning.BLOCK_SIZE), launch.MAX_GRID)
    arguments = (*_describe(factors, bits), out.size, rank, out.data.ptr)
    kernel((grid, 1), tuning.BLOCK_SIZE, *arguments)
    return out


def contract_rows(
    rows: Array,
    factors: Sequence[Array | None],
    bits: Sequence[int],
    out: Array,
    weights: Array | None = None,
) -> None:
    """See `Engine.contract_rows`."""
    place = next(n for n, factor in enumerate(factors) if factor is None)
    (size, rank), below = out.shape, bits[place]
    width = bits[place - 1] - below if place else (size - 1).bit_length()
    num_terms = rows.shape[0] >> width if place else 1 << below
    num_warps = 1
    while num_warps < _MOST_WARPS and num_warps * _LEAST_TERMS < num_terms:
        num_warps *= 2
    others = [n for n in range(len(factors)) if n != place]
    described = _describe([factors[n] for n in others], [bits[n] for n in others])
    kernel = _get_kernel("contract_rows", len(others), num_warps, "qQQQiii", out)
    scales = None if weights is None else cupy.ascontiguousarray(weights)
    arguments = (
        *described, num_terms, rows.data.ptr, 0 if scales is None else scales.data.ptr,
        out.data.ptr, below, width, rank,
    )  # fmt: skip
    kernel((size, -(-rank // 32)), 32 * num_warps, *arguments)


def _get_kernel(
    name: str, num_factors: int, num_warps: int, formats: str, out: Array
) -> launch.DirectKernel:
    of_factors = "Q{0}q{0}q{0}i{0}I{0}I".replace("{0}", str(num_factors))
    macros = {"VALUE": out.dtype, "NUM_FACTORS": num_factors, "NUM_WARPS": num_warps}
    formats = f"{num_factors}{of_factors}{formats}"
    return launch.get_direct_kernel("groups.cu", name, formats, out.data.device_id, **macros)


def _describe(factors: Sequence[Array], bits: Sequence[int]) -> list[int]:
    """Return the members of `Factors` in `groups.cu`."""
    sizes = [factor.shape[0] for factor in factors]
    strides = [[s // factor.itemsize for s in factor.strides] for factor in factors]
    return [
        *(factor.data.ptr for factor in factors),
        *(rows for rows, _ in strides),
        *(columns for _, columns in strides),
        *bits,
        *((1 << (size - 1).bit_length()) - 1 for size in sizes),
        *sizes,
    ]
