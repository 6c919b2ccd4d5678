"""Small models of every kind, data beside them of every kind, and both as dense arrays.

`KINDS` are the ways in which models are made: each option by which a number that a function gives
may change. A kind says how it was made once more, in its own words (`Kind`), so that expectations
are not read from the record that they judge. `DATA` are the ways in which data may differ.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import sparse
import tensorly as tl
from model_cells import read_cells
from scipy.optimize import nnls
from tensorly.cp_tensor import CPTensor

from tensorly_flycoo import FlycooTensor, LabelledTensor, decomposition
from tensorly_flycoo.decomposition import adam
from tensorly_flycoo.decomposition.methods import METHODS
from tensorly_flycoo.loop.constraints import CONSTRAINTS
from tensorly_flycoo.loop.losses import EXACT_LOSSES, LOSSES

SHAPE, RANK = (6, 5, 4), 2
LABELS = {
    "user": np.array(["ann", "bob", "cy", "di", "eve", "fay"]),
    "item": np.array([3, 5, 7, 11, 13]),
    "day": np.arange("2020-01-01", "2020-01-05", dtype="datetime64[D]"),
}
TAGS = {"user": LABELS["user"], "tag": np.array(["red", "old", "new"])}


@dataclass(frozen=True)
class Kind:
    """How a model is made, and what follows from it for functions that take it."""

    id: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "values"  # the table of values: "values", "counts" or "binary"
    loss: str = "gaussian"
    absent: str = "zero"
    mask: str = ""  # "cells" or "blocks" that are unknown
    confidence: str = ""  # "stored" weights of the nonzeros, and of some zeros
    unobserved: float = 0.0
    non_negative: tuple[int, ...] = ()
    constrained: tuple[int, ...] = ()  # modes with a constraint or a penalty beyond that
    l2_reg: float = 0.0
    biases: bool = False
    ndim: int = 3
    rebuilt: bool = False  # whether the user made a pair of the model

    @property
    def model(self) -> str:
        """What the method makes."""
        return METHODS[self.method].model

    @property
    def is_masked(self) -> bool:
        return bool(self.mask) and not self.rebuilt


EVERY = (0, 1, 2)

#: What each constraint of `constrained_parafac` gets; TensorLy's parameters.
STRENGTHS = {
    "non_negative": True,
    "l1_reg": 0.01,
    "prox": np.tanh,
    "l2_reg": 0.01,
    "l2_square_reg": 0.01,
    "unimodality": True,
    "normalize": True,
    "simplex": 1.0,
    "normalized_sparsity": 8,
    "soft_sparsity": 1.0,
    "smoothness": 0.1,
    "monotonicity": True,
    "hard_sparsity": 9,
    "group_lasso": 0.01,
}

#: The values that each loss is for.
_DATA_OF_LOSSES = {
    "poisson_count": "counts",
    "poisson_log": "counts",
    "zero_truncated_poisson": "counts",
    "bernoulli_odds": "binary",
    "bernoulli_logit": "binary",
}


def _square(x, m):
    return (x - m) ** 2


def _slope(x, m):
    return 2 * (m - x)


def _list_kinds():
    """List all kinds: of each method, constraint and loss that there is."""
    yield Kind("plain", "parafac")
    yield Kind("rebuilt", "parafac", rebuilt=True)
    yield Kind("rebuilt_masked", "parafac", mask="cells", rebuilt=True)
    yield Kind("matrix", "parafac", ndim=2)
    yield Kind("masked", "parafac", mask="cells")
    yield Kind("blocks", "parafac", mask="blocks")
    yield Kind("l2_reg", "parafac", {"l2_reg": 0.3}, l2_reg=0.3)
    yield Kind("masked_l2_reg", "parafac", {"l2_reg": 0.3}, mask="cells", l2_reg=0.3)
    yield Kind("smooth", "parafac", {"smoothness": {2: 1.0}}, constrained=(2,))
    yield Kind("mu", "non_negative_parafac", non_negative=EVERY)
    yield Kind("mu_masked", "non_negative_parafac", mask="cells", non_negative=EVERY)
    hals = "non_negative_parafac_hals"
    yield Kind("hals", hals, non_negative=EVERY)
    yield Kind("hals_one_mode", hals, {"nn_modes": [1]}, non_negative=(1,))
    penalty = {"sparsity_coefficients": [0.01, None, None]}
    yield Kind("hals_sparse", hals, penalty, non_negative=EVERY, constrained=(0,))
    penalty = {"smoothness": {2: 1.0}}
    yield Kind("hals_smooth", hals, penalty, non_negative=EVERY, constrained=(2,))
    for name in sorted(CONSTRAINTS):
        is_sign = name == "non_negative"
        yield Kind(
            f"constrained_{name}",
            "constrained_parafac",
            {name: {0: STRENGTHS[name]}},
            non_negative=(0,) if is_sign else (),
            constrained=() if is_sign else (0,),
        )
    for name, loss in LOSSES.items():
        yield Kind(
            f"loss_{name}",
            "generalized_parafac",
            {"loss": name} | ({"n_iter_max": 100} if loss.is_count else {}),
            data=_DATA_OF_LOSSES.get(name, "values"),
            loss=name,
            absent="unknown" if loss.is_truncated else "zero",
            non_negative=EVERY if loss.lower_bound >= 0 else (),
        )
    yield Kind(
        "loss_custom",
        "generalized_parafac",
        {"loss": (_square, _slope, 0.0)},
        loss="custom",
        non_negative=EVERY,
    )
    yield Kind(
        "counts_masked",
        "generalized_parafac",
        {"n_iter_max": 100},
        data="counts",
        loss="poisson_count",
        mask="blocks",
        non_negative=EVERY,
    )
    ridge = {"l2_reg": 0.1}
    yield Kind("observed", "observed_parafac", ridge, absent="unknown", l2_reg=0.1)
    yield Kind(
        "observed_biases",
        "observed_parafac",
        ridge | {"biases": True},
        absent="unknown",
        l2_reg=0.1,
        biases=True,
    )
    yield Kind(
        "observed_non_negative",
        "observed_parafac",
        ridge | {"non_negative": True},
        absent="unknown",
        l2_reg=0.1,
        non_negative=EVERY,
    )
    yield Kind(
        "observed_weighted",
        "observed_parafac",
        ridge,
        absent="unknown",
        l2_reg=0.1,
        confidence="stored",
    )
    yield Kind(
        "observed_all",
        "observed_parafac",
        ridge | {"unobserved": 0.1, "cg_steps": 0},
        absent="weighted",
        l2_reg=0.1,
        confidence="stored",
        unobserved=0.1,
    )
    yield Kind("shared", "shared_parafac", {"modes": []})
    yield Kind("parafac2", "parafac2")
    yield Kind("parafac2_masked", "parafac2", mask="cells")
    # Modes without a penalty of their own have a ridge.
    yield Kind("parafac2_rows", "parafac2", {"group_lasso": {2: 0.01}}, constrained=EVERY)
    yield Kind("tucker", "tucker")
    yield Kind("tucker_rows", "tucker", {"l1_reg": {0: 0.01}}, constrained=(0,))
    yield Kind("tucker_masked", "tucker", mask="cells")
    yield Kind("tucker_mu", "non_negative_tucker", non_negative=EVERY)
    yield Kind("tucker_mu_masked", "non_negative_tucker", mask="cells", non_negative=EVERY)
    yield Kind("tucker_hals", "non_negative_tucker_hals", non_negative=EVERY)
    yield Kind("coupled", "coupled_parafac", absent="zero")
    yield Kind("coupled_unknown", "coupled_parafac", {"missing": "unknown"}, absent="unknown")


KINDS = {kind.id: kind for kind in _list_kinds()}

#: Steps of Adam in an iteration: what is compared also holds of models that have not converged.
NUM_STEPS = 50

#: Iterations: enough for least squares to converge, as each takes a tenth of a millisecond; those
#: of Adam, constraints and Tucker take more.
_ITERATIONS = dict.fromkeys(METHODS, 300) | {
    "constrained_parafac": 20,
    "generalized_parafac": 1,
    "parafac2": 50,
    "tucker": 20,
    "non_negative_tucker": 20,
    "non_negative_tucker_hals": 5,
}


def _spread(shape, labels, seed=0):
    """Make values from a planted model of rank 2, and noise; two fifths of the cells are zeros."""
    rng = np.random.default_rng(seed)
    factors = [np.exp(rng.normal(0, 0.8, (size, RANK))) for size in shape]
    letters = "ijk"[: len(shape)]
    dense = np.einsum(f"{','.join(f'{n}r' for n in letters)}->{letters}", *factors)
    dense = dense * np.exp(rng.normal(0, 0.2, shape)) * (rng.random(shape) < 0.6)
    return dense


@functools.cache
def make_values(data, ndim=3):
    """Return the table of the values of a fit, a dense array."""
    dense = _spread(SHAPE[:ndim], LABELS)
    if data == "counts":
        dense = np.random.default_rng(1).poisson(dense).astype(float)
    elif data == "binary":
        dense = (dense > 1.5).astype(float)
    dense.flags.writeable = False
    return dense


@functools.cache
def make_mask(kind, ndim=3):
    """Return a mask of a few "cells" or "blocks", stored ones among them, as `parafac` takes it."""
    if kind == "cells":
        cells = np.array(
            [[0, 0, 1, 2, 3, 4, 5, 5], [1, 4, 0, 2, 3, 1, 0, 4], [0, 2, 3, 1, 2, 0, 1, 3]]
        )
        shape = SHAPE
    else:
        cells = np.array([[0, 2, 5], [1, 3, 4], [0, 0, 0]])
        shape = (*SHAPE[:2], 1)
    cells = np.unique(cells[:ndim], axis=1)
    return sparse.COO(cells, np.zeros(cells.shape[1]), shape[:ndim], fill_value=1.0)


def spread_mask(mask, shape):
    """Return which cells are known (bool array) by a mask; all without one."""
    if mask is None:
        return np.ones(shape, bool)
    return np.broadcast_to(mask.todense() != 0, shape)


@functools.cache
def make_confidence(data, ndim=3):
    """Return weights of all stored cells, and of a few that are zeros, as a dense array."""
    dense = make_values(data, ndim)
    weights = np.random.default_rng(2).uniform(0.5, 2, dense.shape)
    is_zero_seen = np.random.default_rng(3).random(dense.shape) < 0.1
    return np.where((dense != 0) | is_zero_seen, weights, 0)


def to_sparse(dense):
    coords = np.array(np.nonzero(dense))
    return FlycooTensor(coords, dense[tuple(coords)], dense.shape)


def label(dense, labels=None, unknown=None):
    return LabelledTensor(to_sparse(dense), labels or take_modes(dense.ndim), unknown, "value")


def take_modes(ndim):
    return dict([*LABELS.items()][:ndim])


def make_tags():
    """Return a matrix that shares the users with the tensor, as a block of `coupled_parafac`."""
    return np.random.default_rng(4).uniform(0.1, 1, (SHAPE[0], 3)), TAGS


def find_rank(kind):
    return [2, 2, 2] if kind.model == "Tucker" else RANK


def fit(kind, x, mask=None, **options):
    """Run the method of a kind on a tensor."""
    function = getattr(decomposition, kind.method)
    given = {"n_iter_max": _ITERATIONS[kind.method], "random_state": 0} | dict(kind.options)
    if kind.method == "constrained_parafac":
        given |= {"tol_outer": 0}
    elif kind.method == "generalized_parafac":
        given |= {"tol": 1e-12}
    else:
        given |= {"tol": 1e-15}
    if "init" not in options and kind.method not in ("coupled_parafac",):
        given |= {"init": "random"}
    if mask is not None:
        given |= {"mask": mask}
    if kind.confidence and "confidence" not in options:
        weights = make_confidence(kind.data)
        given |= {
            "confidence": label(weights) if isinstance(x, LabelledTensor) else to_sparse(weights)
        }
    data = [x, make_tags()] if kind.model == "coupled" else x
    with tl.backend_context("flycoo"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(adam, "_NUM_STEPS", NUM_STEPS)
        return function(data, find_rank(kind), **(given | options))


@functools.cache
def make_model(id):
    """Fit the model of a kind to its values; once in a session."""
    kind = KINDS[id]
    mask = make_mask(kind.mask) if kind.mask else None
    model = fit(kind, label(make_values(kind.data, kind.ndim)), mask)
    return (model.weights, list(model.factors)) if kind.rebuilt else model


#: The mode of which data have the labels in another sequence, and that sequence.
PERMUTED = {"permuted": (1, [2, 0, 4, 1, 3]), "permuted_users": (0, [3, 1, 5, 0, 4, 2])}


@dataclass(frozen=True)
class Beside:
    """Data beside a model: a tensor, and the same as a dense array."""

    id: str
    x: Any
    dense: np.ndarray
    known: Any  # which cells it knows itself (bool array); None if it says nothing
    fits: bool  # whether a function of all modes takes it


@functools.cache
def make_beside(id, data, ndim=3):
    """Make data that are those of a fit (`data`), but for what `id` says."""
    dense, labels = make_values(data, ndim), take_modes(ndim)
    items = labels["item"]
    if id == "same":
        return Beside(id, label(dense, labels), dense, None, True)
    if id == "unlabelled":
        return Beside(id, to_sparse(dense), dense, None, True)
    if id == "unknown":
        mask = make_mask("cells", ndim)
        known = spread_mask(mask, dense.shape)
        return Beside(id, label(dense, labels, mask), dense, known, True)
    if id == "all_unknown":
        return Beside(id, label(dense, labels, "all"), dense, dense != 0, True)
    if id == "fewer":
        part = np.delete(dense, 1, 1)
        return Beside(id, label(part, labels | {"item": np.delete(items, 1)}), part, None, False)
    if id == "more":
        part = np.insert(dense, 2, dense[:, 0], 1)
        return Beside(id, label(part, labels | {"item": np.insert(items, 2, 6)}), part, None, False)
    if id in PERMUTED:
        mode, order = PERMUTED[id]
        part, name = dense.take(order, mode), [*labels][mode]
        own = labels | {name: labels[name][order]}
        return Beside(id, label(part, own), part, None, False)
    if id == "renamed":
        others = dict(zip("abc", labels.values(), strict=False))
        return Beside(id, label(dense, others), dense, None, False)
    if id == "shape":
        part = dense[:, :3]
        return Beside(id, to_sparse(part), part, None, False)
    part = dense.sum(-1) if ndim == 3 else np.stack([dense, dense], axis=2)
    return Beside(id, to_sparse(part), part, None, False)


DATA = (
    "same",
    "unlabelled",
    "unknown",
    "all_unknown",
    "fewer",
    "more",
    *PERMUTED,
    "renamed",
    "shape",
    "modes",
)


class Refusal(tuple):
    """An expected ValueError, whose message has one of these words: the argument that is wrong."""

    __slots__ = ()

    def __new__(cls, *words):
        return super().__new__(cls, words)


def takes(kind, beside):
    """Return whether data are beside a model cell by cell: one without labels goes by position."""
    return beside.fits or (kind.rebuilt and beside.id in ("renamed", *PERMUTED))


def find_known(kind, beside):
    """Return which cells are known (bool array), by the data or else by the model."""
    if beside.known is not None:
        return beside.known
    if kind.is_masked:
        return spread_mask(make_mask(kind.mask, kind.ndim), beside.dense.shape)
    return np.ones(beside.dense.shape, bool)


def find_cells(model):
    """Return all cells of a model, dense, in float64."""
    return read_cells(CPTensor(model) if isinstance(model, tuple) else model)


def list_arrays(model):
    """Return the weights or the core, and the factors, of a CP or Tucker model in float64."""
    first, factors = model[0], model[1]
    factors = [np.asarray(factor, float) for factor in factors]
    return np.ones(factors[0].shape[1]) if first is None else np.asarray(first, float), factors


def unfold(dense, mode):
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def make_design(model, mode):
    """Return what each cell of a row of `mode` takes of the row's elements: (cells, R)."""
    first, factors = list_arrays(model)
    others = [factor for n, factor in enumerate(factors) if n != mode]
    if first.ndim > 1:
        return functools.reduce(np.kron, others) @ unfold(first, mode).T
    design = first[None]
    for factor in others:
        design = (design[:, None] * factor).reshape(-1, factor.shape[1])
    return design


