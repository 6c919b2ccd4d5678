"""TensorLy's decompositions of tensors with missing values."""

import functools
import inspect

import tensorly as tl

from .masks import Mask, MaskedStart, MaskedTensor, MissingEntries, find_missing


def take_mask(original):
    """Give a decomposition, instead of a tensor and a sparse mask, what it can compute with.

    TensorLy evaluates ``tensor * mask + cp_to_tensor(model, mask=1 - mask)``.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def decompose(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        if given.get("mask") is not None:
            missing = find_missing(given["tensor"], given["mask"])
            given["mask"] = None if missing is None else Mask(missing)
            if missing is not None:
                given["tensor"] = MaskedTensor(missing, missing.start)
        return original(*bound.args, **bound.kwargs)

    return decompose


def cp_to_tensor(original):
    """Compute a model at missing entries only."""

    @functools.wraps(original)
    def cp_to_tensor(cp_tensor, mask=None):
        if isinstance(mask, MissingEntries):
            return mask.reconstruct(*cp_tensor)
        return original(cp_tensor, mask)

    return cp_to_tensor


def start_from(tensor, mask):
    """Return what a decomposition of a tensor with a mask is to begin with."""
    if mask is None:
        return tensor
    missing = mask.missing if isinstance(mask, Mask) else find_missing(tensor, mask)
    return tensor if missing is None else MaskedStart(missing)


def svd_interface(original):
    """Decompose, impute the missing entries and decompose again, as often as TensorLy does."""

    @functools.wraps(original)
    def svd_interface(matrix, *args, n_iter_mask_imputation=5, **kwargs):
        tensor = getattr(matrix, "tensor", None)
        if isinstance(tensor, MaskedStart) and n_iter_mask_imputation:
            matrix = tensor.missing.unfold(matrix.mode)
            plain = kwargs | {"flip_sign": False, "non_negative": None}
            for _ in range(n_iter_mask_imputation):
                matrix = matrix.impute(original(matrix, *args, **plain)[0])
        return original(matrix, *args, **kwargs)

    return svd_interface


def impute(tensor, mask, weights, factors):
    """Fill in the missing entries from a new model.

    Parameters
    ----------
    tensor : MaskedTensor
    mask : Mask
    weights, factors
        Of the model.

    Returns
    -------
    imputed : MaskedTensor
    change : scalar
        By which its inner product with the model is more than that of `tensor`.
    """
    imputed = tensor * mask + tl.cp_to_tensor((weights, factors), mask=1 - mask)
    return imputed, imputed.inner_of_change(tensor)
