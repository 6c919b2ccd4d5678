"""Folders of slabs: bits, memory, what is refused, and what damage does."""

import contextlib
import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pandas as pd
import problems
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
import tensorly as tl
from problems import compute_all, make_factors, make_problem
from slow_cases import thin_out

import tensorly_flycoo
from tensorly_flycoo import (
    FlycooTensor,
    LabelledTensor,
    from_dataframe,
    load,
    open_slabs,
    save,
    save_slabs,
    write_tns,
)
from tensorly_flycoo.engines import out_of_memory
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.format import groups
from tensorly_flycoo.io import parts, slab_folder
from tensorly_flycoo.io.array_file import ArrayReader
from tensorly_flycoo.io.checkpoint import find_digest
from tensorly_flycoo.io.files import make_folder
from tensorly_flycoo.spread import building, whole_layout

pytestmark = pytest.mark.usual_limits("slabs")  # a raw tensor would have three

SHAPE = (30, 70, 10)
LAYOUTS = pytest.mark.parametrize("layout", ["replicated", "indexed"])
KEEPS = pytest.mark.parametrize("keep", ["file", "device", "host"])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(cpu, "TILE_SIZE", 32)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 64)
    for module in (parts, slab_folder):
        monkeypatch.setattr(module, "BLOCK_NNZ", 100)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.flycoo"


def split(problem, count=4):
    """Yield nonzeros in parts; the last one has none."""
    edges = np.linspace(0, problem.values.size, count, dtype=int)
    for start, stop in zip(edges, [*edges[1:], edges[-1]], strict=True):
        yield problem.coords[:, start:stop], problem.values[start:stop]


def check_same(x, y, factors):
    """Compare all that does not depend on where the nonzeros are."""
    facts = [
        (z.shape, z.dtype, z.nnz, z.layout, z.slabs, z.norm(), z.nbytes, find_digest(z))
        for z in (x, y)
    ]
    assert facts[0] == facts[1]
    rows = [[slab.rows for slab in z._layout.slabs] for z in (x, y) if z.slabs > 1]
    assert len({str(each) for each in rows}) <= 1
    assert compute_all(x, factors) == compute_all(y, factors)
    for mode in range(x.ndim):
        rows, others = (z._layout.find_empty_rows(mode) for z in (x, y))
        np.testing.assert_array_equal(rows, others)
    for array, same in zip(x.nonzeros(), y.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, same)


@pytest.mark.usual_limits("slabs")
@pytest.mark.parametrize(
    ("num_slabs", "dtype", "layout", "keep"),
    thin_out(
        itertools.product(
            [1, 2, 3, 5, 8, 200],
            ["float32", "float64"],
            ["replicated", "indexed"],
            ["file", "device", "host"],
        ),
        5,
    ),
)
def test_bits_are_those_of_a_tensor_in_memory(path, num_slabs, dtype, layout, keep):
    """Cells repeat, within parts and across them, and some sums are zero."""
    problem = make_problem(SHAPE, 900, dtype=dtype, skew=2)
    problem.coords[:, 600:700], problem.values[600:700] = problem.coords[:, :100], 0.1
    problem.coords[:, 700:800] = problem.coords[:, 500:600]
    problem.values[700:800] = -problem.values[500:600]
    x = problem.tensor(layout=layout, slabs=num_slabs, device="cpu")
    options = {"slabs": num_slabs, "layout": layout, "device": "cpu"}
    save_slabs(path, split(problem), SHAPE, **options)
    check_same(open_slabs(path, device="cpu", keep=keep), x, problem.factors)


@KEEPS
@LAYOUTS
@pytest.mark.parametrize("tile_size", [32, 64])
def test_numbered_prefixes(path, layout, keep, tile_size, monkeypatch):
    """Also if plans are made anew, for other tiles."""
    for module in (slab_folder, whole_layout):
        monkeypatch.setattr(module, "find_groups", lambda *_: (((0,), (1,), (2,)), 2))
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), SHAPE, slabs=3, layout=layout, device="cpu")
    monkeypatch.setattr(cpu, "TILE_SIZE", tile_size)
    expected = problem.tensor(slabs=3, layout=layout, device="cpu")
    if (keep, tile_size) == ("file", 64):
        keep = "device"
    x = open_slabs(path, device="cpu", keep=keep, verify=True)
    assert x.groups == expected.groups == ((0, 1), (2,))
    check_same(x, expected, problem.factors)


