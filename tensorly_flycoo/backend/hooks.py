"""Hooks in TensorLy's tensor algebra that act on sparse tensors under "flycoo", and only there."""

import functools
import inspect

import numpy as np
import tensorly as tl
from tensorly.cp_tensor import CPTensor, cp_norm

from ..array_modules import is_cupy
from ..checks import check_place, check_weights, densify_error
from ..decomposition import masked_parafac as masked
from ..decomposition import sparse as decompositions
from ..decomposition.masks import MaskedTensor
from ..decomposition.resuming import State, take_up
from ..linalg.tall_skinny import inner_product
from ..ops.mttkrp import mttkrp
from ..ops.nndsvd import make_left_vectors_non_negative
from ..ops.unfolding_svd import LazyMatrix, LazySVD, Unfolding
from ..tensor.coo_cache import as_flycoo
from . import algebra, solvers
from .arrays import find_sparse
from .hooking import hook_everywhere, hook_function, hook_method
from .known import find_module
from .refusals import DENSE_BY_NATURE, DENSE_MODULES, install_refusals

_PAIRS = "its result has an element for each pair of cells: use tl.tenalg.inner or mode_dot"

#: Functions of the tensor algebra that are dense by nature, and why.
_DENSE_FUNCTIONS = {
    "outer": _PAIRS,
    "batched_outer": _PAIRS,
    "kronecker": _PAIRS,
    "tensordot": _PAIRS,
    "higher_order_moment": _PAIRS,
    "_tt_matrix_to_tensor": "it takes a decomposition, not a tensor",
}
_NO_SYMEIG = "it forms the square of an unfolding: use svd='truncated_svd'"

_TENALG_BACKENDS = (
    ("tensorly.tenalg.core_tenalg", "CoreTenalgBackend"),
    ("tensorly.tenalg.einsum_tenalg", "EinsumTenalgBackend"),
)
#: What is done in another way for dense arrays under flycoo: for factors.
_FOR_DENSE = (
    ("tensorly.decomposition._cp", "cp_to_tensor", decompositions.cp_to_tensor),
    ("tensorly.decomposition._constrained_cp", "admm", solvers.admm),
    ("tensorly.decomposition._nn_cp", "hals_nnls", solvers.hals_nnls),
    ("tensorly.tenalg.proximal", "monotonicity_prox", solvers.monotonicity_prox),
    ("tensorly.tenalg.proximal", "smoothness_prox", solvers.smoothness_prox),
)


def install_hooks():
    """Put the hooks in place, once."""
    for module_name, class_name in _TENALG_BACKENDS:
        tenalg = getattr(find_module(module_name), class_name, None)
        if tenalg is not None:
            _install_tenalg_hooks(tenalg)
    for module_name, name, make_ours in _FOR_SPARSE:
        hook_function(module_name, name, make_ours)
    for module_name, name, make_ours in _FOR_DENSE:
        hook_function(module_name, name, make_ours, takes_dense=True)
    for name, make_ours in decompositions.MAKERS.items():
        hook_everywhere(name, make_ours)
    # Last, so that what has a hook has it above.
    for module_name in (*DENSE_BY_NATURE, *DENSE_MODULES):
        if "contrib" not in module_name:  # which TensorLy does not load by itself
            install_refusals(module_name)


def _install_tenalg_hooks(tenalg):
    hook_method(tenalg, "unfolding_dot_khatri_rao", _unfolding_dot_khatri_rao)
    hook_method(tenalg, "mode_dot", algebra.mode_dot)
    hook_method(tenalg, "multi_mode_dot", algebra.multi_mode_dot)
    hook_method(tenalg, "inner", algebra.inner_product)
    hook_method(tenalg, "khatri_rao", algebra.khatri_rao, algebra.check_khatri_rao_fits)
    for name, reason in _DENSE_FUNCTIONS.items():
        hook_method(tenalg, name, functools.partial(_refuse, name, reason))


def _unfolding_dot_khatri_rao(tensor, cp_tensor, mode):
    weights, factors = cp_tensor
    if isinstance(tensor, MaskedTensor):
        observed = _unfolding_dot_khatri_rao(tensor.missing.observed, cp_tensor, mode)
        return tensor.missing.add_mttkrp(observed, tensor.values, factors, mode, weights)
    # Once in a decomposition tl.norm looks at the coordinates of a raw COO too; not here again.
    x = as_flycoo(tensor)
    # The dual variables of ADMM are float64 whatever the tensor is, and so its factors become.
    factors = [
        f.astype(x.dtype, copy=False) if tl.is_tensor(f) and f.dtype.kind == "f" else f
        for f in factors
    ]
    if weights is not None and is_cupy(weights) and x.ndim > 1:
        # All ones unless factors are normalised, but to look would be to wait for the GPU.
        check_weights(weights, factors[0].shape[1], x.dtype, x._engine.array_type)
        factors, weights = _weigh_smallest(factors, weights, mode), None
    elif weights is not None and np.all(weights == 1):
        weights = None
    return mttkrp(x, factors, mode, weights=weights)


def _weigh_smallest(factors, weights, mode):
    """Multiply the columns of the smallest factor but that of `mode` by the weights."""
    others = [n for n in range(len(factors)) if n != mode]
    smallest = min(others, key=lambda n: factors[n].shape[0])
    return [f * weights if n == smallest else f for n, f in enumerate(factors)]


