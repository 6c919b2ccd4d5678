"""Folders of slabs: tensors larger than memory, built part by part and opened without reading."""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..base.array_modules import Array, move
from ..base.checks import check_choice, check_count, check_shape
from ..base.devices import OneDevice
from ..base.reporting import report
from ..base.value_dtypes import VALUE_DTYPES
from ..base.watching import watched
from ..engines import Engine, select_engine
from ..engines.out_of_memory import attempt, check_room
from ..format.groups import check_groups, check_products, find_groups, find_longest_mode, list_rest
from ..format.layout import Layout
from ..format.layouts import LAYOUT_CLASSES
from ..format.ordering import order_records
from ..format.packing import Cut, Groups, RecordFormat
from ..spread.building import (
    SlabBuilder,
    arrange_slab,
    count_in_blocks,
    find_slab_shape,
    number_buckets,
    sort_bucket,
    split_records,
)
from ..spread.memory import estimate_piece
from ..spread.streamed import make_keep_aside
from ..spread.whole_layout import place_slabs
from ..tensor.labelled import LabelledTensor, Labels
from ..tensor.tensor import FlycooTensor
from ..tensor.unknown import Unknown
from . import array_file, saving
from .array_file import (
    LABELS,
    SLABS,
    TENSOR,
    ArrayReader,
    check_header,
    open_arrays,
    refuse_damage,
)
from .dataframe import check_labels, warn_of_many_labels
from .entries import list_ordered
from .files import make_folder, replace_file
from .parts import BLOCK_NNZ, Parts, Reading, unite_shapes
from .places import FilePath, list_files, open_parquet
from .table_parts import TableParts, scan
from .table_rows import MISSING, check_modes, list_columns, refuse_zeros

#: Nonzeros of a slab, by default: building one takes about 5 GB.
_SLAB_NNZ = 2**25

#: The types of indices and values before they are packed; float64 holds float32 too.
_INDEX = np.dtype(np.uint32)
_VALUE = np.dtype(np.float64)

#: Arrays begin at pages of memory and blocks of disks.
_ALIGNMENT = 4096

#: Layouts whose arrays do not change.
_FILE_LAYOUTS = ("replicated", "indexed")

_INDEX_NAME = "slabs.json"
_LABELS_NAME = "labels.npz"


class Entry(NamedTuple):
    """A slab's file."""

    start: int  # the slab's rows of the cut mode: from `start` to `stop` - 1
    stop: int
    nbytes: int
    digest: str  # of the list of its arrays, which has their checksums


@dataclass(frozen=True)
class Index:
    """The contents of a folder."""

    shape: Sequence[int]
    dtype: str
    layout: str
    num_slabs: int  # the user's: slabs without rows have no file
    entries: Sequence[Entry]  # of the slabs with rows
    groups: Groups

    def write(self, folder: Path) -> None:
        """Write the index as JSON, with a format, a version and a digest."""
        facts = {"format": SLABS.format, "version": SLABS.version, **asdict(self)}
        with replace_file(folder / _INDEX_NAME) as file:
            text = json.dumps(facts | {"digest": digest(facts)}, indent=1)
            file.write(text.encode())

    @classmethod
    def read(cls, folder: Path) -> "Index":
        """Read and check the index; a folder that was not completed has none."""
        path = folder / _INDEX_NAME
        with refuse_damage(path, SLABS, (ValueError, RecursionError)):
            facts = json.loads(path.read_bytes())
        check_header(path, SLABS, facts)
        with refuse_damage(path, SLABS):
            if facts.pop("digest", None) != digest(facts):
                raise ValueError("its digest is wrong")
            del facts["format"], facts["version"]
            entries = [Entry(*entry) for entry in facts.pop("entries")]
            shape = check_shape(facts.pop("shape"))
            groups = check_groups(facts.pop("groups"), shape)
            check_products(groups, shape)
            index = cls(shape, entries=entries, groups=groups, **facts)
            index._check()
        return index

    def _check(self) -> None:
        """Check that the facts suit each other; `read` has checked shape and groups."""
        check_choice(self.layout, "layout", _FILE_LAYOUTS)
        starts = [entry.start for entry in self.entries]
        stops = [entry.stop for entry in self.entries]
        edges = [0, *stops]
        is_growing = edges == sorted(set(edges))
        if starts != edges[:-1] or not is_growing or edges[-1] != max(self.shape):
            raise ValueError("the rows of slabs do not follow each other")
        for start, stop, nbytes, _ in self.entries:
            if not {type(start), type(stop), type(nbytes)} <= {int}:
                raise ValueError("rows and sizes are not integers")
        check_choice(self.dtype, "dtype", tuple(VALUE_DTYPES))
        if type(self.num_slabs) is not int or not len(self.entries) <= self.num_slabs:
            raise ValueError(f"num_slabs is {self.num_slabs!r}, for {len(self.entries)} files")


