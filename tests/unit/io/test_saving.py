"""Saving and loading tensors with their plans."""

import io
import itertools
import json
import math
import threading
import zipfile

import numpy as np
import pytest
from numpy_primitives import NumpyPrimitives
from problems import compute_all, make_factors, make_problem
from slow_cases import thin_out

from tensorly_flycoo import FlycooTensor, load, mttkrp, save
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.format.layouts import LAYOUT_CLASSES
from tensorly_flycoo.format.packing import Cut, RecordFormat
from tensorly_flycoo.spread import whole_layout

pytestmark = pytest.mark.usual_limits("slabs")  # which cannot be saved

SHAPE = (40, 3, 500, 7)


def make_tensor(layout="remap", dtype="float64", nnz=6000, shape=SHAPE, groups=None):
    problem = make_problem(shape, nnz, dtype=dtype, skew=2)
    return problem.tensor(layout=layout, device="cpu", groups=groups)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.npz"


@pytest.fixture
def no_building(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a plan was built")

    monkeypatch.setattr(whole_layout, "build_in_slabs", refuse)


@pytest.mark.parametrize(
    ("layout", "groups", "dtype"),
    thin_out(
        itertools.product(LAYOUTS, [None, [(0, 1), (2, 3)]], ["float32", "float64"]),
        5,
    ),
)
def test_a_loaded_tensor_computes_the_same_bits(path, layout, dtype, groups, request):
    x, factors = make_tensor(layout, dtype, groups=groups), make_factors(SHAPE, 3, dtype)
    save(path, x)
    expected = compute_all(x, factors)
    if layout != "remap":
        request.getfixturevalue("no_building")
    y = load(path, device="cpu")
    assert (y.shape, y.dtype, y.nnz, y.layout) == (x.shape, x.dtype, x.nnz, layout)
    assert (y.nbytes, y.norm(), y.groups) == (x.nbytes, x.norm(), x.groups)
    for array, same in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, same)
    assert compute_all(y, factors) == expected


def test_saving_in_any_resident_mode(path):
    x, factors = make_tensor(), make_factors(SHAPE, 3)
    expected = compute_all(x, factors)
    for mode in range(x.ndim):
        mttkrp(x, factors, mode)
        save(path, x)
        assert compute_all(load(path, device="cpu"), factors) == expected


def test_a_file_is_no_larger_than_the_tensor(path):
    for layout in LAYOUTS:
        x = make_tensor(layout)
        save(path, x)
        plans = (x._layout.spare, *x._layout.plans) if layout == "remap" else ()
        left_out = sum(plan.nbytes for plan in plans)
        assert 0 <= path.stat().st_size - (x.nbytes - left_out) < 16_000


@pytest.mark.parametrize("nnz", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_nonzeros(path, layout, nnz):
    x = FlycooTensor(np.ones((2, nnz), int), np.ones(nnz), (2, 3), layout=layout, device="cpu")
    save(path, x)
    y = load(path, device="cpu")
    np.testing.assert_array_equal(y.to_coo().todense(), x.to_coo().todense())
    assert compute_all(y, make_factors((2, 3), 3)) == compute_all(x, make_factors((2, 3), 3))


def test_more_cells_than_int64_counts(path):
    shape = (2**17,) * 4
    assert math.prod(shape) > 2**63
    x = FlycooTensor([[2**17 - 1, 0]] * 4, [1.0, 2.0], shape, device="cpu")
    save(path, x)
    np.testing.assert_array_equal(load(path, device="cpu").nonzeros()[0], x.nonzeros()[0])


def test_a_coo_is_saved_as_its_tensor(path):
    x = make_tensor()
    save(str(path), x.to_coo())
    np.testing.assert_array_equal(load(str(path)).nonzeros()[1], x.nonzeros()[1])
    with pytest.raises(
        TypeError, match=r"x is a ndarray, expected a FlycooTensor or a sparse\.COO"
    ):
        save(path, np.ones(3))


def test_numpy_opens_it(path):
    save(path, make_tensor("indexed"))
    with np.load(path, allow_pickle=False) as arrays:
        header = json.loads(str(arrays["header"]))
        expected = {"format": "tensorly-flycoo", "version": 2, "layout": "indexed"}
        assert expected.items() <= header.items()
        assert {"records", "pull_ids_3", "carry_rows_0", "empty_rows_0"} < set(arrays.files)


def test_saving_while_another_thread_computes(path):
    """All saved records are in one mode's order, though they are remapped all the time."""
    x, factors, is_done = make_tensor(), make_factors(SHAPE, 3), threading.Event()
    expected = compute_all(x, factors)

    def compute():
        while not is_done.is_set():
            compute_all(x, factors)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(10):
            save(path, x)
            assert compute_all(load(path, device="cpu"), factors) == expected
    finally:
        is_done.set()
        thread.join()


# Plans of other devices and releases.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "cut", [(64, 256, "uint32"), (cpu.TILE_SIZE, 2 * cpu.BUCKET_SIZE, "uint64")]
)
def test_another_plan_is_rebuilt(path, layout, cut):
    tile_size, bucket_size, words = cut
    problem = make_problem(SHAPE, 6000, skew=2)
    record_format = RecordFormat.of(SHAPE, "float64", words)
    cut = Cut(record_format, tile_size, bucket_size)
    plan = LAYOUT_CLASSES[layout].build(problem.coords, problem.values, cut, NumpyPrimitives())
    save(path, FlycooTensor._of(cpu.CPU, plan))
    x = load(path, device="cpu")
    assert x.layout == layout
    assert x._layout.record_format.word_dtype == np.uint64
    expected = problem.tensor(layout=layout, device="cpu", groups=None)
    assert compute_all(x, problem.factors) == compute_all(expected, problem.factors)