def _refuse(name, reason, *args, **kwargs):
    shape = find_sparse((*args, *kwargs.values())).shape
    raise densify_error(f"tl.tenalg.{name}", shape, reason)


def _initialize(original):
    """Refuse where a decomposition begins a guess on another device, or of another precision.

    With a mask, begin with a tensor that knows what is missing.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(tensor, *args, **kwargs):
        bound = signature.bind(tensor, *args, **kwargs)
        arguments = bound.arguments
        init = arguments.get("init")
        if isinstance(init, State):
            is_normalised = arguments.get("normalize_factors", False)
            return take_up(init, tensor, arguments["rank"], is_normalised)
        _check_guess(init, **tl.context(tensor))
        if "mask" in arguments:
            arguments["tensor"] = masked.start_from(tensor, arguments.pop("mask"))
        return original(*bound.args, **bound.kwargs)

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

    @functools.wraps(original)
    def error_calc(tensor, *args, **kwargs):
        bound = signature.bind(tensor, *args, **kwargs).arguments
        has_mask = isinstance(tensor, MaskedTensor)  # else no decomposition has taken a mask
        for option in ("sparsity",) if has_mask else ("mask", "sparsity"):
            if bound.get(option) is not None and bound[option] is not False:
                raise densify_error(f"{option}=", tensor.shape, "it has no sparse version here")
        cp_tensor, mttkrp = (bound["weights"], bound["factors"]), bound.get("mttkrp")
        norm_tensor, change = bound["norm_tensor"], 0
        if mttkrp is None:
            mttkrp = _unfolding_dot_khatri_rao(tensor, cp_tensor, tl.ndim(tensor) - 1)
        if has_mask:
            tensor, change = masked.impute(tensor, bound["mask"], *cp_tensor)
            norm_tensor = tensor.norm()
        error = _residual_norm(norm_tensor, cp_tensor, mttkrp, change)
        return error, tensor, norm_tensor

    return error_calc


def _residual_norm(norm_tensor, cp_tensor, mttkrp, change=0):
    """Compute the norm of what a CP leaves of a tensor, from the last mode's MTTKRP.

    That may be of a tensor whose inner product with the model is less by `change`.
    """
    inner = inner_product(mttkrp, cp_tensor[1][-1]) + change
    return tl.sqrt(tl.abs(norm_tensor**2 + cp_norm(cp_tensor) ** 2 - 2 * inner))


def _randomized_svd(matrix, n_eigenvecs=None, **kwargs):
    """Give the leading singular vectors to rounding, which a random sketch only approximates."""
    if matrix.ndim != 2:
        raise ValueError(f"matrix has shape {matrix.shape}, expected two axes: unfold the tensor")
    unfolding = matrix if isinstance(matrix, LazyMatrix) else Unfolding(matrix, 0)
    rank = min(unfolding.shape) if n_eigenvecs is None else min(n_eigenvecs, *unfolding.shape)
    left, values, right = LazySVD(unfolding)
    return left[:, :rank], values[:rank], right[:rank, :]


def _svd_checks(original):
    """Ask for no more left singular vectors than a wide matrix has, as TensorLy does from 0.10 on.

    Before, it asked for a complete basis: on the left it is the same, on the right nobody needs it.
    """

    @functools.wraps(original)
    def svd_checks(matrix, n_eigenvecs=None):
        num_vectors, smaller, larger = original(matrix, n_eigenvecs)
        is_wide = matrix.shape[0] <= matrix.shape[1]
        return min(num_vectors, smaller) if is_wide else num_vectors, smaller, larger

    return svd_checks


def _make_svd_non_negative(tensor, U, S, V, nntype=True):
    """Make the left vectors non-negative; the right ones stay what they are, never made."""
    unfolding = tensor if isinstance(tensor, Unfolding) else Unfolding(tensor, 0)
    kind = "nndsvda" if nntype is True else nntype
    return make_left_vectors_non_negative(unfolding, U, S, kind), V


#: What is done in another way for sparse tensors: where decompositions begin and end, in each
#: module that has the name, and for singular vectors.
_FOR_SPARSE = (
    ("tensorly.decomposition._cp", "error_calc", _error_calc),
    ("tensorly.decomposition._nn_cp", "error_calc", _error_calc),
    ("tensorly.decomposition._cp", "initialize_cp", _initialize),
    ("tensorly.decomposition._nn_cp", "initialize_cp", _initialize),
    ("tensorly.decomposition._constrained_cp", "initialize_constrained_parafac", _initialize),
    ("tensorly.decomposition._cp", "svd_interface", masked.svd_interface),
    ("tensorly", "cp_to_tensor", masked.cp_to_tensor),
    ("tensorly.decomposition._tucker", "initialize_tucker", decompositions.initialize_tucker),
    ("tensorly.tenalg.svd", "svd_checks", _svd_checks),
    ("tensorly.tenalg.svd", "randomized_svd", lambda original: _randomized_svd),
    ("tensorly.tenalg.svd", "make_svd_non_negative", lambda original: _make_svd_non_negative),
    (
        "tensorly.tenalg.svd",
        "symeig_svd",
        lambda original: functools.partial(_refuse, "svd.symeig_svd", _NO_SYMEIG),
    ),
)
