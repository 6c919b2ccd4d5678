"""Hooks in TensorLy's tensor algebra that act on sparse tensors under "flycoo", and only there."""

import contextvars
import functools
import importlib
import inspect

import numpy as np
import tensorly as tl
from tensorly.backend import BackendManager
from tensorly.cp_tensor import CPTensor

from ..array_modules import array_module, move
from ..checks import check_place, densify_error
from ..conversion import as_flycoo, is_sparse
from ..hals import solve_nonnegative
from ..mttkrp import mttkrp
from ..nndsvd import make_left_vectors_non_negative
from ..proximal import fit_monotone, smooth
from ..sampling import Reconstruction, SampledTensor
from ..svd import LazySVD, Unfolding
from .arrays import arrays_made_by

#: Functions that for now have no sparse version.
_DENSE_FUNCTIONS = ("mode_dot", "multi_mode_dot", "inner", "outer", "kronecker", "tensordot")

_TENALG_BACKENDS = (
    ("tensorly.tenalg.core_tenalg", "CoreTenalgBackend"),
    ("tensorly.tenalg.einsum_tenalg", "EinsumTenalgBackend"),
)
_ERROR_CALC_MODULES = ("tensorly.decomposition._cp", "tensorly.decomposition._nn_cp")
#: Where decompositions begin, in each module that has the name.
_INITIALIZERS = (
    ("tensorly.decomposition._cp", "initialize_cp"),
    ("tensorly.decomposition._nn_cp", "initialize_cp"),
    ("tensorly.decomposition._constrained_cp", "initialize_constrained_parafac"),
)
_ERROR_CALC_PARAMETERS = [
    "tensor", "norm_tensor", "weights", "factors", "sparsity", "mask", "mttkrp",
]  # fmt: skip


def install_hooks():
    """Put the hooks in place, once."""
    for module_name, class_name in _TENALG_BACKENDS:
        tenalg = getattr(importlib.import_module(module_name), class_name)
        _hook_method(tenalg, "unfolding_dot_khatri_rao", _unfolding_dot_khatri_rao)
        for name in _DENSE_FUNCTIONS:
            _hook_method(tenalg, name, functools.partial(_refuse, name))
    for module_name in _ERROR_CALC_MODULES:
        module = importlib.import_module(module_name)
        if hasattr(module, "error_calc"):  # not every TensorLy imports it in both
            module.error_calc = _hook(module.error_calc, _error_calc(module.error_calc))
    for module_name, name in _INITIALIZERS:
        _hook_function(importlib.import_module(module_name), name, _initialize)
    _install_svd_hooks(importlib.import_module("tensorly.tenalg.svd"))
    _install_sampling_hooks(importlib.import_module("tensorly.decomposition._cp"))
    constrained_module = importlib.import_module("tensorly.decomposition._constrained_cp")
    _hook_function(constrained_module, "admm", _admm, always=True)
    non_negative_module = importlib.import_module("tensorly.decomposition._nn_cp")
    _hook_function(non_negative_module, "hals_nnls", _hals_nnls, always=True)
    proximal_module = importlib.import_module("tensorly.tenalg.proximal")
    _hook_function(proximal_module, "monotonicity_prox", _monotonicity_prox, always=True)
    _hook_function(proximal_module, "smoothness_prox", _smoothness_prox, always=True)


def _install_svd_hooks(module):
    module.randomized_svd = _hook(module.randomized_svd, _randomized_svd)
    module.symeig_svd = _hook(module.symeig_svd, functools.partial(_refuse, "svd.symeig_svd"))
    module.make_svd_non_negative = _hook(module.make_svd_non_negative, _make_svd_non_negative)


def _install_sampling_hooks(module):
    _hook_function(module, "randomised_parafac", _randomised_parafac)
    _hook_function(module, "cp_to_tensor", _cp_to_tensor, always=True)
    # The package has the name too; who took the function from there before this keeps the original.
    importlib.import_module("tensorly.decomposition").randomised_parafac = module.randomised_parafac


def _hook_function(module, name, make_ours, always=False):
    original = getattr(module, name)
    setattr(module, name, _hook(original, make_ours(original), always))


