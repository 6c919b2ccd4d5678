"""Entries of a tensor on a cluster, and the tensor without them: for masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..array_modules import Array, move
from ..ops.sampling import NonzeroSampler, split_entries
from ..tensor.arithmetic import drop_zeros
from ..tensor.tensor import FlycooTensor
from .engine import ClusterLayout, RemoteLayout
from .exchange import keep_nonzeros
from .loading import load_again

if TYPE_CHECKING:
    from ..engines.protocol import Engine
    from ..format.layout import Layout
    from .site import Site


@split_entries.register
def _(layout: ClusterLayout, x: FlycooTensor, coords: np.ndarray) -> tuple[Array, FlycooTensor]:
    """Look entries up in each slab; load the others as if they were new data."""
    devices, found = layout.devices, []
    for slab in layout.slabs:
        place = (slab.layout, layout.cut_mode, slab.rows)
        found.append(devices.run(slab.home, find_entries, x._engine, *place, coords))
    entries = np.sum(devices.collect(found), axis=0, dtype=x.dtype)  # each is in one slab
    return entries, load_others(layout, x, coords) if entries.any() else x


@drop_zeros.register
def _(layout: ClusterLayout, x: FlycooTensor) -> FlycooTensor:
    return load_others(layout, x, np.zeros((x.ndim, 0), np.int64))


def load_others(layout: ClusterLayout, x: FlycooTensor, coords: np.ndarray) -> FlycooTensor:
    """Load the nonzeros that are not at `coords`, as if they were new data."""
    cluster, calls = layout.devices.cluster, []
    for slab in layout.slabs:
        assert isinstance(slab.layout, RemoteLayout)
        args = [slab.layout.held, layout.cut_mode, slab.rows, coords]
        calls.append((slab.layout.held.worker, keep_others, args))
    return x._replace_layout(load_again(cluster, calls, x.shape, x.dtype, x.slabs, x.layout))


def find_entries(
    engine: Engine, layout: Layout, cut_mode: int, rows: slice, coords: np.ndarray
) -> Array:
    """Return the entries (count,) of a slab, on its worker; zeros outside."""
    own, is_own = _take_own(cut_mode, rows, coords)
    entries = engine.xp.zeros(is_own.size, layout.record_format.dtype)
    entries[is_own] = NonzeroSampler.of_layout(layout, engine).entries(own)
    return entries


def keep_others(
    site: Site, number: int, layout: Layout, cut_mode: int, rows: slice, coords: np.ndarray
) -> None:
    """Take the nonzeros of a slab that are not at `coords` as a partition, on its worker."""
    own, _ = _take_own(cut_mode, rows, coords)
    kept, values = NonzeroSampler.of_layout(layout, site.engine).omit(own)
    kept[cut_mode] += kept.dtype.type(rows.start)
    keep_nonzeros(site, number, move(kept, np), move(values, np))


def _take_own(cut_mode: int, rows: slice, coords: Array) -> tuple[Array, Array]:
    """Return the coordinates inside a slab, counted from its first row, and which they are."""
    is_own = (coords[cut_mode] >= rows.start) & (coords[cut_mode] < rows.stop)
    own = coords[:, is_own]
    own[cut_mode] -= rows.start
    return own, is_own
