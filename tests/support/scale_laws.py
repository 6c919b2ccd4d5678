"""Decompositions of values times c, for the tests of scale on a CPU and on a GPU."""

import numpy as np
from model_cells import read_cells

from tensorly_flycoo import FlycooTensor, decomposition
from tensorly_flycoo.decomposition import coupled_parafac

_RANDOM = np.random.RandomState(0)
_TRUE = [_RANDOM.random_sample((size, 3)) for size in (6, 5, 4, 3)]
X = np.einsum("ir,jr,kr->ijk", *_TRUE[:3]) * (_RANDOM.random_sample((6, 5, 4)) < 0.7)
GUESS = [_RANDOM.random_sample((size, 2)) for size in X.shape]
CORE = _RANDOM.random_sample((2, 2, 2))

#: Each solver's options; "guess" stands for a model that is multiplied by c too. Random and
#: non-negative starts are TensorLy's and do not grow with the values: some never forget them.
SOLVERS = {
    "constrained_parafac": {"non_negative": True, "init": "guess"},
    "coupled_parafac": {"random_state": 0},
    "generalized_parafac": {"init": "guess", "tol": 0},
    "non_negative_parafac": {"init": "guess"},
    "non_negative_parafac_hals": {"init": "guess"},
    "non_negative_tucker": {"init": "guess", "rank": [2, 2, 2]},
    "non_negative_tucker_hals": {"init": "guess", "rank": [2, 2, 2]},
    "observed_parafac": {"random_state": 0, "biases": True},
    "parafac": {"random_state": 0, "init": "random"},
    "parafac2": {"random_state": 0},
    "shared_parafac": {"modes": [], "init": "guess"},
    "shared_tucker": {"random_state": 0},
    "tucker": {"rank": [2, 2, 2]},
}
VARIANTS = [
    *SOLVERS.items(),
    ("parafac", {"init": "svd", "normalize_factors": True}),
    ("parafac", {"init": "guess", "linesearch": "nesterov"}),
    ("parafac", {"init": "guess", "fixed_modes": [0]}),
    ("observed_parafac", {"random_state": 0, "cg_steps": 3, "l2_reg": 0.1}),
    ("observed_parafac", {"init": "guess", "l2_reg": 0.1}),
    ("parafac2", {"init": "svd", "center": True, "normalize_factors": True}),
    ("non_negative_parafac", {"init": "random", "random_state": 0}),
]

#: The largest exponents of 10 and of 2 that are tried.
LARGEST = {"float64": (150, 492), "float32": (15, 48)}


def make(array, dtype):
    return FlycooTensor.from_dense(np.asarray(array, dtype))


def run(name, c, dtype, options, xp=np):
    """Return the errors, and the cells of the model divided by c, of a decomposition of c X."""
    options = {"rank": 2, "n_iter_max": 6} | options
    if options.get("init") == "guess":
        root, core = 2 ** (np.log2(c) / 3), None
        if "tucker" in name:
            root, core = 1, xp.asarray(CORE * c, dtype)
        options["init"] = (core, [xp.asarray(factor * root, dtype) for factor in GUESS])
    if name == "coupled_parafac":
        blocks = [(make(X * c, dtype), tuple("abc")), (xp.asarray(X[:, 0] * c, dtype), tuple("ad"))]
        result = coupled_parafac(blocks, tol=1e-3, **options)
        cells = [read_cells(model, c).ravel() for model in result.cp_tensors]
        return np.array(result.errors), np.concatenate(cells)
    data = X[:4] if name == "shared_tucker" else X  # whose first and last modes have one size
    x = make(data * c, dtype)
    options = {"tol_outer" if name == "constrained_parafac" else "tol": 1e-3} | options
    model, errors = getattr(decomposition, name)(x, return_errors=True, **options)
    return np.array([float(error) for error in errors]), read_cells(model, c)


def check_scale(name, options, c, dtype, xp=np):
    """Compare with c of 1, but for rounding that iterations may amplify."""
    tolerance = 1e-7 if dtype == "float64" else 5e-3
    errors, cells = run(name, 1.0, dtype, options, xp)
    found, found_cells = run(name, c, dtype, options, xp)
    np.testing.assert_allclose(found_cells, cells, atol=tolerance * abs(cells).max())
    if name == "generalized_parafac":  # F(c x, c m) = c (F(x, m) - log(c) sum(x))
        errors = c * (errors - np.log(c) * X.sum())
    np.testing.assert_allclose(found, errors, rtol=tolerance, atol=tolerance * abs(errors[0]))