# Damaged files raise an error, and take little memory.


def load_or_explain(path):
    """Load a tensor, or return None after checking the error."""
    try:
        return load(path, device="cpu")
    except ValueError as error:
        text = str(error)
    assert text.startswith(f"{path} is damaged, or not a saved tensor: ")
    return None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_byte_never_changes_the_tensor(path, layout):
    x = make_tensor(layout, nnz=40, shape=(5, 4))
    save(path, x)
    good, random, num_refused = path.read_bytes(), np.random.default_rng(0), 0
    factors = make_factors((5, 4), 3)
    expected = compute_all(x, factors)
    places = random.choice(len(good), 400, replace=False).tolist()
    for place in places:
        data = bytearray(good)
        data[place] ^= 1 << int(random.integers(8))
        path.write_bytes(data)
        y = load_or_explain(path)
        num_refused += y is None
        if y is not None:
            np.testing.assert_array_equal(y.to_coo().todense(), x.to_coo().todense())
            assert compute_all(y, factors) == expected
    assert num_refused > 200


def test_truncated(path):
    save(path, make_tensor(nnz=40, shape=(5, 4)))
    data = path.read_bytes()
    for end in range(0, len(data), 37):
        path.write_bytes(data[:end])
        assert load_or_explain(path) is None


def test_other_files_are_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.npz")
    path.write_bytes(b"1 1 1 2.0\n")
    assert load_or_explain(path) is None
    np.savez(path, a=np.ones(3))
    assert load_or_explain(path) is None
    for text in ("[]", "[" * 10**5):
        np.savez(path, header=np.array(text))
        assert load_or_explain(path) is None
    np.savez(path, header=np.array({"format": "tensorly-flycoo"}, object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"header: an array of object .* is not expected"):
        load(path)


def rewrite(path, changes=None, header=None, savez=np.savez):
    """Rewrite a file with changed arrays and valid checksums."""
    with np.load(path) as file:
        arrays = dict(file)
    arrays["header"] = np.array(json.dumps({**json.loads(str(arrays["header"])), **(header or {})}))
    for name, change in (changes or {}).items():
        arrays[name] = change(arrays[name])
        if arrays[name] is None:
            del arrays[name]
    savez(path, **arrays)


def test_compressed(path):
    save(path, make_tensor())
    rewrite(path)
    assert load(path).nnz == make_tensor().nnz
    rewrite(path, savez=np.savez_compressed)
    with pytest.raises(ValueError, match=r"header: it is compressed|larger than the file"):
        load(path)


def test_another_version(path):
    save(path, make_tensor())
    for version in (1, 3):
        rewrite(path, header={"version": version})
        with pytest.raises(ValueError, match=rf"x\.npz has format version {version}, expected 2: "):
            load(path)


WRONG_HEADERS = [
    {"format": "another"},
    {"shape": []},
    {"shape": [2**40]},
    {"shape": "abcd"},
    {"groups": 4},
    {"groups": [[0], [2], [1], [3]]},
    {"groups": [[0], [1], [2, 3]]},
    {"shape": [40, 3, 500]},
    {"shape": [40, 3, 100, 7]},
    {"dtype": "object"},
    {"dtype": "float32"},
    {"word_dtype": "int64"},
    {"layout": "other"},
    {"layout": "indexed"},
    {"layout": "replicated"},
    {"layout": ["remap"]},
    {"norm": math.inf},
    {"norm": -1.0},
    {"norm": "1"},
    {"tile_size": 0},
    {"tile_size": 2.5},
]


@pytest.mark.parametrize("header", WRONG_HEADERS, ids=str)
def test_wrong_headers(path, header):
    save(path, make_tensor())
    rewrite(path, header=header)
    assert load_or_explain(path) is None


def put(number):
    """Return a function that changes the last element of an array."""

    def change(array):
        changed = array.copy()
        changed.reshape(-1)[-1] = number
        return changed

    return change


WRONG_ARRAYS = [
    ("remap", "records", put(np.float64(np.nan).view(np.uint64))),
    ("remap", "records", lambda array: array | np.uint64(2**63 - 1)),
    ("remap", "records", lambda array: array.astype(np.uint32)),
    ("remap", "records", lambda array: array[:, 0]),
    ("remap", "records", lambda array: None),
    ("remap", "empty_rows_2", lambda array: None),
    ("indexed", "records", put(np.float64(np.nan).view(np.uint64))),
    ("indexed", "records", lambda array: array | np.uint64(2**63 - 1)),
    ("indexed", "records", lambda array: array[:-1]),
    ("indexed", "records", lambda array: array.astype(np.uint32)),
    ("indexed", "records", lambda array: array[:, 0]),
    ("indexed", "records", lambda array: None),
    ("indexed", "records", np.asfortranarray),
    ("indexed", "pull_ids_3", lambda array: array[1:]),
    ("indexed", "pull_ids_3", lambda array: array.astype(np.int16)),
    ("indexed", "carry_rows_2", put(500)),
    ("indexed", "carry_rows_2", put(-2)),
    ("indexed", "carry_rows_2", lambda array: array[:-1]),
    ("indexed", "empty_rows_2", put(500)),
    ("indexed", "empty_rows_2", lambda array: np.tile(array, 3)),
    ("replicated", "records_3", put(np.float64(np.inf).view(np.uint64))),
    ("replicated", "records_3", lambda array: array[:-1]),
    ("replicated", "records_0", lambda array: None),
    ("indexed", "pull_ids_1", put(6000)),
    ("indexed", "pull_ids_3", lambda array: None),
]


@pytest.mark.parametrize(("layout", "name", "change"), WRONG_ARRAYS)
def test_wrong_arrays(path, layout, name, change):
    save(path, make_tensor(layout, nnz=300))
    rewrite(path, {name: change})
    assert load_or_explain(path) is None


CUT_OTHERWISE = {"tile_size": 512}  # not the CPU's, so the plan is rebuilt


@pytest.mark.parametrize(
    "change",
    [
        put(np.float64(np.nan).view(np.uint64)),
        lambda array: array | np.uint64(2**63 - 1),
        lambda array: array[0, 0],
    ],
)
def test_wrong_records_of_another_plan(path, change):
    save(path, make_tensor(nnz=300))
    rewrite(path, {"records": change}, CUT_OTHERWISE)
    with pytest.raises(ValueError, match=r"x\.npz is damaged, .*: (records|coords|values)"):
        load(path, device="cpu")


@pytest.mark.parametrize("shape", [[2**32], [3] + 400 * [1]])
def test_a_falsely_large_shape(path, shape):
    """No memory is allocated for its empty rows, and no kernel is compiled for its modes."""
    save(path, FlycooTensor([[0, 2]], [1.0, 2.0], (3,)))
    groups = [[n] for n in range(len(shape))]
    rewrite(path, header={**CUT_OTHERWISE, "shape": shape, "groups": groups})
    with pytest.raises(ValueError, match=r"x\.npz is damaged, .*: empty_rows_\d"):
        load(path, device="cpu")


def test_an_unexpected_array(path):
    save(path, make_tensor("indexed", nnz=300))
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays, write_order_1=np.zeros(arrays["records"].shape[0], np.uint16))
    with pytest.raises(ValueError, match="write_order_1 does not match the header"):
        load(path, device="cpu")