def test_duplicates_do_not_count_for_groups(path, monkeypatch):
    monkeypatch.setattr(groups, "_LEAST_NNZ", 0)
    problem = make_problem((30, 2, 40), 700)
    coords, values = problem.tensor().nonzeros()
    x = FlycooTensor(coords, values, problem.shape, slabs=3, layout="replicated")
    save_slabs(path, [(coords, values), (coords, -values), (coords, values)], x.shape, slabs=3)
    check_same(open_slabs(path), x, problem.factors)


@pytest.mark.parametrize("mode", range(3))
def test_each_mode_is_cut(path, mode):
    shape = (*SHAPE[:mode], 90, *SHAPE[mode + 1 :])
    problem = make_problem(shape, 900)
    save_slabs(path, split(problem), shape, slabs=4)
    x = open_slabs(path)
    assert x._layout.cut_mode == mode
    check_same(x, problem.tensor(layout="replicated", slabs=4), problem.factors)


@pytest.mark.parametrize("shape", [(50,), (20, 3, 25, 4)])
def test_other_numbers_of_modes(path, shape):
    problem = make_problem(shape, 300)
    save_slabs(path, split(problem), slabs=3)
    x = open_slabs(path)
    tight = FlycooTensor(problem.coords, problem.values, x.shape, layout="replicated", slabs=3)
    check_same(x, tight, make_factors(x.shape, 3))


@pytest.mark.parametrize("nnz", [0, 1])
def test_no_nonzero_or_one(path, nnz):
    problem = make_problem(SHAPE, nnz)
    save_slabs(path, [(problem.coords, problem.values)], SHAPE, slabs=4)
    check_same(open_slabs(path), problem.tensor(layout="replicated", slabs=4), problem.factors)


def test_no_part(path):
    save_slabs(path, [], SHAPE)
    assert (open_slabs(path).nnz, open_slabs(path).dtype) == (0, np.float64)
    with pytest.raises(ValueError, match="no nonzeros and no shape, expected"):
        save_slabs(path.with_name("y"), [])


def test_parafac_from_files(path):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), SHAPE, slabs=4)
    options = {"init": "random", "random_state": 0, "n_iter_max": 4}
    x = problem.tensor(layout="replicated", slabs=4)
    with tl.backend_context("flycoo"):
        expected = tl.decomposition.parafac(x, 3, **options)
        found = tl.decomposition.parafac(open_slabs(path), 3, **options)
    for factor, same in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(factor, same)


# Kinds of parts


def test_text_and_parquet(path, tmp_path):
    import pyarrow
    from pyarrow import parquet

    problem = make_problem(SHAPE, 900)
    pieces = list(split(problem))
    files = [tmp_path / "a.tns", str(tmp_path / "b.tns.gz"), tmp_path / "c.parquet"]
    for file, (coords, values) in zip(files[:2], pieces, strict=False):
        lines = [
            " ".join(map(repr, [*line, v]))
            for *line, v in zip(*(coords + 1).tolist(), values.tolist(), strict=True)
        ]
        text = ("# a comment\n" + "\n".join(lines)).encode()
        (tmp_path / file).write_bytes(gzip.compress(text) if str(file).endswith("gz") else text)
    coords, values = pieces[2]
    columns = {"noise": values, "k": coords[2], "i": coords[0], "n": values, "j": coords[1]}
    parquet.write_table(pyarrow.table(columns), files[2])
    save_slabs(path, files, SHAPE, slabs=3, columns=["i", "j", "k", "n"])
    check_same(open_slabs(path), problem.tensor(layout="replicated", slabs=3), problem.factors)


