"""Updates of a factor that are separable by rows: what `Engine.update_rows` computes.

With the other factors fixed, the best factor solves one small problem for each of its rows. So a
kernel can read a row once, take all steps towards its solution, and write it once.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


class Method(enum.IntEnum):
    """How a step changes a row; the numbers are those of the CUDA kernels."""

    MULTIPLY = 0  # multiplicative updates
    HALS = 1  # hierarchical alternating least squares: one element after the other
    ADMM = 2  # the alternating direction method of multipliers


class Operator(enum.IntEnum):
    """The proximal operators of a single row; the numbers are those of the CUDA kernels."""

    NONE = 0
    NON_NEGATIVE = 1  # negative elements become 0
    L1 = 2  # elements move towards 0 by the strength, and no further
    L2_SQUARE = 3  # the row is divided by ``1 + 2 * strength``
    GROUP_LASSO = 4  # the row is shortened by the strength, to no less than 0


#: The numbers that a step measures, each added up over all rows.
NUM_MEASURES = {Method.MULTIPLY: 0, Method.HALS: 2, Method.ADMM: 4}


#: Returns what each step of an update measured that was needed; called once. The host may wait.
ReadMeasures: TypeAlias = Callable[[], list[list[float]]]


@dataclass(frozen=True)
class RowRule:
    r"""One kind of update, for all rows alike.

    In each formula x is a row of the factor, m its row of the MTTKRP and G the Gram matrix.

    `MULTIPLY`
        :math:`x_k \leftarrow x_k \max(m_k, s) / \max((x G)_k, s)` with the strength s.
    `HALS`
        :math:`x_k \leftarrow \max(0, (m_k - s - \sum_{j \ne k} G_{kj} x_j) / G_{kk})` for each k in
        turn, with the strength s, unless :math:`G_{kk} = 0`. Measures the sum of
        :math:`(x_j - x_k)^2`, for all k and j, of each new :math:`x_k` from the row before it was
        written there; and the number of elements that changed.
    `ADMM`
        With a scaled dual variable d, a penalty p and :math:`P = (G + p I)^{-1}`:
        :math:`y \leftarrow (m + p (x + d)) P`, x' the proximal operator of :math:`y - d`, and
        :math:`d \leftarrow d + x' - y`. Measures the squared norms of :math:`x' - y`, of x', of
        :math:`x' - x` and of d. Where a step has a level, x' is that number in all elements.
    """

    method: Method
    operator: Operator = Operator.NONE  # of ADMM
    strength: float = 0.0
    levels: tuple[float, ...] = ()  # of ADMM, by steps, nan for none: from `spread.levels`
