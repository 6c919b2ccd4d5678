"""Files of release 0.2, written before all kinds shared one header, still load."""

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tensorly_flycoo import FlycooTensor, LabelledCP, OnlineCP, load, open_slabs
from tensorly_flycoo.io.checkpoint import find_digest, load_checkpoint

COORDS, VALUES = [[0, 1, 2], [1, 1, 0]], [0.5, 2.0, 3.0]
LABELS = [["b", "a", "\ud800"], np.array(["2020-01-01", "2020-01-02"], "M8[D]").tolist()]


@pytest.fixture
def folder(tmp_path):
    with zipfile.ZipFile(Path(__file__).with_name("files_of_0.2.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_tensors(folder):
    for x in (
        load(folder / "tensor.npz", device="cpu"),
        load(folder / "labelled_tensor.npz", device="cpu"),
        open_slabs(folder / "slabs", device="cpu", verify=True),
        open_slabs(folder / "slabs", device="cpu", keep="device"),
    ):
        coords, values = x.nonzeros()
        assert (coords.tolist(), values.tolist(), x.shape) == (COORDS, VALUES, (3, 2))
    labels = load(folder / "labelled_tensor.npz").labels
    assert [of.tolist() for of in labels.values()] == LABELS


def test_models(folder):
    cp = LabelledCP.load(folder / "cp.npz")
    assert (cp.shape, cp.rank, cp.names, cp.ordered) == ((3, 2), 2, ("shop", "day"), ("day",))
    assert [of.tolist() for of in cp.labels.values()] == LABELS
    online = OnlineCP.load(folder / "online.npz")
    assert (online.rank, online.mode, online.n_slices_, online.rows_.shape) == (2, 1, 2, (2, 2))
    online.partial_fit(FlycooTensor([[0], [0], [3]], [1.0], (3, 1, 4), device="cpu"))


def test_checkpoints(folder):
    x = load(folder / "tensor.npz", device="cpu")
    facts = {
        "checkpoint.npz": ("non_negative_parafac_hals", find_digest(x), {"violation_0": 0.25}),
        "checkpoint_of_format_1.npz": ("parafac", "", {}),
    }
    for name, expected in facts.items():
        resumed = load_checkpoint(folder / name)
        assert resumed.errors == [1.0, 0.5]
        assert (resumed.solver, resumed.digest, resumed.state) == expected
        assert resumed.weights.tolist() == [2, 3]
        assert resumed.factors[0].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert resumed.factors[0].flags.f_contiguous


def test_a_file_of_another_kind_says_what_reads_it(folder):
    readers = {
        "tensor.npz": (load, "a saved tensor", "tensorly_flycoo.load(path)"),
        "cp.npz": (LabelledCP.load, "a saved LabelledCP", "LabelledCP.load(path)"),
        "online.npz": (OnlineCP.load, "a saved OnlineCP", "OnlineCP.load(path)"),
        "checkpoint.npz": (load_checkpoint, "a checkpoint", "Progress(n, checkpoint=path).resume"),
    }
    for file, (_, found, call) in readers.items():
        for other, (read, expected, _) in readers.items():
            if other != file:
                text = f"{file} is {found}, expected {expected}: call {call}"
                with pytest.raises(ValueError, match=re.escape(text)):
                    read(folder / file)