def find_ridges(model, mode, ridge, bias_ridge, is_own_bias):
    """Return the ridge of each element of a row (R,).

    It is for the model whose columns of a component are equally long in all modes.
    """
    weights, factors = list_arrays(model)
    norms = np.array([np.linalg.norm(factor, axis=0) for factor in factors])
    sizes = np.abs(weights) * norms.prod(axis=0)
    others = np.abs(weights) * np.delete(norms, mode, 0).prod(axis=0)
    units = others / np.where(sizes > 0, sizes, 1) ** (1 - 1 / len(factors))
    own = np.abs(weights) * np.abs([f[0] for n, f in enumerate(factors) if n != mode]).prod(axis=0)
    return np.where(is_own_bias, bias_ridge * own**2, ridge * units**2)


def solve_row(design, values, weights, ridges, non_negative):
    """Return the row of least squares, by QR or by NNLS, and the rounding of its elements.

    The bound is that of solving normal equations: 100 times eps and the square of the condition.
    """
    is_counted = weights > 0
    roots = np.sqrt(weights[is_counted])
    matrix = np.concatenate([design[is_counted] * roots[:, None], np.diag(np.sqrt(ridges))])
    target = np.concatenate([values[is_counted] * roots, np.zeros(ridges.size)])
    if not matrix.any():
        return np.zeros(ridges.size), 0.0
    lengths = np.linalg.norm(matrix, axis=0)
    lengths = np.where(lengths > 0, lengths, 1)
    scaled = matrix / lengths
    if non_negative:
        row = nnls(scaled, target)[0]
    else:
        row = np.linalg.lstsq(scaled, target, rcond=1e-10)[0]
    singular = np.linalg.svd(scaled, compute_uv=False)
    singular = singular[singular > 1e-10 * singular[0]]
    bound = 100 * np.finfo(float).eps * (singular[0] / singular[-1]) ** 2
    return row / lengths, bound * np.linalg.norm(target) / lengths


