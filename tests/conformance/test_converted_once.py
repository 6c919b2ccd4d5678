"""A raw COO is checked and converted once for a call, however many iterations that has."""

import inspect

import numpy as np
import pytest
import tensorly as tl
from sparse_problems import random_coo

from tensorly_flycoo.decomposition import generalized_parafac, observed_parafac
from tensorly_flycoo.tensor import coo_cache

pytestmark = pytest.mark.usefixtures("flycoo_backend")

_FEW = {"n_iter_max": 12, "random_state": 0, "tol": 1e-30}
_LOOPS = {
    "parafac": lambda x: tl.decomposition.parafac(x, 2, **_FEW),
    "parafac, random": lambda x: tl.decomposition.parafac(x, 2, init="random", **_FEW),
    "parafac, tol=0": lambda x: tl.decomposition.parafac(x, 2, **_FEW | {"tol": 0}),
    "parafac, callback": lambda x: tl.decomposition.parafac(x, 2, callback=print, **_FEW),
    "parafac, linesearch": lambda x: tl.decomposition.parafac(x, 2, linesearch=True, **_FEW),
    "CP": lambda x: tl.decomposition.CP(2, **_FEW).fit_transform(x),
    "non_negative_parafac": lambda x: tl.decomposition.non_negative_parafac(x, 2, **_FEW),
    "non_negative_parafac_hals": lambda x: tl.decomposition.non_negative_parafac_hals(x, 2, **_FEW),
    "constrained_parafac": lambda x: tl.decomposition.constrained_parafac(
        x, 2, non_negative=True, n_iter_max=12, random_state=0
    ),
    "tucker": lambda x: tl.decomposition.tucker(x, [2, 2, 2], **_FEW),
    "non_negative_tucker": lambda x: tl.decomposition.non_negative_tucker(x, [2] * 3, **_FEW),
    "partial_tucker": lambda x: tl.decomposition.partial_tucker(x, [2, 2], modes=[0, 1], **_FEW),
    "parafac2": lambda x: tl.decomposition.parafac2(x, 2, **_FEW),
    "observed_parafac": lambda x: observed_parafac(x, 2, n_iter_max=12, random_state=0),
    "generalized_parafac": lambda x: generalized_parafac(x, 2, n_iter_max=12, random_state=0),
}


@pytest.fixture
def num_fingerprints(monkeypatch):
    """Count how often arrays are hashed."""
    hashed, original = [], coo_cache._fingerprint
    monkeypatch.setattr(
        coo_cache, "_fingerprint", lambda array: hashed.append(array.size) or original(array)
    )
    return lambda: len(hashed)


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("loop", _LOOPS.values(), ids=_LOOPS)
def test_the_fingerprints_of_a_call(loop, is_known, num_fingerprints):
    """One of the values and one of the coordinates."""
    coo = abs(random_coo((5, 6, 7), 90))
    if is_known:
        coo_cache.as_flycoo(coo)
    before = num_fingerprints()
    loop(coo)
    assert num_fingerprints() - before <= 2


def test_a_parafac_that_was_imported_before_the_package(num_fingerprints):
    """Its first iteration checks each mode; later ones get the tensor from the error."""
    parafac = inspect.unwrap(tl.decomposition.parafac)
    coo = abs(random_coo((5, 6, 7), 90))
    parafac(coo, 2, **_FEW | {"n_iter_max": 2})
    first = num_fingerprints()
    parafac(coo, 2, **_FEW)
    assert num_fingerprints() == 2 * first
    found, expected = parafac(coo, 2, **_FEW), tl.decomposition.parafac(coo, 2, **_FEW)
    # Only the other one solves, and finds Gram matrices, in one pass over the rows.
    for a, b in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


def test_what_is_slower_is_said_at_debug(caplog):
    caplog.set_level("DEBUG", "tensorly_flycoo")
    coo = abs(random_coo((5, 6, 7), 90))
    tl.decomposition.parafac(coo, 2, **_FEW)
    assert not [text for text in caplog.messages if "imported before" in text]
    inspect.unwrap(tl.decomposition.parafac)(coo, 2, **_FEW)
    assert "called by a decomposition that was imported before tensorly_flycoo" in caplog.messages
