"""How each public function is called with a sparse tensor."""

import numpy as np
import sparse
import tensorly as tl

import tensorly_flycoo
from tensorly_flycoo import FlycooTensor, LabelledTensor, decomposition
from tensorly_flycoo.decomposition.methods import METHODS

SHAPE, RANK = (12, 8, 10), 2
START = {"init": "random", "random_state": 0, "n_iter_max": 2}


def make_coo():
    coo = sparse.random(SHAPE, density=0.1, random_state=0)
    return sparse.COO(coo.coords, np.ceil(5 * coo.data), SHAPE)


def make_factors(rank=RANK):
    return [np.random.default_rng(n).random((size, rank)) for n, size in enumerate(SHAPE)]


def iterate(function, x, *args, **options):
    """Call a decomposition; return its result, and the arrays of the models of its callback."""
    seen = []
    result = function(
        x, *args, **START, **options, callback=lambda model, *error: seen.append([*model, *error])
    )
    return result, seen


CP_METHODS = [name for name, method in METHODS.items() if method.model == "CP"]
TUCKER_METHODS = [name for name, method in METHODS.items() if method.model == "Tucker"]

#: How each function is called with a tensor x.
CALLS = {
    **dict.fromkeys(CP_METHODS, lambda f, x: iterate(f, x, RANK)),
    **dict.fromkeys(TUCKER_METHODS, lambda f, x: iterate(f, x, [2, 2, 2])),
    "shared_parafac": lambda f, x: iterate(f, x, RANK, modes=[]),
    "shared_tucker": lambda f, x: iterate(f, x[:10], RANK),
    "parafac2": lambda f, x: f([x[0], x[1]], RANK, random_state=0, n_iter_max=2),
    "coupled_parafac": lambda f, x: f(
        [(x, tuple("abc")), (np.ones((12, 3)), tuple("ad"))], RANK, random_state=0, n_iter_max=2
    ),
    "mttkrp": lambda f, x: f(x, make_factors(), 1),
    "mttkrps": lambda f, x: f(x, make_factors()),
    "best_of": lambda f, x: f("parafac", x, RANK, 2, random_state=0, n_iter_max=2),
    "select_rank": lambda f, x: f(x, [1, 2], 2, random_state=0, n_iter_max=2).models,
    "replicability": lambda f, x: f(x, RANK, 0, 2, 2, n_iter_max=2, random_state=0),
    "uncertainty": lambda f, x: f(x, (None, make_factors()), 0, 2, random_state=0).samples,
    "core_consistency": lambda f, x: f(x, (None, make_factors())),
    "center": lambda f, x: f(x, (1, 2)),
    "ResidualTensor": lambda f, x: tensorly_flycoo.center(x, (1, 2)).mttkrp(make_factors(), 0),
    "cp_fit": lambda f, x: f(x, (None, make_factors())),
    "diagnose": lambda f, x: f(x, (None, make_factors())),
    "fold_in": lambda f, x: f((None, make_factors()), x, 0),
    "anomaly_scores": lambda f, x: f(x, (None, make_factors())),
    "FlycooCP": lambda f, x: f(RANK, n_starts=1, n_iter_max=2, random_state=0).fit(x).cp_tensor_,
    "stats": lambda f, x: f(x),
    "LabelledTensor": lambda f, x: None,
    "unfolding_dot_khatri_rao": lambda f, x: f(x, (None, make_factors()), 0),
    "mode_dot": lambda f, x: f(f(x, np.ones(8), 1), np.ones(10), 1),
    "multi_mode_dot": lambda f, x: f(x, [np.ones((2, size)) for size in SHAPE]),
    "inner": lambda f, x: f(x, x),
    "norm": lambda f, x: f(x),
    "sum": lambda f, x: f(x, axis=(1, 2)),
    "dot": lambda f, x: f(tl.unfold(x, 0), np.ones((80, 2))),
}  # fmt: skip

#: They take no labels here, or slices of a tensor.
WITHOUT_LABELS = ("parafac2", "coupled_parafac", "shared_tucker", "mode_dot")

#: They take no tensor, or give none of its numbers.
NO_ARRAYS = {
    "DensifyError", "FitRecord", "FlycooTensor", "LabelledCP", "MemoryEstimate", "ModeStats",
    "Progress",
    "RaggedTensor", "TensorStats", "cp_to_entries", "estimate_memory", "evaluate",
    "factor_match_score", "from_anndata", "from_dataframe", "from_xarray", "load", "open_slabs",
    "profile", "read_tns", "recommend", "save", "save_slabs", "set_device",
    "set_precision", "set_progress", "show_versions", "write_tns",
}  # fmt: skip


def find_function(name):
    for module in (decomposition, tensorly_flycoo, tl.tenalg, tl):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)


#: Names, and kinds of tensors that they take.
CASES = [
    (name, kind)
    for name in CALLS
    for kind in ("COO", "LabelledTensor")
    if kind == "COO" or name not in WITHOUT_LABELS
]


def call(name, kind):
    """Call a function with a tensor that is on the host; return its results."""
    x = make_coo()
    if kind == "LabelledTensor":
        x = LabelledTensor(FlycooTensor.from_coo(x), [list(range(size)) for size in SHAPE])
    return CALLS[name](find_function(name), x)
