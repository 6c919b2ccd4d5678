"""Checkpoint files: round trips, refused files, and atomic writes."""

import json

import numpy as np
import pytest
from tensorly.cp_tensor import CPTensor
from tensorly.tucker_tensor import TuckerTensor

from tensorly_flycoo import FlycooTensor
from tensorly_flycoo.base.fit_record import FitRecord, RunState, attach
from tensorly_flycoo.io.checkpoint import (
    ResumedTucker,
    copy_model,
    find_digest,
    load_checkpoint,
    save_checkpoint,
)

ERRORS = [1.0, 0.5, 0.25]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def make_cp():
    factors = [np.arange(6.0).reshape(3, 2), np.asfortranarray(np.ones((4, 2))), np.ones((1, 2))]
    return CPTensor((np.array([2.0, 3.0]), factors))


def test_round_trip_keeps_bits_and_order(path):
    cp_tensor = make_cp()
    save_checkpoint(str(path), cp_tensor, ERRORS)
    loaded = load_checkpoint(path)
    assert (loaded.iteration, loaded.errors) == (2, ERRORS)
    assert (loaded.shape, loaded.rank) == ((3, 4, 1), 2)
    for a, b in zip(
        [loaded.weights, *loaded.factors], [cp_tensor.weights, *cp_tensor.factors], strict=True
    ):
        np.testing.assert_array_equal(a, b, strict=True)
        assert a.strides == b.strides


def test_round_trip_of_a_tucker_tensor(path):
    tucker = TuckerTensor((np.ones((2, 1)), [np.arange(6.0).reshape(3, 2), np.ones((4, 1))]))
    save_checkpoint(path, tucker, ERRORS)
    loaded = load_checkpoint(path)
    assert isinstance(loaded, ResumedTucker)
    assert (loaded.iteration, loaded.shape, loaded.rank) == (2, (3, 4), (2, 1))
    for a, b in zip([loaded.core, *loaded.factors], [tucker.core, *tucker.factors], strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def test_round_trip_of_a_run(path):
    x = FlycooTensor([[0, 1], [2, 0]], [3.0, 4.0], (3, 4))
    state = {"dual_0": np.asfortranarray(np.ones((3, 2))), "violation_0": 0.25}
    cp_tensor = CPTensor((None, [np.ones((3, 2)), np.ones((4, 2))]))
    record = FitRecord(method="hals", l2_reg=0.5, run=RunState(x, state))
    save_checkpoint(path, attach(cp_tensor, record), ERRORS)
    saved = load_checkpoint(path)
    assert (saved.solver, saved.digest, saved.errors) == ("hals", find_digest(x), ERRORS)
    assert saved.state.keys() == state.keys()
    assert saved.state["dual_0"].strides == state["dual_0"].strides
    assert float(saved.state["violation_0"]) == 0.25
    assert (saved.flycoo.method, saved.flycoo.l2_reg, saved.flycoo.run) == ("hals", 0.5, None)


def test_a_copied_model_has_the_same_arrays_in_a_new_list():
    cp_tensor = make_cp()
    tucker = TuckerTensor((np.ones((2, 1)), [np.ones((3, 2)), np.ones((4, 1))]))
    for model in (cp_tensor, tucker):
        copy = copy_model(attach(model, FitRecord(scale=2.0, run=RunState(None))))
        assert type(copy) is type(model)
        assert copy.factors is not model.factors
        assert all(a is b for a, b in zip(copy.factors, model.factors, strict=True))
        assert (copy.flycoo.run, copy.flycoo.scale) == (None, 2)
    assert copy_model("ring") == "ring"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    save_checkpoint(path, make_cp(), ERRORS)

    def fail(file, array, **options):
        file.write(b"half a file")
        raise OSError("no space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match="no space left"):
        save_checkpoint(path, make_cp(), [1.0])
    assert load_checkpoint(path).errors == ERRORS
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_file_says_so(path, keep):
    save_checkpoint(path, make_cp(), ERRORS)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if keep < 1 else keep])
    with pytest.raises(ValueError, match="is damaged, or not a checkpoint"):
        load_checkpoint(path)


def test_a_changed_byte_says_so(path):
    save_checkpoint(path, make_cp(), ERRORS)
    data = bytearray(path.read_bytes())
    data[data.index(np.float64(5).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"other": np.ones(3)},
        {"format": 1, "weights": np.ones(2), "errors": np.ones(1), "factor_1": np.ones((3, 2))},
        {"format": 1, "weights": np.ones(2), "errors": np.ones(1)},
        {"format": 1, "weights": np.ones(3), "errors": np.ones(1), "factor_0": np.ones((3, 2))},
        {"format": np.array([{}])},
    ],
)
def test_other_files_are_refused(path, arrays):
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="not a checkpoint"):
        load_checkpoint(path)


def test_compressed_arrays_are_refused(path):
    """A compressed array could expand to a thousand times the size of the file."""
    save_checkpoint(path, make_cp(), ERRORS)
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez_compressed(path, **arrays)
    with pytest.raises(ValueError, match=r"is compressed|larger than the file"):
        load_checkpoint(path)


def test_factors_keep_their_memory_order(path):
    factors = [np.asfortranarray(np.arange(6.0).reshape(3, 2)), np.ones((4, 2))]
    save_checkpoint(path, CPTensor((np.ones(2), factors)), ERRORS)
    for factor, same in zip(load_checkpoint(path).factors, factors, strict=True):
        assert factor.strides == same.strides
        np.testing.assert_array_equal(factor, same)


def test_another_format_says_so(path):
    np.savez(path, header=json.dumps({"format": "tensorly-flycoo checkpoint", "version": 4}))
    with pytest.raises(ValueError, match="has format version 4, expected 3: load it with the rel"):
        load_checkpoint(path)


def test_only_a_cp_tensor_is_saved(path):
    with pytest.raises(TypeError, match="is a tuple, expected a CPTensor"):
        save_checkpoint(path, (make_cp(), None), ERRORS)
    assert not path.exists()