def check_likeliest(row, design, counts, is_known):
    """Check the conditions of the likeliest row of Poisson counts, a convex problem.

    Where an element is above 0 its slope is 0, and where it is 0 the slope is not negative. Updates
    end where F changes by 1e-12, so the slopes, in units of their terms, may be its root: 1e-6.
    """
    design, counts = design[is_known], counts[is_known]
    means = design @ row
    ratios = np.divide(counts, means, out=np.zeros_like(means), where=means > 0)
    terms = design.sum(axis=0)
    slopes = (terms - design.T @ ratios) / np.where(terms > 0, terms, 1)
    largest = row.max() if row.max() > 0 else 1
    assert (row >= 0).all()
    assert (slopes >= -1e-5).all(), slopes
    assert (np.abs(slopes * row) <= 1e-5 * largest).all(), (slopes, row)


def weigh(kind, beside):
    """Return a confidence for data beside a model, dense."""
    weights = make_confidence(kind.data, kind.ndim)
    return permute(weights, beside)


def permute(dense, beside):
    """Return a table in the sequence of the labels of data."""
    mode, order = PERMUTED.get(beside.id, (0, slice(None)))
    return np.moveaxis(np.moveaxis(dense, mode, 0)[order], 0, mode)


def judge(call, expected):
    """Return what is wrong in a cell of the table, "" if nothing is."""
    if not isinstance(expected, Refusal):
        try:
            expected(call())
        except Exception as error:  # of the call, or of the comparison
            return f"{type(error).__name__}: {error}"
        return ""
    try:
        found = call()
    except ValueError as error:
        named = any(word in str(error) for word in expected)
        return "" if named else f"none of {[*expected]} is in {str(error)!r}"
    except Exception as error:
        return f"{type(error).__name__}, expected a ValueError: {error}"
    return f"it gives {found!r}, expected a ValueError with one of {[*expected]}"