def digest(facts: Any) -> str:
    """Return 32 hexadecimal digits that depend on what JSON writes of some facts."""
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


class Spool:
    """Nonzeros on disk, as they come: a file for the indices of each mode, and one for the values.

    They are written once, and read block by block. `renumber` makes indices of other numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ndim = 0
        self._indices: Sequence[np.ndarray | None] = ()
        self.nnz = 0
        self.dtypes = set[np.dtype]()  # of the values as they came

    def append(self, coords: Sequence[np.ndarray] | np.ndarray, values: np.ndarray) -> None:
        """Write some nonzeros: for each mode its indices (n,), and the values (n,)."""
        self._ndim = len(coords)
        self.nnz += values.size
        self.dtypes.add(values.dtype)
        for mode, indices in enumerate(coords):
            _append(self._name(mode), indices.astype(_INDEX, copy=False))
        _append(self._name(self._ndim), values.astype(_VALUE, copy=False))

    def renumber(self, indices: Sequence[np.ndarray | None]) -> None:
        """Have each number k of a mode read as ``indices[mode][k]``, or as k if that is None."""
        self._indices = indices

    def read_rows(self, mode: int, start: int) -> np.ndarray:
        """Read a block of the indices of a mode."""
        numbers = self._read(mode, start, _INDEX)
        indices = self._indices[mode] if self._indices else None
        if indices is None:
            return numbers
        return indices[numbers]

    def read(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Read a block: its coords and values."""
        coords = np.stack([self.read_rows(mode, start) for mode in range(self._ndim)])
        return coords, self._read(self._ndim, start, _VALUE)

    def _read(self, number: int, start: int, dtype: np.dtype) -> np.ndarray:
        offset = start * dtype.itemsize
        return np.fromfile(self._name(number), dtype, BLOCK_NNZ, offset=offset)

    def remove(self) -> None:
        """Remove the files."""
        for number in range(self._ndim + 1):
            self._name(number).unlink(missing_ok=True)

    def _name(self, number: int) -> Path:
        return self._folder / f"column-{number}"