def _hook_method(tenalg, name, ours):
    tenalg.register_method(name, _hook(getattr(tenalg, name), ours))


def _hook(original, ours, always=False):
    """Call `ours` where the backend is flycoo and an argument is sparse, or `always`."""
    if hasattr(original, "_flycoo_hook"):
        return original

    @functools.wraps(original)
    def hook(*args, **kwargs):
        is_flycoo = BackendManager.get_backend() == "flycoo"
        if is_flycoo and (always or any(map(_stands_for_sparse, (*args, *kwargs.values())))):
            return ours(*args, **kwargs)
        return original(*args, **kwargs)

    hook._flycoo_hook = True
    return hook


def _stands_for_sparse(x):
    return is_sparse(x) or isinstance(x, Unfolding)


def _unfolding_dot_khatri_rao(tensor, cp_tensor, mode):
    weights, factors = cp_tensor
    # All ones unless factors are normalised. To look costs one synchronisation with a GPU, which
    # is less than a multiplication of the whole result.
    if weights is not None and np.all(weights == 1):
        weights = None
    # Once in a decomposition tl.norm looks at the coordinates of a raw COO too; not here again.
    x = as_flycoo(tensor)
    # The dual variables of ADMM are float64 whatever the tensor is, and so its factors become.
    factors = [
        f.astype(x.dtype, copy=False) if tl.is_tensor(f) and f.dtype.kind == "f" else f
        for f in factors
    ]
    return mttkrp(x, factors, mode, weights=weights)


def _refuse(name, *args, **kwargs):
    shape = next(x.shape for x in (*args, *kwargs.values()) if _stands_for_sparse(x))
    raise densify_error(f"tl.tenalg.{name}", shape, "it has no sparse version here")


def _initialize(original):
    """Refuse where a decomposition begins what would fail later: a mask, a guess that is not as x.

    A guess on another device, or of another precision.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(tensor, *args, **kwargs):
        arguments = signature.bind(tensor, *args, **kwargs).arguments
        if arguments.get("mask") is not None:
            shape = tl.shape(tensor)
            raise densify_error("mask= of a decomposition", shape, "it has no sparse version here")
        _check_guess(arguments.get("init"), **tl.context(tensor))
        return original(tensor, *args, **kwargs)

    return initialize


def _check_guess(init, dtype, device=None):
    """Look where the arrays of an initial guess are; ``tl.tensor(a, **tl.context(x))`` moves one.

    TensorLy itself makes the random start through `tl.tensor`, and takes a guess as it is.
    """
    if not isinstance(init, tuple | list | CPTensor) or len(init) != 2:
        return  # TensorLy says what is wrong with it
    weights, factors = init
    if weights is not None:
        check_place(weights, "the weights of init", device is not None, "x")
    for n, factor in enumerate(factors):
        check_place(factor, f"factors[{n}] of init", device is not None, "x")
        if factor.dtype != dtype:
            raise TypeError(
                f"factors[{n}] has dtype {factor.dtype}, expected {dtype}: init must have the "
                "dtype of the tensor's factors"
            )


def _error_calc(original):
    """Spare TensorLy's error_calc the reconstruction: give it the last mode's MTTKRP.

    It forms the full tensor wherever it is not given one (callbacks and line search).
    """
    signature = inspect.signature(original)
    is_known = list(signature.parameters) == _ERROR_CALC_PARAMETERS

    @functools.wraps(original)
    def error_calc(tensor, *args, **kwargs):
        if not is_known:
            raise RuntimeError(
                f"the signature of error_calc in TensorLy {tl.__version__} is not known to "
                "tensorly-flycoo: parafac runs without callback, linesearch, mask and sparsity"
            )
        bound = signature.bind(tensor, *args, **kwargs).arguments
        for option in ("mask", "sparsity"):
            if bound.get(option) is not None and bound[option] is not False:
                raise densify_error(f"{option}=", tensor.shape, "it has no sparse version here")
        if bound.get("mttkrp") is None:
            cp_tensor = (bound["weights"], bound["factors"])
            bound["mttkrp"] = _unfolding_dot_khatri_rao(tensor, cp_tensor, tl.ndim(tensor) - 1)
        return original(**bound)

    return error_calc


def _randomized_svd(matrix, n_eigenvecs=None, **kwargs):
    """Give the leading singular vectors to rounding, which a random sketch only approximates."""
    unfolding = matrix if isinstance(matrix, Unfolding) else Unfolding(matrix, 0)
    rank = min(unfolding.shape) if n_eigenvecs is None else min(n_eigenvecs, *unfolding.shape)
    left, values, right = LazySVD(unfolding)
    return left[:, :rank], values[:rank], right[:rank, :]


def _make_svd_non_negative(tensor, U, S, V, nntype=True):
    """Make the left vectors non-negative; the right ones stay what they are, never made."""
    unfolding = tensor if isinstance(tensor, Unfolding) else Unfolding(tensor, 0)
    kind = "nndsvda" if nntype is True else nntype
    return make_left_vectors_non_negative(unfolding, U, S, kind), V


#: Whether randomised_parafac of a sparse tensor is running in this thread.
_is_sampling = contextvars.ContextVar("is_sampling", default=False)


def _randomised_parafac(original):
    """Give TensorLy's randomised_parafac a tensor that can be sampled."""

    @functools.wraps(original)
    def randomised_parafac(tensor, *args, **kwargs):
        sampled = SampledTensor(as_flycoo(tensor, check_coords=True))
        token = _is_sampling.set(True)
        try:
            return original(sampled, *args, **kwargs)
        finally:
            _is_sampling.reset(token)

    return randomised_parafac


