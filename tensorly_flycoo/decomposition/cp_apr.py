"""CP-APR: alternating Poisson regression by multiplicative updates, several per mode."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..base.array_modules import Array
from ..engines.tall_skinny import sum_rows
from .masks import ObservedData
from .poisson import divide_counts, evaluate_loss, find_scales

#: The most inner steps of a mode, what is added to an inadmissible zero, and what counts as zero;
#: smaller values of the model divide as the latter.
_INNER_STEPS, _KAPPA, _ZERO = 10, 1e-2, 1e-10


class CpApr:
    """Chi and Kolda's CP-APR, with their parameters.

    The columns of all factors have sum 1, the weights hold the sums. A zero is inadmissible if the
    loss would decrease with it: the next sweep adds a small number to it. A mode has converged if
    ``max |min(factor, 1 - phi)|``, the violation of the Karush-Kuhn-Tucker conditions, is below
    `tol`; `has_converged` says whether all modes had at the beginning of the last sweep.
    """

    def __init__(
        self,
        data: ObservedData,
        modes: list[int],
        tol: float,
        wants_losses: bool,
        state: Mapping[str, Array],
    ) -> None:
        self._data, self._modes, self._tol = data, modes, tol
        self._wants_losses = wants_losses
        self.has_converged = bool(state.get("has_converged", False))
        self._zeros: dict[int, Array] = {
            n: data.xp.asarray(state[f"zeros_{n}"]) for n in modes if f"zeros_{n}" in state
        }

    def save_state(self) -> dict[str, Array]:
        """Return what a resumed run needs besides the model."""
        zeros = {f"zeros_{n}": is_zero for n, is_zero in self._zeros.items()}
        return {"has_converged": np.asarray(self.has_converged), **zeros}

    def __call__(
        self, iteration: int, weights: Array, factors: list[Array], errors: list[float]
    ) -> tuple[Array, list[Array], float | None]:
        self.has_converged = True
        for mode in self._modes:
            if mode in self._zeros:
                is_zero = self._zeros.pop(mode)
                factors[mode] = factors[mode] + _KAPPA * is_zero.astype(weights.dtype)
            rows, phi = self._solve(factors, factors[mode] * weights, mode)
            weights, factors[mode] = normalize_columns(rows)
            is_inadmissible = (factors[mode] < _ZERO) & (phi > 1)
            if is_inadmissible.any():
                self._zeros[mode] = is_inadmissible
        loss = evaluate_loss(self._data, weights, factors) if self._wants_losses else None
        return weights, factors, loss

    def _solve(self, factors: list[Array], rows: Array, mode: int) -> tuple[Array, Array]:
        """Improve the rows of a mode, which are times the weights; return the last phi too."""
        xp, inputs = self._data.xp, list(factors)
        sums = xp.ones((len(factors), rows.shape[1]))
        scales = find_scales(self._data, factors, sums, mode)
        for _ in range(_INNER_STEPS):
            inputs[mode] = rows
            phi, _ = divide_counts(self._data, inputs, mode, smallest=_ZERO, stays=True)
            phi *= scales
            if float(abs(xp.minimum(rows, 1 - phi)).max()) < self._tol:
                break
            self.has_converged = False
            rows = rows * phi
        return rows, phi


def normalize_columns(factor: Array) -> tuple[Array, Array]:
    """Return the sums of a non-negative factor's columns, and the factor divided by them."""
    sums = sum_rows(factor)
    return sums, factor / np.where(sums > 0, sums, np.ones_like(sums))


def spread_sums(
    weights: Array | None, factors: list[Array], modes: Sequence[int]
) -> tuple[Array, list[Array]]:
    """Move the column sums of the factors of `modes` into the weights."""
    factors = list(factors)
    total = np.ones_like(factors[0][0]) if weights is None else weights
    for n in modes:
        sums, factors[n] = normalize_columns(factors[n])
        total = total * sums
    return total, factors
