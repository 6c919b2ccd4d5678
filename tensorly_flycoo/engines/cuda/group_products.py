"""Khatri-Rao products of the factors of a group of modes, and contractions with them."""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

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
    rank = first.shape[1]
    out = cupy.empty((first.shape[0] << bits[0], rank), first.dtype)
    sizes = tuple([factor.shape[0] for factor in factors])
    kernel, members = _prepare(
        "combine_rows", out.data.device_id, sizes, tuple(bits), out.dtype, num_warps=1
    )
    kernel(
        (-(-out.size // tuning.BLOCK_SIZE), 1),
        tuning.BLOCK_SIZE,
        *_locate(factors),
        *members,
        out.size,
        rank,
        out.data.ptr,
    )
    return out


def contract_rows(
    rows: Array, factors: Group, bits: Sequence[int], out: Array, weights: Array | None = None
) -> None:
    """See `Engine.contract_rows`."""
    multiplied = [factor for factor in factors if factor is not None]
    sizes = tuple([0 if factor is None else factor.shape[0] for factor in factors])
    contraction = _prepare_contraction(
        rows.shape[0],
        sizes,
        tuple(bits),
        out.shape,
        out.dtype,
        rows.data.device_id,  # this GPU; another one may have lent `out`
    )
    scales = None if weights is None else cupy.ascontiguousarray(weights)
    contraction.kernel(
        contraction.grid,
        contraction.block_size,
        *_locate(multiplied),
        *contraction.members,
        contraction.num_terms,
        rows.data.ptr,
        launch.find_address(scales),
        out.data.ptr,
        contraction.below,
        contraction.width,
        contraction.rank,
    )


class _Contraction(NamedTuple):
    """The kernel that contracts to the rows of one mode, and its arguments but for addresses."""

    kernel: launch.DirectKernel
    grid: tuple[int, int]
    block_size: int
    members: Sizes  # of `Factors`
    num_terms: int  # how many rows of the group each index of the mode has
    below: int  # the lowest bit of that index in the number of a row of the group
    width: int  # the bits of that index
    rank: int


@functools.lru_cache(maxsize=1024)
def _prepare_contraction(
    num_rows: int,
    sizes: Sizes,
    bits: Sizes,
    out_shape: tuple[int, int],
    dtype: np.dtype,
    device_id: int,
) -> _Contraction:
    """Prepare `contract_rows` for a group with `num_rows` rows on the current GPU, `device_id`.

    `sizes` are the factors' rows, 0 for the mode that is left, whose result has `out_shape`.
    """
    place = sizes.index(0)
    size, rank = out_shape
    below = bits[place]
    if place == 0:  # the first mode has the highest bits
        width = (size - 1).bit_length()
        num_terms = 1 << below
    else:
        width = bits[place - 1] - below
        num_terms = num_rows >> width
    num_warps = 1
    while num_warps < _MOST_WARPS and num_warps * _LEAST_TERMS < num_terms:
        num_warps *= 2
    kernel, members = _prepare(
        "contract_rows",
        device_id,
        sizes=(*sizes[:place], *sizes[place + 1 :]),
        bits=(*bits[:place], *bits[place + 1 :]),
        dtype=dtype,
        num_warps=num_warps,
    )
    return _Contraction(
        kernel,
        grid=(size, -(-rank // 32)),
        block_size=32 * num_warps,
        members=members,
        num_terms=num_terms,
        below=below,
        width=width,
        rank=rank,
    )


@functools.lru_cache(maxsize=1024)
def _prepare(
    name: str, device_id: int, sizes: Sizes, bits: Sizes, dtype: np.dtype, num_warps: int
) -> tuple[launch.DirectKernel, Sizes]:
    """Return a kernel, and the members of `Factors` that do not depend on where factors are."""
    count = len(sizes)
    # Addresses, row strides, column strides; bits, masks, sizes. Then the other arguments.
    formats = f"{count}Q{count}q{count}q{count}i{count}I{count}I{_FORMATS[name]}"
    macros = {"VALUE": dtype, "NUM_FACTORS": count, "NUM_WARPS": num_warps}
    kernel = launch.get_direct_kernel("groups.cu", name, formats, device_id, **macros)
    masks = [(1 << (size - 1).bit_length()) - 1 for size in sizes]
    return kernel, (*bits, *masks, *sizes)


def _locate(factors: Sequence[Array]) -> list[int]:
    """Return the members of `Factors` in `groups.cu` that say where factors are."""
    itemsize = factors[0].itemsize
    addresses = [factor.data.ptr for factor in factors]
    row_strides = [factor.strides[0] // itemsize for factor in factors]
    column_strides = [factor.strides[1] // itemsize for factor in factors]
    return [*addresses, *row_strides, *column_strides]
