"""The profile: calls, their parts, what was refused."""

import json

import numpy as np
import pytest
import scipy.sparse
import sparse
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, decomposition, profile
from tensorly_flycoo.testing import random_tensor

RUN = {"n_iter_max": 3, "init": "random", "random_state": 0}


pytestmark = pytest.mark.usefixtures("flycoo_backend")


def make_coo(seed=0):
    return sparse.random((20, 30, 40), density=0.01, random_state=seed)


def test_a_call_and_its_parts():
    coo = make_coo()
    with profile() as p:
        tl.decomposition.parafac(coo, 2, **RUN)
        tl.decomposition.parafac(coo, 2, **RUN)
    first, again = p.calls
    assert (first.name, first.given, first.shape, first.nnz) == ("parafac", "COO", coo.shape, 240)
    assert (first.device, first.dtype, first.failure) == ("cpu", "float64", None)
    assert first.layout in ("remap", "replicated", "indexed")
    assert first.seconds > first.parts["conversion"] + first.parts["start"] > 0
    assert again.parts["conversion"] == 0 < again.parts["start"]  # converted once


def test_a_flycoo_tensor_is_not_converted():
    x = random_tensor((10, 20, 30), 100, random_state=0)
    with profile() as p:
        tl.decomposition.non_negative_parafac(x, 2, **RUN)
    (call,) = p.calls
    assert (call.name, call.given) == ("non_negative_parafac", "FlycooTensor")
    assert (call.parts["conversion"], call.groups) == (0, x.groups)


def test_slices_in_a_list_are_converted():
    slices = [scipy.sparse.random(9, 7, 0.3, random_state=n) for n in range(4)]
    for kind in (list, lambda own: [sparse.COO.from_scipy_sparse(part) for part in own]):
        with profile() as p:
            tl.decomposition.parafac2(kind(slices), 2, n_iter_max=2, random_state=0)
        (call,) = p.calls
        assert (call.name, call.device) == ("parafac2", "")
        assert call.parts["conversion"] > 0
        assert "parafac2" in str(p)


def test_ragged_slices():
    x = tensorly_flycoo.RaggedTensor(make_coo())
    with profile() as p:
        decomposition.parafac2(x, 2, n_iter_max=2)
    (call,) = p.calls
    assert (call.name, call.given, call.device) == ("parafac2", "RaggedTensor", "cpu")
    assert call.seconds > call.parts["start"] > 0


def test_the_start_of_a_non_negative_tucker_decomposition():
    with profile() as p:
        decomposition.non_negative_tucker(make_coo(), [2, 2, 2], n_iter_max=2)
    (call,) = p.calls
    assert call.parts["start"] > 0


def test_calls_inside_a_call_are_parts_of_it():
    x = FlycooTensor.from_coo(make_coo())
    with profile() as p:
        tl.decomposition.CP(2, **RUN).fit_transform(x)
    assert [call.name for call in p.calls] == ["parafac"]


def test_what_was_refused_and_what_failed():
    x = FlycooTensor.from_coo(make_coo())
    with profile() as p:
        with pytest.raises(tensorly_flycoo.DensifyError):
            np.exp(x)
        with pytest.raises(ValueError, match="rank"):
            tl.decomposition.parafac(x, 0)
        tl.decomposition.parafac(x, 2, **RUN)
    (refusal,) = p.refusals
    assert "exp" in refusal
    assert [call.failure is None for call in p.calls] == [False, True]
    assert p.calls[0].failure.startswith("ValueError: rank")
    text = str(p)
    assert "refused, 1 x: " in text
    assert "ValueError: rank" in text


def test_equal_calls_share_a_row():
    with profile() as p:
        for seed in (0, 0, 1):
            x = random_tensor((10, 20, 30), 100, random_state=seed)
            tl.decomposition.parafac(x, 2, **RUN)
        tl.decomposition.tucker(x, (2, 2, 2), n_iter_max=1)
    assert [line.split()[:2] for line in str(p).splitlines()[1:]] == [
        ["3", "parafac"],
        ["1", "tucker"],
    ]


def test_dense_calls_are_not_recorded():
    with profile() as p:
        tl.decomposition.parafac(np.ones((3, 4, 5)), 2, **RUN)
    assert p.calls == []
    assert "no decomposition took a sparse tensor" in str(p)


def test_to_dict_is_json():
    with profile() as p:
        tl.decomposition.parafac(make_coo(1), 2, **RUN)
    (call,) = json.loads(json.dumps(p.to_dict()))["calls"]
    assert call["name"] == "parafac"
    assert set(call["parts"]) == {"conversion", "start", "way back"}


def test_nothing_is_recorded_after_the_block():
    with profile() as p:
        pass
    tl.decomposition.parafac(make_coo(), 2, **RUN)
    assert p.calls == []


def test_compiling_is_counted(monkeypatch):
    from tensorly_flycoo.base import reporting

    with profile() as p, reporting.span("parafac", make_coo()), reporting.log_compilation():
        reporting.add_compiled(0.0)
    assert p.calls[0].compiling > 0
