"""`set_device` as a call and in a ``with`` block; test_bad_input.py tests its errors."""

import pytest

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, engines


@pytest.fixture(autouse=True)
def no_choice_yet(monkeypatch):
    monkeypatch.setattr(engines, "_chosen_device", None)
    monkeypatch.delenv("TENSORLY_FLYCOO_DEVICE", raising=False)


def test_a_plain_call_is_permanent():
    tensorly_flycoo.set_device("cpu")
    assert engines._chosen_device == "cpu"
    tensorly_flycoo.set_device("auto")
    assert engines._chosen_device == "auto"


def test_a_block_restores_the_previous_choice(monkeypatch):
    """With no previous choice, the environment decides again."""
    monkeypatch.setenv("TENSORLY_FLYCOO_DEVICE", "nonsense")
    with tensorly_flycoo.set_device("cpu"):
        assert FlycooTensor([[0]], [1.0], (2,)).device == "cpu"
    with pytest.raises(ValueError, match="TENSORLY_FLYCOO_DEVICE is 'nonsense'"):
        FlycooTensor([[0]], [1.0], (2,))


def test_blocks_nest():
    tensorly_flycoo.set_device("auto")
    with tensorly_flycoo.set_device("cpu"):
        with tensorly_flycoo.set_device("auto"):
            assert engines._chosen_device == "auto"
        assert engines._chosen_device == "cpu"
    assert engines._chosen_device == "auto"


def test_a_block_restores_the_choice_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), tensorly_flycoo.set_device("cpu"):
        raise RuntimeError("inside")
    assert engines._chosen_device is None


def test_the_return_value_shows_the_device():
    assert repr(tensorly_flycoo.set_device("cpu")) == "<device 'cpu'>"


def test_gpus_of_a_cpu():
    with pytest.raises(ValueError, match="gpus is 2, but the device is the CPU"):
        tensorly_flycoo.set_device("cpu", gpus=2)
    assert engines._chosen_device is None