class DiskBuilder(SlabBuilder):
    """Builds slabs of nonzeros that wait on disk.

    `split` copies them from their spool to a file of records for each bucket.
    """

    def __init__(
        self,
        folder: Path,
        spool: Spool,
        shape: Sequence[int],
        dtype: np.dtype,
        num_slabs: int,
        engine: Engine,
    ) -> None:
        self._folder = folder
        self._spool = spool
        self._nnz = spool.nnz
        groups, self.num_numbered = find_groups("auto", shape, self._nnz, num_slabs)
        self.record_format = engine.choose_cut(shape, dtype, groups).record_format
        super().__init__(num_slabs, engine, OneDevice(engine.xp))

    def count_rows(self) -> Array:
        """Count the nonzeros of each row of the longest mode."""
        report(f"distributing {self._nnz:,} nonzeros to {self.num_slabs} slabs")
        shape = self.record_format.shape
        xp = self.primitives.xp
        mode = find_longest_mode(shape)
        starts = range(0, self._nnz, BLOCK_NNZ)
        blocks = (move(self._spool.read_rows(mode, start), xp) for start in starts)
        return count_in_blocks(blocks, max(shape), xp)

    def split(self, buckets: Sequence[range]) -> None:
        """Copy the columns to a file of records for each bucket of rows."""
        bucket_of_row = number_buckets(buckets)
        for number in range(len(buckets)):
            self._name(number).touch()  # a bucket may stay empty
        for start in range(0, self._nnz, BLOCK_NNZ):
            block, *_ = self.primitives.pack(*self._spool.read(start), self.record_format)
            parts = split_records(block, bucket_of_row, self.record_format)
            for number, records in enumerate(parts):
                _append(self._name(number), move(records, np))
        self._spool.remove()  # before any slab is built: the disk need not hold three copies

    def _name(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket}"

    def sort_bucket(self, home: int, number: int, rows: range) -> tuple[Path, Array]:
        """Sort the records of a bucket in its file; return that, and the counts of its rows."""
        path = self._name(number)
        records, counts = sort_bucket(self.read(path), rows, self.record_format, self.primitives)
        path.unlink()  # the sorted records take its place
        _append(path, move(records, np))
        return path, counts

    def read(self, records: Path) -> Array:
        """Read the records of a bucket to the device."""
        words = np.fromfile(records, self.bucket_format.word_dtype)
        return move(words.reshape(-1, self.bucket_format.num_words), self.primitives.xp)

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function; say what may help if memory runs out."""
        mode = find_longest_mode(self.record_format.shape)
        share = -(-self._nnz // self.num_slabs)
        task = (
            f"building a slab of {share:,} nonzeros (give more slabs than {self.num_slabs}; rows "
            f"of mode {mode}, the longest, are not split)"
        )
        return attempt(task, functools.partial(function, *args))


def _append(path: Path, numbers: np.ndarray) -> None:
    """Write the elements of an array at the end of a file."""
    with open(path, "ab") as file:
        file.write(np.ascontiguousarray(numbers).data)


@watched
def save_slabs(
    path: FilePath,
    parts: Parts,
    shape: Sequence[int] | None = None,
    *,
    modes: Iterable[str] | None = None,
    values: str | None = None,
    labels: Mapping[str, Sequence[Any] | np.ndarray] | None = None,
    missing: str = "raise",
    zeros: str = "raise",
    slabs: int | None = None,
    dtype: DTypeLike | None = None,
    layout: str = "replicated",
    device: str | None = None,
    columns: Sequence[str] | None = None,
    index_base: int = 1,
) -> None:
    """Build a tensor that may be larger than memory, slab by slab, in a new folder.

    `open_slabs` opens it. Its bits are those of a `FlycooTensor` of all nonzeros with as many
    slabs: values at repeated coordinates, also of different parts, are added in the sequence in
    which they come.

    Parameters
    ----------
    path : str or os.PathLike
        The folder. It must not exist, or be empty; it appears once it is complete.
    parts : FlycooTensor, LabelledTensor, sparse.COO, path, table, or iterable of some of these
        Paths are those of .tns files (see `read_tns`, also .gz and .zst) and .parquet files. An
        iterable has paths, tuples (coords, values) of what `FlycooTensor` takes, or, with `modes`,
        tables. A generator is read once. A tensor on a cluster is written by its workers, as it is,
        to a folder that all see. Labels and unknown cells are kept.
    shape : sequence of int, optional
        By default the smallest that holds all nonzeros and the shapes in headers of .tns files.
    modes : sequence of str, optional
        The column of each mode, if `parts` is a table: any that `from_dataframe` takes, in one
        piece or in parts, or .parquet files. Their entries are numbered as `from_dataframe` does,
        and `open_slabs` returns them as labels.
    values : str, optional
        The column of a table's values; by default, each row has the value 1. Values of rows with
        the same entries are added.
    labels : dict of str to sequence, optional
        For some columns of `modes`, the label of each index, as of `from_dataframe`.
    missing : {"raise", "drop", "unknown"}
        Whether a row of a table without an entry or its value is an error, or left out; "unknown"
        leaves out those that lack the value, and says that cells without a row are unknown.
    zeros : {"raise", "drop"}
        Whether a row of a table whose value is 0 is an error, or left out. Cells whose values add
        up to 0 are not stored.
    slabs : int, optional
        The number of slabs (see `FlycooTensor`); by default one for each 2**25 given nonzeros.
    dtype : {float32, float64}, optional
        By default float32 if all values are, else float64.
    layout : {"replicated", "indexed"}
        As of `FlycooTensor`. "replicated" reads the nonzeros of a mode in sequence, "indexed" takes
        less space but jumps between them.
    device : {"auto", "cpu", "cuda"}, optional
        Where slabs are built, and the tensor will be used. As for `FlycooTensor`. Plans differ, and
        for "cuda" the records of the layout "replicated" are packed: see Notes.
    columns : sequence of str, optional
        The columns of .parquet files without `modes`: those of the modes, integers from 0 up, then
        that of the values. By default all.
    index_base : {1, 0}
        The first index of each mode in .tns files.

    Raises
    ------
    OSError
        If a file cannot be read or written, or `path` exists.
    TypeError
        If `parts`, or a part, is of another kind, a table is given without `modes`, or indices are
        not integers; or as of `from_dataframe`.
    ValueError
        If a part has another number of modes, an index outside `shape`, a value that is not finite,
        or damaged text; there is neither a nonzero nor a shape; another argument is not as above,
        or does not suit `modes`; or as of `from_dataframe`.
    ImportError
        If a module is missing that reads tables, .parquet or .zst files.
    MemoryError
        If there is too little memory for one slab: give more `slabs`.

    Notes
    -----
    Parts are read once, and copied to temporary files in a hidden folder beside `path`; then slabs
    are built one by one. While a table is read, memory holds one part of it, about as much again
    to number it, and all labels: some 120 bytes for each that is text. Then the device's memory
    holds one slab (150 bytes per nonzero of three modes on a CPU), and 32 bytes per row of the
    longest mode. Rows are not split: one with many nonzeros makes a long slab. The disk holds,
    beside the final folder, one copy of the records, and before that another ``4 * ndim + 8`` bytes
    per given nonzero. A call that fails removes its files; a process that is killed leaves the
    hidden folder, whose name ends with ".part"; the next call for the same `path` on that machine
    removes it.

    The folder has a file "slabs.json" and, for each slab, a file as of `save`, in which arrays
    begin at multiples of 4096 bytes. A GPU writes records without the bits that no index needs and
    the index by which they are sorted, and numbers in place of values where these repeat: some .4
    to .65 of their bytes. It reads them from a file as they lie. A CPU, which would take longer to
    unpack them than to multiply, leaves its folders unpacked.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from tensorly_flycoo import open_slabs, save_slabs
    >>> def make_parts():
    ...     for day in range(3):
    ...         yield np.array([[0, 2], [1, 0], [day, day]]), np.array([0.5, 3.0])
    >>> path = os.path.join(tempfile.mkdtemp(), "x.flycoo")
    >>> save_slabs(path, make_parts(), slabs=2)
    >>> open_slabs(path)
    <FlycooTensor: shape=(3, 2, 3), dtype=float64, nnz=6, layout='replicated', device='cpu', \
