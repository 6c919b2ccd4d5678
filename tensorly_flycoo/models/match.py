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
    (weights1, factors1), (weights2, factors2) = take_model(cp_tensor1), take_model(cp_tensor2)
    labels1 = getattr(cp_tensor1, "labels", None)
    labels2 = getattr(cp_tensor2, "labels", None)
    if isinstance(labels1, Labels) and isinstance(labels2, Labels):
        factors2 = _sort_rows(factors2, labels2, labels1)
    shapes = [tuple(factor.shape[0] for factor in factors) for factors in (factors1, factors2)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"cp_tensor2 has shape {shapes[1]}, expected {shapes[0]} as cp_tensor1")
    xp = array_module(factors1[0])
    second = map_arrays(lambda array: move(array, xp), (weights2, factors2))
    return _match(_score_components((weights1, factors1), second, consider_weights))


def _sort_rows(factors: Sequence[Array], labels: Labels, known: Labels) -> list[Array]:
    """Return the factors of the second model with their rows in the sequence of the first's."""
    if [*labels] != [*known]:
        raise ValueError(f"cp_tensor2 has the modes {[*labels]}, expected {[*known]} as cp_tensor1")
    in_order = []
    for name, factor in zip(known, factors, strict=True):
        if not np.array_equal(labels[name], known[name]):
            rows = _find_rows(name, labels[name], known[name])
            factor = factor[array_module(factor).asarray(rows)]
        in_order.append(factor)
    return in_order


def _find_rows(name: str, labels: np.ndarray, known: np.ndarray) -> list[int]:
    """Return where each known label is among others, which have to be the same."""
    if labels.dtype.kind == known.dtype.kind == "M":  # dates may have two units
        unit = np.promote_types(labels.dtype, known.dtype)
        labels = labels.astype(unit)
        known = known.astype(unit)
    places = {label: place for place, label in enumerate(labels.tolist())}
    lacking = [label for label in known.tolist() if label not in places]
    if lacking:
        raise ValueError(
            f"cp_tensor2 lacks the label {lacking[0]!r} of mode {name!r}, which cp_tensor1 has: "
            "make both tensors with from_dataframe(..., labels=)"
        )
    if labels.size > known.size:
        raise ValueError(
            f"cp_tensor2 has {labels.size} labels in mode {name!r}, expected the {known.size} of "
            "cp_tensor1"
        )
    return [places[label] for label in known.tolist()]


def match_all(models: Sequence[Sequence[Array]]) -> np.ndarray:
    """Compute the match scores (n, n) of all pairs of models, lists of factors (I_n, R) each."""
    count = len(models)
    rank = models[0][0].shape[1]
    xp = array_module(models[0][0])
    columns = [xp.concatenate(factors, axis=1) for factors in zip(*models, strict=True)]
    score = _score_components((None, columns), (None, columns), consider_weights=True)
    blocks = score.reshape(count, rank, count, rank).swapaxes(1, 2)
    return np.array([[_match(block) for block in row] for row in blocks])


def align(models: Iterable[Any], reference: Any) -> list[list[np.ndarray]]:
    """Return weights and factors of each model in order and signs of a reference's.

    The columns of factors have norm 1. All are on the host. Components that are biases, as the
    reference's record says, stay in their places, and the ones in their factors give the signs.
    """
    (_, known), aligned = _normalize_on_host(reference), []
    record = find_record(reference)
    is_bias = find_biases(record, known[0].shape[1])
    bias_modes = record.bias_modes if record is not None else ()
    may_match = np.eye(is_bias.size, dtype=bool) | ~(is_bias[:, None] | is_bias)
    for weights, factors in map(_normalize_on_host, models):
        products = [own.T @ other for own, other in zip(known, factors, strict=True)]
        scores = np.where(may_match, abs(multiply_all(products)), -1)
        order = linear_sum_assignment(scores, maximize=True)[1]
        signs = [np.where(of[:, order].diagonal() < 0, -1, 1) for of in products]
        for r, mode in enumerate(bias_modes):
            if 0 <= mode < len(signs):
                signs[mode][r] = multiply_all(signs, skip=mode)[r]
        pairs = zip(factors, signs, strict=True)
        sorted_factors = [factor[:, order] * own for factor, own in pairs]
        aligned.append([weights[order] * multiply_all(signs), *sorted_factors])
    return aligned


def _normalize_on_host(cp_tensor: Any) -> Any:
    return normalize(*map_arrays(lambda array: move(array, np), take_model(cp_tensor)))


def _match(score: np.ndarray) -> float:
    """Return the mean score of the components, matched so that it is largest."""
    return float(score[linear_sum_assignment(score, maximize=True)].mean())


def _score_components(
    model1: tuple[Any, Any], model2: tuple[Any, Any], consider_weights: bool
) -> np.ndarray:
    """Return the score of each component of a model with each of another, on the host.

    Only Gram matrices come from a GPU, which has no kernels to compile for what follows.
    """
    (weights1, factors1), (weights2, factors2) = model1, model2
    norms1, norms2 = (list(map(_find_norms, factors)) for factors in (factors1, factors2))
    product: Any = 1.0
    for first, second, norm1, norm2 in zip(factors1, factors2, norms1, norms2, strict=True):
        inner = move(transposed_product(first, second), np)
        product = product * inner / (_or_one(norm1)[:, None] * _or_one(norm2))
    if consider_weights:
        sizes1 = multiply_all(norms1 if weights1 is None else [abs(move(weights1, np)), *norms1])
        sizes2 = multiply_all(norms2 if weights2 is None else [abs(move(weights2, np)), *norms2])
        larger = np.maximum(sizes1[:, None], sizes2)
        product = product * (1 - np.abs(sizes1[:, None] - sizes2) / _or_one(larger))
    return np.abs(product)


def _find_norms(factor: Array) -> np.ndarray:
    return np.sqrt(move(transposed_product(factor, factor), np).diagonal())


def _or_one(norms: np.ndarray) -> np.ndarray:
    """Replace zeros by ones, to divide by."""
    return np.where(norms == 0, 1, norms)