def _cp_to_tensor(original):
    """Keep what randomised_parafac subtracts from the tensor, for its exact error, unformed."""

    @functools.wraps(original)
    def cp_to_tensor(cp_tensor, *args, **kwargs):
        if _is_sampling.get():
            return Reconstruction(*cp_tensor)
        return original(cp_tensor, *args, **kwargs)

    return cp_to_tensor


def _admm(original):
    """Run ADMM on a GPU too: TensorLy makes its dual variables and identities without a device."""

    @functools.wraps(original)
    def admm(UtM, UtU, x, dual_var, *args, **kwargs):
        xp = array_module(x)
        with arrays_made_by(xp):
            return original(UtM, UtU, x, move(dual_var, xp), *args, **kwargs)

    return admm


#: What TensorLy makes of ``exact=True``.
_EXACT = {"n_iter_max": 50_000, "tol": 1e-16}


def _hals_nnls(original):
    """Solve on all threads, many rows of a factor at once, where TensorLy takes each row's turn."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def hals_nnls(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        arrays = [given["UtM"], given["UtU"], given["V"]]
        is_served = all(isinstance(a, np.ndarray) and a.dtype.char in "fd" for a in arrays)
        is_served = is_served and len({a.dtype for a in arrays}) == 1
        if not is_served or given["nonzero_rows"] or given["callback"] is not None:
            return original(*args, **kwargs)
        given = given | (_EXACT if given["exact"] else {})
        rows = np.ascontiguousarray(given["V"].T)
        solve_nonnegative(
            np.ascontiguousarray(given["UtM"].T), np.ascontiguousarray(given["UtU"]), rows,
            given["n_iter_max"], given["tol"], sparsity=given["sparsity_coefficient"],
            ridge=given["ridge_coefficient"], smallest=given["epsilon"],
        )  # fmt: skip
        return rows.T

    return hals_nnls


def _is_float_matrix(x):
    return tl.is_tensor(x) and x.ndim == 2 and x.dtype.char in "fd"


def _monotonicity_prox(original):
    """Spare TensorLy's operator its square matrix for each column."""

    @functools.wraps(original)
    def monotonicity_prox(tensor, decreasing=False):
        if _is_float_matrix(tensor):
            return fit_monotone(tensor, decreasing)
        return original(tensor, decreasing)

    return monotonicity_prox


def _smoothness_prox(original):
    """Spare TensorLy's operator its square matrix."""

    @functools.wraps(original)
    def smoothness_prox(tensor, regularizer):
        if _is_float_matrix(tensor):
            return smooth(tensor, regularizer)
        return original(tensor, regularizer)

    return smoothness_prox
