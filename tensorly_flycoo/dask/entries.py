"""Tensors that workers make of others: slices, sums over modes, a tensor without some entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.array_modules import Array
from ..format.packing import Groups
from ..ops.sampling import NonzeroSampler, split_entries
from ..tensor.pieces import Piece, call_with_piece, map_pieces
from ..tensor.tensor import FlycooTensor, rebuild
from .engine import ClusterLayout, RemoteLayout, as_reference
from .loading import ClusterBuilder, keep_nonzeros, load_again

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from .site import Site


@rebuild.register
def _(
    layout: ClusterLayout,
    x: FlycooTensor,
    find: Callable[..., tuple[Array, Array]],
    *args: Any,
    shape: Sequence[int] | None = None,
    dtype: np.dtype | None = None,
    groups: Groups | str | None = "auto",
) -> FlycooTensor:
    """Load what is found in the slabs as if it were new data."""
    calls, own_args = [], [as_reference(y) for y in args]
    for slab in layout.slabs:
        assert isinstance(slab.layout, RemoteLayout)
        place = [slab.layout.held, layout.cut_mode, slab.rows.start]
        calls.append((slab.layout.held.worker, keep_found, [find, *place, *own_args]))
    sizes = (tuple(shape or x.shape), dtype or x.dtype, x.slabs, x.layout)
    groups = groups if shape else x.groups
    builder = ClusterBuilder(layout.devices.cluster, *sizes, groups=groups)
    return x._replace_layout(load_again(builder, calls))


def keep_found(
    site: Site,
    number: int,
    find: Callable[..., tuple[Array, Array]],
    layout: Layout,
    cut_mode: int,
    start: int,
    *args: Any,
) -> None:
    """Take what is found in a slab as a partition, on its worker."""
    keep_nonzeros(site, number, call_with_piece(find, site.engine, layout, cut_mode, start, *args))


@split_entries.register
def _(layout: ClusterLayout, x: FlycooTensor, coords: np.ndarray) -> tuple[Array, FlycooTensor]:
    """Look entries up in each slab."""
    found = map_pieces(find_entries, layout, x._engine, coords, x._engine)
    entries = np.sum(list(found), axis=0, dtype=x.dtype)  # each is in one slab
    if not entries.any():
        return entries, x
    return entries, rebuild(layout, x, omit_entries, coords, x._engine)


def find_entries(piece: Piece, coords: np.ndarray, engine: Engine) -> Array:
    """Return the entries (count,) of a slab, on its worker; zeros outside."""
    own, is_own = piece.take_own(coords)
    entries = engine.xp.zeros(is_own.size, piece.layout.record_format.dtype)
    entries[is_own] = NonzeroSampler.of_layout(piece.layout, engine).entries(own)
    return entries


def omit_entries(piece: Piece, coords: np.ndarray, engine: Engine) -> tuple[Array, Array]:
    """Return the nonzeros of a slab that are not at `coords`, on its worker."""
    own, _ = piece.take_own(coords)
    kept, values = NonzeroSampler.of_layout(piece.layout, engine).omit(own)
    kept[piece.cut_mode] += kept.dtype.type(piece.start)
    return kept, values