slabs=2>

    A table in parts, which may be those of a file (``pandas.read_csv(path, chunksize=10**6)``):

    >>> import pandas as pd
    >>> def read_tables():
    ...     for day in range(3):
    ...         yield pd.DataFrame({"shop": ["b", "a"], "day": day, "price": [0.5, 3.0]})
    >>> path = os.path.join(tempfile.mkdtemp(), "sales.flycoo")
    >>> save_slabs(path, read_tables(), modes=["shop", "day"], values="price")
    >>> open_slabs(path).labels["shop"].tolist()
    ['a', 'b']
    """
    labelled = None
    if modes is None:
        _refuse_table_options(values, labels)
        if isinstance(parts, LabelledTensor):
            labelled = parts
            parts = labelled.tensor
        if shape is None:  # that of a tensor, which may be empty
            shape = getattr(parts, "shape", None)
            dtype = dtype or getattr(parts, "dtype", None)
        reading = Reading(shape, dtype, columns, index_base)
        fill = functools.partial(_fill_with_parts, reading, parts)
    else:
        if shape is not None or columns is not None:
            raise ValueError("modes is given: expected neither shape nor columns")
        reading = Reading(dtype=dtype)
        table = _open_table(parts, modes, values, labels, missing, zeros)
        fill = functools.partial(_fill_with_table, table)
    num_slabs = None if slabs is None else check_count(slabs, "slabs")
    check_choice(layout, "layout", _FILE_LAYOUTS)
    engine = select_engine(device)
    with make_folder(path) as folder:
        if isinstance(parts, FlycooTensor) and type(parts) is not FlycooTensor:  # on a cluster
            wanted = [num_slabs or parts.slabs, np.dtype(dtype).name, layout]
            index = _write_held_slabs(folder, parts, wanted)
        else:
            index = _build_slabs(folder, fill, reading.dtype, num_slabs, layout, engine)
        if labelled is not None:
            _write_labels(folder, labelled.labels, labelled.unknown, labelled.value_column)
        index.write(folder)  # last: a folder without it is not complete


def _refuse_table_options(values: str | None, labels: Any) -> None:
    """Refuse what is said of a table if its modes are not."""
    given = {"values": values, "labels": labels}
    for name, argument in given.items():
        if argument is not None:
            raise ValueError(
                f"{name} is {argument!r}, but modes is not given, the columns of a table"
            )


def _write_labels(folder: Path, labels: Labels, unknown: Unknown, value_column: str | None) -> None:
    """Write the file of labels and unknown cells."""
    header, arrays = saving.describe_labels(labels, unknown, value_column)
    array_file.save_arrays(folder / _LABELS_NAME, LABELS, header, arrays)


def _write_held_slabs(folder: Path, x: FlycooTensor, wanted: list[Any]) -> Index:
    """Have the workers of a cluster write the slabs that they hold, each its own.

    They write them as they are: `wanted` are the number of slabs, the dtype and the layout.
    """
    layout: Any = x._layout
    record_format = layout.record_format
    present = [layout.num_slabs, record_format.dtype.name, layout.name]
    if wanted != present:
        raise ValueError(
            f"slabs, dtype and layout are {wanted}, but {present} on the workers, which write "
            "slabs as they are: load the tensor with those that are wanted"
        )
    run = layout.devices.run
    there: list[Any] = []  # all workers write at the same time
    for number, slab in enumerate(layout.slabs):
        path = folder / _name_slab(number)
        there.append(run(slab.home, _write_slab, path, slab.rows, slab.layout, x._engine))
    entries: list[Any] = layout.devices.collect(there)
    return Index(
        shape=record_format.shape,
        dtype=record_format.dtype.name,
        layout=layout.name,
        num_slabs=layout.num_slabs,
        entries=entries,
        groups=record_format.groups,
    )


def _build_slabs(
    folder: Path,
    fill: Callable[[Path, Spool], Sequence[int]],
    dtype: np.dtype | None,
    num_slabs: int | None,
    layout: str,
    engine: Engine,
) -> Index:
    """Build slabs of the nonzeros that `fill` writes, and write them one by one.

    `fill` may write further files to the folder, and returns the tensor's shape.
    """
    entries = []
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        spool = Spool(Path(temporary))
        shape = fill(folder, spool)
        if dtype is None:
            dtype = np.result_type(*(spool.dtypes or [_VALUE]))
        if num_slabs is None:
            num_slabs = max(1, -(-spool.nnz // _SLAB_NNZ))
        builder = DiskBuilder(Path(temporary), spool, shape, dtype, num_slabs, engine)
        slab_rows = builder.attempt(builder.sort)
        for number, rows in enumerate(slab_rows):
            report(f"building slab {number + 1} of {len(slab_rows)}")
            ordered = builder.attempt(builder.order, 0, rows)
            arranged = builder.attempt(arrange_slab, ordered, layout, engine)
            path = folder / _name_slab(number)
            entries.append(builder.attempt(_write_slab, path, rows, arranged, engine))
            del ordered, arranged  # before the next slab takes memory
    record_format = builder.record_format
    return Index(
        shape=record_format.shape,
        dtype=record_format.dtype.name,
        layout=layout,
        num_slabs=builder.num_slabs,
        entries=entries,
        groups=record_format.groups,
    )


def _fill_with_parts(reading: Reading, parts: Parts, folder: Path, spool: Spool) -> Sequence[int]:
    """Write the nonzeros of parts to a spool; return their shape."""
    shape = reading.shape or ()
    for block in reading.iterate(parts):
        shape = unite_shapes([shape or block.shape, block.shape])
        spool.append(block.coords, block.values)
        del block  # before the next one is made
    if not shape:
        raise ValueError("parts has no nonzeros and no shape, expected some: give shape=")
    return shape


class _Table(NamedTuple):
    """A table to read, and what its rows and labels mean."""

    parts: TableParts
    values: str | None
    given_labels: Mapping[str, Any]
    are_unknown: bool  # whether cells without a row are
    keeps_zeros: bool  # on disk, where the builder drops them; else they are refused


def _open_table(
    parts: Any,
    modes: Iterable[str],
    values: str | None,
    labels: Any,
    missing: str,
    zeros: str,
) -> _Table:
    """Check what is said of a table; read nothing yet."""
    modes = check_modes(modes)
    check_choice(missing, "missing", (*MISSING, "unknown"))
    if zeros not in ("raise", "drop"):
        hint = "to keep zeros for observed_parafac, call from_dataframe"
        raise ValueError(f"zeros is {zeros!r}, expected 'raise' or 'drop': {hint}")
    given_labels = check_labels(labels, modes)
    if isinstance(parts, str | os.PathLike):
        parts = [parts]
    if isinstance(parts, list | tuple) and parts and isinstance(parts[0], str | os.PathLike):
        parts = _scan_files(parts, list_columns(modes, values))
    table = TableParts(parts, modes, values, given_labels, missing, argument="parts")
    return _Table(table, values, given_labels, missing == "unknown", zeros == "drop")


def _scan_files(paths: Sequence[FilePath], columns: Sequence[str]) -> Iterator[Any]:
    """Yield some columns of .parquet files, some rows at a time."""
    for path in list_files(paths):
        if not path.endswith((".parquet", ".pq")):
            raise ValueError(
                f"{path} is not .parquet: pass its table, in parts if it is large, as by "
                "pandas.read_csv(path, chunksize=10**6)"
            )
        yield from scan(open_parquet(path), columns, path)


def _fill_with_table(table: _Table, folder: Path, spool: Spool) -> Sequence[int]:
    """Write the rows of a table to a spool, and its labels to the folder; return its shape."""
    for rows in table.parts.iterate():
        values = rows.values
        if values is None:
            values = np.ones(rows.codes[0].size)
        elif not table.keeps_zeros:
            refuse_zeros(values, table.values)
        spool.append(rows.codes, values)
        del rows, values  # before the next part is read
    sorted_labels = table.parts.sort_labels()
    spool.renumber([column.indices for column in sorted_labels.values()])
    column_labels = {name: column.labels for name, column in sorted_labels.items()}
    mode_labels = {name: column.entries for name, column in column_labels.items()}
    if not table.given_labels:
        warn_of_many_labels(mode_labels, spool.nnz)
    ordered = [*list_ordered(column_labels), *getattr(table.given_labels, "ordered", ())]
    unknown = "all" if table.are_unknown else None
    _write_labels(folder, Labels(mode_labels, ordered), unknown, table.values)
    return check_shape([entries.size for entries in mode_labels.values()])


def _write_slab(path: Path, rows: range | slice, layout: Layout, engine: Engine) -> Entry:
    """Write a slab's file; return its entry of the index."""
    saving.write_layout(path, layout, alignment=_ALIGNMENT, pack=engine.pack_records)
    with open_arrays(path, TENSOR) as reader:
        members_digest = digest(reader.list_members())
    return Entry(rows.start, rows.stop, path.stat().st_size, members_digest)