def report(wrong):
    """Fail with all cells that are wrong."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def refuse_fold_in(kind, beside, mode, has_confidence):
    """Return the refusal of new rows of a model of one tensor; None if there are some."""
    words = []
    if not takes(kind, beside) and beside.id != "permuted_users":
        words += ["x_new has ", "x_new and "]
    is_all_unknown = beside.id == "all_unknown"
    if kind.rebuilt:
        return Refusal(*words) if words else None
    if kind.loss not in EXACT_LOSSES:
        words.append("loss is ")
    if mode in kind.constrained:
        words.append("cp_tensor has the constraint or penalty ")
    if has_confidence != bool(kind.confidence) and (
        kind.confidence or kind.model == "Tucker" or kind.loss == "poisson_count"
    ):
        words.append("confidence is ")
    if kind.loss == "poisson_count" and is_all_unknown:
        words.append("loss=")
    is_of_rows = bool(kind.mask) and (kind.mask == "cells" or mode < 2)
    if is_of_rows and not has_confidence and beside.known is None and beside.id != "same":
        words.append("mask is ")
    return Refusal(*words) if words else None


def find_unit(dense, kind):
    """Return what the ridge of `observed_parafac` is relative to; 1 for a ridge of another one."""
    if kind.l2_reg and kind.absent == "zero":
        return 1.0
    values = dense[dense != 0]
    scale = np.sqrt(np.mean((values - kind.biases * values.mean()) ** 2))
    return scale ** (2 - 2 / dense.ndim)


def check_rows(kind, beside, mode, confidence, found):
    """Compare new rows with those of least squares, or of the likeliest counts, row by row.

    A `confidence`, a dense array or None, says which cells are known, but for those that the data
    know as unknown.
    """
    model, dense = make_model(kind.id), beside.dense
    design, rank = make_design(model, mode), found.shape[1]
    is_observed = (not kind.rebuilt and kind.absent == "unknown") or beside.id == "all_unknown"
    weights = find_known(kind, beside).astype(float)
    if confidence is not None:
        weights = np.where(confidence > 0, confidence, 0.0 if is_observed else kind.unobserved)
        if beside.id == "unknown":
            weights = weights * beside.known
    elif is_observed:
        weights = weights * (dense != 0)
    values, weights = unfold(dense, mode), unfold(weights, mode)
    assert found.shape == (dense.shape[mode], rank)
    if kind.loss == "poisson_count":
        for row, counts, known in zip(found, values, weights, strict=True):
            check_likeliest(row, design, counts, known > 0)
        return
    ridges, is_kept = np.zeros(rank), np.zeros(rank, bool)
    constants = np.zeros(rank)
    if kind.model == "CP":
        l2_reg = 0.0 if kind.rebuilt else kind.l2_reg
        names = getattr(model, "components", range(rank))
        own = np.array([name == f"{[*LABELS][mode]} bias" for name in names])
        is_kept = np.array([isinstance(name, str) for name in names]) & ~own
        constants = np.where(is_kept, list_arrays(model)[1][mode][0], 0)
        ridge = l2_reg * find_unit(make_values(kind.data, kind.ndim), kind)
        if is_observed and not l2_reg:
            ridge = 1e-6 * find_unit(dense, kind)
        ridges = find_ridges(model, mode, ridge, l2_reg, own)
    is_non_negative = mode in kind.non_negative and not kind.rebuilt
    free = ~is_kept
    for row, of_row, own in zip(found, values, weights, strict=True):
        target = of_row - design @ constants
        expected, bound = solve_row(design[:, free], target, own, ridges[free], is_non_negative)
        assert (np.abs(row[free] - expected) <= bound + 1e-14).all(), (row, expected, bound)
        assert (row[is_kept] == constants[is_kept]).all()
