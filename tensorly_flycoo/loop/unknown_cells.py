"""A tensor that knows its unknown cells: what a decomposition has to make of them.

`LabelledTensor.unknown` says what a cell without a row is: a zero (None), unknown ("all"), or
unknown where a mask says so. Each decomposition obeys it without a further argument, or is refused.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.array_modules import move
from ..base.checks import num_cells
from ..tensor.coo_cache import as_flycoo
from ..tensor.labelled import LabelledTensor
from ..tensor.unknown import make_mask
from .masks import unite_masks

#: A mask lists at most so many cells: each costs an iteration as much as a nonzero.
_MOST_LISTED = 2**22

#: Decompositions to which all cells without a row are unknown, with these options.
_FIT_ROWS_ONLY = {"observed_parafac": {}, "generalized_parafac": {"loss": "zero_truncated_poisson"}}


def obey_unknown(
    x: Any, function: str, parameters: Collection[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options by which a decomposition takes the unknown cells of `x` as unknown.

    `parameters` are all that it has. Those that a mask among the options marks are missing too. A
    ValueError refuses a decomposition that cannot.
    """
    unknown = x.unknown if isinstance(x, LabelledTensor) else None
    options = dict(options)
    if unknown is None:
        return options
    if _fits_rows_only(function, options):
        _check_all_unknown(unknown, function, options)
        return options
    if "mask" not in parameters:
        raise ValueError(
            f"tensor has unknown cells, which {function} would take for zeros: expected a "
            "decomposition that takes a mask, such as parafac, or observed_parafac; or pass "
            "x.tensor if they are zeros"
        )
    mask = find_unknown(x)
    given = options.get("mask")
    if function == "parafac2":
        mask = mask_slices(mask, x.shape[0])
        if given is not None:
            pairs = zip(mask, given, strict=True)
            mask = [_unite_of_slice(*pair, x.shape[1:]) for pair in pairs]
    elif given is not None:
        mask = unite_masks(mask, given, x.shape)
    return options | {"mask": mask}


def _unite_of_slice(own: Any, given: Any, shape: Sequence[int]) -> Any:
    """Return the mask of what either of two masks of a slice marks; one is needed for each."""
    united = unite_masks(own, given, shape)
    return own if united is None else united


def find_unknown(x: Any) -> Any:
    """Return the mask of the cells that a tensor knows as unknown, None without any."""
    unknown = getattr(x, "unknown", None)
    return list_unknown(x) if isinstance(unknown, str) else unknown


def forget_unknown(x: Any) -> Any:
    """Return a tensor whose unknown cells are now in a mask, with its labels."""
    return x._replace(unknown=None) if isinstance(x, LabelledTensor) else x


def mask_slices(mask: Any, num_slices: int) -> list[Any]:
    """Return a mask for each slice of a tensor of three modes."""
    return [mask[min(number, mask.shape[0] - 1)] for number in range(num_slices)]


def _fits_rows_only(function: str, options: Mapping[str, Any]) -> bool:
    needed = _FIT_ROWS_ONLY.get(function)
    return needed is not None and all(options.get(name) == needed[name] for name in needed)


def _check_all_unknown(unknown: Any, function: str, options: Mapping[str, Any]) -> None:
    """Refuse data of which only some absent cells are unknown, or a weight for all of them."""
    if not isinstance(unknown, str):
        raise ValueError(
            f"tensor knows that cells without a row are zeros, but for some blocks; {function} "
            'would take all of them as unknown: make it with missing="unknown", or call parafac'
        )
    if options.get("unobserved"):
        raise ValueError(
            f"unobserved is {options['unobserved']}, expected 0: cells without a row of this "
            "tensor are unknown, not zeros; pass x.tensor to weight them as zeros"
        )


def list_unknown(x: LabelledTensor) -> Any:
    """Return a mask that lists all cells without a row; refuse if there are too many of them."""
    plain = as_flycoo(x)
    count = num_cells(plain.shape) - plain.nnz
    if count > max(_MOST_LISTED, 4 * plain.nnz):
        raise ValueError(
            f"tensor has {count:,} unknown cells, too many to list for a mask: expected "
            "observed_parafac, which fits the cells with a row alone"
        )
    is_unknown = np.ones(plain.shape, bool)
    is_unknown[tuple(move(plain._sorted_nonzeros()[0], np))] = False
    return make_mask(np.stack(is_unknown.nonzero()), plain.shape)
