"""Each number of each header, replaced: a ValueError at once, and no more memory than the file.

A header is JSON in each format but the text files; the table finds the numbers by itself.
"""

import functools
import itertools
import json
import operator
import re
import resource
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damaged_files import pack, unpack
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import (
    LabelledCP,
    load,
    mttkrp,
    open_slabs,
    save,
    save_slabs,
)
from tensorly_flycoo.base.checks import LAYOUTS
from tensorly_flycoo.base.fit_record import FitRecord
from tensorly_flycoo.io.array_file import TENSOR, save_arrays
from tensorly_flycoo.io.checkpoint import load_checkpoint, save_checkpoint
from tensorly_flycoo.io.parts import Reading
from tensorly_flycoo.io.slab_folder import digest
from tensorly_flycoo.testing import random_tensor

OTHERS = [0, -1, 2**31, 10**18, 10**30, 1.5, "x", None, []]
LIMIT_S, LIMIT_NBYTES = 2, 2**28

#: Numbers that a file may have, whatever its arrays are: those that nothing else tells.
FREE = {
    "norm": [1.5],
    "num_slabs": [2**31, 10**18, 10**30],
    "l2_reg": [1.5],
    "scale": [1.5, None],
    "unobserved": [1.5],
    "strength": [1.5],
    "non_negative": [1],
    "value_column": [0, -1, 2**31, 10**18, 10**30, "x", None],
    "errors": [0, -1, 2**31, 10**18, 10**30, 1.5],
    "tile_size": [2**31],  # others than here: the tensor is built again
    "bucket_size": [2**31],
}


def make_tensor(**options):
    return random_tensor((8, 7, 6), 60, random_state=0, **options)


def save_numbered(path):
    """Save a tensor whose first group's combinations are numbered."""
    x = random_tensor((100, 90, 6), 60, random_state=0, groups=[(0, 1), (2,)])
    save(path, x)
    assert x._layout.record_format.num_prefixes


def save_model(path):
    cp = LabelledCP((None, [np.ones((3, 2))] * 2), {"a": list("xyz"), "b": [1, 2, 3]})
    constraints = {1: {"strength": 2.0}}
    facts = {"l2_reg": 0.5, "scale": 2.0, "constraints": constraints, "non_negative": (0,)}
    cp.flycoo = FitRecord(method="parafac", value_column=7, **facts)
    cp.save(path)


def save_run(path):
    save_checkpoint(path, CPTensor((np.ones(2), [np.ones((3, 2))] * 3)), [1.0, 0.5])


def compute(x):
    mttkrp(x, [np.ones((size, 2), x.dtype) for size in x.shape], 0)
    return x


WRITERS = {
    **{name: (lambda path, name=name: save(path, make_tensor(layout=name))) for name in LAYOUTS},
    "numbered": save_numbered,
    "model": save_model,
    "checkpoint": save_run,
}
READERS = {
    "model": LabelledCP.load,
    "checkpoint": load_checkpoint,
}


