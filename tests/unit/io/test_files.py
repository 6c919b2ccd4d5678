"""What happens to files that cannot be written."""

import contextlib
import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import (
    FlycooTensor,
    LabelledCP,
    LabelledTensor,
    save,
    save_slabs,
)
from tensorly_flycoo.io.checkpoint import save_checkpoint
from tensorly_flycoo.tensor.labelled import Labels

resource = pytest.importorskip("resource")

SIZE = 9000


def make_tensor():
    numbers = np.arange(SIZE)
    return FlycooTensor([numbers, numbers % 7, numbers % 2], np.ones(SIZE), (SIZE, 7, 2))


def make_labels():
    return [np.arange(size) for size in make_tensor().shape]


def make_model():
    return CPTensor((np.ones(1), [np.ones((size, 1)) for size in make_tensor().shape]))


WRITERS = {
    "save": lambda path: save(path, make_tensor()),
    "save labels": lambda path: save(path, LabelledTensor(make_tensor(), Labels(make_labels()))),
    "save_slabs": lambda path: save_slabs(path, make_tensor(), slabs=2),
    "checkpoint": lambda path: save_checkpoint(path, make_model(), [0.5]),
    "LabelledCP": lambda path: LabelledCP(make_model(), Labels(make_labels())).save(path),
}


@contextlib.contextmanager
def limit_files(nbytes):
    """Let no file grow further, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("nbytes", [100, 20_000])
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_an_error_that_names_the_path(tmp_path, name, nbytes):
    path = tmp_path / "x"
    with pytest.raises(OSError, match=str(path)) as caught, limit_files(nbytes):
        WRITERS[name](path)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, os.fspath(path))
    assert "None" not in str(caught.value)
    assert not any(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from tensorly_flycoo.io import files

make = files.make_folder if sys.argv[2] == "folder" else files.replace_file
with make(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path, kind):
    """What others wrote to, or write to other paths, stays, as does what is of other machines."""
    path, other = tmp_path / "x", tmp_path / "x.npz"
    for place in (path, other):
        killed = subprocess.run([sys.executable, "-c", KILLED, place, kind])
        assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".x.[!n]*.part")
    machine, _, number = left.name.removeprefix(".x.").partition("-")
    alive = tmp_path / f".x.{machine}-{os.getppid()}-0.part"
    elsewhere = tmp_path / f".x.00000000-{number}"
    for part in (alive, elsewhere):
        part.write_bytes(b"1")
    expected = {path, alive, elsewhere, *tmp_path.glob(".x.npz.*.part")}
    assert len(expected) == 4
    save(path, make_tensor())
    assert {*tmp_path.iterdir()} == expected
