"""The similarity of two CP models."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..base.array_modules import Array, array_module, move
from ..base.fit_record import find_record
from ..engines.tall import transposed_product
from ..loop.cp_model import find_biases, multiply_all, normalize
from ..ops.cp_entries import take_model
from ..tensor.entrance import map_arrays
from ..tensor.labelled import Labels

#: More than the rounding of a mean of scores.
_ROUNDING = 1e-9


def factor_match_score(cp_tensor1: Any, cp_tensor2: Any, *, consider_weights: bool = True) -> float:
    r"""Compute the factor match score of two CP models, from 0 to 1.

    .. math:: \frac{1}{R} \sum_r \left(1 - \frac{|w_r - v_r|}{\max(w_r, v_r)}\right)
        \prod_n \frac{|a_{n,r}^T b_{n,r}|}{\|a_{n,r}\| \|b_{n,r}\|}

    for the matching of components that makes it largest; :math:`w_r` and :math:`v_r` are the norms
    of the components. The score equals `tlviz.factor_tools.factor_match_score`, which has more
    options; this function takes CuPy arrays too.

    Parameters
    ----------
    cp_tensor1, cp_tensor2 : CPTensor or (weights, factors)
        Of one shape; NumPy's arrays or CuPy's. With different ranks, R is the lower one. Rows of
        two `LabelledCP` are compared by label, whatever their sequence.
    consider_weights : bool
        Whether to include the first factor of each term, which compares norms.

    Returns
    -------
    float

    Raises
    ------
    TypeError
        If one model is on a GPU and the other is not.
    ValueError
        If the shapes differ, or both models have labels, and these or the names of modes differ.

    Notes
    -----
    ``sum(shape) * R1 * R2`` operations, and one copy from a GPU to the host.

    References
    ----------
    Acar, Dunlavy, Kolda and Mørup, "Scalable tensor factorizations for incomplete data",
    Chemometrics and Intelligent Laboratory Systems 106, 2011. Crouse, "On implementing 2D
    rectangular assignment algorithms", IEEE Transactions on Aerospace and Electronic Systems 52,
    2016.

    Examples
    --------
    >>> import numpy as np
    >>> factors = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 1.0]])]
    >>> swapped = [-factor[:, ::-1] for factor in factors]
    >>> round(factor_match_score((None, factors), (None, swapped)), 9)
    1.0
    >>> round(factor_match_score((None, factors), (np.array([0.5, 1.0]), factors)), 9)
    0.75
    """
    weights1, factors1 = take_model(cp_tensor1)
    weights2, factors2 = take_model(cp_tensor2)
    labels1 = getattr(cp_tensor1, "labels", None)
    labels2 = getattr(cp_tensor2, "labels", None)
    if isinstance(labels1, Labels) and isinstance(labels2, Labels):
        factors2 = _sort_rows(factors2, labels2, labels1)
    shape1 = tuple(factor.shape[0] for factor in factors1)
    shape2 = tuple(factor.shape[0] for factor in factors2)
    if shape1 != shape2:
        raise ValueError(f"cp_tensor2 has shape {shape2}, expected {shape1} as cp_tensor1")
    xp = array_module(factors1[0])
    model1 = (weights1, factors1)
    model2 = map_arrays(lambda array: move(array, xp), (weights2, factors2))
    scores = _score_components(model1, model2, consider_weights)
    return _match_components(scores)


def _sort_rows(factors: Sequence[Array], labels: Labels, wanted: Labels) -> list[Array]:
    """Return the factors of the second model with their rows in the sequence of the first's."""
    if [*labels] != [*wanted]:
        raise ValueError(
            f"cp_tensor2 has the modes {[*labels]}, expected {[*wanted]} as cp_tensor1"
        )
    sorted_factors = []
    for name, factor in zip(wanted, factors, strict=True):
        if np.array_equal(labels[name], wanted[name]):
            sorted_factors.append(factor)
            continue
        xp = array_module(factor)
        rows = _find_rows(name, labels[name], wanted[name])
        sorted_factors.append(factor[xp.asarray(rows)])
    return sorted_factors


