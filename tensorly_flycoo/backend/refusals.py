"""Functions of TensorLy that are dense by nature refuse sparse tensors at once, by name.

Some have a reason each; of some modules all public functions do, for one reason. What else of
TensorLy a sparse tensor is handed to comes to an array function of the backend, which refuses by
its own name.
"""

import inspect

from tensorly.backend import BackendManager

from ..checks import densify_error
from .arrays import find_sparse
from .known import find_module
from .redirect import can_redirect, redirect

_PARAFAC = "use tl.decomposition.parafac"
_TUCKER = "use tl.decomposition.tucker"
_DEFLATION = f"it subtracts one component after the other from the tensor: {_PARAFAC}"
_CORES = f"it forms the product of all cores but one, as long as an unfolding: {_PARAFAC}"
_REGRESSION = (
    "it forms the regression weights, with an element for each cell of a sample: regress on the "
    "factor of the samples that tl.decomposition.parafac gives"
)

#: By module and name of a function, or of a class with the methods that are handed a tensor: why
#: it is dense, and what to use instead.
DENSE_BY_NATURE = {
    "tensorly.decomposition": {
        "non_negative_tucker": f"it forms products as long as an unfolding: {_TUCKER}",
        "non_negative_tucker_hals": f"it forms products as long as an unfolding: {_TUCKER}",
        "robust_pca": f"its low-rank part has an element for each cell: {_PARAFAC}",
        "tensor_ring_als": _CORES,
        "tensor_ring_als_sampled": _CORES,
        "parafac_power_iteration": _DEFLATION,
        "power_iteration": _DEFLATION,
        "symmetric_parafac_power_iteration": _DEFLATION,
        "symmetric_power_iteration": _DEFLATION,
        "sample_khatri_rao": "its matrices are factors: use tl.decomposition.randomised_parafac",
        "coupled_matrix_tensor_3d_factorization": f"it forms Khatri-Rao products: {_PARAFAC}",
    },
    "tensorly.contrib.decomposition": {
        "tensor_train_cross": "it looks elements up one by one: use tl.decomposition.tensor_train",
        "tensor_train_OI": "it forms the whole tensor: use tl.decomposition.tensor_train",
    },
    "tensorly.regression": {
        "CPRegressor": _REGRESSION,
        "TuckerRegressor": _REGRESSION,
        "CP_PLSR": "it subtracts the mean of the samples, which makes all elements nonzero: "
        "regress on the factor of the samples that tl.decomposition.parafac gives",
    },
    "tensorly.cp_tensor": {
        "cp_lstsq_grad": "it subtracts the reconstructed tensor: tensorly_flycoo.mttkrp gives the "
        "part of the gradient that depends on the tensor"
    },
    "tensorly.tenalg.svd": {
        "randomized_range_finder": "it draws a row for each column of an unfolding: use "
        "tl.svd_interface",
    },
    "tensorly.preprocessing": {
        "svd_compress_tensor_slices": "right singular vectors have an element for each column: "
        "tl.decomposition.parafac2 takes sparse slices as they are",
    },
}

_ELEMENTWISE = "it changes or compares all elements, zeros too; use x.nonzeros() for the others"
_OF_DECOMPOSITIONS = "it takes a decomposition, as tl.decomposition.parafac gives, not a tensor"

#: Modules of TensorLy all of whose public functions are dense by nature, and why.
DENSE_MODULES = {
    "tensorly.tenalg.proximal": _ELEMENTWISE,
    "tensorly.solvers.nnls": _ELEMENTWISE,
    "tensorly.solvers.admm": _ELEMENTWISE,
    "tensorly.solvers.penalizations": _ELEMENTWISE,
    "tensorly.metrics.regression": _ELEMENTWISE,
    "tensorly.metrics.entropy": _ELEMENTWISE,
    "tensorly.metrics.factors": _ELEMENTWISE,
    "tensorly.metrics.similarity": _ELEMENTWISE,
    "tensorly.metrics.leverage_scores": _ELEMENTWISE,
    "tensorly.tucker_tensor": _OF_DECOMPOSITIONS,
    "tensorly.tt_tensor": _OF_DECOMPOSITIONS,
    "tensorly.tt_matrix": _OF_DECOMPOSITIONS,
    "tensorly.tr_tensor": _OF_DECOMPOSITIONS,
    "tensorly.parafac2_tensor": _OF_DECOMPOSITIONS,
}

#: Methods of classes that are handed a tensor.
METHODS = ("fit", "fit_transform", "predict", "transform")


def install_refusals(module_name):
    """Make the functions of one module that are dense by nature say so; once."""
    module = find_module(module_name)
    if module is None:
        return
    reasons = DENSE_BY_NATURE.get(module_name)
    if reasons is None:
        reasons = dict.fromkeys(list_functions(module), DENSE_MODULES[module_name])
    for name, reason in reasons.items():
        original = getattr(module, name, None)  # not every TensorLy has all of them
        label = f"{module_name.replace('tensorly', 'tl', 1)}.{name}"
        if inspect.isclass(original):
            for method in set(METHODS).intersection(vars(original)):
                _redirect(getattr(original, method), _refuse_sparse(f"{label}.{method}", reason))
        elif original is not None:
            _redirect(original, _refuse_sparse(label, reason))


def _redirect(function, make):
    if can_redirect(function):  # what is not is refused by the first array function that it calls
        redirect(function, make)


def list_functions(module):
    """List the public functions that are defined in a module."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _refuse_sparse(label, reason):
    def make(original):
        def refuse_sparse(*args, **kwargs):
            if BackendManager.get_backend() == "flycoo":
                sparse = find_sparse((*args, *kwargs.values()))
                if sparse is not None:
                    raise densify_error(label, tuple(sparse.shape), reason)
            return original(*args, **kwargs)

        return refuse_sparse

    return make