def test_the_shape_in_a_header(path, tmp_path):
    x = make_problem(SHAPE, 50).tensor(slabs=1)
    write_tns(tmp_path / "x.tns", x)
    save_slabs(path, tmp_path / "x.tns")
    assert open_slabs(path).shape == SHAPE
    (tmp_path / "y.tns").write_text("1 80 1 2.0\n")
    save_slabs(path.with_name("y"), [tmp_path / "x.tns", tmp_path / "y.tns"])
    assert open_slabs(path.with_name("y")).shape == (30, 80, 10)


@pytest.mark.parametrize("options", [{}, {"slabs": 3}, {"slabs": 5, "layout": "indexed"}])
def test_tensors(path, options):
    problem = make_problem(SHAPE, 900, dtype="float32")
    x = problem.tensor(**options)
    expected = problem.tensor(layout="replicated", slabs=4)
    save_slabs(path, x, slabs=4)
    check_same(open_slabs(path), expected, problem.factors)
    again = path.with_name("y")
    save_slabs(again, open_slabs(path).to_coo(), slabs=2)
    save_slabs(path.with_name("z"), open_slabs(again), slabs=4)
    check_same(open_slabs(path.with_name("z")), expected, problem.factors)


def test_dtypes(path):
    pair = ([[0, 1], [2, 0]], np.array([1, 2], np.float32))
    for n, (values, dtype, expected) in enumerate(
        [
            (np.float32([3, 4]), None, "float32"),
            ([3.0, 4.0], None, "float64"),
            ([True, False], None, "float64"),
            ([3.0, 4.0], "float32", "float32"),
            (np.float32([3, 4]), int, "float64"),
        ]
    ):
        file = path.with_name(str(n))
        save_slabs(file, [pair, ([[2, 1], [0, 0]], values)], dtype=dtype)
        assert open_slabs(file).dtype == expected


def test_sums_of_float32_are_those_in_memory(path):
    """Values are made float32 before they are added."""
    values = np.random.default_rng(0).random(500)
    coords = np.zeros((2, 500), int)
    save_slabs(path, [(coords, values)], (3, 4), dtype="float32", slabs=2)
    x = FlycooTensor(coords, values, (3, 4), dtype="float32", slabs=2)
    np.testing.assert_array_equal(open_slabs(path).nonzeros()[1], x.nonzeros()[1])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, TypeError, r"parts is a int, expected sparse data, paths or \(coords, values\)"),
        ([3], TypeError, r"parts\[0\]: a int, expected a path or a tuple \(coords, values\)"),
        (([[0]], [1.0]), TypeError, r"parts\[0\]: a list, expected a path"),
        ([([[9]], [1.0]), ([[0], [1]], [1.0])], ValueError, "expected one number"),
        ([([[0]], [1.0]), ([[1]], [np.nan])], ValueError, r"parts\[1\]: values\[0\] is nan"),
        ([([[-1]], [1.0])], ValueError, r"parts\[0\]: coords\[0, 0\] is -1"),
        ([([[2**32]], [1.0])], ValueError, r"parts\[0\]: coords\[0, 0\] is 4294967296"),
        ([([[0.5]], [1.0])], TypeError, r"parts\[0\]: coords has dtype float64"),
        ([([[0]], [1.0, 2.0])], ValueError, r"parts\[0\]: values has shape \(2,\)"),
        ([([[0, 0]], [3e38, 3e38])], ValueError, "would hold values that are not finite"),
    ],
)
def test_wrong_parts(path, given, error, message):
    dtype = "float32" if "would" in message else None
    with pytest.raises(error, match=message):
        save_slabs(path, given, dtype=dtype)
    assert list(path.parent.iterdir()) == []