def add_labels(folder: Path, x: FlycooTensor) -> FlycooTensor | LabelledTensor:
    """Return the tensor of a folder, with the labels and unknown cells in it, if any are."""
    path = folder / _LABELS_NAME
    if not path.exists():
        return x
    with open_arrays(path, LABELS) as reader:
        return saving.label(x, reader)


def _name_slab(number: int) -> str:
    return f"slab-{number:05d}.npz"


@watched
def open_slabs(
    path: FilePath, *, device: str | None = None, keep: str | None = None, verify: bool = False
) -> FlycooTensor | LabelledTensor:
    """Open a folder that `save_slabs` wrote.

    Parameters
    ----------
    path : str or os.PathLike
    device : {"auto", "cpu", "cuda"}, optional
        As for `FlycooTensor`.
    keep : {"file", "device", "host"}, optional
        Where the nonzeros are. "file", on a CPU the default, maps the files into memory: nothing is
        read before it is needed, and the system may forget it afterwards. "device", on a GPU the
        default, copies one slab after the other to the device's memory. With "file" or "host" on a
        GPU, slabs visit it one by one, from the files or from pinned host memory; that needs the
        layout "replicated". If the folder was made for another kind of device, such as one of
        packed records that a CPU opens, the default is "device": each slab is read, unpacked and
        built anew. Use `save_slabs` to write it for this device if it is opened often.
    verify : bool
        Whether to read and check all data. What is copied to memory is always checked.

    Returns
    -------
    FlycooTensor or LabelledTensor
        What was saved, with the number of slabs with which it was saved.

    Raises
    ------
    OSError
        If a file is missing or cannot be read.
    ValueError
        If the folder is damaged or incomplete, or has a newer format than this release reads; the
        message names the file. If `keep` is "file" and the plans were made for another kind of
        device, or does not suit the layout; or if `device` or `keep` is unknown.
    ImportError, RuntimeError, MemoryError
        As of `FlycooTensor`.

    Notes
    -----
    Opening reads a few KB for each slab, and compares the files' sizes, formats and lists of
    checksums with the folder's index. Only ``verify=True`` compares the data with their checksums,
    and indices with what they point into: use it once for a folder that was copied or comes from
    elsewhere. A malicious folder that is opened without it may crash the process.

    Files must not change while a tensor uses them. Several processes may open a folder, and share
    the system's memory for it. `nbytes` counts the mapped files. MTTKRP, and so `parafac`, reads
    the files once for each mode. Some functions copy all nonzeros to memory: ``x.nonzeros()``,
    ``2 * x``, indexing.

    Examples
    --------
    >>> import os, tempfile
    >>> from tensorly_flycoo import FlycooTensor, open_slabs, save_slabs
    >>> path = os.path.join(tempfile.mkdtemp(), "x.flycoo")
    >>> save_slabs(path, FlycooTensor([[0, 2], [1, 0]], [0.5, 3.0], (3, 2)))
    >>> open_slabs(path, verify=True).nonzeros()
    (array([[0, 2],
           [1, 0]]), array([0.5, 3. ]))
    """
    engine = select_engine(device)
    folder = Path(path)
    if keep is not None:
        check_choice(keep, "keep", ("device", "host", "file"))
    elif engine.name != "cpu":
        keep = "device"
    index = Index.read(folder)
    keep_aside = None  # on a CPU, and on a GPU that holds the slabs
    if keep != "device" and engine.make_stager is not None:
        if index.layout != "replicated":
            raise ValueError(
                f"keep is {keep!r}, expected 'device': the layout of this folder is "
                f"{index.layout!r}, and only 'replicated' is streamed"
            )
        keep_aside = make_keep_aside(engine.make_stager, 0)
    rows = [range(entry.start, entry.stop) for entry in index.entries]
    cut = engine.choose_cut(index.shape, np.dtype(index.dtype), index.groups)
    load = functools.partial(load_slab, folder, index, engine, keep, verify)
    devices = engine.devices or OneDevice(engine.xp)
    layout = place_slabs(
        engine, devices, cut.record_format, index.num_slabs, rows, load, keep_aside
    )
    return add_labels(folder, FlycooTensor._of(engine, layout))


