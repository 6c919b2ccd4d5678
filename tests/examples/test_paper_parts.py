"""The paper's experiments, without a GPU: partitions, the format, the kernel's source, tables."""

import argparse
import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import reference
from benchmark_gpu.paper import libraries, partitioning, pictures, tables
from cuda_sources import ON_LINUX, compile_all
from plain_library import write_program

SOURCE = str(Path(partitioning.__file__).with_name("thread_block.cu"))
ASSIGNMENTS = (partitioning.partition_mode, partitioning.deal_mode)
SHAPES = ((30, 41, 2), (9, 8, 7, 6), (5, 60, 2, 8, 3))


def draw(shape, nnz=600):
    random = np.random.default_rng(0)
    coords = np.stack([(size * random.random(nnz) ** 2).astype(np.int32) for size in shape])
    return coords, random.standard_normal(nnz).astype(np.float32)


@pytest.mark.parametrize("num_partitions", [1, 2, 7, 132])
@pytest.mark.parametrize(("num_rows", "nnz"), [(1, 50), (2, 999), (40, 300), (3000, 20_000)])
def test_algorithm_1_is_that_of_the_specification(num_rows, nnz, num_partitions):
    rows = (num_rows * np.random.default_rng(0).random(nnz) ** 2).astype(int)
    row_nnz = np.bincount(rows, minlength=num_rows)
    found = partitioning.partition_mode(row_nnz, num_partitions)
    np.testing.assert_array_equal(found, reference.partition_mode(rows, num_rows, num_partitions))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_partitions", [1, 3, 64])
def test_elements_are_those_of_the_specification(shape, num_partitions):
    coords, values = draw(shape)
    elements, starts = partitioning.make_elements(coords, values, shape, num_partitions)
    expected = reference.make_elements(coords, values, shape, num_partitions)
    ndim = len(shape)
    np.testing.assert_array_equal(elements[:, :ndim], expected["alpha"])
    np.testing.assert_array_equal(elements[:, ndim : 2 * ndim], expected["beta"])
    np.testing.assert_array_equal(elements[:, 2 * ndim].view(np.float32), expected["value"])
    for rows, size, begins in zip(coords, shape, starts, strict=True):
        partition = reference.partition_mode(rows, size, num_partitions)
        sizes = reference.partition_sizes(rows, partition, num_partitions)
        np.testing.assert_array_equal(np.diff(begins), sizes)


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("assign", ASSIGNMENTS)
def test_each_reading_gives_whole_rows_to_partitions(assign, by_row):
    """Remap ids are a permutation in which a row is in one partition, and rows are together."""
    shape, count = SHAPES[1], 5
    elements, starts = partitioning.make_elements(*draw(shape), shape, count, np, assign, by_row)
    for mode, begins in enumerate(starts):
        ids = elements[:, mode]
        assert sorted(ids) == list(range(len(elements)))
        rows = elements[np.argsort(ids), len(shape) + mode]
        owners = np.searchsorted(begins, np.arange(len(rows)), side="right")
        assert len({*zip(rows, owners, strict=True)}) == len(set(rows))
        if by_row:
            assert np.count_nonzero(np.diff(rows)) == len(set(rows)) - 1
    assert list(elements[:, 0]) == list(range(len(elements)))  # in the order of mode 0


def test_indices_are_dealt_in_turn():
    np.testing.assert_array_equal(partitioning.deal_mode(np.array([5, 9, 1, 7]), 2), [0, 0, 1, 1])


def test_algorithm_1_keeps_grahams_bound():
    """Against the best of all assignments, of which the bound that needs no search is a bound."""
    random = np.random.default_rng(0)
    for count in (2, 3):
        for _ in range(20):
            row_nnz = random.integers(1, 30, size=7)
            choices = map(np.array, itertools.product(range(count), repeat=row_nnz.size))
            loads = (np.bincount(choice, row_nnz, count).max() for choice in choices)
            best = min(loads)
            partition = partitioning.partition_mode(row_nnz, count)
            found = np.bincount(partition, row_nnz, count).max()
            assert partitioning.bound_optimum(row_nnz, count) <= best <= found
            assert found <= (4 / 3 - 1 / (3 * count)) * best


@ON_LINUX
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_the_papers_kernel_compiles(architecture):
    macros = [
        {"NDIM": ndim, "MODE": mode, "RANK": rank}
        for ndim in (3, 4, 5)
        for mode in (0, ndim - 1)
        for rank in (7, 32, 100)
    ]
    compile_all([(SOURCE, architecture, own) for own in macros])


def measure_programs(folder, limit_s=60, **programs):
    """Write programs, each with a factor of its output and what it prints at the end; run them."""
    shape, rank = SHAPES[0], 4
    coords, values = draw(shape)
    random = np.random.default_rng(1)
    factors = [random.random((size, rank), np.float32) for size in shape]
    expected = [reference.mttkrp(coords, values, shape, factors, mode) for mode in range(3)]
    options = []
    for name, (scale, printed) in programs.items():
        path = write_program(folder / name, scale, printed)
        options.append(libraries.parse_library(f"{name}={path}"))
    return libraries.measure_libraries(options, coords, values, factors, expected, limit_s)