def test_wrong_files(path, tmp_path):
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "x.tns").write_text("1 1 2.0\n1 x 3.0\n")
    parquet.write_table(pyarrow.table({"i": [1, None], "n": [1.0, 2.0]}), folder / "x.parquet")
    parquet.write_table(pyarrow.table({"i": ["a"], "n": [1.0]}), folder / "y.parquet")
    parquet.write_table(pyarrow.table({"n": [1.0]}), folder / "z.parquet")
    (folder / "w.parquet").write_bytes(b"1 2 3")
    for name, error, message, columns in [
        ("x.tns", ValueError, r"x\.tns, line 2: index x of mode 1", None),
        ("none.tns", FileNotFoundError, r"none\.tns", None),
        ("x.parquet", ValueError, "column 'i' has 1 missing entries", None),
        ("y.parquet", TypeError, r"column .i. is of object, expected integers", None),
        ("y.parquet", ValueError, r"no column 'm', expected one of \['i', 'n'\]", ["i", "m"]),
        ("z.parquet", ValueError, r"columns is \['n'\]", None),
        ("w.parquet", ValueError, r"parts\[0\]: ", None),
    ]:
        with pytest.raises(error, match=message):
            save_slabs(path, [folder / name], columns=columns)
    assert [entry.name for entry in tmp_path.iterdir()] == ["given"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "remap"}, "layout is .remap., expected one of"),
        ({"layout": "x"}, "layout is 'x'"),
        ({"slabs": 0}, "slabs is 0, expected at least 1"),
        ({"index_base": 2}, "index_base is 2, expected one of"),
        ({"device": "x"}, "device is 'x'"),
        ({"shape": (0, 2)}, r"shape\[0\] is 0"),
        ({"shape": (1, 2)}, r"parts\[0\]: coords\[0, 1\] is 1"),
        ({"shape": (1, 2, 3)}, r"parts\[0\]: shape has 3 modes, expected 2"),
    ],
)
def test_wrong_options(path, options, message):
    with pytest.raises(ValueError, match=message):
        save_slabs(path, [([[0, 1], [1, 0]], [1.0, 2.0])], **options)
    assert list(path.parent.iterdir()) == []


def test_labels_are_kept(path):
    x = make_problem(SHAPE, 3).tensor()
    labels = {name: np.arange(size).astype(str) for name, size in zip("abc", SHAPE, strict=True)}
    save_slabs(path, LabelledTensor(x, labels), slabs=2)
    found = open_slabs(path)
    assert found.norm() == x.norm()
    assert {name: of.tolist() for name, of in found.labels.items()} == {
        name: of.tolist() for name, of in labels.items()
    }
    (path / "labels.npz").write_bytes(b"?")
    with pytest.raises(ValueError, match="labels of a slab folder"):
        open_slabs(path)


# The folder


