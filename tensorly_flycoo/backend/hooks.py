"""Hooks in TensorLy's tensor algebra that act on sparse tensors under "flycoo", and only there."""

import functools
import importlib
import inspect

import numpy as np
import tensorly as tl
from tensorly.backend import BackendManager
from tensorly.cp_tensor import CPTensor

from ..checks import check_mode, check_place, densify_error
from ..conversion import as_flycoo, is_sparse
from ..mttkrp import mttkrp
from ..products import ModeProduct, check_free_modes
from ..svd import LazySVD, Unfolding

#: Functions that for now have no sparse version.
_DENSE_FUNCTIONS = ("mode_dot", "inner", "outer", "kronecker", "tensordot")

_TENALG_BACKENDS = (
    ("tensorly.tenalg.core_tenalg", "CoreTenalgBackend"),
    ("tensorly.tenalg.einsum_tenalg", "EinsumTenalgBackend"),
)
_ERROR_CALC_MODULES = ("tensorly.decomposition._cp", "tensorly.decomposition._nn_cp")
_ERROR_CALC_PARAMETERS = [
    "tensor", "norm_tensor", "weights", "factors", "sparsity", "mask", "mttkrp",
]  # fmt: skip


def install_hooks():
    """Put the hooks in place, once."""
    for module_name, class_name in _TENALG_BACKENDS:
        tenalg = getattr(importlib.import_module(module_name), class_name)
        _hook_method(tenalg, "unfolding_dot_khatri_rao", _unfolding_dot_khatri_rao)
        _hook_method(tenalg, "multi_mode_dot", _multi_mode_dot)
        for name in _DENSE_FUNCTIONS:
            _hook_method(tenalg, name, functools.partial(_refuse, name))
    for module_name in _ERROR_CALC_MODULES:
        module = importlib.import_module(module_name)
        if hasattr(module, "error_calc"):  # not every TensorLy imports it in both
            module.error_calc = _hook(module.error_calc, _error_calc(module.error_calc))
    cp_module = importlib.import_module("tensorly.decomposition._cp")
    cp_module.initialize_cp = _hook(
        cp_module.initialize_cp, _initialize_cp(cp_module.initialize_cp)
    )
    _hook_tucker()
    svd_module = importlib.import_module("tensorly.tenalg.svd")
    svd_module.randomized_svd = _hook(svd_module.randomized_svd, _randomized_svd)
    svd_module.symeig_svd = _hook(
        svd_module.symeig_svd, functools.partial(_refuse, "svd.symeig_svd")
    )


def _hook_tucker():
    module = importlib.import_module("tensorly.decomposition._tucker")
    module.initialize_tucker = _hook(
        module.initialize_tucker, _initialize_tucker(module.initialize_tucker)
    )
    module.tucker = _hook(module.tucker, _tucker(module.tucker))
    importlib.import_module("tensorly.decomposition").tucker = module.tucker


def _hook_method(tenalg, name, ours):
    tenalg.register_method(name, _hook(getattr(tenalg, name), ours))


def _hook(original, ours):
    """Call `ours` where an argument is sparse and the backend is flycoo, else `original`."""
    if hasattr(original, "_flycoo_hook"):
        return original

    @functools.wraps(original)
    def hook(*args, **kwargs):
        is_flycoo = BackendManager.get_backend() == "flycoo"
        if is_flycoo and any(map(_stands_for_sparse, (*args, *kwargs.values()))):
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
    return mttkrp(as_flycoo(tensor), factors, mode, weights=weights)


def _multi_mode_dot(tensor, matrix_or_vec_list, modes=None, skip=None, transpose=False):
    """Multiply at once; lazily where a matrix is skipped, as before a singular value decomposition.

    As in TensorLy `skip` counts the matrices in the order of their modes.
    """
    modes = range(len(matrix_or_vec_list)) if modes is None else modes
    pairs = sorted(zip(modes, matrix_or_vec_list, strict=True), key=lambda pair: pair[0])
    chosen = [pair for place, pair in enumerate(pairs) if place != skip]
    if not chosen:
        return tensor
    if any(tl.ndim(matrix) != 2 for _, matrix in chosen):
        _refuse("multi_mode_dot of vectors", tensor)
    x = as_flycoo(tensor)
    factors = {check_mode(n, x.ndim): m if transpose else tl.transpose(m) for n, m in chosen}
    if len(factors) < len(chosen):
        raise ValueError(f"modes is {list(modes)}, expected each mode once")
    product = ModeProduct(x, factors)
    return product.to_array() if skip is None else product


def _refuse(name, *args, **kwargs):
    shape = next(x.shape for x in (*args, *kwargs.values()) if _stands_for_sparse(x))
    raise densify_error(f"tl.tenalg.{name}", shape, "it has no sparse version here")


def _initialize_cp(original):
    """Refuse where parafac begins what would fail later: a mask, a guess on another device."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize_cp(tensor, *args, **kwargs):
        arguments = signature.bind(tensor, *args, **kwargs).arguments
        if arguments.get("mask") is not None:
            shape = tl.shape(tensor)
            raise densify_error("mask= of parafac", shape, "it has no sparse version here")
        _check_guess(arguments.get("init"), "device" in tl.context(tensor))
        return original(tensor, *args, **kwargs)

    return initialize_cp


def _initialize_tucker(original):
    """Refuse at once what has no sparse version: a mask, non-negative factors, too large a core."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize_tucker(tensor, *args, **kwargs):
        arguments = signature.bind(tensor, *args, **kwargs).arguments
        if arguments.get("mask") is not None:
            shape = tl.shape(tensor)
            raise densify_error("mask= of tucker", shape, "it has no sparse version here")
        if arguments.get("non_negative"):
            instead = "use non_negative_parafac"
            raise densify_error("a non-negative Tucker decomposition", tl.shape(tensor), instead)
        x = as_flycoo(tensor, check_coords=True)
        check_free_modes(x, [n for n in range(x.ndim) if n not in arguments["modes"]])
        return original(tensor, *args, **kwargs)

    return initialize_tucker


def _tucker(original):
    """Refuse at once where so many factors are fixed that TensorLy's core would be too large."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def tucker(tensor, *args, **kwargs):
        fixed_modes = signature.bind(tensor, *args, **kwargs).arguments.get("fixed_factors")
        check_free_modes(as_flycoo(tensor, check_coords=True), sorted(fixed_modes or []))
        return original(tensor, *args, **kwargs)

    return tucker


def _check_guess(init, is_on_gpu):
    """Look where the arrays of an initial guess are; ``tl.tensor(a, **tl.context(x))`` moves one.

    TensorLy itself makes the random start through `tl.tensor`, and takes a guess as it is.
    """
    if not isinstance(init, tuple | list | CPTensor) or len(init) != 2:
        return  # TensorLy says what is wrong with it
    weights, factors = init
    if weights is not None:
        check_place(weights, "the weights of init", is_on_gpu, "x")
    for n, factor in enumerate(factors):
        check_place(factor, f"factors[{n}] of init", is_on_gpu, "x")


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