def load_slab(
    folder: Path, index: Index, engine: Engine, keep: str | None, verify: bool, number: int
) -> Layout:
    """Read a slab's file, or map it, and compare it with the index; `verify` reads all of a map.

    Without `keep` it is mapped if its plan is for the engine's kind of device.
    """
    path = folder / _name_slab(number)
    entry = index.entries[number]
    with open_arrays(path, TENSOR) as reader:
        nbytes = path.stat().st_size
        if nbytes != entry.nbytes:
            raise ValueError(f"it has {nbytes} bytes, expected {entry.nbytes}")
        if digest(reader.list_members()) != entry.digest:
            raise ValueError("its list of arrays is not the one in the index")
        record_format = saving.read_format(reader)
        _check_slab(reader, record_format, index, entry)
        cut = saving.find_cut(reader, record_format, engine)
        if cut is not None:
            if keep in (None, "file"):
                return _map_slab(reader, cut, engine, verify)
            return saving.read_layout(reader, cut, engine)
        if keep != "file":
            return _rebuild_slab(reader, record_format, index, engine)
    raise ValueError(
        f"{path} has a plan for another kind of device, expected one for {engine.name!r}: pass "
        f"keep='device', or call save_slabs(new_path, open_slabs(path, keep='device'), "
        f"device={engine.name!r})"
    )


