"""What the seam relies on in TensorLy, looked at when it is imported.

Where a TensorLy has something else by a name, what depends on it raises a RuntimeError for sparse
tensors that says so, and all else works. What slices singular vectors in another way than
TensorLy's `truncated_svd` does is refused by `LazySVD`, when it does so.
"""

import importlib
import inspect

import tensorly as tl

_CP, _NN_CP = "tensorly.decomposition._cp", "tensorly.decomposition._nn_cp"
_CONSTRAINED_CP, _TUCKER = (
    "tensorly.decomposition._constrained_cp",
    "tensorly.decomposition._tucker",
)

#: The parameters of functions that have a hook: those before "*" come first, in this order; those
#: after it are somewhere, with others; without "*" there are no others.
PARAMETERS = {
    f"{_CP}.error_calc": "tensor, norm_tensor, weights, factors, sparsity, mask, mttkrp",
    f"{_NN_CP}.error_calc": "tensor, norm_tensor, weights, factors, sparsity, mask, mttkrp",
    f"{_CP}.initialize_cp": "tensor, rank, init, *, normalize_factors, mask",
    f"{_NN_CP}.initialize_cp": "tensor, rank, init, *, normalize_factors, mask",
    f"{_CONSTRAINED_CP}.initialize_constrained_parafac": "tensor, rank, init, *",
    f"{_CP}.svd_interface": "matrix, *, flip_sign, non_negative, n_iter_mask_imputation",
    f"{_CP}.cp_to_tensor": "cp_tensor, *",
    f"{_CONSTRAINED_CP}.admm": "UtM, UtU, x, dual_var, *",
    f"{_NN_CP}.hals_nnls": "UtM, UtU, V, n_iter_max, tol, sparsity_coefficient, ridge_coefficient, "
    "nonzero_rows, exact, epsilon, callback",
    f"{_TUCKER}.initialize_tucker": "tensor, *, modes, mask",
    "tensorly.cp_to_tensor": "cp_tensor, mask",
    "tensorly.tenalg.proximal.monotonicity_prox": "tensor, decreasing",
    "tensorly.tenalg.proximal.smoothness_prox": "tensor, regularizer",
    "tensorly.tenalg.svd.svd_checks": "matrix, n_eigenvecs",
    "tensorly.tenalg.svd.randomized_svd": "matrix, n_eigenvecs, *",
    "tensorly.tenalg.svd.make_svd_non_negative": "tensor, U, S, V, nntype",
    "tensorly.tenalg.unfolding_dot_khatri_rao": "tensor, cp_tensor, mode",
    "tensorly.tenalg.mode_dot": "tensor, matrix_or_vector, mode, transpose",
    "tensorly.tenalg.multi_mode_dot": "tensor, matrix_or_vec_list, modes, skip, transpose",
    "tensorly.tenalg.inner": "tensor1, tensor2, n_modes",
    "tensorly.tenalg.khatri_rao": "matrices, weights, skip_matrix, mask",
    "tensorly.decomposition.tensor_train": "input_tensor, rank, svd, verbose, *",
    "tensorly.decomposition.tensor_ring": "input_tensor, rank, mode, svd, verbose, *",
    "tensorly.decomposition.tensor_train_matrix": "tensor, *",
    "tensorly.decomposition.parafac2": "tensor_slices, *, init",
    "tensorly.decomposition.tucker": "tensor, *, fixed_factors",
    "tensorly.decomposition.parafac": "tensor, rank, *, n_iter_max, init, normalize_factors, "
    "orthogonalise, tol, mask, cvg_criterion, linesearch, callback",
    "tensorly.decomposition.non_negative_parafac": "tensor, *, mask",
    "tensorly.decomposition.randomised_parafac": "tensor, *",
}

#: Decompositions that cannot do without the hook of a function.
DEPENDENTS = {
    f"{_CP}.error_calc": ("parafac",),
    f"{_CP}.initialize_cp": ("parafac", "randomised_parafac"),
    f"{_NN_CP}.initialize_cp": ("non_negative_parafac", "non_negative_parafac_hals"),
    f"{_CONSTRAINED_CP}.initialize_constrained_parafac": ("constrained_parafac",),
    f"{_CP}.svd_interface": ("parafac",),
    f"{_CP}.cp_to_tensor": ("randomised_parafac",),
    f"{_TUCKER}.initialize_tucker": ("tucker", "partial_tucker"),
    "tensorly.cp_to_tensor": ("parafac", "non_negative_parafac"),
}


def find_module(name):
    """Return a module of TensorLy, or None where it has none by that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def find_problem(label, function):
    """Say why a function of TensorLy, or None where there is none, is not what is relied on."""
    if function is None:
        return f"it has no {label}"
    try:
        found = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return f"{label} has no signature"
    text = PARAMETERS.get(label)
    if text is None:
        return None
    first, star, others = text.partition("*")
    first, others = (
        [n.strip() for n in names.split(",") if n.strip()] for names in (first, others)
    )
    is_known = found[: len(first)] == first if star else found == first
    if is_known and set(others) <= set(found):
        return None
    return f"{label} has the parameters ({', '.join(found)}), expected ({text})"


def refuse_unknown(problem):
    """Make what is called for sparse tensors where TensorLy is not what is relied on."""

    def refuse(*args, **kwargs):
        raise RuntimeError(
            f"TensorLy {tl.__version__} is not known to tensorly-flycoo: {problem}. "
            "This takes no sparse tensor there; TensorLy 0.9 and 0.10 are known"
        )

    return refuse