@ON_LINUX
def test_a_librarys_program_is_run_and_its_output_compared(tmp_path):
    programs = {"good": (1, ""), "wrong": (1.5, ""), "silent": (1, "done")}
    good, wrong, silent = measure_programs(tmp_path, **programs)
    assert good.pop("difference") < 1e-6
    assert good == {"name": "good", "build_s": 1, "mttkrp_s": [1, 1, 1]}
    assert "a difference of 5.0e-01" in wrong["failed"]
    assert "JSONDecodeError" in silent["failed"]


@ON_LINUX
def test_a_librarys_program_that_takes_too_long_is_stopped(tmp_path):
    (row,) = measure_programs(tmp_path, limit_s=0.01, slow=(1, ""))
    assert "TimeoutExpired" in row["failed"]


@pytest.mark.parametrize("text", ["blco", "=blco", "blco=/no/such/program"])
def test_a_library_is_a_name_and_a_program(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected NAME=PATH"):
        libraries.parse_library(text)


def make_result():
    """Return figures of two tensors, of which the second lacks some."""
    published = {
        "compute_s": [0.02, 0.02, 0.02], "zero_s": [0.002, 0.001, 0.001],
        "remap_s": [0.03, 0.03, 0.02], "build_s": 0.5, "bytes_per_nonzero": 64.0, "formula": 45.8,
        "fewer_nnz": 1_000_000, "fewer_s": 0.004, "error": 1e-5, "our_error": 1e-6,
        "balance": [
            {"least filled": 1.5, "cyclic": 2.0, "optimum, at least": 1.25},
            {"least filled": 1.0, "cyclic": 1.5, "optimum, at least": 1.0},
        ],
        "settings_s": {"1": {str(2**n): 0.5 / 2**n for n in range(9)}, "2": {"64": 0.001}},
        "readings_s": {"least filled, by index": 0.02, "cyclic, by index": 0.03},
    }  # fmt: skip
    metrics = dict.fromkeys(tables.THROUGHPUTS, 50.0)
    row = {
        "tensor": "vast, real pairs", "alpha": 3.0, "nnz": 3_000_000, "published": published,
        "sweeps_s": {"remap": {"32": [0.01, 0.01, 0.02]}, "remap off": {"32": [0.01, 0.01, 0.01]}},
        "bytes_per_nonzero": {"remap": 46.0}, "build_s": {"remap": 0.05},
        "default": {
            "groups": "0 1 2", "sweep_s": 0.042, "bytes_per_nonzero": 46.0, "balance": 1.01,
        },
        "tiles_s": {"256": 0.02, "512": 0.01},
        "ncu": [
            {"variant": name, "mode": 0, **metrics}
            for name in ("replicated", "indexed", "remap", "paper")
        ],
    }  # fmt: skip
    row["libraries"] = [
        {"name": "blco", "build_s": 2.5, "mttkrp_s": [0.02, 0.02, 0.02], "difference": 1e-6},
        {"name": "parti", "failed": "OSError: no"},
    ]
    other = copy.deepcopy(row) | {"tensor": "music", "sweeps_s": {}, "tiles_s": {}}
    del row["libraries"][1:]
    del other["published"]["readings_s"], other["ncu"]
    product = {"name": "ours", "seconds": [0.001, 0.002], "difference": 0.0}
    return {
        "device": "a GPU", "driver": "1.2", "cupy": "14", "date": "2026-11-26", "scale": 0.5,
        "rows": [row, other],
        "spmm": [
            {"tensor": "nell-2", "nnz": 9e6, "num_pairs": 5e5, "products": [product, product]}
        ],
    }  # fmt: skip


def test_tables():
    parts = tables.make_parts(make_result())
    assert parts["total"].splitlines()[2] == (
        "| vast, real pairs | 3 | 3.0M | 84 | 40 | 2.10 |  |  | 42 | 0 1 2 | 2.00 |"
    )
    assert parts["breakdown"].splitlines()[2:] == [
        "| vast, real pairs | 3 | 3.0M | 25% | 25% | 5% |",
        "| music | 3 | 3.0M | 25% |  | 5% |",
    ]
    assert parts["balance"].splitlines()[3] == (
        "| music | 3 | 3.0M | 1.5 | 2 | 1.25 | 1.200 | 1.01 |"
    )
    assert (
        parts["settings"]
        .splitlines()[2]
        .endswith("| 7.81 | 3.91 | 1.95 | 1 (P = 64, 2 an SM) | 4 | 0.25 |")
    )
    assert parts["readings"].count("\n") == 2  # the other tensor has none
    assert parts["throughput"].splitlines()[2].endswith("| 50 | 50 | 50 | 50 |")
    assert parts["libraries"].splitlines()[2:] == [
        "| vast, real pairs | 3 | 3.0M | blco | 60 | 2.5 | 1.50 |",
        "| music | 3 | 3.0M | blco | 60 | 2.5 |  |",
        "| music | 3 | 3.0M | parti | failed | |  |",
    ]
    assert parts["spmm"].splitlines()[2:] == [
        "| nell-2 | 9.0M | 0.50M | ours | 1 | 2 | 0.0e+00 |",
        "| | | | ours | 1 | 2 | 0.0e+00 |",
    ]
    assert "- alpha 3, default: 2.00 times as fast as the paper's kernel" in parts["summary"]
    assert parts["summary"].endswith("without vast 2.00")


def test_pictures(tmp_path):
    pictures.draw_pictures(make_result(), tmp_path / "paper.png")
    names = {path.stem for path in tmp_path.iterdir()}
    assert names == {f"paper-{name}-3" for name in pictures._PICTURES}
