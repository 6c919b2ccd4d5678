"""One table of the models that functions take, and one check of a model beside data.

A decomposition says in `model.flycoo` how it made a model. A function says here which models it is
right for; whatever else is refused by name, before anything is computed. `METHODS` is the table of
the decompositions themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorly._factorized_tensor import FactorizedTensor
from tensorly.cp_tensor import CPTensor
from tensorly.parafac2_tensor import Parafac2Tensor
from tensorly.tucker_tensor import TuckerTensor

from ..base.array_modules import array_module
from ..base.fit_record import FitRecord, attach, find_record
from ..io.checkpoint import Resumed
from ..io.entries import find_places
from ..ops.cp_entries import find_kind
from ..tensor.entrance import is_sparse
from ..tensor.labelled import LabelledTensor, Labels, check_same_labels
from .masks import unite_masks
from .unknown_cells import find_unknown

#: Losses whose model is the mean of the data, so that the two can be compared cell by cell.
_MEANS = ("gaussian", "poisson_count", "gamma", "custom")


@dataclass(frozen=True)
class ModelUse:
    """The models that a function takes: their kinds, how they were made, and beside which data."""

    function: str
    model: str = "cp_tensor"  # the argument that is the model
    data: str = "x"  # the argument that the model is beside; "" if there is none
    kinds: tuple[str, ...] = ("CP",)
    losses: tuple[str, ...] | None = None  # None for any
    absent: tuple[str, ...] | None = None  # what cells without a row may have been; None for any
    takes_blocks: bool = True  # models of one block of several that were fitted together


#: All functions that take a model by name. `tests/conformance/test_model_table.py` tries each with
#: every kind of model.
MODEL_USES = {
    use.function: use
    for use in (
        ModelUse("anomaly_scores", data="x_new", losses=("gaussian", "poisson_count", "custom")),
        ModelUse("core_consistency", losses=_MEANS, absent=("zero",)),
        ModelUse("cp_fit"),
        ModelUse("cp_to_entries", data=""),
        # It refuses models whose gradient it does not compute.
        ModelUse("diagnose", takes_blocks=False),
        ModelUse("evaluate", losses=_MEANS),
        ModelUse("factor_match_score", model="cp_tensor2", data=""),
        ModelUse(
            "fold_in",
            data="x_new",
            kinds=("CP", "Tucker", "PARAFAC2", "coupled"),
            takes_blocks=False,
        ),
        ModelUse("recommend", data="exclude"),
        # `models/refitting.py` says which models it can fit again.
        ModelUse("uncertainty", takes_blocks=False),
    )
}


#: The kinds of model at which each decomposition may begin.
_GUESSES = {
    "constrained_parafac": ("CP",),
    "generalized_parafac": ("CP",),
    "non_negative_parafac": ("CP",),
    "non_negative_parafac_hals": ("CP",),
    "non_negative_tucker": ("Tucker",),
    "non_negative_tucker_hals": ("Tucker",),
    "observed_parafac": ("CP",),
    "parafac": ("CP",),
    "parafac2": ("PARAFAC2", "CP"),
    "shared_parafac": ("CP",),
    "shared_tucker": ("Tucker",),
    "tucker": ("Tucker",),
}


def check_model(function: str, model: Any, x: Any = None, mode: int | None = None) -> FitRecord:
    """Refuse a model that a function is not right for, alone or beside its data.

    `x` may differ from the model in the rows of `mode`. Return how the model was made; a model that
    a user rebuilt of arrays is taken for a plain one.
    """
    use = MODEL_USES[function]
    kind = find_kind(model)
    if kind not in use.kinds:
        hint = ""
        if kind == "coupled":
            hint = ": pass the model of one of its blocks, such as model.cp_tensors[0]"
        raise ValueError(
            f"{use.model} is a {type(model).__name__}, a {kind} model, expected a model of kind "
            f"{' or '.join(use.kinds)} for {function}{hint}"
        )
    record = find_record(model) or FitRecord()
    _check_record(use, record)
    if kind == "CP":
        _check_block(use, record)
    if x is not None and is_sparse(x):
        skips = [mode]
        if kind == "PARAFAC2":
            skips.append(1)  # the model's labels of rows are those of one slice after the other
        check_same_labels(x, model, skip=skips, names=(use.data, use.model))
        _check_shape(use, model, kind, x, mode)
    return record


def suits(function: str, model: Any) -> bool:
    """Return whether a function is right for a model, by the way in which it was made."""
    try:
        check_model(function, model)
    except ValueError:
        return False
    return True


def _check_record(use: ModelUse, record: FitRecord) -> None:
    """Refuse a model that was made in a way that a function is not right for."""
    as_plain = f"; pass the pair ({use.model}.weights, {use.model}.factors) to ignore that"
    if use.losses is not None and record.loss not in use.losses:
        raise ValueError(
            f"{use.model} was fitted with loss={record.loss!r}, expected one of {use.losses} for "
            f"{use.function}: its values are no means of the data{as_plain}"
        )
    if use.absent is not None and record.absent not in use.absent:
        reason = "cells without a row are unknown"
        if record.absent == "weighted":
            reason = "they are weighted"
        raise ValueError(
            f"{use.model} is a model of {record.method}, to which {reason}, expected one of all "
            f"cells for {use.function}{as_plain}"
        )


def _check_block(use: ModelUse, record: FitRecord) -> None:
    """Refuse the model of one of several coupled blocks, whose factors other data determine too."""
    if record.method != "coupled_parafac" or use.takes_blocks:
        return
    hint = ""
    if "coupled" in use.kinds:
        hint = f": pass the CoupledCP, and {use.data} as [(data, names of its modes)]"
    raise ValueError(
        f"{use.model} is the model of one block of coupled_parafac, expected one that was fitted "
        f"alone for {use.function}{hint}"
    )


def _check_shape(use: ModelUse, model: Any, kind: str, x: Any, mode: int | None) -> None:
    """Refuse data of another shape than the model's, but for the rows of `mode`."""
    if kind in ("PARAFAC2", "coupled"):
        return  # whose data are no single tensor
    expected = tuple(factor.shape[0] for factor in _list_factors(model))
    shape = tuple(x.shape)
    if len(shape) == len(expected):
        are_alike = [n == mode or size == expected[n] for n, size in enumerate(shape)]
        if all(are_alike):
            return
    exception = ""
    if mode is not None:
        exception = f", but for mode {mode}"
    hint = ""
    if isinstance(x, LabelledTensor) or isinstance(getattr(model, "labels", None), Labels):
        hint = f": make {use.data} with from_dataframe(..., labels={use.model}.labels)"
    raise ValueError(
        f"{use.data} has shape {shape}, expected {expected}, that of {use.model}{exception}{hint}"
    )