def _find_rows(name: str, labels: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Return the place of each wanted label in a mode, which must have the same labels."""
    if labels.dtype.kind == wanted.dtype.kind == "M":  # dates may have two units
        unit = np.promote_types(labels.dtype, wanted.dtype)
        labels = labels.astype(unit)
        wanted = wanted.astype(unit)
    places = {label: place for place, label in enumerate(labels.tolist())}
    missing_labels = [label for label in wanted.tolist() if label not in places]
    if missing_labels:
        raise ValueError(
            f"cp_tensor2 lacks the label {missing_labels[0]!r} of mode {name!r}, which cp_tensor1 "
            "has: make both tensors with from_dataframe(..., labels=)"
        )
    if labels.size > wanted.size:
        raise ValueError(
            f"cp_tensor2 has {labels.size} labels in mode {name!r}, expected the {wanted.size} of "
            "cp_tensor1"
        )
    return [places[label] for label in wanted.tolist()]


def find_matches(models: Sequence[Sequence[Array]], least: float) -> np.ndarray:
    """Find the pairs of models whose match score is at least `least`: booleans (n, n).

    The models are lists of factors (I_n, R).
    """
    count = len(models)
    rank = models[0][0].shape[1]
    xp = array_module(models[0][0])
    # Side by side, their columns are those of one model, whose components are scored at once.
    factors_by_mode = zip(*models, strict=True)
    columns = [xp.concatenate(factors, axis=1) for factors in factors_by_mode]
    joint_model = (None, columns)
    component_scores = _score_components(joint_model, joint_model, consider_weights=True)
    # A block (R, R) for each pair of models.
    blocks = component_scores.reshape(count, rank, count, rank).swapaxes(1, 2)
    # Few pairs reach `least` even if each component had its best partner.
    bounds = blocks.max(axis=3).mean(axis=2)
    may_match = np.tril(bounds >= least - _ROUNDING)
    are_matches = np.zeros((count, count), bool)
    for first, second in np.argwhere(may_match):
        is_match = _match_components(blocks[first, second]) >= least
        are_matches[first, second] = are_matches[second, first] = is_match
    return are_matches


def align(models: Iterable[Any], reference: Any) -> list[list[np.ndarray]]:
    """Return weights and factors of each model in order and signs of a reference's.

    The columns of factors have norm 1. All are on the host. Components that are biases, as the
    reference's record says, stay in their places, and the ones in their factors give the signs.
    """
    _, reference_factors = _normalize_on_host(reference)
    record = find_record(reference)
    rank = reference_factors[0].shape[1]
    is_bias = find_biases(record, rank)
    bias_modes = () if record is None else record.bias_modes
    # A bias may match itself alone; the other components may match each other.
    is_same = np.eye(rank, dtype=bool)
    has_bias = is_bias[:, None] | is_bias
    may_match = is_same | ~has_bias
    aligned = []
    for model in models:
        weights, factors = _normalize_on_host(model)
        pairs = zip(reference_factors, factors, strict=True)
        products = [reference_factor.T @ factor for reference_factor, factor in pairs]
        similarities = abs(multiply_all(products))
        scores = np.where(may_match, similarities, -1)
        _, order = linear_sum_assignment(scores, maximize=True)
        signs = []
        for product in products:
            cosines = product[:, order].diagonal()
            signs.append(np.where(cosines < 0, -1, 1))
        for component, mode in enumerate(bias_modes):
            if 0 <= mode < len(signs):
                # The other factors hold ones: the bias takes the sign that makes them positive.
                other_signs = multiply_all(signs, skip=mode)
                signs[mode][component] = other_signs[component]
        aligned_factors = []
        for factor, signs_of_mode in zip(factors, signs, strict=True):
            aligned_factors.append(factor[:, order] * signs_of_mode)
        # The weight takes the opposite of all changes of sign: the model stays the same.
        aligned_weights = weights[order] * multiply_all(signs)
        aligned.append([aligned_weights, *aligned_factors])
    return aligned


def _normalize_on_host(cp_tensor: Any) -> Any:
    """Return weights, and factors whose columns have norm 1, on the host."""
    model = take_model(cp_tensor)
    weights, factors = map_arrays(lambda array: move(array, np), model)
    return normalize(weights, factors)


def _match_components(scores: np.ndarray) -> float:
    """Return the mean score of the components, matched so that it is largest.

    >>> _match_components(np.array([[0.1, 0.9], [0.7, 0.8]]))
    0.8
    """
    components1, components2 = linear_sum_assignment(scores, maximize=True)
    matched_scores = scores[components1, components2]
    return float(matched_scores.mean())


def _score_components(
    model1: tuple[Any, Any], model2: tuple[Any, Any], consider_weights: bool
) -> np.ndarray:
    """Return the score of each component of a model with each of another, on the host.

    Only Gram matrices come from a GPU, which has no kernels to compile for what follows.
    """
    weights1, factors1 = model1
    weights2, factors2 = model2
    norms1 = [_find_norms(factor) for factor in factors1]
    norms2 = norms1
    if model2 is not model1:
        norms2 = [_find_norms(factor) for factor in factors2]
    scores: Any = 1.0
    for factor1, factor2, norm1, norm2 in zip(factors1, factors2, norms1, norms2, strict=True):
        product = move(transposed_product(factor1, factor2), np)
        norm_products = _or_one(norm1)[:, None] * _or_one(norm2)
        scores = scores * product / norm_products
    if consider_weights:
        sizes1 = _find_sizes(weights1, norms1)[:, None]
        sizes2 = _find_sizes(weights2, norms2)
        differences = np.abs(sizes1 - sizes2)
        larger_sizes = np.maximum(sizes1, sizes2)
        scores = scores * (1 - differences / _or_one(larger_sizes))
    return np.abs(scores)


def _find_norms(factor: Array) -> np.ndarray:
    """Return the norm of each column, on the host."""
    gram = move(transposed_product(factor, factor), np)
    return np.sqrt(gram.diagonal())


def _find_sizes(weights: Array | None, norms: list[np.ndarray]) -> np.ndarray:
    """Return the norm of each component, the product of its columns' norms."""
    if weights is None:
        return multiply_all(norms)
    host_weights = move(weights, np)
    return multiply_all([abs(host_weights), *norms])


def _or_one(norms: np.ndarray) -> np.ndarray:
    """Replace zeros by ones, to divide by."""
    return np.where(norms == 0, 1, norms)
