"""Unfoldings of a tensor in slabs whose missing entries are imputed, slab by slab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import Array, move
from ..linalg.sparse_matrices import multiply_transposed
from ..ops.cp_entries import choose_block_size
from ..ops.sampling import NonzeroSampler
from ..ops.unfolding_svd import Unfolding
from ..tensor.pieces import Piece, map_pieces, read_nonzeros
from ..tensor.tensor import FlycooTensor, rebuild

if TYPE_CHECKING:
    from ..engines.protocol import Engine


def unfold_imputed(
    x: FlycooTensor, observed: FlycooTensor, coords: Array, mode: int, rank: int, num_repeats: int
) -> Unfolding:
    """Return the unfolding along a mode after imputing missing entries `num_repeats` times.

    Each round imputes from the leading `rank` singular vectors of the round before, and builds the
    tensor anew, in its dtype. `x` is in slabs, with the first values of the missing entries at
    `coords` (ndim, count); `observed` is `x` without its nonzeros there.
    """
    for _ in range(num_repeats):
        unfolding = Unfolding(x, mode)
        left, _ = unfolding.svd(min(rank, *unfolding.shape))
        values = project(x, mode, coords, left)
        # In host memory, from where each device takes its own.
        given = move(coords, np), values.astype(x.dtype)
        x = rebuild(observed._layout, observed, add_entries, *given)
    return Unfolding(x, mode)


def project(x: FlycooTensor, mode: int, coords: Array, left: Array) -> np.ndarray:
    """Return the entries (count,) at `coords` of the projection of the unfolding of `x`.

    Its columns are projected onto the span of the orthonormal columns `left` (I_mode, R).

    Examples
    --------
    >>> x = FlycooTensor([[0, 1, 1], [0, 0, 2]], [3.0, 4.0, 5.0], (2, 3))
    >>> project(x, 0, np.array([[0, 1], [0, 0]]), np.array([[0.6], [0.8]]))
    array([3., 4.])
    """
    left = left.astype(np.float64, copy=False)
    arguments = (_project, x._layout, x._engine, mode, x._engine)
    return sum(move(part, np) for part in map_pieces(*arguments, arrays=[coords, left]))


def _project(piece: Piece, mode: int, engine: Engine, arrays: Sequence[Array]) -> Array:
    """Return what the nonzeros of a slab add to the entries of the projection."""
    coords, left = arrays
    own_left, is_own = left, slice(None)
    if mode == piece.cut_mode:  # its columns are shared between slabs
        num_rows = piece.layout.record_format.shape[mode]
        own_left, own = left[piece.start : piece.start + num_rows], coords
    else:
        own, is_own = piece.take_own(coords)
    rows, added = coords[mode][is_own], piece.xp.zeros(coords.shape[1])
    sampler, parts = NonzeroSampler.of_layout(piece.layout, engine), []
    block_size = choose_block_size(left, left.shape[1])
    for start in range(0, rows.size, block_size):
        block = slice(start, start + block_size)
        fibres = sampler.fibres(mode, dict(enumerate(own[:, block])))
        right = multiply_transposed(fibres, own_left)
        parts.append((left[rows[block]] * right).sum(axis=1))
    if parts:
        added[is_own] = piece.xp.concatenate(parts)
    return added


def add_entries(piece: Piece, coords: Array, values: Array) -> tuple[Array, Array]:
    """Return the nonzeros of a slab, and the entries at those of `coords` that are in it."""
    given, numbers = piece.xp.asarray(coords), piece.xp.asarray(values)
    _, is_own = piece.take_own(given)
    known, known_values = read_nonzeros(piece)
    return (
        piece.xp.concatenate([known, given[:, is_own]], axis=1),
        piece.xp.concatenate([known_values, numbers[is_own]]),
    )