def _list_factors(model: Any) -> list[Any]:
    """Return the factors of a CP or Tucker model, TensorLy's or of pyttb."""
    if hasattr(model, "factor_matrices"):  # a ktensor of pyttb
        return list(model.factor_matrices)
    return list(model[1])


def check_guess(function: str, init: Any, shape: Sequence[int]) -> None:
    """Refuse a model of another kind than a decomposition may begin at, or of another shape.

    A checkpoint is checked where it is restored, and the slices of PARAFAC2 may have other rows.
    """
    if not _is_model(init) or isinstance(init, Resumed) or function not in _GUESSES:
        return
    kind = find_kind(init)
    expected = _GUESSES[function]
    if kind not in expected:
        raise ValueError(
            f"init is a {type(init).__name__}, a {kind} model, expected a model of kind "
            f"{' or '.join(expected)} for {function}"
        )
    if function == "parafac2":
        return
    factors = init[1]
    if len(factors) != len(shape):
        raise ValueError(f"init has {len(factors)} factors, expected {len(shape)}, one a mode")
    for n, (factor, size) in enumerate(zip(factors, shape, strict=True)):
        if factor.shape[0] != size:
            raise ValueError(
                f"factors[{n}] of init has shape {tuple(factor.shape)}, expected {size} rows, as "
                f"tensor has in mode {n}"
            )


def _is_model(init: Any) -> bool:
    """Return whether a guess is a model: TensorLy's, ours of coupled tensors, or a pair."""
    if isinstance(init, FactorizedTensor) or hasattr(init, "cp_tensors"):
        return True
    if not isinstance(init, tuple | list) or len(init) != 2:
        return False
    return isinstance(init[1], tuple | list)  # else it is a list of two factors


def match_guess(init: Any, x: LabelledTensor) -> Any:
    """Return a guess in the sequence of a tensor's labels, if it has labels itself.

    Rows go to their labels; a ValueError refuses other labels, and other names of modes. The rows
    of the slices of PARAFAC2, in mode 1, are no part of a guess.
    """
    labels = getattr(init, "labels", None)
    if not isinstance(labels, Labels) or not isinstance(init, FactorizedTensor):
        return init
    has_slices = isinstance(init, Parafac2Tensor)
    factors = list(init.factors)
    projections = list(getattr(init, "projections", []))
    matched_labels = Labels(dict(x.labels))  # the tensor's, but in the guess's sequence
    for n, name in enumerate(x.labels):
        if n >= len(labels) or (has_slices and n == 1):
            continue
        guess_labels = [*labels.values()][n]
        rows = _find_rows(x.labels[name], guess_labels)
        if rows is None:
            continue
        factors[n] = factors[n][array_module(factors[n]).asarray(rows)]
        matched_labels[name] = guess_labels
        if has_slices and n == 0:
            projections = [projections[row] for row in rows]
    skip = 1 if has_slices else None
    matched = LabelledTensor(x.tensor, matched_labels)
    check_same_labels(matched, init, skip, names=("tensor", "init"))
    if has_slices:
        return Parafac2Tensor((init.weights, factors, projections))
    if isinstance(init, CPTensor):
        return attach(CPTensor((init.weights, factors)), find_record(init))
    return attach(TuckerTensor((init.core, factors)), find_record(init))


def _find_rows(wanted: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
    """Return where the wanted labels are; None if they are where they are, or not the same ones."""
    if labels.shape != wanted.shape or np.array_equal(labels, wanted):
        return None
    places = find_places(wanted, labels)
    if (places < 0).any():
        return None
    return places


def choose_mask(
    record: FitRecord, x: Any, mask: Any, mode: int | None = None, *, has_same_rows: bool = True
) -> Any:
    """Return the mask of the missing cells of data beside a model; None if all are known.

    They are those of the call's mask and those that the data know as unknown. Without either it is
    the mask of the model: of this only what holds for all rows of `mode`, if the rows are others. A
    mask of single old rows says nothing about new ones: it is refused.
    """
    unknown = find_unknown(x)
    if mask is not None or unknown is not None:
        return unite_masks(mask, unknown, x.shape)
    if record.mask is None or mode is None or has_same_rows:
        return record.mask
    if not isinstance(record.mask, list) and record.mask.shape[mode] == 1:
        return record.mask  # it marks whole fibres along `mode`: in new rows too
    raise ValueError(
        "mask is not given, expected the missing cells of x_new: the model was fitted with a mask "
        f"of single rows of mode {mode}, which says nothing about new ones. Pass a mask of the "
        f"shape of x_new, or numpy.ones({(1,) * len(x.shape)}) if all its cells are known; for a "
        "table, missing= as from_dataframe takes it"
    )
