"""Check that the installed TensorLy has what the seam relies on; run on every supported version.

`test_oldest_tensorly.py` runs this file with the oldest one.
"""

import importlib
import inspect

import numpy as np
import pytest
import sparse
import tensorly as tl
from sparse_problems import densification_alarm, random_coo

from tensorly_flycoo import decomposition
from tensorly_flycoo.backend.replacements import TABLE
from tensorly_flycoo.backend.tensor_algebra import _HOOKS

_FEW = {"n_iter_max": 3, "random_state": 0}
_SHAPE = (5, 4, 6)


def _mask():
    return sparse.COO([[0], [0], [0]], [0.0], _SHAPE, fill_value=1.0)


_USES = {
    "parafac": lambda x: tl.decomposition.parafac(x, 2, **_FEW),
    "randomized_svd": lambda x: tl.decomposition.parafac(x, 2, svd="randomized_svd", **_FEW),
    "random": lambda x: tl.decomposition.parafac(x, 2, init="random", **_FEW),
    "rank above the sizes": lambda x: tl.decomposition.parafac(x, 9, **_FEW),
    "callback": lambda x: tl.decomposition.parafac(x, 2, callback=lambda *a: None, **_FEW),
    "line search": lambda x: tl.decomposition.parafac(
        x, 2, linesearch=True, n_iter_max=9, random_state=0
    ),
    "mask": lambda x: tl.decomposition.parafac(x, 2, mask=_mask(), **_FEW),
    "non-negative": lambda x: tl.decomposition.non_negative_parafac(x, 2, **_FEW),
    "non-negative mask": lambda x: tl.decomposition.non_negative_parafac(
        x, 2, mask=_mask(), init="random", **_FEW
    ),
    "hals": lambda x: tl.decomposition.non_negative_parafac_hals(x, 2, **_FEW),
    "constrained": lambda x: tl.decomposition.constrained_parafac(x, 2, non_negative=True, **_FEW),
    "tucker": lambda x: tl.decomposition.tucker(x, [2, 2, 2], **_FEW),
    "parafac2": lambda x: tl.decomposition.parafac2(x, 2, **_FEW),
}


@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@pytest.mark.parametrize("kind", ["COO", "FlycooTensor"])
@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
@pytest.mark.usefixtures("flycoo_backend")
def test_each_decomposition_runs(use, kind):
    coo = abs(random_coo(_SHAPE, 70))
    with densification_alarm():
        found = use(coo if kind == "COO" else tl.tensor(coo))
    arrays = found.factors if hasattr(found, "factors") else found
    for array in arrays:
        if isinstance(array, np.ndarray):
            assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("name", "modules"), [(name, row.modules) for row in TABLE for name in row.names.split()]
)
def test_the_table_names_functions_that_are_there(name, modules):
    modules = [f"tensorly.{module}" for module in modules.split()]
    found = [getattr(importlib.import_module(module), name, None) for module in modules]
    originals = {inspect.unwrap(function) for function in found if function is not None}
    (original,) = originals  # one function, whatever module it is in
    assert inspect.isfunction(original)
    assert original.__module__ in modules or modules[0].startswith("tensorly.contrib")


@pytest.mark.parametrize("name", decomposition.__all__)
def test_decompositions_have_tensorlys_parameters(name):
    """In the order of TensorLy 0.10; the seam passes arguments by name, as 0.9's order differs."""
    if not hasattr(tl.decomposition, name):  # our own
        return
    ours = list(inspect.signature(getattr(decomposition, name)).parameters)
    theirs = list(inspect.signature(inspect.unwrap(getattr(tl.decomposition, name))).parameters)
    assert set(theirs) <= set(ours)
    if tl.__version__.startswith("0.10"):
        assert [p for p in ours if p in theirs] == theirs


@pytest.mark.parametrize("name", _HOOKS)
def test_hooks_have_tensorlys_parameters(name):
    theirs = inspect.signature(inspect.unwrap(getattr(tl.tenalg, name))).parameters
    ours = inspect.signature(_HOOKS[name]).parameters
    assert list(ours) == [p for p in theirs if p in ours]
    required = [n for n, p in theirs.items() if p.default is inspect.Parameter.empty]
    assert set(required) <= set(ours)
