"""Records that are packed and unpacked by emulated kernels have the same bits."""

import importlib
import sys
import types

import numpy as np
import pytest
import reference_packing
from emulated_gpu import HAS_COMPILER, EmulatedKernel, get_direct_kernel

from tensorly_flycoo.engines.cuda.macros import packed_records_macros
from tensorly_flycoo.engines.cuda.structs import list_bits_members
from tensorly_flycoo.format.bit_fields import WORD_BITS, BitFields
from tensorly_flycoo.format.packed_records import BLOCK_NNZ
from tensorly_flycoo.format.packing import RecordFormat, RecordOrder

pytestmark = HAS_COMPILER


def make_records(shape, dtype, groups, num_prefixes, nnz, num_values):
    """Return a format, and random records of it: every field has any bits."""
    record_format = RecordFormat.of(shape, dtype, "uint32", groups, num_prefixes)
    rng = np.random.default_rng(0)
    records = np.zeros((nnz, record_format.num_words), np.uint32)
    flat = record_format.flat
    for size, (word, shift, _) in zip(flat.shape, flat.fields, strict=True):
        column = rng.integers(0, size, nnz).astype(np.uint64)
        records[:, word] |= (column << np.uint64(shift)).astype(np.uint32)
        if word + 1 < record_format.num_words:
            records[:, word + 1] |= (column >> np.uint64(32 - shift)).astype(np.uint32)
    values = rng.standard_normal(num_values).astype(dtype)
    record_format.values(records)[:] = values[rng.integers(0, num_values, nnz)]
    return record_format, records


def run(name, bits, record_format, nnz, num_blocks, *arrays):
    members = list_bits_members(bits)
    formats = f"q{len(members)}i0Q{len(arrays)}Q"
    macros = packed_records_macros(bits, record_format)
    kernel = EmulatedKernel("packed_records.cu", name, formats, macros)
    addresses = [0 if array is None else array.ctypes.data for array in arrays]
    kernel((num_blocks, 1), BLOCK_NNZ, nnz, *members, *addresses)


CASES = {
    "plain": ((300, 70, 5000), "float32", None, 0),
    "float64": ((300, 70, 5000), "float64", None, 0),
    "wide fields": ((2**31 - 1, 3, 2**20 + 7), "float32", None, 0),
    "groups": ((16, 3, 105, 365, 20), "float32", ((0, 1, 2), (3, 4)), 0),
    "numbered": ((300, 70, 5000), "float32", ((0, 1), (2,)), 900),
}


@pytest.mark.parametrize("num_values", [7, 100_000])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("nnz", [1, 31, 1000])
def test_round_trips(case, nnz, num_values):
    record_format, records = make_records(*case, nnz, num_values)
    merged = record_format.merged
    for mode in range(merged.ndim):
        rows = merged.rows(records, mode)
        order = np.argsort(rows, kind="stable")
        in_order, rows = records[order], rows[order]
        for has_rows in (True, False):
            codes = None
            if num_values < 10:
                integers = record_format.values(in_order).view(f"u{record_format.dtype.itemsize}")
                codes = np.unique(integers)
            num_codes = 0 if codes is None else codes.size
            bits = BitFields.of(RecordOrder(record_format, mode, None), has_rows, num_codes)
            num_groups = -(-nnz // WORD_BITS)
            packed = np.full(num_groups * bits.record_bits + 1, 2**32 - 1, np.uint32)
            num_blocks = -(-nnz // BLOCK_NNZ)
            counts = np.full(num_blocks, 99, np.uint32)
            run("count_beginnings", bits, record_format, nnz, num_blocks, in_order, counts)
            begins = np.diff(rows, prepend=rows[0] + 1) != 0
            edges = range(0, nnz, BLOCK_NNZ)
            if has_rows:
                np.testing.assert_array_equal(counts, np.add.reduceat(begins.astype(int), edges))
            num_launched = -(-num_groups // BLOCK_NNZ)
            run("pack_bits", bits, record_format, nnz, num_launched, in_order, codes, packed)
            assert packed[-1] == 2**32 - 1
            first_ranks = (counts.cumsum() - counts).astype(np.uint32)
            own_rows = np.unique(rows).astype(np.uint32)
            unpacked = np.full_like(in_order, 12345)
            arrays = (packed, first_ranks, own_rows, codes, unpacked)
            run("unpack_bits", bits, record_format, nnz, num_blocks, *arrays)
            np.testing.assert_array_equal(unpacked, in_order)


@pytest.fixture
def module(monkeypatch):
    """Load `packed_records` with NumPy in place of CuPy, and with emulated kernels."""
    cupy = types.ModuleType("cupy")
    for name in [
        "empty",
        "ones",
        "flatnonzero",
        "unique",
        "cumsum",
        "ascontiguousarray",
        "ndarray",
    ]:
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(getDevice=lambda: 0))
    launch = types.ModuleType("launch")
    launch.find_address = lambda array: 0 if array is None else array.ctypes.data
    launch.get_direct_kernel = get_direct_kernel
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "tensorly_flycoo.engines.cuda.launch", launch)
    name = "tensorly_flycoo.engines.cuda.packed_records"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name)
    sys.modules.pop(name)


