"""The loader of CUDA sources inlines every header and keeps the origin of each line."""

import re
from pathlib import Path

import numpy as np
import pytest

import tensorly_flycoo
from tensorly_flycoo.engines import cuda
from tensorly_flycoo.engines.cuda.source import (
    check_arguments,
    find_item_sizes,
    list_files,
    load_source,
    specialise,
)

ENTRIES = sorted(name for name in list_files() if name.endswith(".cu"))
HEADERS = sorted(name for name in list_files() if name.endswith(".cuh"))
GATHER_ONLY = Path(__file__).parents[4] / "examples" / "benchmark_gpu" / "gather_only.cu"
LINE = re.compile(r'#line (\d+) "(.+)"')


@pytest.mark.parametrize("entry", ENTRIES)
def test_sources_are_complete(entry):
    """Our headers are not left to the compiler, whose cache would miss a change in them."""
    source = load_source(entry)
    assert '#include "' not in source
    for header in HEADERS:
        assert len(re.findall(rf'#line 1 ".*/{header}"', source)) <= 1
    assert source.count('extern "C" __global__') >= 1


def test_every_header_is_used():
    used = set().union(*(re.findall(r'#line 1 ".*/(\w+\.cuh)"', load_source(e)) for e in ENTRIES))
    assert used == set(HEADERS)


@pytest.mark.parametrize("name", ["mttkrp_remap.cu", str(GATHER_ONLY)])
def test_lines_keep_their_numbers(name):
    """The compiler's error messages name the file and line on disk."""
    lines = iter(load_source(name).splitlines())
    number, file = None, None
    for line in lines:
        match = LINE.match(line)
        if match:
            number, file = int(match[1]), Path(tensorly_flycoo.__file__).parents[1] / match[2]
            continue
        assert file.read_text().splitlines()[number - 1] == line
        number += 1


def test_a_source_elsewhere_includes_our_headers():
    source = load_source(str(GATHER_ONLY))
    assert '#include "' not in source
    assert (
        len(re.findall('#line 1 "tensorly_flycoo/engines/cuda/kernels/.*mttkrp.cuh"', source)) == 1
    )


def test_names_are_distinct():
    """A source or header is found by its name, in whichever folder it is."""
    names = [path.name for path in (Path(cuda.__file__).parent / "kernels").rglob("*.cu*")]
    assert sorted(names) == sorted(list_files())


def test_unknown_source():
    with pytest.raises(FileNotFoundError):
        load_source("nothing.cu")


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_head_of_a_kernel_describes_it(entry):
    """All parts of the description are present, in one order."""
    head = list_files()[entry].read_text()
    parts = (
        "Entry: ",
        "Mapping: ",
        "Preconditions",
        "Bytes",
        "Writes and determinism: ",
        "Source: ",
    )
    places = [head.find(f"// {part}") for part in parts]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("entry", ENTRIES)
def test_item_sizes_are_known_of_all_but_types_of_cpp(entry):
    text = load_source(entry)
    macros = re.findall(r"^// MACRO (\w+)", text, re.MULTILINE)
    text = "".join(f"#define {macro} double\n" for macro in macros) + text
    kernels = re.findall(r'extern "C" __global__[^;{]*?(\w+)\s*\((?!BLOCK)([^)]*)\)\s*{', text)
    assert len(kernels) == text.count('extern "C" __global__')
    for name, parameters in kernels:
        sizes = find_item_sizes(text, name)
        for parameter, size in zip(parameters.split(","), sizes, strict=True):
            is_pointer = "*" in parameter
            is_of_cpp = re.search(r"([A-Z]\w*(::\w+|<\w+>)?|void|uint2)\* ?\w+$", parameter)
            assert size in ((1, 2, 4, 8, None) if is_pointer else (None,))
            assert size or is_of_cpp or not is_pointer


def test_arrays_with_items_of_another_size_are_refused():
    text = specialise(
        "place_vectors.cu",
        {"VECTOR": np.dtype("f4"), "PLACED": np.dtype("f8"), "BLOCK_SIZE": 256},
    )
    vectors, places, out = np.ones((3, 2), "f4"), np.zeros((2, 2), np.int64), np.ones((5, 2))
    one = np.int64(1)

    def list_arguments(rows):
        return (one, one, vectors, one, one, rows, places, one, out)

    check_arguments(text, "place_vectors", list_arguments(np.arange(3)))
    check_arguments(text, "place_vectors", list_arguments(None))
    with pytest.raises(
        TypeError, match=r"argument 5 .* place_vectors has the dtype uint32, .* 8 byt"
    ):
        check_arguments(text, "place_vectors", list_arguments(np.arange(3, dtype=np.uint32)))
    with pytest.raises(ValueError, match="kernel is 'other'"):
        find_item_sizes(text, "other")
