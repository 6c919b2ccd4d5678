"""Reading and writing .tns files."""

import gc
import gzip
import importlib
import math
import sys
import threading
import weakref

import numpy as np
import pytest
import scipy.io

from tensorly_flycoo import FlycooTensor, LabelledTensor, read_tns, save_slabs, write_tns
from tensorly_flycoo.io import files as tns_files
from tensorly_flycoo.io import tns, tns_parsing
from tensorly_flycoo.io.files import replace_file
from tensorly_flycoo.io.parts import Reading


def write(tmp_path, text, name="x.tns"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def read_dense(path, **options):
    return read_tns(path, device="cpu", **options).to_coo().todense()


@pytest.fixture(params=["pyarrow", "numpy", "line by line"])
def reader(request, monkeypatch):
    """Each of the ways to read: they have other rules for numbers, blanks and empty lines."""
    monkeypatch.setattr(tns_parsing, "_HAS_PYARROW", request.param == "pyarrow")
    if request.param == "line by line":
        monkeypatch.setattr(tns_parsing, "_read_table", lambda *_: None)


PLAIN = "1 1 2 3.5\n4 5 6 -1e-2\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PLAIN, id="as in FROSTT"),
        pytest.param(PLAIN.rstrip(), id="no newline at the end"),
        pytest.param(PLAIN.replace("\n", "\r\n"), id="carriage returns"),
        pytest.param(PLAIN.replace(" ", "\t"), id="tabs"),
        pytest.param(PLAIN.replace(" ", "   ").replace("\n", "  \n"), id="more blanks"),
        pytest.param("  1 1 2 3.5\n\t4 5 6 -1e-2\n", id="blanks first"),
        pytest.param(f"# a\n% b\n\n{PLAIN}# c\n  \n", id="comments and empty lines"),
        pytest.param("1 1 2 3.5\n# between\n\n4 5 6 -1e-2\n", id="comments between"),
        pytest.param(f"# shape: 4 5 6\n{PLAIN}", id="shape in a comment"),
        pytest.param(f"3\n4 5 6\n{PLAIN}", id="header"),
        pytest.param(f"# a\n3\n\n4 5 6\n2\n{PLAIN}", id="header with nnz"),
        pytest.param(f"sptensor\n3\n4 5 6\n2\n{PLAIN}", id="header of the Tensor Toolbox"),
        pytest.param(f"4 5 6\n{PLAIN}", id="header of sizes"),
        pytest.param("4 5 6 -0.5e-2\n1 1 2 3.5\n4 5 6 -0.5e-2\n1 1 1 0\n", id="repeats, a zero"),
        pytest.param("1 1 2 +3.5\n4 5 6 -.01\n", id="signs and points"),
        pytest.param("01 1 2 35E-1\n4 5 6 -00.10e-0001\n", id="zeros"),
        pytest.param("1 1 2 3.5000000000000000000000\n4 5 6 -1e-2", id="many digits"),
    ],
)
@pytest.mark.usefixtures("reader")
def test_accepted_files(tmp_path, text):
    expected = np.zeros((4, 5, 6))
    expected[0, 0, 1], expected[3, 4, 5] = 3.5, -0.01
    np.testing.assert_array_equal(read_dense(write(tmp_path, text)), expected)


def test_options(tmp_path):
    path = write(tmp_path, "0 2 7\n1 0 8\n")
    x = read_tns(path, index_base=0, shape=(4, 3), dtype="float32", layout="indexed", device="cpu")
    assert (x.shape, x.dtype, x.layout) == ((4, 3), np.float32, "indexed")
    np.testing.assert_array_equal(x.nonzeros()[1], [7, 8])


def test_the_shape_argument_takes_precedence_over_the_header(tmp_path):
    x = read_tns(write(tmp_path, "# shape: 4 5 6\n" + PLAIN), shape=(7, 8, 9), device="cpu")
    assert x.shape == (7, 8, 9)
    assert read_tns(write(tmp_path, f"3\n4 5 6\n{PLAIN}"), shape=(7, 8, 9)).shape == (7, 8, 9)


def test_no_nonzeros(tmp_path):
    path = write(tmp_path, "# nothing\n")
    assert read_tns(path, shape=(2, 3), device="cpu").nnz == 0
    assert read_tns(write(tmp_path, "# shape: 2 3"), device="cpu").shape == (2, 3)
    assert read_tns(write(tmp_path, "2\n2 3\n0\n"), device="cpu").shape == (2, 3)
    for text in ("", "# nothing\n"):
        with pytest.raises(ValueError, match=r"x\.tns has no nonzeros and no header with a shape"):
            read_tns(write(tmp_path, text))


