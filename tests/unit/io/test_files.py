"""What happens to files that cannot be written."""

import contextlib
import errno
import os

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
    assert not any(tmp_path.iterdir())
