"""Known answers for packing coordinates and values into records."""

import numpy as np
import pytest
from numpy_primitives import pack

from tensorly_flycoo.format.packing import RecordFormat

WORDS = pytest.mark.parametrize("word_dtype", ["uint32", "uint64"])
VALUES = pytest.mark.parametrize("dtype", ["float32", "float64"])

SHAPES = [
    pytest.param((7,), id="one mode"),
    pytest.param((1, 1, 1), id="all modes of size 1"),
    pytest.param((1, 9, 1, 2, 1), id="some modes of size 1"),
    pytest.param((1000, 1000, 1000), id="30 bits"),
    pytest.param((2**20, 2**21, 2**22), id="63 bits across words"),
    pytest.param((2**32, 2**32), id="64 bits"),
    pytest.param((2**31, 3, 2**32, 5, 2**31), id="99 bits"),
    pytest.param((2**32,) * 4, id="128 bits"),
    pytest.param((3, 2**32, 3, 2**32, 3, 2**32, 3), id="104 bits unaligned"),
    pytest.param((2**32 - 1, 2**17 + 1) * 8, id="16 modes"),
]


@pytest.mark.usual_limits("record")
@pytest.mark.parametrize(
    ("shape", "dtype", "word_dtype", "words", "shifts", "value_slot", "record_nbytes"),
    [
        pytest.param(
            (1000,) * 3, "float64", "uint64", (0, 0, 0), (0, 10, 20), 1, 16, id="one word of three"
        ),
        pytest.param(
            (1000, 1000), "float32", "uint64", (0, 0), (0, 10), 1, 8, id="value in the same word"
        ),
        pytest.param(
            (2**32,) * 3, "float32", "uint32", (0, 1, 2), (0, 0, 0), 3, 16, id="96 bits: 16 bytes"
        ),
        pytest.param(
            (2**20,) * 3, "float32", "uint32", (0, 0, 1), (0, 20, 8), 2, 16, id="run on, 32 bits"
        ),
        pytest.param(
            (2**30,) * 3, "float64", "uint64", (0, 0, 1), (0, 30, 0), 2, 24, id="break, 64 bits"
        ),
        pytest.param(
            (2**32,) * 3, "float64", "uint32", (0, 1, 2), (0, 0, 0), 2, 24, id="value aligned"
        ),
        pytest.param((1, 1), "float64", "uint64", (0, 0), (0, 0), 0, 8, id="value only"),
    ],
)
def test_layout_of_a_record(shape, dtype, word_dtype, words, shifts, value_slot, record_nbytes):
    record_format = RecordFormat.of(shape, dtype, word_dtype)
    assert record_format.words == words
    assert record_format.shifts == shifts
    assert record_format.masks == tuple(2 ** (size - 1).bit_length() - 1 for size in shape)
    assert record_format.value_slot == value_slot
    assert record_format.record_nbytes == record_nbytes
    assert (record_format.ndim, record_format.shape) == (len(shape), shape)


@pytest.mark.usual_limits("record")
def test_known_words():
    record_format = RecordFormat.of((16, 16, 2**20), "float64", "uint64")
    records = pack(record_format, np.array([[5, 15], [3, 0], [0xABCDE, 1]]), np.array([1.0, -2.0]))
    assert records.dtype == np.uint64
    assert [hex(word) for word in records.ravel().tolist()] == [
        hex(0xABCDE << 8 | 3 << 4 | 5),
        "0x3ff0000000000000",
        hex(1 << 8 | 15),
        "0xc000000000000000",
    ]


@pytest.mark.usual_limits("record")
def test_known_words_across_32_bits():
    record_format = RecordFormat.of((2**20, 2**20), "float32", "uint32")
    records = pack(record_format, np.array([[0x12345], [0xABCDE]]), np.array([1.0], np.float32))
    assert [hex(word) for word in records.ravel().tolist()] == [
        hex((0xABCDE << 20 | 0x12345) & 0xFFFFFFFF),
        hex(0xABCDE >> 12),
        "0x3f800000",
        "0x0",  # records are multiples of 8 bytes
    ]


@WORDS
@VALUES
@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(shape, dtype, word_dtype):
    """Unpacking returns the first and last cell, each mode's last index alone, and random cells."""
    rng = np.random.default_rng(0)
    last = np.array(shape, np.int64)[:, None] - 1
    coords = np.concatenate(
        [0 * last, last, np.diag(last[:, 0]), rng.integers(0, last + 1, (len(shape), 20))], axis=1
    )
    values = rng.standard_normal(coords.shape[1]).astype(dtype)
    record_format = RecordFormat.of(shape, dtype, word_dtype)
    records = pack(record_format, coords, values)
    assert records.shape == (coords.shape[1], record_format.num_words)
    assert records.dtype == word_dtype
    np.testing.assert_array_equal(record_format.coords(records), coords)
    np.testing.assert_array_equal(record_format.values(records), values)
    assert record_format.values(records).dtype == dtype
    for mode in range(len(shape)):
        rows = record_format.rows(records, mode)
        assert rows.dtype.kind == "u"
        np.testing.assert_array_equal(rows, coords[mode])


@WORDS
@pytest.mark.parametrize("shape", SHAPES)
def test_fields_do_not_overlap_and_stay_in_their_window(shape, word_dtype):
    record_format = RecordFormat.of(shape, "float64", word_dtype)
    word_bits = 8 * np.dtype(word_dtype).itemsize
    end = 0
    for word, shift, mask in zip(
        record_format.words, record_format.shifts, record_format.masks, strict=True
    ):
        assert word * word_bits + shift >= end
        assert shift + mask.bit_length() <= 64
        end = word * word_bits + shift + mask.bit_length()
    assert record_format.value_slot * 64 >= end
    assert (record_format.value_slot + 1) * 64 <= record_format.num_words * word_bits


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "uint64"])
def test_any_integer_type_of_coords(dtype):
    coords = np.array([[0, 100], [7, 1]], dtype)
    record_format = RecordFormat.of((101, 8), "float64", "uint64")
    records = pack(record_format, coords, np.ones(2))
    np.testing.assert_array_equal(record_format.coords(records), coords)


def test_values_are_a_view():
    record_format = RecordFormat.of((4, 4), "float32", "uint64")
    records = pack(record_format, np.array([[1, 2], [3, 0]]), np.ones(2, np.float32))
    record_format.values(records)[...] = [5, 6]
    np.testing.assert_array_equal(record_format.values(records), [5, 6])
    np.testing.assert_array_equal(record_format.coords(records), [[1, 2], [3, 0]])


def test_no_nonzeros():
    record_format = RecordFormat.of((4, 5), "float64", "uint64")
    records = pack(record_format, np.zeros((2, 0), np.int64), np.zeros(0))
    assert records.shape == (0, 2)
    assert record_format.coords(records).shape == (2, 0)