WRONG = [
    pytest.param("1 2 3", "3 fields, expected 4: 3 indices and a value", id="short"),
    pytest.param("1 2 3 4 5", "5 fields, expected 4", id="long"),
    pytest.param("0 1 1 1", "index 0 of mode 0, expected at least 1; index_base=0", id="0"),
    pytest.param("1 -1 1 1", "index -1 of mode 1 is not an integer from 1 up", id="negative"),
    pytest.param("1 1 1.0 1", "index 1.0 of mode 2 is not an integer", id="point"),
    pytest.param("1 x 1 1", "index x of mode 1 is not an integer", id="letters"),
    pytest.param("1 \x1b[2J 1 1", r"index \x1b[2J of mode 1 is not", id="control characters"),
    pytest.param("1 1 8 1", "index 8 of mode 2, expected 1 to 7: the shape is", id="outside"),
    pytest.param(f"{2**63} 1 1 1", f"index {2**63} of mode 0, expected at most 18", id="2**63"),
    pytest.param(f"{2**33} 1 1 1", f"index {2**33} of mode 0, expected 1 to 7", id="2**33"),
    pytest.param("1 1 1 abc", "the value is not a number", id="word"),
    pytest.param("1 1 1 1_0", "the value is not a number", id="underscore"),
    pytest.param("1 1 1 0x10", "the value is not a number", id="hexadecimal"),
    pytest.param("1 1 1 1.5.2", "the value is not a number", id="two points"),
    pytest.param("1 1 1 -", "the value is not a number", id="only a sign"),
    pytest.param("1 1 1 1e", "the value is not a number", id="no exponent"),
    pytest.param("1 1 1 nan", "the value is nan, expected a finite number", id="nan"),
    pytest.param("1 1 1 -inf", "the value is -inf, expected a finite number", id="infinity"),
    pytest.param("1 1 1 1e999", "the value is inf, expected a finite number", id="overflow"),
    pytest.param("1,1,1,1", "1 fields, expected 4", id="commas"),
    pytest.param("\x00", "1 fields, expected 4", id="a zero byte"),
    pytest.param("1 1 1\x0b2 1", "is not an integer", id="an odd blank"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
@pytest.mark.parametrize("block_nbytes", [16, 2**20])
@pytest.mark.usefixtures("reader")
def test_wrong_lines(tmp_path, monkeypatch, line, message, block_nbytes):
    """In any block and any part of a block; the error names the first of several wrong lines."""
    monkeypatch.setattr(tns_parsing.iterate_blocks, "__defaults__", (block_nbytes,))
    good = "# a comment\n\n1 2 3 4\n" * 5
    path = write(tmp_path, f"{good}{line}\n{good}{line}\n")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_tns(path, shape=(7, 7, 7))
    text = str(caught.value)
    assert text.startswith(f"{path}, line 16: ")
    assert message in text
    assert text.endswith(f"{line!r}")


def test_index_beyond_any_shape(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: index 4294967297 .*: modes end at 2\*\*32"):
        read_tns(write(tmp_path, f"{2**32 + 1} 1 1\n"))
    path = write(tmp_path, f"{2**32} 1 1\n")
    assert Reading().read_tns([path])[2] == (2**32, 1)


def test_long_lines_are_cut_in_errors(tmp_path):
    with pytest.raises(ValueError, match="1 fields") as caught:
        read_tns(write(tmp_path, "1 1 1\n" + "x" * 10**6))
    assert len(str(caught.value)) < 300


def test_wrong_header(tmp_path):
    with pytest.raises(ValueError, match="line 1: 1 fields, expected 2"):
        read_tns(write(tmp_path, "3\n4 5 6 7\n1 1 1 1\n"))
    with pytest.raises(ValueError, match=r"line 3: index 3 .*: the shape is \(1, 2, 3\)"):
        read_tns(write(tmp_path, "1 2 3\n1 1 2 5\n1 3 1 5\n"))  # a value was forgotten
    with pytest.raises(ValueError, match=r"x\.tns, header: shape\[1\] is 0"):
        read_tns(write(tmp_path, "# shape: 3 0\n1 1 1\n"))
    for text in (f"# shape: {'9' * 5000}\n", f"{'9' * 5000}\n1 1 1\n"):
        with pytest.raises(ValueError, match=r"x\.tns, header: .* 5000 digits"):
            read_tns(write(tmp_path, text))


@pytest.mark.parametrize("kind", ["array real general", "coordinate pattern symmetric", "?"])
def test_other_matrix_market_files(tmp_path, kind):
    path = write(tmp_path, f"%%MatrixMarket matrix {kind}\n2 2 1\n1 2 5.0\n")
    with pytest.raises(ValueError, match=r"x\.tns, header: '%%Matrix.* expected 'coord.*mmread"):
        read_tns(path)


MARKET = "%%MatrixMarket tensor coordinate real general\n"

#: Headers with the number of the nonzeros that follow.
COUNTED = {
    "number of modes, sizes": "3\n4 5 6\n{}\n",
    "the Tensor Toolbox": "sptensor\n3\n4 5 6\n{}\n",
    "MatrixMarket": MARKET + "4 5 6 {}\n",
    "with comments": MARKET.upper() + "% a\n\n4 5 6\t{}\n",
}


@pytest.mark.parametrize("block_nbytes", [128, 2**20])
@pytest.mark.parametrize("header", COUNTED.values(), ids=COUNTED)
def test_the_number_of_nonzeros_in_a_header_is_checked(tmp_path, monkeypatch, header, block_nbytes):
    monkeypatch.setattr(tns_parsing.iterate_blocks, "__defaults__", (block_nbytes,))
    lines = [f"1 1 {n} {n}\n" for n in range(1, 7)] * 10
    body = "# a\n".join(lines)
    expected = FlycooTensor([[0] * 6, [0] * 6, range(6)], 10.0 * np.arange(1, 7), (4, 5, 6))
    x = read_tns(write(tmp_path, header.format(60) + body))
    np.testing.assert_array_equal(x.nonzeros()[1], expected.nonzeros()[1])
    assert x.shape == expected.shape
    for announced in (0, 59, 61, 2**31, 10**18):
        path = write(tmp_path, header.format(announced) + body)
        message = rf"x\.tns, header: {announced} nonzeros, expected 60"
        for read in (read_tns, lambda path: save_slabs(tmp_path / "folder", path)):
            with pytest.raises(ValueError, match=message):
                read(path)
    for announced in ("-1", "1.5", "many"):
        with pytest.raises(ValueError, match=r"x\.tns, header: .*expected integers"):
            read_tns(write(tmp_path, header.format(announced) + body))


def test_matrices_of_scipy(tmp_path):
    matrix = scipy.sparse.random_array((30, 20), density=0.2, rng=0)
    scipy.io.mmwrite(tmp_path / "x.mtx", matrix)
    np.testing.assert_array_equal(read_dense(tmp_path / "x.mtx"), matrix.toarray())


@pytest.mark.parametrize("header", ["", f"# shape: {'2 ' * 65}\n"])
def test_too_many_modes_for_a_file(tmp_path, header):
    path = write(tmp_path, f"{header}{'1 ' * 65}2.0\n")
    with pytest.raises(ValueError, match=r"x\.tns, header: 65 modes, expected at most 64"):
        read_tns(path)
    assert Reading((2,) * 65).read_tns([path])[0].shape == (65, 1)
    assert Reading().read_tns([write(tmp_path, f"{'1 ' * 64}2.0\n")])[1] == [2.0]


def test_arguments(tmp_path):
    path = write(tmp_path, PLAIN)
    with pytest.raises(ValueError, match="index_base is 2, expected one of"):
        read_tns(path, index_base=2)
    with pytest.raises(ValueError, match="4 fields, expected 3"):
        read_tns(path, shape=(4, 5))
    with pytest.raises(FileNotFoundError, match="absent"):
        read_tns(tmp_path / "absent.tns")


# Values: the nearest float64, as in Python.


def read_values(tmp_path, tokens):
    path = write(tmp_path, "".join(f"{i} {t}\n" for i, t in enumerate(tokens, 1)))
    return Reading().read_tns([path])[1]


def assert_same_bits(values, tokens):
    expected = np.array([float(token) for token in tokens])
    np.testing.assert_array_equal(values.view(np.uint64), expected.view(np.uint64))


TIES = [
    "9007199254740993", "9007199254740993.0000000000000000001", "9007199254740992.9999999999999",
    "1.00000000000000011102230246251565404236316680908203125", "5e-324", "2.4703282292062327e-324",
    "2.4703282292062328e-324", "2.2250738585072011e-308", "2.2250738585072014e-308",
    "1.7976931348623157e308", "0.1", "0.3", "1e23", "8.5e22", "1e-300", "1e-301", "1e288", "1e289",
    "18446744073709551615", "18446744073709551616", "9999999999999999999", "-0", "0e999", "0.0e-9",
    "123456789012345678901234567890", "0.00000000000000000000000000000123456789012345678",
    "1E+05", "4503599627370496.5", "4503599627370497.5", "1e22", "1e-22", "7.3177701707893310e+15",
    ".5", "5.", "000000000000000000000000001.5", "1e0000000000000000000000001",
    "6631236871469758276785e-2",
]  # fmt: skip


@pytest.mark.usefixtures("reader")
def test_values_that_are_hard_to_round(tmp_path):
    assert_same_bits(read_values(tmp_path, TIES), TIES)


@pytest.mark.usefixtures("reader")
def test_random_values(tmp_path):
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**64, 20_000, np.uint64).view(np.float64)
    tokens = [repr(value) for value in bits[np.isfinite(bits)].tolist()]
    tokens += [repr(value) for value in random.standard_normal(20_000).tolist()]
    digits, places = random.integers(0, 2**63, 20_000), random.integers(-330, 290, 20_000)
    tokens += [
        f"{d >> (d % 60)}e{p}" for d, p in zip(digits.tolist(), places.tolist(), strict=True)
    ]
    tokens += [f"{value:.{n % 24}f}" for n, value in enumerate(random.random(20_000).tolist())]
    # Ties between adjacent floats, and numbers just above and below them.
    for value in random.integers(2**52, 2**53, 500).tolist():
        tokens += [f"{value}.5", f"{value}.50000000001", f"{value}.49999999999", f"{2 * value + 1}"]
    assert_same_bits(read_values(tmp_path, tokens), tokens)


# Many lines, many blocks, many threads.


@pytest.fixture(scope="module")
def many():
    random = np.random.default_rng(0)
    coords = np.stack([random.integers(0, size, 5000) for size in (50, 60, 70)])
    return coords, random.standard_normal(5000)


def write_many(tmp_path, many):
    coords, values = many
    rows = zip((coords + 1).T.tolist(), values.tolist(), strict=True)
    text = "".join(f"{i} {j} {k} {v!r}\n" + "# c\n\n" * (i == 7) for (i, j, k), v in rows)
    return write(tmp_path, text)


@pytest.mark.parametrize("block_nbytes", [20, 1000, 10**5, 2**24])
@pytest.mark.usefixtures("reader")
def test_blocks(tmp_path, monkeypatch, many, block_nbytes):
    monkeypatch.setattr(tns_parsing.iterate_blocks, "__defaults__", (block_nbytes,))
    coords, values, shape = Reading().read_tns([write_many(tmp_path, many)])
    np.testing.assert_array_equal(coords, many[0])
    np.testing.assert_array_equal(values, many[1])
    assert shape == (50, 60, 70)


def test_a_large_file_without_pyarrow_says_what_would_be_faster(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tns_parsing, "_HAS_PYARROW", False)
    path = write(tmp_path, PLAIN)
    assert read_tns(path).shape == (4, 5, 6)
    assert not caplog.text
    monkeypatch.setattr(tns_parsing, "BLOCK_NBYTES", 8)
    assert read_tns(path).shape == (4, 5, 6)
    assert "x.tns is read several times as fast if pyarrow is installed" in caplog.text


@pytest.mark.parametrize("name", ["x.tns", "x.tns.gz"])
def test_an_exception_while_reading(tmp_path, monkeypatch, name):
    """It propagates, and leaves neither a reading thread nor an array behind."""
    monkeypatch.setattr(tns_parsing.iterate_blocks, "__defaults__", (16,))
    x, held = FlycooTensor([[0, 3], [1, 0]], [0.5, 3.0], (4, 2), device="cpu"), []
    write_tns(tmp_path / name, x)
    read_tns(tmp_path / name)  # starts the threads that stay
    num_threads, parse = threading.active_count(), tns_parsing.TnsParser.parse

    def watch(parser, block):
        coords, values = parse(parser, block)
        held.append(weakref.ref(values))
        if len(held) == 2:
            raise RuntimeError("simulated")
        return coords, values

    monkeypatch.setattr(tns_parsing.TnsParser, "parse", watch)
    with pytest.raises(RuntimeError, match="simulated"):
        read_tns(tmp_path / name)
    gc.collect()
    assert [values() for values in held] == [None, None]
    assert threading.active_count() == num_threads
    np.testing.assert_array_equal(read_dense(tmp_path / name), x.to_coo().todense())


def test_progress(tmp_path, monkeypatch, many):
    """It grows up to the size of all files, compressed as they are."""
    monkeypatch.setattr(tns_parsing.iterate_blocks, "__defaults__", (10**4,))
    write_many(tmp_path, many)
    (tmp_path / "y.tns.gz").write_bytes(gzip.compress(PLAIN.encode()))
    calls = []
    read_tns(tmp_path, progress=lambda *call: calls.append(call))
    nbytes, totals = zip(*calls, strict=True)
    assert list(nbytes) == sorted(nbytes)
    assert len(set(nbytes)) > 5
    assert set(totals) == {nbytes[-1]}
    assert nbytes[-1] == sum(path.stat().st_size for path in tmp_path.iterdir())


# Writing.


def test_the_text_of_a_tensor(tmp_path):
    x = FlycooTensor([[2, 0], [0, 1]], [3.0, 0.1], (3, 2), device="cpu")
    for tensor in (x, x.to_coo(), LabelledTensor(x, [list("abc"), ["k", "l"]])):
        write_tns(tmp_path / "x.tns", tensor)
        assert (tmp_path / "x.tns").read_text() == "# shape: 3 2\n1 2 0.1\n3 1 3.0\n"
    write_tns(tmp_path / "x.tns", x, index_base=0)
    assert (tmp_path / "x.tns").read_text() == "# shape: 3 2\n0 1 0.1\n2 0 3.0\n"


def test_no_nonzeros_are_written(tmp_path):
    write_tns(tmp_path / "x.tns", FlycooTensor([[], []], [], (3, 2), device="cpu"))
    assert read_tns(tmp_path / "x.tns").shape == (3, 2)


@pytest.mark.parametrize("slabs", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_written_is_read_to_the_bit(tmp_path, monkeypatch, many, slabs, dtype):
    monkeypatch.setattr(tns, "_NUM_LINES", 700)
    x = FlycooTensor(*many, (50, 60, 80), slabs=slabs, dtype=dtype, device="cpu")
    write_tns(tmp_path / "x.tns", x)
    y = read_tns(tmp_path / "x.tns", dtype=dtype, device="cpu")
    for array, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_slabs_are_never_gathered_to_write_them(tmp_path, monkeypatch, many):
    x = FlycooTensor(*many, (50, 60, 80), slabs=3, device="cpu")
    monkeypatch.setattr(FlycooTensor, "nonzeros", lambda _: pytest.fail("gathers all"))
    write_tns(tmp_path / "x.tns", x)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, many):
    path = write(tmp_path, PLAIN, "x.tns.gz")
    monkeypatch.setattr(FlycooTensor, "nonzeros", lambda _: ([], np.array([1.0])))
    with pytest.raises(TypeError):
        write_tns(path, FlycooTensor(*many, (50, 60, 80), device="cpu"))
    assert path.read_text() == PLAIN
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tns.gz"]


def test_equal_tensors_have_equal_compressed_files(tmp_path, many):
    for name in ("x.tns.gz", "y.tns.gz"):
        write_tns(tmp_path / name, FlycooTensor(*many, (50, 60, 80), device="cpu"))
    assert (tmp_path / "x.tns.gz").read_bytes() == (tmp_path / "y.tns.gz").read_bytes()


def test_what_cannot_be_written(tmp_path):
    x = FlycooTensor([[0], [1]], [1.0], (3, 2), device="cpu")
    with pytest.raises(ValueError, match="index_base is 2, expected one of"):
        write_tns(tmp_path / "x.tns", x, index_base=2)
    with pytest.raises(TypeError, match="sparse"):
        write_tns(tmp_path / "x.tns", np.eye(3))
    with pytest.raises(FileNotFoundError, match=r"nowhere/x\.tns'$"):
        write_tns(tmp_path / "nowhere" / "x.tns", x)
    assert not any(tmp_path.iterdir())


# Compressed files.


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed(tmp_path, many, suffix):
    x = FlycooTensor(*many, (50, 60, 80), device="cpu")
    path = tmp_path / f"x.tns{suffix}"
    write_tns(path, x)
    assert path.read_bytes()[:2] == {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5"}[suffix]
    y = read_tns(path, device="cpu")
    assert y.shape == x.shape
    for array, expected in zip(y.nonzeros(), x.nonzeros(), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damaged(tmp_path, many, suffix):
    path = tmp_path / f"x.tns{suffix}"
    write_tns(path, FlycooTensor(*many, (50, 60, 80), device="cpu"))
    data = path.read_bytes()
    for end in (len(data) // 2, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(ValueError, match=rf"x\.tns\{suffix} is truncated: "):
            read_tns(path)
    middle = len(data) // 2
    for wrong in (PLAIN.encode(), data[:middle] + bytes(8) + data[middle + 8 :]):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"x\.tns\{suffix}"):
            read_tns(path)


def test_zstd_is_an_extra(tmp_path, monkeypatch):
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    path = write(tmp_path, "", "x.tns.zst")
    with pytest.raises(ImportError, match=r'pip install "tensorly-flycoo\[zstd\]"'):
        read_tns(path)


def test_float32_is_exact(tmp_path):
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    path = tmp_path / "x.tns"
    write_tns(path, FlycooTensor([range(100)], values, (100,), device="cpu"))
    np.testing.assert_array_equal(read_tns(path).nonzeros()[1], values.astype(np.float64))
    np.testing.assert_array_equal(read_tns(path, dtype="float32").nonzeros()[1], values)


def test_more_cells_than_int64_counts(tmp_path):
    shape, last = (2**17,) * 4, 2**17 - 1
    assert math.prod(shape) > 2**63
    x = FlycooTensor([[last, 0]] * 4, [1.0, 2.0], shape, device="cpu")
    path = tmp_path / "x.tns"
    write_tns(path, x)
    y = read_tns(path, device="cpu")
    assert y.shape == shape
    np.testing.assert_array_equal(y.nonzeros()[0], x.nonzeros()[0])


def test_an_error_names_the_file_that_was_to_be_written(tmp_path):
    path = tmp_path / "absent" / "x.tns"
    with pytest.raises(FileNotFoundError) as caught, replace_file(path):
        pass
    assert caught.value.filename == str(path)


def test_a_file_is_replaced_only_when_it_is_complete(tmp_path):
    path = write(tmp_path, PLAIN)
    link = tmp_path / "link.tns"
    link.symlink_to(path)
    with pytest.raises(TypeError), replace_file(link) as file:
        file.writelines([b"half", None])
    assert path.read_text() == PLAIN
    with replace_file(link) as file:
        file.write(b"all")
        file.flush()
        assert path.read_text() == PLAIN
    assert path.read_bytes() == b"all"
    assert link.is_symlink()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.tns", "x.tns"]


def compress_zeros(suffix, nbytes):
    """Compress a text that is mostly a comment; gzip's output expands a thousand times."""
    codec = gzip if suffix == ".gz" else importlib.import_module(tns_files._ZSTD)
    return codec.compress(b"1 1 1\n" + b"#" * nbytes + b"\n2 2 1\n")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_archives_expand_up_to_a_cap(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"x.tns{suffix}"
    path.write_bytes(compress_zeros(suffix, 2**16))
    assert read_tns(path).nnz == 2  # expands more than 256 times, but stays small
    monkeypatch.setattr(tns_files, "SURELY_READ_NBYTES", 2**12)
    with pytest.raises(ValueError, match=rf"x\.tns{suffix} expands to more than 256 times its"):
        read_tns(path)
    monkeypatch.setattr(tns_files, "MAX_EXPANSION", 2**16)
    assert read_tns(path).nnz == 2


def test_the_cap_is_exact(tmp_path, monkeypatch):
    """A file of exactly the cap's size is read; one byte more is refused."""
    path, size = tmp_path / "x.tns.gz", len(PLAIN)
    path.write_bytes(gzip.compress(PLAIN.encode()))
    monkeypatch.setattr(tns_files, "MAX_EXPANSION", 0)
    monkeypatch.setattr(tns_files, "SURELY_READ_NBYTES", size)
    assert read_tns(path).nnz == 2
    monkeypatch.setattr(tns_files, "SURELY_READ_NBYTES", size - 1)
    with pytest.raises(ValueError, match="expands to more"):
        read_tns(path)
