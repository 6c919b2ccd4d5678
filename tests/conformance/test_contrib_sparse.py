"""`tensorly.contrib.sparse`, TensorLy's own sparse path, whose scripts run under "flycoo" too.

Here the package is imported first; in test_seam.py after it.
"""

import numpy as np
import pytest
import sparse
import tensorly as tl
import tensorly.contrib.sparse as stl
from sparse_problems import random_coo
from tensorly.contrib.sparse import cp_tensor, decomposition, tenalg

from tensorly_flycoo import FlycooTensor

SHAPE = (6, 7, 8)
X = abs(random_coo(SHAPE, 80, seed=0))
FACTORS = [np.random.default_rng(n).random((size, 3)) for n, size in enumerate(SHAPE)]
SPARSE_FACTORS = [sparse.COO(factor * (factor > 0.5)) for factor in FACTORS]
RANDOM = {"init": "random", "random_state": 0, "n_iter_max": 3}

#: Its functions that run under "numpy", with a COO.
CALLS = {
    "parafac": lambda: decomposition.parafac(X, 3, **RANDOM),
    "parafac from a guess": lambda: decomposition.parafac(X, 3, init=(None, FACTORS), n_iter_max=2),
    "non_negative_parafac": lambda: decomposition.non_negative_parafac(X, 3, **RANDOM),
    "non_negative_tucker": lambda: decomposition.non_negative_tucker(X, [2, 2, 2], **RANDOM),
    "robust_pca": lambda: decomposition.robust_pca(X, n_iter_max=3, verbose=0),
    "mode_dot": lambda: tenalg.mode_dot(X, np.ones((2, 7)), 1),
    "mode_dot, a vector": lambda: tenalg.mode_dot(X, np.ones(7), 1),
    "mode_dot, sparse": lambda: tenalg.mode_dot(X, SPARSE_FACTORS[1].T, 1),
    "multi_mode_dot": lambda: tenalg.multi_mode_dot(X, [f.T for f in FACTORS]),
    "multi_mode_dot, sparse": lambda: tenalg.multi_mode_dot(X, [f.T for f in SPARSE_FACTORS]),
    "of a dense tensor": lambda: tenalg.multi_mode_dot(X.todense(), [f.T for f in SPARSE_FACTORS]),
    "kronecker": lambda: tenalg.kronecker(SPARSE_FACTORS),
    "khatri_rao": lambda: tenalg.khatri_rao(FACTORS),
    "khatri_rao, sparse": lambda: tenalg.khatri_rao(SPARSE_FACTORS),
    "inner": lambda: tenalg.inner(X, X),
    "MTTKRP": lambda: cp_tensor.unfolding_dot_khatri_rao(X, (None, FACTORS), 1),
    "MTTKRP, sparse": lambda: cp_tensor.unfolding_dot_khatri_rao(X, (None, SPARSE_FACTORS), 1),
    "cp_to_tensor": lambda: cp_tensor.cp_to_tensor((np.ones(3), SPARSE_FACTORS)),
    "tensor": lambda: stl.tensor(FACTORS[0]),
    "tensor of a COO": lambda: stl.tensor(X, dtype=np.float32),
    "ones": lambda: stl.ones((2, 3)),
    "unfold": lambda: stl.unfold(X, 1),
    "fold": lambda: stl.fold(stl.unfold(X, 1), 1, SHAPE),
    "norm": lambda: stl.norm(X),
    "sum": lambda: stl.sum(X, axis=1),
    "dot": lambda: stl.dot(stl.unfold(X, 0), np.ones((56, 2))),
    "to_numpy": lambda: stl.to_numpy(X),
    "context": lambda: [np.zeros(1, **stl.context(X))],
}
#: Those that give ours, which are dense as everywhere.
OURS = ("parafac", "parafac from a guess", "non_negative_parafac", "non_negative_tucker")


def list_arrays(found):
    """List the arrays of a result, which may be nested, each with its kind."""
    if hasattr(found, "factors"):
        found = [found[0], *found.factors]
    if isinstance(found, list | tuple):
        return [pair for part in found for pair in list_arrays(part)]
    is_sparse = isinstance(found, sparse.SparseArray)
    return [("COO" if is_sparse else "dense", found.todense() if is_sparse else np.asarray(found))]


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_under_numpy(name):
    with tl.backend_context("numpy"):
        expected = list_arrays(CALLS[name]())
    with tl.backend_context("flycoo"):
        found = list_arrays(CALLS[name]())
        assert tl.get_backend() == "flycoo"
    for (kind, array), (expected_kind, right) in zip(found, expected, strict=True):
        if name == "mode_dot, a vector":
            assert (kind, expected_kind) == ("COO", "dense")  # a tensor of two modes stays sparse
        else:
            assert kind == ("dense" if name in OURS else expected_kind)
        assert array.dtype == right.dtype
        np.testing.assert_allclose(array, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [lambda x: x, FlycooTensor.from_coo], ids=["COO", "FlycooTensor"])
@pytest.mark.parametrize("name", ["parafac", "non_negative_parafac", "tucker", "partial_tucker"])
@pytest.mark.filterwarnings("ignore:Trying to compute SVD")
@pytest.mark.usefixtures("flycoo_backend")
def test_the_default_start_which_fails_under_numpy(name, kind):
    rank = 3 if "parafac" in name else [2, 2, 2]
    found = getattr(decomposition, name)(kind(X), rank, n_iter_max=3)
    right = getattr(tl.decomposition, name)(kind(X), rank, n_iter_max=3)
    for (_, array), (_, expected) in zip(list_arrays(found), list_arrays(right), strict=True):
        assert array.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("flycoo_backend")
def test_a_sparse_guess_is_refused_in_words():
    with pytest.raises(TypeError, match=r"factors\[0\] of init is a COO.* pass its todense\(\)"):
        decomposition.parafac(X, 3, init=(None, SPARSE_FACTORS))
