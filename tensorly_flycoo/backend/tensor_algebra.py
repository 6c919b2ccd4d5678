"""TensorLy's tensor algebra for sparse tensors, hooked into both of its backends.

TensorLy's decompositions reach `tensorly.tenalg` through methods of the classes
`CoreTenalgBackend` and `EinsumTenalgBackend`. `install_hooks` wraps five of these methods: a call
with a sparse tensor comes here, any other goes straight to TensorLy.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorly as tl
from tensorly.backend import BackendManager
from tensorly.tenalg.core_tenalg import CoreTenalgBackend
from tensorly.tenalg.einsum_tenalg import EinsumTenalgBackend

from ..base.array_modules import Array
from ..base.checks import densify_error
from ..base.reporting import log_compilation, span
from ..base.watching import watch
from ..engines.out_of_memory import attempt
from ..loop.whole_tensor import WholeTensor, check_start
from ..ops import views
from ..ops.contraction import contract_vectors, inner, khatri_rao_at
from ..ops.mode_product import ModeProduct
from ..ops.mttkrp import check_operands, mttkrp
from ..ops.residual import ResidualTensor
from ..tensor.converters import is_raw_sparse
from ..tensor.coo_cache import as_flycoo
from ..tensor.dense_memory import check_khatri_rao_fits
from ..tensor.entrance import Call, find_sparse, is_sparse, refuse_foreign
from ..tensor.labelled import drop_labels, number_modes
from ..tensor.tensor import check_axes


def install_hooks() -> None:
    """Wrap the methods of both backends, once."""
    for tenalg in (CoreTenalgBackend, EinsumTenalgBackend):
        for name, ours in _HOOKS.items():
            original = getattr(tenalg, name)
            if not hasattr(original, "_flycoo_original"):
                tenalg.register_method(name, divert(original, ours))


def is_ours(name: str, call: Call) -> bool:
    """Say whether a call of TensorLy's function `name` has a sparse tensor, under "flycoo".

    Refuse a `FlycooTensor` under another backend; a raw `sparse.COO` is left to that backend. Also
    refuse a dense Khatri-Rao product that is too large.
    """
    if call.tensor is None:
        if name == "khatri_rao" and BackendManager.get_backend() == "flycoo":
            check_khatri_rao_fits(*call.args, **call.kwargs)
        return False
    backend = BackendManager.get_backend()
    if backend == "flycoo":
        return True
    if is_raw_sparse(call.tensor):
        return False
    raise RuntimeError(
        f"{name} has a {type(call.tensor).__name__}, but TensorLy's backend is {backend!r}: "
        'call tl.set_backend("flycoo") first'
    )


def divert(original: Callable, ours: Callable, takes: Callable[[str, Call], bool] = is_ours) -> Any:
    """Return a function that has us compute the calls that are ours, and TensorLy any other."""

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        # In our parafac: small tensors would wait for a look at all other arguments.
        if args and isinstance(args[0], WholeTensor):
            return ours(*args, **kwargs)
        call = Call(args, kwargs)
        if call.foreign is not None:
            refuse_foreign(call.foreign)
        if not takes(original.__name__, call):
            return original(*args, **kwargs)
        with watch(original.__name__):
            call.move_to_device()
            return call.give_back(ours(*call.args, **call.kwargs))

    choose._flycoo_original = original  # type: ignore[attr-defined]
    return choose


def unfolding_dot_khatri_rao(tensor: Any, cp_tensor: Any, mode: int) -> Array:
    """Compute the MTTKRP of a sparse tensor."""
    weights, factors = cp_tensor
    if isinstance(tensor, WholeTensor):
        product = tensor.mttkrp(weights, factors, mode)
        if not tensor.is_checked:
            check_start(product)
            tensor.is_checked = True
        return product
    if isinstance(tensor, ResidualTensor):
        return tensor.mttkrp(factors, mode, weights)
    # A decomposition starts with tl.norm, which checks the coordinates of a raw COO as well.
    x = as_flycoo(tensor)
    factors, weights = check_operands(x, factors, weights, converts=True)
    return mttkrp(x, factors, mode, weights=weights)


def mode_dot(tensor: Any, matrix_or_vector: Array, mode: int, transpose: bool = False) -> Any:
    """Multiply one mode by a matrix, or contract it with a vector."""
    return multi_mode_dot(tensor, [matrix_or_vector], [mode], transpose=transpose)


def multi_mode_dot(
    tensor: Any,
    matrix_or_vec_list: Sequence[Array],
    modes: Sequence[int] | None = None,
    skip: int | None = None,
    transpose: bool = False,
) -> Any:
    """Contract modes with vectors and multiply other modes by matrices, all at once.

    The result is lazy where `skip` leaves a matrix out, which comes before a singular value
    decomposition. As in TensorLy, `skip` counts the operands in the order of their modes.
    """
    if not (is_sparse(tensor) or isinstance(tensor, ResidualTensor)):
        raise densify_error("tl.tenalg.multi_mode_dot", tensor.shape, "only x may be sparse")
    if modes is None:
        modes = range(len(matrix_or_vec_list))
    axes = check_axes(number_modes(tensor, modes), tensor.ndim)
    pairs = sorted(zip(axes, matrix_or_vec_list, strict=True), key=lambda pair: pair[0])
    operands = {mode: array for place, (mode, array) in enumerate(pairs) if place != skip}
    x = drop_labels(tensor)
    if not operands:
        return x
    multiply = functools.partial(
        _multiply_modes, x, operands, transpose=transpose, is_lazy=skip is not None
    )
    with span("multi_mode_dot", x), log_compilation():
        return attempt("multi_mode_dot", multiply)


def _multiply_modes(x: Any, operands: dict[int, Array], transpose: bool, is_lazy: bool) -> Any:
    """Contract modes with vectors first, which makes the tensor smaller."""
    vectors = {mode: array for mode, array in operands.items() if array.ndim == 1}
    matrices = {mode: array for mode, array in operands.items() if array.ndim != 1}
    if isinstance(x, ResidualTensor):
        if matrices:
            raise densify_error(f"a product of {x!r} with a matrix", x.shape, "multiply by vectors")
        return x.contract(vectors)
    if not vectors:
        factors = matrices
        if not transpose:
            factors = {mode: matrix.T for mode, matrix in matrices.items()}
        product = ModeProduct(x, factors)
        return product if is_lazy else product.to_array()
    contracted = contract_vectors(x, list(vectors.values()), list(vectors))
    if not matrices:
        return contracted
    modes_left = [mode - sum(gone < mode for gone in vectors) for mode in matrices]
    return tl.tenalg.multi_mode_dot(
        contracted, list(matrices.values()), modes_left, transpose=transpose
    )


def inner_product(tensor1: Any, tensor2: Any, n_modes: int | None = None) -> Any:
    """Compute the inner product of two tensors of one shape, or of one mode with a vector."""
    for x, y in (tensor1, tensor2), (tensor2, tensor1):
        if isinstance(x, ResidualTensor) and n_modes in (None, x.ndim):
            return x.inner(y)
    if is_sparse(tensor1):
        x = tensor1
        y = tensor2
        joined_mode = x.ndim - 1  # with a vector y, the one that is next to it
    else:
        x = tensor2
        y = tensor1
        joined_mode = 0
    if n_modes is None or n_modes == x.ndim == y.ndim:
        return inner(x, y)
    if n_modes == y.ndim == 1 and not is_sparse(y):
        return contract_vectors(x, [y], [joined_mode])
    shape = (*tensor1.shape[: tensor1.ndim - n_modes], *tensor2.shape[n_modes:])
    instead = "leave n_modes out, or contract one mode with a vector by tl.tenalg.mode_dot"
    raise densify_error(f"tl.tenalg.inner with n_modes={n_modes}", shape, instead)


def khatri_rao(
    matrices: Sequence[Array],
    weights: Array | None = None,
    skip_matrix: int | None = None,
    mask: Any = None,
) -> Any:
    """Compute the rows of a Khatri-Rao product where a sparse mask is nonzero, as a lazy view."""
    factor = find_sparse([matrices, weights])
    if factor is not None:
        raise densify_error("tl.tenalg.khatri_rao", factor.shape, "only its mask may be sparse")
    matrices = [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
    if len(matrices) == 1:
        return matrices[0]
    return views.reshape(khatri_rao_at(mask, matrices, weights), (-1, matrices[0].shape[1]))


_HOOKS: dict[str, Callable] = {
    "unfolding_dot_khatri_rao": unfolding_dot_khatri_rao,
    "mode_dot": mode_dot,
    "multi_mode_dot": multi_mode_dot,
    "inner": inner_product,
    "khatri_rao": khatri_rao,
}