def test_it_appears_when_it_is_complete(path, monkeypatch):
    problem = make_problem(SHAPE, 900)

    def give():
        yield from split(problem)
        assert not path.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_slabs(path, give())
    assert list(path.parent.iterdir()) == []

    def fail(*arguments, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr(slab_folder.saving, "write_layout", fail)
    with pytest.raises(OSError, match="disk is full"):
        save_slabs(path, split(problem))
    assert list(path.parent.iterdir()) == []


def test_a_killed_process_leaves_no_folder(path):
    script = f"""
import os, signal
from tensorly_flycoo import save_slabs
def give():
    yield [[0, 1], [2, 3]], [1.0, 2.0]
    os.kill(os.getpid(), signal.SIGKILL)
save_slabs({str(path)!r}, give(), (2, 4), slabs=2)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    (part,) = path.parent.iterdir()
    assert part.name.startswith(".x.flycoo.")
    with pytest.raises(FileNotFoundError, match=r"slabs\.json"):
        open_slabs(part)
    save_slabs(path, split(make_problem(SHAPE, 90)))


def test_too_little_memory_for_a_slab(path, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(building, "sort_records", fail)
    with pytest.raises(
        MemoryError, match=r"a slab of 3\d\d nonzeros .give more slabs than 3; .* is free"
    ):
        save_slabs(path, split(make_problem(SHAPE, 900)), slabs=3)
    assert list(path.parent.iterdir()) == []


def test_nothing_is_replaced(path):
    problem = make_problem(SHAPE, 90)
    path.mkdir()
    save_slabs(path, split(problem))
    with pytest.raises(FileExistsError, match=r"x\.flycoo"):
        save_slabs(path, split(problem))
    path.with_name("y").write_text("")
    with pytest.raises(FileExistsError, match="y"):
        save_slabs(path.with_name("y"), split(problem))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["x.flycoo", "y"]


def test_temporary_files_are_removed(path):
    save_slabs(path, split(make_problem(SHAPE, 900)), slabs=3)
    names = sorted(entry.name for entry in path.iterdir())
    assert names == ["slab-00000.npz", "slab-00001.npz", "slab-00002.npz", "slabs.json"]
    assert load(path / "slab-00001.npz").shape[0] == SHAPE[0]


def test_opening_reads_headers_only(path, monkeypatch):
    save_slabs(path, split(make_problem(SHAPE, 900)), slabs=3)
    read, names = ArrayReader.read, []

    def spy(self, name, *expected):
        names.append(name)
        return read(self, name, *expected)

    monkeypatch.setattr(ArrayReader, "read", spy)
    x = open_slabs(path, device="cpu")
    assert set(names) == {"header"}
    for slab in x._layout.slabs:
        for _, array in slab.layout.iterate_arrays():
            assert not array.flags.writeable
            assert array.flags.aligned
            assert array.ctypes.data % 4096 == 0
    names.clear()
    open_slabs(path, device="cpu", verify=True)
    assert {"records_0", "records_1", "carry_rows_1", "empty_rows_0"} < set(names)


def test_a_folder_is_built_in_little_memory(path, monkeypatch):
    """Less than a quarter of the tensor; most of it is one slab while it is built."""
    for module in (parts, slab_folder):
        monkeypatch.setattr(module, "BLOCK_NNZ", 2000)
    problem = make_problem((4000, 500, 70), 100_000)
    save_slabs(path.with_name("warm"), split(problem, 3), slabs=20)
    peaks = []
    for name in ("first", "second"):  # threads that other tests left allocate too
        pieces = ((coords.copy(), values) for coords, values in split(problem, 50))
        tracemalloc.start()
        try:
            save_slabs(path.with_name(name), pieces, problem.shape, slabs=20)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < open_slabs(path.with_name("first")).nbytes / 4


def test_several_readers(path):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), slabs=3)
    expected, found = compute_all(open_slabs(path), problem.factors), []

    def compute():
        found.append(compute_all(open_slabs(path), problem.factors))

    threads = [threading.Thread(target=compute) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_a_removed_folder_stays_readable(path):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), slabs=3)
    x = open_slabs(path, device="cpu")
    shutil.rmtree(path)
    check_same(x, problem.tensor(layout="replicated", slabs=3), problem.factors)


def test_values_can_be_changed_in_a_copy(path):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), slabs=3)
    x = problem.tensor(layout="replicated", slabs=3)
    check_same(2 * open_slabs(path), 2 * x, problem.factors)


def test_other_functions_name_each_other(path, tmp_path):
    x = make_problem(SHAPE, 900).tensor(slabs=3)
    with pytest.raises(ValueError, match=r"x has 3 slabs, .*: call save_slabs\(path, x\)"):
        save(tmp_path / "x.npz", x)
    save_slabs(path, x)
    with pytest.raises(IsADirectoryError, match="open_slabs"):
        load(path)
    save(tmp_path / "x.npz", make_problem(SHAPE, 900).tensor())
    with pytest.raises(NotADirectoryError):
        open_slabs(tmp_path / "x.npz")


class CopyingStager:
    """Streams to the "device" that a CPU is; an array of a file stays one."""

    def put_aside(self, array, order=None):
        return array if not array.flags.writeable else array.copy()

    @contextlib.contextmanager
    def take(self, array, following):
        assert following is not None
        yield array.copy()


@pytest.mark.parametrize("keep", ["file", "host"])
def test_an_engine_that_streams(path, keep, monkeypatch):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), slabs=3)
    monkeypatch.setattr(cpu.CPU, "make_stager", CopyingStager, raising=False)
    x = open_slabs(path, device="cpu", keep=keep)
    assert x._layout.num_streamed == 3
    for slab in x._layout.slabs:
        assert all(copy.flags.writeable == (keep == "host") for copy in slab.layout.copies)
    expected = problem.tensor(layout="replicated", slabs=3, device="cpu")
    assert compute_all(x, problem.factors) == compute_all(expected, problem.factors)
    assert open_slabs(path, device="cpu", keep="device")._layout.num_streamed == 0
    save_slabs(path.with_name("y"), split(problem), layout="indexed")
    with pytest.raises(ValueError, match=f"keep is '{keep}', expected 'device': the layout"):
        open_slabs(path.with_name("y"), device="cpu", keep=keep)


@pytest.mark.parametrize("keep", ["disk", 3])
def test_unknown_places(path, keep):
    with pytest.raises(ValueError, match=r"keep is .*, expected one of"):
        open_slabs(path, device="cpu", keep=keep)


def test_a_plan_for_another_device(path, monkeypatch):
    problem = make_problem(SHAPE, 900)
    save_slabs(path, split(problem), slabs=3)
    monkeypatch.setattr(cpu, "TILE_SIZE", 64)
    with pytest.raises(ValueError, match=r"slab-00000\.npz has a plan for another kind of device"):
        open_slabs(path, device="cpu", keep="file")
    x = problem.tensor(layout="replicated", slabs=3, device="cpu")
    for keep in ("device", None):
        check_same(open_slabs(path, device="cpu", keep=keep), x, problem.factors)
    monkeypatch.setattr(cpu.CPU, "count_free_nbytes", lambda: 1000)
    monkeypatch.setattr(out_of_memory, "SURELY_FREE_NBYTES", 0)
    with pytest.raises(MemoryError, match=r"building a slab of 2\d\d nonzeros anew needs more"):
        open_slabs(path, device="cpu")


# Damage


@pytest.fixture
def good(path):
    save_slabs(path, split(make_problem((12, 20), 60)), slabs=2, device="cpu")
    return path


def open_or_explain(path, **options):
    """Open a folder, or return None after checking that the error names a file."""
    try:
        return open_slabs(path, device="cpu", **options)
    except ValueError as error:
        text = str(error)
    assert text.startswith((f"{path / 'slab'}", f"{path} ")), text
    assert "is damaged, or not" in text or "has format version" in text
    assert text.isprintable()
    return None


@pytest.mark.parametrize("name", ["slabs.json", "slab-00000.npz", "slab-00001.npz"])
def test_a_missing_file(good, name):
    (good / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        open_slabs(good)


def test_a_folder_that_was_not_completed(path):
    path.mkdir()
    with pytest.raises(FileNotFoundError, match=r"slabs\.json"):
        open_slabs(path)


def test_truncated_files(good):
    for name in ("slabs.json", "slab-00000.npz", "slab-00001.npz"):
        file, data = good / name, (good / name).read_bytes()
        for end in range(0, len(data), 1 + len(data) // 40):
            file.write_bytes(data[:end])
            assert open_or_explain(good) is None
        file.write_bytes(data)


def test_a_changed_byte_of_the_index(good):
    file, data = good / "slabs.json", (good / "slabs.json").read_bytes()
    facts, num_refused = json.loads(data), 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        file.write_bytes(changed)
        x = open_or_explain(good)
        num_refused += x is None
        assert x is None or json.loads(bytes(changed)) == facts  # white space
    assert num_refused > len(data) / 2


@pytest.mark.parametrize("options", [{"verify": True}, {"keep": "device"}])
def test_a_changed_byte_of_the_data_is_found(good, options):
    x, random, num_refused = open_slabs(good, keep="device"), np.random.default_rng(0), 0
    factors = make_factors(x.shape, 3)
    expected = compute_all(x, factors)
    for name in ("slab-00000.npz", "slab-00001.npz"):
        file, data = good / name, (good / name).read_bytes()
        ends = [data.index(b"PK\x01\x02")]
        ends += [i for i in range(0, ends[0], 4096) if any(data[i : i + 4096])]
        for place in [int(end) + int(random.integers(200)) for end in ends * 8]:
            changed = bytearray(data)
            changed[place] ^= 1 << int(random.integers(8))
            file.write_bytes(changed)
            y = open_or_explain(good, **options)
            num_refused += y is None
            assert y is None or compute_all(y, factors) == expected
        file.write_bytes(data)
    assert num_refused > 50


def test_exchanged_slabs(good):
    names = [good / "slab-00000.npz", good / "slab-00001.npz"]
    os.rename(names[0], good / "kept")
    os.rename(names[1], names[0])
    os.rename(good / "kept", names[1])
    assert open_or_explain(good) is None


def test_a_slab_of_another_folder(good):
    other = good.with_name("other")
    problem = make_problem((12, 20), 60)
    save_slabs(other, [(problem.coords, 2 * problem.values)], (12, 20), slabs=2, device="cpu")
    shutil.copy(other / "slab-00000.npz", good / "slab-00000.npz")
    assert open_or_explain(good) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"groups": [[0, 1]]},
        {"version": "\x1b"},
        {"format": "other"},
        {"shape": [12, 21]},
        {"shape": [12]},
        {"shape": "x"},
        {"dtype": "float32"},
        {"dtype": "object"},
        {"layout": "indexed"},
        {"layout": "remap"},
        {"layout": None},
        {"num_slabs": 1},
        {"num_slabs": 2.5},
        {"entries": []},
        {"entries": 3},
        {"entries": [[0, 12, 1, ""]]},
        {"entries": [[0, 12, 1]]},
        {"more": 1},
    ],
)
def test_a_wrong_index_with_a_right_digest(good, change):
    facts = json.loads((good / "slabs.json").read_text()) | change
    del facts["digest"]
    (good / "slabs.json").write_text(json.dumps(facts | {"digest": slab_folder.digest(facts)}))
    assert open_or_explain(good) is None


def test_names_are_public():
    assert {"open_slabs", "save_slabs"} <= set(tensorly_flycoo.__all__)


def test_another_run_that_finishes_first_wins(tmp_path):
    path = tmp_path / "x.flycoo"
    slower = make_folder(path)
    (slower.__enter__() / "of the slower").touch()
    path.mkdir()
    (path / "of the faster").touch()
    with pytest.raises(FileExistsError, match=r"x\.flycoo"):
        slower.__exit__(None, None, None)
    assert [file.name for file in path.iterdir()] == ["of the faster"]
    assert list(tmp_path.iterdir()) == [path]


# Tables

TABLE_MODES = ["user", "item", "day"]


def draw_table():
    """Rows repeat, and no value is 0."""
    rng = np.random.default_rng(0)
    columns = {
        "user": [f"user {number}" for number in rng.integers(0, 90, 900)],
        "item": rng.integers(0, 30, 900),
        "day": np.datetime64("2026-01-01") + rng.integers(0, 9, 900),
        "price": rng.normal(size=900),
    }
    return pa.table(columns)


def cut_table(table):
    return [table[:0], table[:100], table[100:]]


def write_table(table, folder):
    for number, part in enumerate(cut_table(table)):
        pyarrow.parquet.write_table(part, folder / f"{number}.parquet", row_group_size=300)
    return folder


TABLES = {
    "one": lambda table, _: table,
    "frames": lambda table, _: (part.to_pandas() for part in cut_table(table)),
    "reader": lambda table, _: table.to_reader(max_chunksize=100),
    "data set": lambda table, folder: pyarrow.dataset.dataset(write_table(table, folder)),
    "folder": write_table,
    "files": lambda table, folder: [write_table(table, folder) / f"{n}.parquet" for n in range(3)],
}


def check_same_labels(x, y):
    assert list(x.labels) == list(y.labels)
    assert x.labels.ordered == y.labels.ordered
    for own, other in zip(x.labels.values(), y.labels.values(), strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("values", ["price", None])
def test_a_table_in_a_folder_is_that_in_memory(make, values, path, tmp_path):
    table = draw_table()
    folder = tmp_path / "files"
    folder.mkdir()
    options = {"slabs": 3, "layout": "replicated", "device": "cpu"}
    save_slabs(path, make(table, folder), modes=TABLE_MODES, values=values, **options)
    found = open_slabs(path, device="cpu", verify=True)
    expected = from_dataframe(table, TABLE_MODES, values, aggregate="sum", **options)
    check_same_labels(found, expected)
    assert (found.value_column, found.unknown) == (expected.value_column, None)
    factors = make_factors(expected.tensor.shape, 3, np.float64)
    check_same(found.tensor, expected.tensor, factors)


def run_table_memory(*arguments):
    script = os.path.join(os.path.dirname(problems.__file__), "table_memory.py")
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("kind", ["arrow", pytest.param("pandas", marks=pytest.mark.slow)])
def test_tables_in_parts_take_the_memory_of_two_parts(kind):
    assert float(run_table_memory(kind)) < 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_larger_than_the_memory_limit(tmp_path):
    """Its columns take 530 MB, the tensor 590; the labels that are text some 150 of the 500 MB."""
    assert "12,000,000 rows" in run_table_memory(tmp_path, 12, 8, 500)


def test_rows_of_a_table_can_be_left_out(path):
    table = pd.DataFrame({"k": ["b", None, "a", "c", "b"], "v": [1, 2, np.nan, 0, 3]})
    parts = [table[:2], table[2:]]
    with pytest.raises(ValueError, match="part 0 of parts: column 'k' has no entry in row 1, exp"):
        save_slabs(path, parts, modes=["k"], values="v")
    with pytest.raises(ValueError, match="1 of 2 values of column 'v' are 0: pass zeros=\"drop\""):
        save_slabs(path, parts, modes=["k"], values="v", missing="drop")
    save_slabs(path, parts, modes=["k"], values="v", missing="drop", zeros="drop")
    x = open_slabs(path, device="cpu")
    assert x.labels["k"].tolist() == ["b", "c"]
    assert [array.tolist() for array in x.tensor.nonzeros()] == [[[0]], [4]]


def test_labels_of_a_folder_can_be_given(path):
    table = pd.DataFrame({"k": ["b", "c"], "v": [1.0, np.nan]})
    options = {"modes": ["k"], "values": "v", "labels": {"k": list("dcba")}}
    save_slabs(path, iter([table]), missing="unknown", dtype="float32", **options)
    x = open_slabs(path, device="cpu")
    assert x.labels["k"].tolist() == list("dcba")
    assert (x.unknown, x.tensor.dtype) == ("all", np.float32)
    assert x.tensor.to_coo().todense().tolist() == [0, 0, 1, 0]


def test_tables_that_are_refused(path):
    table = pd.DataFrame({"k": [1], "v": [1.0]})
    parts = [table, table.drop(columns="v")]
    for given, options, kind, message in [
        (table, {}, TypeError, "parts is a DataFrame and modes is not given, the columns of"),
        ([table], {}, TypeError, r"parts\[0\]: a DataFrame and modes is not given"),
        (table, {"values": "v"}, ValueError, "values is 'v', but modes is not given"),
        (table, {"labels": {}}, ValueError, "labels is {}, but modes is not given"),
        (table, {"modes": ["k"], "shape": (3,)}, ValueError, "expected neither shape nor columns"),
        (table, {"modes": ["k"], "zeros": "keep"}, ValueError, "zeros is 'keep', expected 'raise'"),
        (table, {"modes": ["k"], "missing": "no"}, ValueError, "missing is 'no', expected "),
        (table, {"modes": ["k"], "labels": {"v": [1]}}, ValueError, "expected only columns of mod"),
        (table, {"modes": ["x"]}, ValueError, "parts has no column 'x', expected one of"),
        (parts, {"modes": ["k"], "values": "v"}, ValueError, "part 1 of parts: it has no column"),
        ([table, 3], {"modes": ["k"]}, TypeError, "part 1 of parts: it is a int, expected a tab"),
        (iter([]), {"modes": ["k"]}, ValueError, "parts has no rows, .* gives its parts once"),
        ([], {"modes": ["k"]}, ValueError, "parts has no rows, expected at least one$"),
        (__file__, {"modes": ["k"]}, ValueError, "test_slab_folder.py is not .parquet: pass its"),
        (split(make_problem(SHAPE, 9)), {"modes": ["k"]}, TypeError, "it is a tuple, expected a"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=message):
            save_slabs(path, given, **options)
        assert not path.exists()


def test_an_empty_table_is_refused(path):
    table = draw_table()[:0]
    with pytest.raises(ValueError, match="parts has no rows, expected at least one"):
        save_slabs(path, table, modes=TABLE_MODES)
