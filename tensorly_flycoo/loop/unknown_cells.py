"""How decompositions treat the unknown cells that a tensor knows.

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
from .masks import mask_slices, unite_masks

#: A mask lists at most so many cells: each costs an iteration as much as a nonzero.
_MOST_LISTED = 2**22

#: Decompositions to which all cells without a row are unknown, with these options.
_FIT_ROWS_ONLY = {"observed_parafac": {}, "generalized_parafac": {"loss": "zero_truncated_poisson"}}


def obey_unknown(
    x: Any, function: str, parameters: Collection[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options by which a decomposition takes the unknown cells of `x` as unknown.

    `parameters` are the names of all its parameters. Cells that a mask among the options marks are
    missing too. Raises a ValueError for a decomposition that takes no unknown cells.
    """
    options = dict(options)
    if not isinstance(x, LabelledTensor) or x.unknown is None:
        return options
    unknown = x.unknown
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
    option = options.get("mask")
    if function == "parafac2":
        num_slices, *slice_shape = x.shape
        mask = _unite_slices(mask_slices(mask, num_slices), option, slice_shape)
    elif option is not None:
        mask = unite_masks(mask, option, x.shape)
    return options | {"mask": mask}


def _unite_slices(masks: list[Any], option: Any, shape: Sequence[int]) -> list[Any]:
    """Unite the masks of slices with those of an option, if there is one."""
    if option is None:
        return masks
    united_masks = []
    for mask, mask_of_option in zip(masks, option, strict=True):
        united = unite_masks(mask, mask_of_option, shape)
        # PARAFAC2 needs a mask for each slice, also for one without missing cells.
        if united is None:
            united = mask
        united_masks.append(united)
    return united_masks


def find_unknown(x: Any) -> Any:
    """Return the mask of the cells that a tensor knows as unknown, None without any."""
    unknown = getattr(x, "unknown", None)
    if isinstance(unknown, str):
        return list_unknown(x)
    return unknown


def forget_unknown(x: Any) -> Any:
    """Return a tensor whose unknown cells are now in a mask, with its labels."""
    if isinstance(x, LabelledTensor):
        return x._replace(unknown=None)
    return x


def _fits_rows_only(function: str, options: Mapping[str, Any]) -> bool:
    """Say whether a decomposition, with these options, fits the cells with a row alone."""
    if function not in _FIT_ROWS_ONLY:
        return False
    needed = _FIT_ROWS_ONLY[function]
    return all(options.get(name) == value for name, value in needed.items())


def _check_all_unknown(unknown: Any, function: str, options: Mapping[str, Any]) -> None:
    """Refuse a tensor only some of whose absent cells are unknown, and the option `unobserved`."""
    all_are_unknown = isinstance(unknown, str)  # else it is a mask of some
    if not all_are_unknown:
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
    coords, _ = plain._sorted_nonzeros()
    is_unknown = np.ones(plain.shape, bool)
    is_unknown[tuple(move(coords, np))] = False
    return make_mask(np.stack(is_unknown.nonzero()), plain.shape)
