"""The CP models of tensors and matrices that share factors."""

from dataclasses import dataclass, field
from typing import Any

from tensorly.cp_tensor import CPTensor

from ..base.array_modules import Array
from ..tensor.labelled import Labels


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

    @property
    def rank(self) -> int:
        return len(self.cp_tensors[0].weights)

    def __repr__(self) -> str:
        listed = ", ".join(f"{name} ({len(factor)})" for name, factor in self.factors.items())
        return f"<CoupledCP of rank {self.rank}: {listed}; {len(self.cp_tensors)} blocks>"