#: What a file is, and what reads it, in messages.
KINDS = {
    "remap": ("a saved tensor", "tensorly_flycoo.load(path)"),
    "model": ("a saved LabelledCP", "LabelledCP.load(path)"),
    "checkpoint": ("a checkpoint", "Progress(n, checkpoint=path).resume"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_says_what_reads_it(kind, tmp_path):
    path, (found, call) = tmp_path / "x.npz", KINDS[kind]
    WRITERS[kind](path)
    for other, (expected, _) in KINDS.items():
        if other != kind:
            text = f"x.npz is {found}, expected {expected}: call {call}"
            with pytest.raises(ValueError, match=re.escape(text)):
                READERS.get(other, load)(path)


def find_numbers(value, path=()):
    """Yield the path of each number in JSON, and of each sequence of numbers."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path
    elif isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from find_numbers(item, (*path, key))


def replace(value, path, other):
    """Return a copy of JSON with another value at a path."""
    if not path:
        return other
    value = dict(value) if isinstance(value, dict) else list(value)
    value[path[0]] = replace(value[path[0]], path[1:], other)
    return value


def is_refused(read, path):
    """Return whether reading a file is a ValueError that names it; assert that it takes little."""
    begin_s, before = time.process_time(), resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + LIMIT_NBYTES, before[1]))
    error = None
    try:
        read(path)
    except ValueError as caught:
        error = caught
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.process_time() - begin_s < LIMIT_S  # other processes' load is no part of it
    assert error is None or (type(error) is ValueError and str(path) in str(error))
    return error is not None


def is_free(place, other, own):
    name = next(key for key in reversed(place) if isinstance(key, str))
    return any(other == free and type(other) is type(free) for free in (own, *FREE.get(name, ())))


def try_each(header, write, read, skipped=()):
    """Replace each number of a header by others, and list those that are wrongly read or refused.

    `write` writes a file with a header, and returns what `read` takes.
    """
    places, wrong = list(find_numbers(header)), []
    assert len(places) > 1
    for place, other in itertools.product(places, OTHERS):
        if (place, other) in skipped:
            continue
        path, own = (
            write(replace(header, place, other)),
            functools.reduce(operator.getitem, place, header),
        )
        try:
            if is_refused(read, path) == is_free(place, other, own):
                wrong.append((place, other))
        except Exception as error:
            wrong.append((place, other, repr(error)))
    assert wrong == []


@pytest.mark.parametrize("name", WRITERS)
def test_arrays_with_a_header(name, tmp_path):
    path, read = tmp_path / "x.npz", READERS.get(name, lambda path: compute(load(path)))
    WRITERS[name](path)
    read(path)  # what is compiled is compiled
    parts = unpack("x.npz", path.read_bytes())

    def write(header):
        path.write_bytes(pack("x.npz", parts | {"header.npy": json.dumps(header).encode()}))
        return path

    # The sizes of modes whose combinations are numbered may be any, as in text.
    skipped = [(("shape", mode), 2**31) for mode in range(2)] if name == "numbered" else ()
    try_each(json.loads(parts["header.npy"]), write, read, skipped)


@pytest.mark.parametrize("keep", ["file", "device"])
def test_the_index_of_slabs(keep, tmp_path):
    save_slabs(tmp_path / "x", make_tensor(), slabs=3)
    path = tmp_path / "x" / "slabs.json"
    facts = json.loads(path.read_bytes())
    del facts["digest"]

    def write(facts):
        path.write_text(json.dumps(facts | {"digest": digest(facts)}))
        return tmp_path / "x"

    read = functools.partial(open_slabs, keep=keep)
    compute(read(write(facts)))
    try_each(facts, write, lambda path: compute(read(path)))


@pytest.mark.parametrize("keep", ["file", "device"])
def test_the_header_of_a_slab(keep, tmp_path):
    save_slabs(tmp_path / "x", make_tensor(), slabs=3)
    index, file = tmp_path / "x" / "slabs.json", tmp_path / "x" / "slab-00001.npz"
    facts, arrays = json.loads(index.read_bytes()), dict(np.load(file))
    header = json.loads(str(arrays.pop("header")))
    del facts["digest"]

    def write(header):
        save_arrays(file, TENSOR, header, arrays.items(), alignment=4096)
        with zipfile.ZipFile(file) as archive:
            members = [
                (m.filename, m.file_size, m.CRC, m.header_offset) for m in archive.infolist()
            ]
        entry = [*facts["entries"][1][:2], file.stat().st_size, digest(members)]
        changed = replace(facts, ("entries", 1), entry)
        index.write_text(json.dumps(changed | {"digest": digest(changed)}))
        return tmp_path / "x"

    def read(path):
        return compute(open_slabs(path, keep=keep))

    read(write(header))
    # Other tiles are built again on a device, and refused in a file.
    try_each(header, write, read, [(("tile_size",), 2**31)] if keep == "file" else ())


#: Headers with places for numbers, and what they are: a size of a mode may be any up to 2**32.
TEXTS = {
    "# shape: {} {}": "sizes",
    "sptensor\n{}\n{} {}\n{}": "ndim, sizes, nnz",
    "%%MatrixMarket tensor coordinate real general\n{} {} {}": "sizes, nnz",
    "{} {}": "sizes",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text, tmp_path):
    path = tmp_path / "x.tns"
    path.write_text("4 5 1.5\n")
    Reading().read_tns([path])
    right = [*([2] if "sptensor" in text else []), 4, 5, *([1] if text.count("{}") > 2 else [])]
    for n, other in itertools.product(range(len(right)), [0, -1, 2**31, 10**18, 10**30, 1.5, "x"]):
        path.write_text(text.format(*right[:n], other, *right[n + 1 :]) + "\n4 5 1.5\n")
        is_size = 0 <= n - ("sptensor" in text) < 2
        assert is_refused(lambda path: Reading().read_tns([path]), path) != (
            is_size and other == 2**31
        ), (n, other)
