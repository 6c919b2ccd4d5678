"""TensorLy's tensor algebra for sparse tensors, with TensorLy's own parameters."""

import numpy as np
import tensorly as tl

from ..array_modules import is_cupy
from ..checks import densify_error, num_cells
from ..engines import select_engine
from ..ops.contraction import check_axes, contract_vectors, inner, khatri_rao_at
from ..ops.mode_product import ModeProduct
from ..ops.views import reshape
from ..tensor.coo_cache import as_flycoo, is_sparse
from .arrays import find_sparse

#: Bytes below which a dense Khatri-Rao product is not held against the memory that is free.
_SURELY_FREE_NBYTES = 2**28


def mode_dot(tensor, matrix_or_vector, mode, transpose=False):
    """Multiply one mode with a matrix, or contract it with a vector."""
    return multi_mode_dot(tensor, [matrix_or_vector], [mode], transpose=transpose)


def multi_mode_dot(tensor, matrix_or_vec_list, modes=None, skip=None, transpose=False):
    """Contract modes with vectors, and multiply others with matrices at once.

    Lazily where a matrix is skipped, as before a singular value decomposition. As in TensorLy
    `skip` counts the operands in the order of their modes.
    """
    if not is_sparse(tensor):
        raise densify_error("tl.tenalg.multi_mode_dot", tensor.shape, "only x may be sparse")
    modes = check_axes(range(len(matrix_or_vec_list)) if modes is None else modes, tensor.ndim)
    pairs = sorted(zip(modes, matrix_or_vec_list, strict=True), key=lambda pair: pair[0])
    pairs = [pair for place, pair in enumerate(pairs) if place != skip]
    if not pairs:
        return tensor
    vectors = {mode: array for mode, array in pairs if array.ndim == 1}
    matrices = {mode: array for mode, array in pairs if array.ndim != 1}
    if vectors:
        rest = contract_vectors(tensor, list(vectors.values()), list(vectors))
        if not matrices:
            return rest
        modes = [mode - sum(gone < mode for gone in vectors) for mode in matrices]
        return tl.tenalg.multi_mode_dot(rest, list(matrices.values()), modes, transpose=transpose)
    factors = matrices if transpose else {mode: m.T for mode, m in matrices.items()}
    product = ModeProduct(as_flycoo(tensor), factors)
    return product.to_array() if skip is None else product


def inner_product(tensor1, tensor2, n_modes=None):
    """Compute the inner product of two tensors of one shape; of some modes only with a vector."""
    x, y = (tensor1, tensor2) if is_sparse(tensor1) else (tensor2, tensor1)
    if n_modes is None or n_modes == x.ndim == y.ndim:
        return inner(x, y)
    if n_modes == y.ndim == 1 and not is_sparse(y):
        return contract_vectors(x, [y], [x.ndim - 1 if x is tensor1 else 0])
    shape = (*tensor1.shape[: tensor1.ndim - n_modes], *tensor2.shape[n_modes:])
    instead = "the inner product of all modes is a number, and mode_dot with a vector sparse"
    raise densify_error(f"tl.tenalg.inner with n_modes={n_modes}", shape, instead)


def khatri_rao(matrices, weights=None, skip_matrix=None, mask=None):
    """Compute the rows of a Khatri-Rao product where a sparse mask is not zero, as a lazy view."""
    factor = find_sparse([matrices, weights])
    if factor is not None:
        raise densify_error("tl.tenalg.khatri_rao", factor.shape, "only its mask may be sparse")
    matrices = _choose(matrices, skip_matrix)
    if len(matrices) == 1:
        return matrices[0]
    return reshape(khatri_rao_at(mask, matrices, weights), (-1, matrices[0].shape[1]))


def check_khatri_rao_fits(matrices, weights=None, skip_matrix=None, mask=None):
    """Refuse a dense Khatri-Rao product that there is no memory for, before it is begun."""
    matrices = _choose(matrices, skip_matrix)
    if len(matrices) < 2 or any(np.ndim(matrix) != 2 for matrix in matrices):
        return
    shape = (num_cells([matrix.shape[0] for matrix in matrices]), matrices[0].shape[1])
    nbytes = num_cells(shape) * matrices[0].dtype.itemsize
    if nbytes <= _SURELY_FREE_NBYTES:
        return
    free_nbytes = select_engine("cuda" if is_cupy(matrices[0]) else "cpu").count_free_nbytes()
    if free_nbytes is not None and nbytes > free_nbytes:
        instead = f"that takes {nbytes:.2g} bytes of {free_nbytes:.2g} that are free; a sparse"
        instead += " mask= gives the elements at its nonzeros, also in tl.cp_to_tensor"
        raise densify_error("tl.tenalg.khatri_rao", shape, instead)


def _choose(matrices, skip_matrix):
    return [matrix for n, matrix in enumerate(matrices) if n != skip_matrix]
