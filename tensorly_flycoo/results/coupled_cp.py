"""The CP models of tensors and matrices that share factors."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array, array_module, move
from ..base.checks import require
from ..base.fit_record import ABSENT, FitRecord, attach
from ..io import array_file
from ..loop.coupled_blocks import join_labels
from ..tensor.labelled import Labels, take_labels
from .fold_in import FoldInOptions, find_coupled_rows
from .labelled_factors import NEED_PANDAS, LabelledFactors
from .labelled_models import LabelledCP

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(eq=False, repr=False)
class CoupledCP:
    """CP models of several tensors and matrices that share factors.

    The columns of the factors have norm 1; the weights of a block say how much of each component is
    in it. Components are sorted by the norm of their weights over all blocks, each times the root
    of its `block_weights`. In each column the element of largest magnitude is positive, except
    in the last mode that only one block has and that may be negative: its signs make the weights
    of that block positive. Weights of a block without such a mode may be negative.

    Attributes
    ----------
    factors : dict of str to array (I, R)
    cp_tensors : list of CPTensor
        The model of each block, of these factors. That of a block with labels is a `LabelledCP`,
        whose components are in the order above.
    labels : dict of str to numpy.ndarray (I,)
        What the rows of the factors stand for, in modes with labels.
    errors, block_errors : list of float
        The relative error of all blocks after each iteration; that of each block after the last.
    blocks : list of tuple
        The names of the modes of each block, in the order of its axes.
    flycoo : FitRecord
        How the model was made.
    block_weights : list of float
        As given to `coupled_parafac`; empty if the file of the model is of an older release.
    absent : list of {"zero", "unknown"}
        What a cell without a row is in each block; zeros if not given.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo.decomposition import coupled_parafac
    >>> coupled_parafac([(np.ones((4, 3)), ("user", "item")), (np.eye(4), ("user", "tag"))], 1)
    <CoupledCP of rank 1: user (4), item (3), tag (4); 2 blocks>
    """

    factors: dict[Any, Array]
    cp_tensors: list[CPTensor]
    labels: Labels = field(default_factory=lambda: Labels({}))
    errors: list[float] = field(default_factory=list)
    block_errors: list[float] = field(default_factory=list)
    blocks: list[tuple] = field(default_factory=list)
    block_weights: list[float] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    flycoo: FitRecord | None = None

    def __post_init__(self) -> None:
        self.absent = _list_absent(self.absent, len(self.blocks))

    @property
    def rank(self) -> int:
        return len(self.cp_tensors[0].weights)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name} ({len(factor)})" for name, factor in self.factors.items())
        return (
            f"<{type(self).__name__} of rank {self.rank}: {listed}; {len(self.cp_tensors)} blocks>"
        )


class LabelledCoupledCP(CoupledCP, LabelledFactors):
    """A CoupledCP with a label for each row of its factors.

    `coupled_parafac` of blocks with labels returns it. It has the tables, pictures and files of a
    `LabelledCP`, of all modes at once; its `weights` (number of blocks, R) are those of all blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorly_flycoo.decomposition import coupled_parafac
    >>> sold = np.array([[6.0, 8.0], [3.0, 4.0]]), {"shop": ["a", "b"], "item": ["tea", "milk"]}
    >>> size = np.array([[2.0], [1.0]]), {"shop": ["a", "b"], "what": ["size"]}
    >>> model = coupled_parafac([sold, size], 1, random_state=0)
    >>> [list(component) for component in model.top("item", 1)]
    [['milk']]
    """

    _kind = array_file.COUPLED

    @property
    def weights(self) -> Array:
        """The weights of all blocks: (number of blocks, R)."""
        weights = [cp_tensor.weights for cp_tensor in self.cp_tensors]
        return array_module(weights[0]).stack(weights)

    def transform(
        self,
        blocks: Iterable[Any],
        mode: str | int,
        *,
        non_negative: bool | None = None,
        l2_reg: float | None = None,
    ) -> "DataFrame":
        """Compute the factor rows of new labels of one mode, such as new users; see `fold_in`.

        Parameters
        ----------
        blocks : sequence of (data, modes)
            New data of some blocks, as for `coupled_parafac`, with new labels in `mode`: of a new
            user perhaps the attributes alone.
        mode : str or int
        non_negative, l2_reg
            As for `fold_in`: by default, as the model was made.

        Returns
        -------
        pandas.DataFrame
            A row for each new label, with a column for each component. Needs pandas.

        Raises
        ------
        TypeError, ValueError
            As of `fold_in`; and if the blocks have no labels of `mode`.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorly_flycoo.decomposition import coupled_parafac
        >>> sold = np.array([[6.0, 8.0], [3.0, 4.0]]), {"shop": ["a", "b"], "item": ["tea", "milk"]}
        >>> size = np.array([[2.0], [1.0]]), {"shop": ["a", "b"], "what": ["size"]}
        >>> model = coupled_parafac([sold, size], 1, random_state=0)
        >>> new = np.array([[4.0]]), {"shop": ["c"], "what": ["size"]}
        >>> rows = model.transform([new], "shop")
        >>> bool(np.isclose(rows.loc["c", 0], 2 * model.factors["shop"][0, 0]))
        True
        """
        pandas = require("pandas", NEED_PANDAS)
        mode = self.names[self._find_mode(mode)]
        rows, labels = self._find_rows(blocks, mode, non_negative, l2_reg)
        return pandas.DataFrame(move(rows, np), pandas.Index(labels, name=mode), self.components)

    def extend(
        self,
        blocks: Iterable[Any],
        mode: str | int,
        *,
        non_negative: bool | None = None,
        l2_reg: float | None = None,
    ) -> Self:
        """Return a model that has the rows of new labels too, so that it predicts for them.

        The old rows, the weights and all other factors keep their numbers, so columns of `mode` no
        longer have norm 1. The models of all blocks that have `mode` know the new labels, whichever
        blocks were given: `recommend` films whose genres alone are known.

        Parameters
        ----------
        blocks, mode, non_negative, l2_reg
            As for `transform`. The labels of `mode` must be new.

        Returns
        -------
        LabelledCoupledCP
            With the labels of `mode`, then the new ones.

        Raises
        ------
        TypeError, ValueError
            As of `transform`; and if one of the labels is in the model already.

        Examples
        --------
        >>> import numpy as np
        >>> from tensorly_flycoo import recommend
        >>> from tensorly_flycoo.decomposition import coupled_parafac
        >>> sold = np.array([[6.0, 8.0], [3.0, 4.0]]), {"shop": ["a", "b"], "item": ["tea", "milk"]}
        >>> size = np.array([[2.0], [1.0]]), {"shop": ["a", "b"], "what": ["size"]}
        >>> model = coupled_parafac([sold, size], 1, random_state=0)
        >>> new = np.array([[4.0]]), {"shop": ["c"], "what": ["size"]}
        >>> longer = model.extend([new], "shop")
        >>> (of_c,) = recommend(longer.cp_tensors[0], "shop", ["c"], 1)
        >>> {item: round(sales, 6) for item, sales in of_c.items()}
        {'milk': 16.0}
        """
        name = self.names[self._find_mode(mode)]
        new_rows, new_labels = self._find_rows(blocks, name, non_negative, l2_reg)
        old_labels = self.labels[name]
        all_labels, (_, places) = join_labels([old_labels, new_labels])
        is_old = places < len(old_labels)
        if is_old.any():
            label = take_labels(new_labels, is_old)[0]
            raise ValueError(
                f"blocks have the label {label!r} of mode {name!r}, expected labels that are new"
            )
        rows = array_module(new_rows).concatenate([self.factors[name], new_rows])
        factors = self.factors | {name: rows}
        labels = Labels(self.labels | {name: all_labels}, self.labels.ordered)
        cp_tensors = make_cp_tensors(factors, self.blocks, self.weights, labels, self.absent)
        return dataclasses.replace(self, factors=factors, labels=labels, cp_tensors=cp_tensors)

    def _find_rows(
        self, blocks: Iterable[Any], mode: str, non_negative: bool | None, l2_reg: float | None
    ) -> tuple[Array, np.ndarray]:
        """Find the rows of new labels of a mode; refuse blocks without labels."""
        options = FoldInOptions(l2_reg=l2_reg, non_negative=non_negative)
        rows, labels = find_coupled_rows(self, blocks, mode, options)
        if labels is None:
            raise ValueError(f"blocks have no labels of mode {mode!r}, expected some: pass fold_in")
        return rows, labels

    def _list_factors(self) -> list[Array]:
        return [*self.factors.values()]

    def _describe(self) -> array_file.Header:
        return {
            "blocks": [cp_tensor.names for cp_tensor in self.cp_tensors],
            "errors": [[*map(float, of)] for of in (self.errors, self.block_errors)],
            "block_weights": [*map(float, self.block_weights)],
            "absent": [*self.absent],
        }

    @classmethod
    def _restore(cls, model: tuple, labels: Labels, header: array_file.Header) -> Self:
        """Make a model of what `load` has read; refuse a file that no model wrote."""
        weights, arrays = model
        blocks = header["blocks"]
        errors, block_errors = header["errors"]
        # Older files have neither.
        block_weights = header.get("block_weights", [])
        absent = _list_absent(header.get("absent", []), len(blocks))
        labels.check([len(factor) for factor in arrays])
        ranks = {factor.shape[1] for factor in arrays}
        if weights.shape != (len(blocks), *ranks):
            raise ValueError(f"its weights have shape {weights.shape}")
        if not all(type(error) is float for error in [*errors, *block_errors]):
            raise ValueError("its errors are not all numbers")
        if not all(type(weight) is float and 0 < weight < math.inf for weight in block_weights):
            raise ValueError("its block_weights are not all numbers above 0")
        if len(block_weights) not in (0, len(blocks)):
            raise ValueError(f"it has {len(block_weights)} block_weights, of {len(blocks)} blocks")
        if len(absent) != len(blocks) or not {*absent} <= {*ABSENT}:
            raise ValueError(f"it has {absent} for cells without a row, of {len(blocks)} blocks")
        factors = dict(zip(labels, arrays, strict=True))
        return cls(
            factors,
            make_cp_tensors(factors, blocks, weights, labels, absent),
            labels,
            errors=errors,
            block_errors=block_errors,
            blocks=[tuple(names) for names in blocks],
            block_weights=block_weights,
            absent=absent,
        )


def _list_absent(absent: list[str], num_blocks: int) -> list[str]:
    """Return the kind of cells without a row of each block: zeros if none is given."""
    return absent or ["zero"] * num_blocks


def make_cp_tensors(
    factors: Mapping[Any, Array],
    blocks: Iterable[Any],
    weights: Iterable[Array],
    labels: Labels,
    absent: Iterable[str],
) -> list[CPTensor]:
    """Make the model of each block of its modes' names, its weights and its cells without a row."""
    cp_tensors = []
    for names, weights_of_block, absent_of_block in zip(blocks, weights, absent, strict=True):
        record = FitRecord(method="coupled_parafac", absent=absent_of_block)
        factors_of_block = [factors[name] for name in names]
        if {*names} <= {*labels}:
            labels_of_block = Labels({name: labels[name] for name in names}, labels.ordered)
            # The constructor would sort components by the weights of this block alone.
            cp_tensor = LabelledCP._from_parts(weights_of_block, factors_of_block, labels_of_block)
        else:
            cp_tensor = CPTensor((weights_of_block, factors_of_block))
        cp_tensors.append(attach(cp_tensor, record))
    return cp_tensors
