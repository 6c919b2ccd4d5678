"""Folders for devices that pack records: the CPU stands in for one, with packing by definition."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import reference_packing
from problems import compute_all, make_problem

from tensorly_flycoo import load, open_slabs, save_slabs, stats
from tensorly_flycoo.engines.cpu import engine as cpu
from tensorly_flycoo.engines.cpu.engine import CPU
from tensorly_flycoo.format.packed_records import PackedRecords
from tensorly_flycoo.io import slab_folder
from tensorly_flycoo.spread import whole_layout

pytestmark = pytest.mark.usual_limits("slabs")  # a raw tensor would have three

SHAPE = (30, 70, 10)


class UnpackingStager:
    """Streams to the "device" that a CPU is; what is in a file stays there."""

    def put_aside(self, records, order=None):
        return records

    @contextlib.contextmanager
    def take(self, copy, following):
        yield copy.unpack() if isinstance(copy, PackedRecords) else copy


@pytest.fixture
def packing(monkeypatch):
    """Let the CPU pack records and stream, until the patches are undone."""
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "TILE_SIZE", 32)
        patch.setattr(CPU, "pack_records", reference_packing.pack, raising=False)
        patch.setattr(CPU, "make_stager", UnpackingStager, raising=False)
        yield patch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.flycoo"


def save_problem(path, dtype="float32", num_values=900):
    """Save a problem with so many kinds of values in three slabs; return it and its tensor."""
    problem = make_problem(SHAPE, 900, dtype=dtype)
    problem.values[:] = np.resize(problem.values[:num_values], problem.values.size)
    save_slabs(path, [(problem.coords, problem.values)], SHAPE, slabs=3, device="cpu")
    return problem, problem.tensor(layout="replicated", slabs=3, device="cpu")


def list_copies(x):
    return [copy for slab in x._layout.slabs for copy in slab.layout.copies]


@pytest.mark.parametrize("keep", ["file", "host", "device"])
@pytest.mark.parametrize("num_values", [5, 900])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_those_of_a_tensor_in_memory(path, packing, dtype, num_values, keep):
    problem, expected = save_problem(path, dtype, num_values)
    x = open_slabs(path, device="cpu", keep=keep, verify=True)
    assert x._layout.num_streamed == (0 if keep == "device" else 3)
    for y, other in ((x, expected), (x * -3, expected * -3)):
        assert compute_all(y, problem.factors) == compute_all(other, problem.factors)
        for array, same in zip(y.nonzeros(), other.nonzeros(), strict=True):
            np.testing.assert_array_equal(array, same)


def test_files_are_streamed_as_they_lie(path, packing):
    """What a GPU copies is the mapped file, and `stats` tells its share."""
    save_problem(path, num_values=5)
    x = open_slabs(path, device="cpu", keep="file")
    for copy in list_copies(x):
        assert isinstance(copy, PackedRecords)
        assert not copy.words.flags.writeable
    nbytes = sum(copy.nbytes for copy in list_copies(x))
    facts = stats(x)
    unpacked_nbytes = x.nnz * 3 * x._layout.record_format.record_nbytes
    assert (facts.host_nbytes, facts.unpacked_nbytes) == (nbytes, unpacked_nbytes)
    assert nbytes < 0.5 * unpacked_nbytes
    assert "what they hold unpacked" in str(facts)


@pytest.mark.parametrize("num_numbered", [0, 2])
def test_engines_that_do_not_pack(path, packing, num_numbered, monkeypatch):
    """They build their slabs anew; a file of a slab can be loaded too."""
    for module in (slab_folder, whole_layout):
        monkeypatch.setattr(module, "find_groups", lambda *_: (((0,), (1,), (2,)), num_numbered))
    problem, expected = save_problem(path)
    x = open_slabs(path, device="cpu", keep="file")
    assert compute_all(x, problem.factors) == compute_all(expected, problem.factors)
    packing.undo()
    expected = problem.tensor(layout="replicated", slabs=3, device="cpu")
    products = compute_all(expected, problem.factors)
    with pytest.raises(ValueError, match="has a plan for another kind of device"):
        open_slabs(path, device="cpu", keep="file")
    for keep in (None, "device"):
        assert compute_all(open_slabs(path, device="cpu", keep=keep), problem.factors) == products
    loaded = [load(path / f"slab-0000{number}.npz", device="cpu") for number in range(3)]
    assert sum(x.nnz for x in loaded) == expected.nnz


def test_copies_of_which_little_would_be_saved(path, packing):
    """Those of one mode are as in older folders."""

    def pack_some(records, order):
        return None if order.mode == 1 else reference_packing.pack(records, order)

    packing.setattr(CPU, "pack_records", pack_some)
    problem, expected = save_problem(path)
    x = open_slabs(path, device="cpu", keep="file", verify=True)
    assert [isinstance(copy, PackedRecords) for copy in list_copies(x)] == [True, False, True] * 3
    assert compute_all(x, problem.factors) == compute_all(expected, problem.factors)


# Damage


@pytest.mark.parametrize("options", [{"keep": "file", "verify": True}, {"keep": "device"}])
def test_a_changed_byte_is_found(path, packing, options):
    save_problem(path, num_values=5)
    file = path / "slab-00001.npz"
    data = file.read_bytes()
    for name in ("packed_0", "packed_2", "packed_values_1"):
        start = data.index(f"{name}.npy".encode())
        start = 4096 * -(-start // 4096)
        assert any(data[start : start + 8])
        file.write_bytes(data[: start + 4] + bytes([data[start + 4] ^ 1]) + data[start + 5 :])
        with pytest.raises(ValueError, match=rf"slab-00001\.npz is damaged.* {name}"):
            open_slabs(path, device="cpu", **options)
    file.write_bytes(data)
    open_slabs(path, device="cpu", **options)


def spoil_ranks(packed):
    packed.words[0] = 1
    return packed


def spoil_rows(packed):
    """More rows begin than there are: at each record of the last two groups."""
    packed.words[-1 - 2 * packed.bits.record_bits : -1] = 2**32 - 1
    return packed


def spoil_codes(packed):
    """Fewer values are known, whose numbers have as many bits."""
    return replace(packed, values=packed.values[: 2 ** (packed.bits.code_bits - 1) + 1])


SPOILED = [
    (spoil_ranks, "the ranks of its rows are wrong"),
    (spoil_rows, "the number of a row is not in its table"),
    (spoil_codes, "the number of a value is not in its table"),
]


@pytest.mark.parametrize("options", [{"keep": "file", "verify": True}, {"keep": "device"}])
@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_wrong_words_with_a_right_checksum(path, packing, spoil, message, options):
    def pack(records, order):
        packed = reference_packing.pack(records, order)
        return spoil(packed) if order.mode == 0 else packed

    packing.setattr(CPU, "pack_records", pack)
    save_problem(path, num_values=7)
    with pytest.raises(ValueError, match=rf"slab-0000.\.npz is damaged, .*: {message}"):
        open_slabs(path, device="cpu", **options)


@pytest.mark.parametrize(
    "change",
    [
        {"nnz": 0},
        {"nnz": 2**60},
        {"nnz": 3.0},
        {"block_nnz": 256},
        {"has_rows": [True]},
        {"has_rows": [1, 1, 1]},
        {"has_rows": [False, True, True]},
        {"has_rows": 3},
    ],
)
@pytest.mark.parametrize("keep", ["file", "device"])
def test_a_wrong_header(path, packing, change, keep):
    describe = slab_folder.saving.describe_packed
    packing.setattr(slab_folder.saving, "describe_packed", lambda x: describe(x) | change)
    save_problem(path)
    with pytest.raises(ValueError, match=r"slab-00000\.npz is damaged"):
        open_slabs(path, device="cpu", keep=keep)


def test_wrong_values(path, packing):
    def pack(records, order):
        packed = reference_packing.pack(records, order)
        packed.values[0] = 0x7FC00000  # not a number
        return packed

    packing.setattr(CPU, "pack_records", pack)
    save_problem(path, num_values=5)
    with pytest.raises(ValueError, match=r"records_. does not match the header"):
        open_slabs(path, device="cpu", keep="device")