def test_text_from_a_file_is_escaped(path):
    """Control characters must not reach the terminal."""
    save(path, make_tensor(nnz=300))
    rewrite(path, header={"version": "\x1b[2J\n"})
    with pytest.raises(ValueError, match=r"has format version '\\x1b\[2J\\n'"):
        load(path)
    np.savez(path, **{"\x1b[2J": np.zeros(3)})
    with pytest.raises(ValueError, match="the name of an array is not printable"):
        load(path)
    header = io.BytesIO()
    np.save(header, np.array("{}"))
    with zipfile.ZipFile(path, "w") as archive:  # NumPy's error quotes an unknown dtype
        archive.writestr("header.npy", header.getvalue().replace(b"<U2", b"\x1b,4"))
    with pytest.raises(ValueError, match=r"header: ") as caught:
        load(path)
    assert str(caught.value).isprintable()


def test_a_falsely_large_array(path):
    """No memory is allocated for it: it would take 8 EB."""
    save(path, make_tensor())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    described = {"descr": "<u8", "fortran_order": False, "shape": (2**30, 2**30)}
    np.lib.format.write_array_header_1_0(header, described)
    members["records.npy"] = header.getvalue() + members["records.npy"][128:]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match=r"records: its size does not match shape"):
        load(path)


def test_a_failed_save_leaves_the_file_unchanged(path, monkeypatch):
    x = make_tensor()
    save(path, x)
    good = path.read_bytes()

    def fail(*arguments, **options):
        raise OSError("the disk is full")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="disk is full"):
        save(path, x)
    assert path.read_bytes() == good
    assert [entry.name for entry in path.parent.iterdir()] == ["x.npz"]
