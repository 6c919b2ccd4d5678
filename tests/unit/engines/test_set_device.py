"""`set_device`, for good and in a ``with`` block; its errors are tested in test_checks.py."""

import pytest

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, engines


@pytest.fixture(autouse=True)
def no_choice_yet(monkeypatch):
    monkeypatch.setattr(engines, "_chosen_device", None)
    monkeypatch.delenv("TENSORLY_FLYCOO_DEVICE", raising=False)


def test_a_plain_call_chooses_for_good():
    tensorly_flycoo.set_device("cpu")
    assert engines._chosen_device == "cpu"
    tensorly_flycoo.set_device("auto")
    assert engines._chosen_device == "auto"


def test_a_block_restores_the_choice_before_it(monkeypatch):
    """Which is none at first: the environment chooses then."""
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


def test_what_is_returned_says_the_device():
    assert repr(tensorly_flycoo.set_device("cpu")) == "<device 'cpu'>"
