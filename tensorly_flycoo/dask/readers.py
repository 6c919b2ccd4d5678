"""Public readers: data that a cluster reads in parallel, and folders of slabs."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distributed import Client, get_client
from numpy.typing import DTypeLike

from ..base.checks import check_choice
from ..base.watching import watched
from ..io.parts import Reading
from ..io.places import FilePath, list_files
from ..io.slab_folder import Index, add_labels
from ..io.table_rows import MISSING, check_modes
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor
from .cluster_tensor import ClusterTensor, Pool, SlabSource, Source
from .loading import PartitionedData
from .partitions import TableReader, list_parquet_parts, read_tns_file
from .waiting import WorkerLost, free_after_error


@watched
def read_parquet(
    path: FilePath | Iterable[FilePath],
    modes: Sequence[str],
    values: str | None = None,
    *,
    indices: bool = False,
    missing: str = "raise",
    zeros: str = "raise",
    slabs: int | None = None,
    dtype: DTypeLike | None = None,
    layout: str | None = None,
    client: Client | None = None,
    workers: Sequence[str] | None = None,
    device: str | None = None,
) -> LabelledTensor | ClusterTensor:
    """Read .parquet files to a tensor on the workers of a cluster.

    Parameters
    ----------
    path : str, os.PathLike or iterable of these
        Files, folders with files, or patterns such as ``"sales-*.parquet"``, that all workers see
        under the same name; also URLs that fsspec opens there, such as ``"s3://bucket/sales"``. In
        a folder, what begins with "_" or "." is left out, as by Arrow and Spark; names of folders
        such as "year=2024" are columns.
    modes : sequence of str
        The columns of the modes. Their distinct entries are numbered as `from_dataframe` numbers
        those of one table with all rows.
    values : str, optional
        The column of the values; by default each row counts as 1. Values at repeated coordinates
        are added, in the sequence of the rows.
    indices : bool
        Whether the columns of `modes` hold indices from 0 up, which are then taken as they are.
    missing : {"raise", "drop"}
        Whether a row without an entry or its value is an error, or left out; with `indices` always
        an error.
    zeros : {"raise", "drop"}
        Whether a row whose value is 0 is an error, or left out, since cells without a row are 0
        too. Cells whose values add up to 0 are not stored.
    slabs : int, optional
        As of `FlycooTensor`; by default one for each 2**25 rows, but at least 8, or with fewer than
        2**20 rows one for each 2**17, but at least 2. Results depend on it. Workers beyond this
        number hold nothing.
    dtype, layout, device
        As of `FlycooTensor`, on each worker.
    client : distributed.Client, optional
        By default the current one.
    workers : sequence of str, optional
        The addresses of the workers to take; by default all.

    Returns
    -------
    LabelledTensor
        Of a `ClusterTensor`; with ``indices=True`` the latter.

    Raises
    ------
    OSError
        If there are no files, or a worker cannot read one.
    TypeError
        If `from_dataframe` refuses the entries or values, a column has entries of several kinds,
        or `indices` is given and a column does not hold integers.
    ValueError
        If a column is missing, an entry or a value is, a value is 0, an index is negative or too
        large, times are of several zones, there are no rows, or another argument is not as
        described; or there is no client.
    MemoryError
        If a worker has too little memory. The cluster can be used afterwards.
    WorkerLost
        If a worker is gone: load the data again.
    ImportError
        If pyarrow is missing, or what fsspec needs for a URL.

    Notes
    -----
    The bits do not depend on the workers, nor on how the rows are divided among files: they are
    those of one `FlycooTensor` of all rows with as many slabs.

    Tasks of Dask read whole row groups, at least 2**21 rows at a time. The workers count the rows
    of the longest mode, exchange the nonzeros once, in 16 to 24 bytes each, and build their slabs.
    The client holds the labels, and 8 bytes for each row of the longest mode.
    """
    modes = check_modes(modes)
    check_choice(missing, "missing", MISSING)
    if zeros not in ("raise", "drop"):
        hint = "to keep zeros for observed_parafac, call from_dataframe in one process"
        raise ValueError(f"zeros is {zeros!r}, expected 'raise' or 'drop': {hint}")
    reader = TableReader(tuple(modes), values, indices, missing, zeros)
    if hasattr(path, "to_delayed"):  # a dask DataFrame, of `from_dask_dataframe`
        df: Any = path
        if hasattr(df, "_meta"):
            reader(df._meta)  # refuses wrong columns before anything is computed
        parts = list(df.to_delayed())
    else:
        parts = list_parquet_parts(path, reader)
    source = PartitionedData(parts, reader, None, slabs, dtype, layout)
    x = _place(source, client, workers, device)
    if source.labels is None:
        return x
    labels = Labels(dict(zip(modes, source.labels, strict=True)), source.ordered)
    return LabelledTensor(x, labels, value_column=values)


@watched
def from_dask_dataframe(
    df: Any, modes: Sequence[str], values: str | None = None, **options: Any
) -> LabelledTensor | ClusterTensor:
    """Make a tensor of a dask DataFrame, on the workers of a cluster.

    Its partitions are computed and left on the workers one by one. The other parameters, the result
    and the errors are those of `read_parquet`. `ClusterTensor.recover` computes `df` again.

    Parameters
    ----------
    df : dask.dataframe.DataFrame
        Or any object with a method `to_delayed` that returns partitions as tables of pandas, polars
        or Arrow.
    modes, values
        As of `read_parquet`.
    **options
        ``indices``, ``missing``, ``zeros``, ``slabs``, ``dtype``, ``layout``, ``client``,
        ``workers`` and ``device`` of `read_parquet`.

    Returns
    -------
    LabelledTensor or ClusterTensor

    Raises
    ------
    TypeError
        If `df` is of another kind, there is no such option, or as of `read_parquet`.
    """
    if not hasattr(df, "to_delayed"):
        raise TypeError(f"df is a {type(df).__name__}, expected a dask DataFrame")
    known_options = [*inspect.signature(read_parquet).parameters][3:]
    for name in options:
        if name not in known_options:
            hint = ""
            if name == "aggregate":
                hint = "; values of a cell are added: merge otherwise before"
                hint += ", as by df.groupby(modes)"
            expected = ", ".join(known_options)
            raise TypeError(
                f"from_dask_dataframe has no option {name!r}, expected some of {expected}{hint}"
            )
    return read_parquet(df, modes, values, **options)


@watched
def read_tns(
    paths: FilePath | Iterable[FilePath],
    shape: Sequence[int] | None = None,
    *,
    index_base: int = 1,
    slabs: int | None = None,
    dtype: DTypeLike | None = None,
    layout: str | None = None,
    client: Client | None = None,
    workers: Sequence[str] | None = None,
    device: str | None = None,
) -> ClusterTensor:
    """Read .tns files to a tensor on the workers of a cluster, each file by one task.

    Parameters
    ----------
    paths : str, os.PathLike or iterable of these
        Files, also .gz and .zst, or folders, patterns and URLs of such, as of `read_parquet`.
    shape : sequence of int, optional
        By default the smallest that holds all nonzeros and the shapes in the files' headers.
    index_base : {1, 0}
        The first index of each mode.
    slabs, dtype, layout, client, workers, device
        As of `read_parquet`.

    Returns
    -------
    ClusterTensor

    Raises
    ------
    OSError, ValueError, TypeError, MemoryError, WorkerLost
        As of `tensorly_flycoo.read_tns` and `read_parquet`.
    """
    reading = Reading(shape, index_base=index_base)
    reader = functools.partial(read_tns_file, reading)
    source = PartitionedData(list_files(paths), reader, reading.shape, slabs, dtype, layout)
    return _place(source, client, workers, device)


@watched
def open_slabs(
    path: FilePath,
    *,
    client: Client | None = None,
    workers: Sequence[str] | None = None,
    device: str | None = None,
    keep: str = "device",
    verify: bool = False,
) -> FlycooTensor | LabelledTensor:
    """Open a folder that `save_slabs` wrote, with its slabs on the workers of a cluster.

    Parameters
    ----------
    path : str or os.PathLike
        The folder, which the client and all workers see under this name.
    client, workers, device
        As of `read_parquet`. Workers beyond the number of slabs hold nothing.
    keep : {"device", "file"}
        "device" copies slabs to the workers' memory, and checks all data. "file", for CPUs, maps
        the files: Dask counts what is read of them as memory of the worker.
    verify : bool
        Whether to read and check all data with ``keep="file"``.

    Returns
    -------
    ClusterTensor or LabelledTensor
        What was saved, with the number of slabs with which it was saved.

    Raises
    ------
    OSError
        If the client or a worker cannot read a file.
    ValueError
        If a file is damaged, `keep` is neither of the above, or there is no client.
    MemoryError, WorkerLost
        As of `read_parquet`.
    RuntimeError
        If the client has no workers.

    Notes
    -----
    Neighbouring slabs are on one worker. Results do not depend on the workers.
    """
    check_choice(keep, "keep", ("device", "file"))
    folder = Path(os.path.abspath(path))
    source = SlabSource(folder, Index.read(folder), keep, verify)
    return add_labels(folder, _place(source, client, workers, device))


def _place(
    source: Source, client: Client | None, workers: Sequence[str] | None, device: str | None
) -> ClusterTensor:
    """Load a tensor on workers, by default all those of the current client."""
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise ValueError(
                "there is no client: start one by distributed.Client(address), or give client="
            ) from None
    if client.asynchronous:
        raise ValueError("client is asynchronous, expected one with asynchronous=False")
    adaptive = getattr(client.cluster, "_adaptive", None)
    if getattr(adaptive, "periodic_callback", None):  # Dask's own test
        raise ValueError(
            "the client's cluster scales adaptively, and would take workers away that hold slabs: "
            "call cluster.scale(n) and client.wait_for_workers(n) first"
        )
    pool = Pool(client, device, workers)
    try:
        with free_after_error():
            layout = source.place(client, pool.start())
    except WorkerLost as lost:
        raise WorkerLost(lost.addresses, was_loading=True) from None
    return ClusterTensor.of(source, pool, layout)