@pytest.mark.parametrize(
    ("dtype", "num_values", "num_rows", "most_share"),
    [("float32", 5, 20, 0.35), ("float32", 10_000, 20, 0.9), ("float64", 1, 20, 0.15),
     ("float32", 5, 3000, 0.6)],
)  # fmt: skip
def test_copies_of_a_layout(dtype, num_values, num_rows, most_share, module):
    """All orders, of rows with many nonzeros and with few, some of which are empty."""
    rng = np.random.default_rng(0)
    coords = np.stack([rng.integers(0, size, 2000) // 3 * 3 for size in (num_rows, 40, 700)])
    values = rng.standard_normal(num_values).astype(dtype)[rng.integers(0, num_values, 2000)]
    record_format = RecordFormat.of((num_rows, 40, 700), dtype, "uint32")
    records = np.zeros((2000, record_format.num_words), np.uint32)
    for (word, shift, _), rows in zip(record_format.fields, coords, strict=True):
        bits = rows.astype(np.uint64) << np.uint64(shift)
        records[:, word] |= bits.astype(np.uint32)
        records[:, word + 1] |= (bits >> np.uint64(32)).astype(np.uint32)
    record_format.values(records)[:] = values
    nbytes = 0
    for mode, rows in enumerate(coords):
        in_order = records[np.argsort(rows, kind="stable")]
        is_empty = np.ones(record_format.shape[mode], bool)
        is_empty[rows] = False
        order = RecordOrder(record_format, mode, np.flatnonzero(is_empty))
        packed = module.pack(in_order, order)
        assert packed.shape == in_order.shape == (len(packed), record_format.num_words)
        assert packed.dtype == in_order.dtype
        nbytes += packed.nbytes
        expected = reference_packing.pack(in_order, order, most_codes=2000 // 16)
        np.testing.assert_array_equal(packed.words, expected.words)
        on_host = packed.replace_words(packed.words.copy())
        np.testing.assert_array_equal(module.unpack(on_host, on_host.words), in_order)
        np.testing.assert_array_equal(on_host.unpack(), in_order)
    assert nbytes < most_share * 3 * records.nbytes


def test_records_of_which_little_would_be_saved(module):
    record_format, records = make_records((2**16, 2**16), "float32", None, 0, 500, 500)
    rows = record_format.rows(records, 0)
    is_empty = np.zeros(0, np.int64)
    in_order = records[np.argsort(rows, kind="stable")]
    assert module.pack(in_order, RecordOrder(record_format, 0, is_empty)) is None


def test_the_bits_of_a_record():
    """Of Nell-1's shape: of 128 bits, those of two modes, of the value, and one for the row."""
    shape = (2_902_330, 2_143_368, 25_495_389)
    record_format = RecordFormat.of(shape, "float32", "uint32")
    order = RecordOrder(record_format, 2, None)
    assert BitFields.of(order, has_rows=True, num_codes=0).record_bits == 1 + 22 + 22 + 32
    assert BitFields.of(order, has_rows=True, num_codes=5).record_bits == 1 + 22 + 22 + 3
    assert BitFields.of(order, has_rows=False, num_codes=1).record_bits == 22 + 22 + 25


class Memory:
    """Memory of a GPU."""

    def __init__(self, nbytes):
        self.buffer = np.zeros(nbytes, np.uint8)


class GpuArray(np.ndarray):
    """An array of CuPy that is a view of its memory."""

    def __new__(cls, shape, dtype, memptr):
        return np.ndarray(shape, dtype, memptr.buffer).view(cls)

    def set(self, array):
        self[...] = array


class Stream:
    """Does its work at once; so all events have occurred."""

    def __init__(self, non_blocking=True):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self):
        return None

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


@pytest.fixture
def staging(module, monkeypatch):
    """Load `staging` with the same stand-ins; arrays of the host are NumPy's."""
    cupy = sys.modules["cupy"]
    cupy.ndarray = GpuArray
    cupy.cuda.Stream, cupy.cuda.get_current_stream = Stream, Stream
    cupy.cuda.alloc = Memory
    name = "tensorly_flycoo.engines.cuda.staging"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("tensorly_flycoo.format.packed_records.move", lambda array, xp: array)
    yield importlib.import_module(name)
    sys.modules.pop(name)


def test_words_of_a_file_are_copied_as_they_lie(staging, tmp_path):
    """To one of two slots, from which they are unpacked; then the following ones are copied."""
    copies, records = [], []
    for seed in range(3):
        record_format = RecordFormat.of((20, 40, 700), "float32", "uint32")
        rng = np.random.default_rng(seed)
        in_order = np.zeros((900 + seed, record_format.num_words), np.uint32)
        in_order[:, 0] = np.sort(rng.integers(0, 20, len(in_order)))
        record_format.values(in_order)[:] = rng.integers(1, 5, len(in_order))
        is_used = np.isin(np.arange(20), in_order[:, 0])
        order = RecordOrder(record_format, 0, np.flatnonzero(~is_used))
        packed = reference_packing.pack(in_order, order)
        np.save(tmp_path / f"{seed}.npy", packed.words)
        copies.append(packed.replace_words(np.load(tmp_path / f"{seed}.npy", mmap_mode="r")))
        records.append(in_order)
    stager = staging.CudaStager()
    kept = [stager.put_aside(copy) for copy in copies]
    assert all(own.words is copy.words for own, copy in zip(kept, copies, strict=True))
    for number in (0, 1, 2, 0):
        following = kept[(number + 1) % 3]
        with stager.take(kept[number], following) as found:
            np.testing.assert_array_equal(found, records[number])
        assert any(slot.array is following.words for slot in stager._slots)
    assert len(stager._slots) == 2
