"""Folders of slabs, opened on the workers of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from distributed import Client, get_client

from ..io.files import FilePath
from ..io.slab_folder import Index, load_slab
from .site import Site
from .tensor import ClusterTensor, SlabSource, list_workers

if TYPE_CHECKING:
    from ..format.layout import Layout


_PLACES = ("device", "file")


@dataclass(frozen=True)
class _Folder:
    """Loads slabs of a folder."""

    path: Path
    index: Index
    keep: str
    verify: bool

    def __call__(self, site: Site, number: int) -> Layout:
        if self.keep == "device":
            task = f"slab {number} of {self.path}"
            site.check_room(self.index.entries[number].nbytes, task)
        return load_slab(self.path, self.index, number, site.engine, self.keep, self.verify)


def open_slabs(
    path: FilePath,
    *,
    client: Client | None = None,
    workers: Sequence[str] | None = None,
    device: str | None = None,
    keep: str = "device",
    verify: bool = False,
) -> ClusterTensor:
    """Open a folder that `save_slabs` wrote, with its slabs on the workers of a cluster.

    Parameters
    ----------
    path : str or os.PathLike
        The folder, which the client and all workers see under this name.
    client : distributed.Client, optional
        By default the current one.
    workers : sequence of str, optional
        The addresses of the workers to take; by default all. Workers beyond the number of slabs
        hold nothing.
    device : {"auto", "cpu", "cuda"}, optional
        As for `FlycooTensor`, on each worker.
    keep : {"device", "file"}
        "device" copies slabs to the workers' memory, and checks all data. "file", for CPUs, maps
        the files: Dask counts what is read of them as memory of the worker.
    verify : bool
        Whether to read and check all data with ``keep="file"``.

    Returns
    -------
    ClusterTensor
        With the number of slabs with which it was saved.

    Raises
    ------
    OSError
        If the client or a worker cannot read a file.
    ValueError
        If a file is damaged, `keep` is neither of the above, or there is no client.
    MemoryError
        If a worker has too little memory. The cluster can be used afterwards.
    WorkerLost
        If a worker is gone.
    RuntimeError
        If the client has no workers.

    Notes
    -----
    Neighbouring slabs are on one worker. Results do not depend on the workers.
    """
    client = find_client(client)
    if keep not in _PLACES:
        raise ValueError(f"keep is {keep!r}, expected one of {_PLACES}")
    folder = Path(os.path.abspath(path))
    index = Index.read(folder)
    rows = [range(entry.start, entry.stop) for entry in index.entries]
    load = _Folder(folder, index, keep, verify)
    facts = (tuple(index.shape), np.dtype(index.dtype), index.num_slabs, index.cut_mode)
    addresses = list_workers(client) if workers is None else list(workers)
    return ClusterTensor.load(SlabSource(*facts, rows, load), client, addresses, device)


def find_client(client: Client | None) -> Client:
    """Return the client, by default the current one, which must not be asynchronous."""
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise ValueError(
                "there is no client: start one by distributed.Client(address), or give client="
            ) from None
    if client.asynchronous:
        raise ValueError("client is asynchronous, expected one with asynchronous=False")
    return client
