"""Arrays of other libraries are taken where NumPy's are, and give the same bits."""

import importlib

import numpy as np
import pytest
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import decomposition
from tensorly_flycoo.models import factor_match_score


@pytest.fixture(autouse=True)
def backend(flycoo_backend):
    """Run all of these tests under "flycoo"."""


class Foreign:
    """An array of an unknown library, which exports DLPack and has dtypes of its own."""

    dtype = "foreign.float64"

    def __init__(self, array):
        self._array = np.array(array)
        self.shape, self.ndim = self._array.shape, self._array.ndim

    def __array__(self, dtype=None, copy=None):
        return self._array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def _of_torch(array):
    return pytest.importorskip("torch").tensor(array)


def _of_jax(array):
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray(array)


_KINDS = pytest.mark.parametrize("kind", [Foreign, _of_torch, _of_jax])


def _problem():
    generator = np.random.RandomState(0)
    coords = generator.randint(0, [[5], [6], [7]], (3, 40))
    factors = [generator.random_sample((size, 2)) for size in (5, 6, 7)]
    return coords, generator.random_sample(40), (np.array([1.0, 2.0]), factors)


def _convert(kind, model):
    weights, factors = model
    return kind(weights), [kind(factor) for factor in factors]


def _fit(name, **options):
    def fit(x, model):
        function = getattr(decomposition, name)
        return function(x, 2, init=model, n_iter_max=3, **options).factors

    return fit


_USES = {
    "parafac": lambda x, model: tl.decomposition.parafac(x, 2, init=model, n_iter_max=3).factors,
    "non_negative_parafac": _fit("non_negative_parafac"),
    "non_negative_parafac_hals": _fit("non_negative_parafac_hals"),
    "constrained_parafac": _fit("constrained_parafac", non_negative=True),
    "generalized_parafac": _fit("generalized_parafac"),
    "shared_parafac": _fit("shared_parafac", modes=[]),
    "observed_parafac": lambda x, model: (
        tensorly_flycoo.observed_parafac(x, 2, init=model, n_iter_max=3).factors
    ),
    "mttkrp": lambda x, model: [tensorly_flycoo.mttkrp(x, model[1], 1, weights=model[0])],
    "mttkrps": lambda x, model: tensorly_flycoo.mttkrps(x, model[1], weights=model[0]),
    "unfolding_dot_khatri_rao": lambda x, model: [tl.tenalg.unfolding_dot_khatri_rao(x, model, 0)],
    "mode_dot": lambda x, model: [tl.tenalg.multi_mode_dot(x, model[1], transpose=True)],
    "vectors": lambda x, model: tl.tenalg.mode_dot(x, model[0], 0).nonzeros(),
    "cp_fit": tensorly_flycoo.cp_fit,
    "cp_to_entries": lambda x, model: [tensorly_flycoo.cp_to_entries(model, x.nonzeros()[0])],
    "fold_in": lambda x, model: [tensorly_flycoo.fold_in(model, x, 0)],
    "core_consistency": lambda x, model: [tensorly_flycoo.core_consistency(x, model)],
    "diagnose": lambda x, model: [tensorly_flycoo.diagnose(x, model).noise],
    "anomaly_scores": lambda x, model: [tensorly_flycoo.anomaly_scores(x, model)],
    "factor_match_score": lambda x, model: [factor_match_score(model, model)],
}


@_KINDS
@pytest.mark.parametrize("use", _USES)
def test_models(use, kind):
    coords, values, model = _problem()
    if use == "vectors":  # of mode 0, which has five indices
        model = (np.arange(5.0), model[1])
    x = tensorly_flycoo.FlycooTensor(coords, values, (5, 6, 7))
    expected = _USES[use](x, model)
    for found, array in zip(_USES[use](x, _convert(kind, model)), expected, strict=True):
        np.testing.assert_array_equal(found, array)


@_KINDS
def test_nonzeros(kind):
    coords, values, _ = _problem()
    expected = tensorly_flycoo.FlycooTensor(coords, values, (5, 6, 7)).nonzeros()
    found = tensorly_flycoo.FlycooTensor(kind(coords), kind(values), (5, 6, 7)).nonzeros()
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, other)


def test_jax_sparse_arrays_are_refused_with_what_converts_them():
    sparse = pytest.importorskip("jax.experimental.sparse")
    dense = importlib.import_module("jax").numpy.arange(6.0).reshape(2, 3)
    with pytest.raises(TypeError, match=r"is a BCSR, .*: pass x\.to_bcoo\(\)"):
        tl.decomposition.parafac(sparse.BCSR.fromdense(dense), 2)
    x = sparse.BCSR.fromdense(dense).to_bcoo()
    with pytest.raises(TypeError, match=r"is a BCOO, .*: pass ") as caught:
        tl.decomposition.parafac(x, 2)
    line = str(caught.value).partition("pass ")[2]
    found = eval(line, {"FlycooTensor": tensorly_flycoo.FlycooTensor, "x": x})
    np.testing.assert_array_equal(found.to_coo().todense(), dense)
