"""Khatri-Rao products of the factors of a group of modes, and contractions with them."""

import functools
from collections.abc import Sequence
from typing import TypeAlias

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from ..protocol import Group
from . import launch, tuning

#: The numbers of rows of factors, or the bits of each.
Sizes: TypeAlias = tuple[int, ...]

#: The types of each kernel's arguments after `Factors`, as `DirectKernel` names them.
_FORMATS = {"combine_rows": "qiQ", "contract_rows": "qQQQiii"}

#: Terms that each warp of a block has at least, and the most warps of a block.
_LEAST_TERMS = 4
_MOST_WARPS = 32


def combine_rows(factors: Sequence[Array], bits: Sequence[int]) -> Array:
    """See `Engine.combine_rows`; rows that stand for no indices are zero."""
    first = factors[0]
    rank = factors[0].shape[1]
    out = cupy.empty((first.shape[0] << bits[0], rank), first.dtype)
    sizes = tuple([factor.shape[0] for factor in factors])
    key = (sizes, tuple(bits), 1, out.dtype)
    kernel, fields = _prepare(out.data.device_id, "combine_rows", *key)
    arguments = (*_locate(factors), *fields, out.size, rank, out.data.ptr)
    kernel((-(-out.size // tuning.BLOCK_SIZE), 1), tuning.BLOCK_SIZE, *arguments)
    return out


def contract_rows(
    rows: Array, factors: Group, bits: Sequence[int], out: Array, weights: Array | None = None
) -> None:
    """See `Engine.contract_rows`."""
    others = [factor for factor in factors if factor is not None]
    sizes = tuple([0 if factor is None else factor.shape[0] for factor in factors])
    own = (out.shape, out.dtype, rows.data.device_id)  # another GPU may have lent `out`
    kernel, launched, fields, num_terms, last = _cut(rows.shape[0], sizes, tuple(bits), *own)
    scales = None if weights is None else cupy.ascontiguousarray(weights)
    addresses = (rows.data.ptr, 0 if scales is None else scales.data.ptr, out.data.ptr)
    kernel(*launched, *_locate(others), *fields, num_terms, *addresses, *last)


@functools.lru_cache(maxsize=1024)
def _cut(
    num_rows: int,
    sizes: Sizes,
    bits: Sizes,
    shape: tuple[int, int],
    dtype: np.dtype,
    device_id: int,
) -> tuple[launch.DirectKernel, tuple[tuple[int, int], int], Sizes, int, Sizes]:
    """Return the kernel that contracts, its grid and block, and arguments that are no addresses.

    `sizes` are the factors' rows, 0 for the mode that is left.
    """
    place, (size, rank) = sizes.index(0), shape
    below = bits[place]
    width = bits[place - 1] - below if place else (size - 1).bit_length()
    num_terms = num_rows >> width if place else 1 << below
    num_warps = 1
    while num_warps < _MOST_WARPS and num_warps * _LEAST_TERMS < num_terms:
        num_warps *= 2
    others, own_bits = ((*x[:place], *x[place + 1 :]) for x in (sizes, bits))
    key = (others, own_bits, num_warps, dtype)
    kernel, fields = _prepare(device_id, "contract_rows", *key)
    return kernel, ((size, -(-rank // 32)), 32 * num_warps), fields, num_terms, (below, width, rank)


@functools.lru_cache(maxsize=1024)
def _prepare(
    device_id: int, name: str, sizes: Sizes, bits: Sizes, num_warps: int, dtype: np.dtype
) -> tuple[launch.DirectKernel, Sizes]:
    """Return a kernel, and the members of `Factors` that do not depend on where factors are."""
    count = len(sizes)
    formats = f"{count}Q{count}q{count}q{count}i{count}I{count}I{_FORMATS[name]}"
    macros = {"VALUE": dtype, "NUM_FACTORS": count, "NUM_WARPS": num_warps}
    kernel = launch.get_direct_kernel("groups.cu", name, formats, device_id, **macros)
    masks = [(1 << (size - 1).bit_length()) - 1 for size in sizes]
    return kernel, (*bits, *masks, *sizes)


def _locate(factors: Sequence[Array]) -> list[int]:
    """Return the members of `Factors` in `groups.cu` that say where factors are."""
    itemsize = factors[0].itemsize
    strides = [factor.strides for factor in factors]
    addresses = [factor.data.ptr for factor in factors]
    return [
        *addresses,
        *[rows // itemsize for rows, _ in strides],
        *[columns // itemsize for _, columns in strides],
    ]