def _check_slab(
    reader: ArrayReader, record_format: RecordFormat, index: Index, entry: Entry
) -> None:
    """Refuse the file of a slab that is not of the tensor that the index describes."""
    slab_shape = find_slab_shape(index.shape, entry.stop - entry.start)
    # A slab may number prefixes of its own, as a first group; the others are those of the index.
    num_numbered = record_format.num_numbered
    other_groups = record_format.groups
    if num_numbered > 0:
        other_groups = other_groups[1:]
    is_right = (
        record_format.shape == slab_shape
        and other_groups == list_rest(index.groups, num_numbered)
        and reader.header["dtype"] == index.dtype
        and reader.header["layout"] == index.layout
    )
    if not is_right:
        raise ValueError("its header does not match the index")


def _rebuild_slab(
    reader: ArrayReader, record_format: RecordFormat, index: Index, engine: Engine
) -> Layout:
    """Build a slab anew of its nonzeros, for an engine that its plan does not suit."""
    coords, values = saving.read_records(reader, record_format)
    cut = engine.choose_cut(record_format.shape, values.dtype, index.groups)
    cut = cut._replace(num_numbered=record_format.num_numbered)

    def build() -> Layout:
        layout_class = LAYOUT_CLASSES[index.layout]
        estimate = estimate_piece(layout_class, values.size, cut, engine)
        check_room(engine, estimate.peak_nbytes)
        ordered = order_records(coords, values.copy(), cut, engine)
        return arrange_slab(ordered, index.layout, engine)

    return attempt(f"building a slab of {values.size:,} nonzeros anew", build)


def _map_slab(reader: ArrayReader, cut: Cut, engine: Engine, verify: bool) -> Layout:
    """Map the arrays of a slab's file; `verify` reads them all, to check them."""
    header = reader.header
    name = header["layout"]
    array_names = reader.names() - {"header"}
    if verify:
        for array_name in array_names:
            reader.read(array_name)  # compares its checksum
    mapped = {array_name: reader.map(array_name) for array_name in array_names}
    arrays = saving.find_packed(header, mapped, cut.record_format)
    if verify:
        saving.check_arrays(name, arrays, cut)
    else:
        saving.check_shapes(name, arrays, cut)
    if engine.make_stager is not None:  # on a GPU, to which only the plan goes: records are staged
        copies = set(LAYOUT_CLASSES[name].name_copies(cut.record_format.merged.ndim))
        plan = arrays.keys() - copies
        arrays |= {array_name: move(arrays[array_name], engine.xp) for array_name in plan}
    return saving.make_layout(header, arrays, cut, engine)
