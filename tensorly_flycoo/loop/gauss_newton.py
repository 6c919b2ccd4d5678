r"""Damped Gauss-Newton steps of a CP model, which change all factors at once.

With factors :math:`A_n`, MTTKRPs :math:`M_n`, products :math:`\Gamma_n` of the Gram matrices of all
modes but n, :math:`\Gamma_{np}` of all but n and p, and damping :math:`D_n`, a step V solves

.. math:: V_n (\Gamma_n + D_n) + A_n S_n = M_n - A_n \Gamma_n, \qquad
    S_n = \sum_{p \ne n} \Gamma_{np} * (V_p^T A_p).

So all factors meet in the small :math:`S_n`, and the new ones are :math:`(M_n + A_n (D_n - S_n))
(\Gamma_n + D_n)^{-1}`. Conjugate gradients for the :math:`S_n` need of the long matrices only the
:math:`A_n^T A_n` and :math:`A_n^T M_n`: an iteration multiplies matrices (R, R), on the host and in
float64, however long the factors are.
"""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.array_modules import Array, move
from ..engines.tall import call_lapack, inner_product, multiply, transposed_product
from .cp_model import multiply_all
from .momentum import MomentumRun

#: What `linesearch=` is called for the steps, and for the rule that takes them where they pay.
GAUSS_NEWTON = "gauss-newton"
AUTO = "auto"

#: `GAUSS_NEWTON` begins with so many iterations of momentum: far away, the steps' model is poor.
_NUM_FIRST = 5

#: `AUTO`: momentum crawls if so many iterations raise the fit by less than this part of it.
_WINDOW = 5
_CRAWL = 2.5e-3

#: The first damping, relative to the diagonals of the :math:`\Gamma_n`, and the largest; the least
#: is the root of the rounding, which it keeps from scaling columns that no other damping holds.
_DAMPING = 1e-2
_MAX_DAMPING = 1e2

#: A step that lowers the error divides the damping by this number, another one multiplies it.
_EASE = 3
_BRAKE = 10

#: Conjugate gradients end at this part of the first residual, or after so many iterations.
_SHARE_LEFT = 0.1
_MAX_CG = 30


def find_step(
    grams: np.ndarray,
    inner: Mapping[int, np.ndarray],
    modes: Sequence[int],
    damping: float,
    ridge: float = 0,
) -> np.ndarray:
    r"""Return the matrices X, Y of a step, after which factors are ``M_n @ X[n] + A_n @ Y[n]``.

    All are (ndim, R, R): `grams` are the ``A_n.T @ A_n``. `inner` are the ``A_n.T @ M_n`` of modes
    whose factors are not the best ones for the others yet. Factors of other modes than `modes`
    stay. `ridge` is added to the diagonals of the :math:`\Gamma_n`.
    """
    ndim = len(grams)
    pairs = np.zeros((ndim, *grams.shape))
    products = np.empty_like(grams)
    for n, p in itertools.combinations(range(ndim), 2):
        others = [grams[m] for m in range(ndim) if m not in (n, p)]
        pairs[n, p] = pairs[p, n] = multiply_all(others) if others else 1
        products[n], products[p] = pairs[n, p] * grams[p], pairs[n, p] * grams[n]
    products += ridge * np.eye(grams.shape[1])
    diagonals = products.diagonal(axis1=1, axis2=2)[:, None]
    damped = np.where(diagonals > 0, damping * diagonals, 1) * np.eye(grams.shape[1])
    inverse = np.linalg.inv(products + damped)
    inverse[[n not in modes for n in range(ndim)]] = 0  # so their V_n is

    def couple(steps: np.ndarray) -> np.ndarray:
        """Return the S_n of A_n^T V_n."""
        return np.einsum("npij,pji->nij", pairs, steps)

    # S + couple(A^T A S P) = couple(A^T (M - A Gamma) P), P the inverse, is symmetric and positive
    # definite for the inner product <S, A^T A S P>.
    (search, image), (residual, found) = direction, gradient = np.zeros((2, 2, *grams.shape))
    for n, product in inner.items():
        found[n] = (product - grams[n] @ products[n]) @ inverse[n]
    residual[:] = couple(found)
    coupled = np.zeros_like(grams)
    limit = 0.0
    before = np.inf
    for _ in range(_MAX_CG):
        found[:] = grams @ residual @ inverse
        square = np.vdot(residual, found)
        limit = limit or _SHARE_LEFT**2 * square
        if not square > limit:
            break
        direction *= square / before
        direction += gradient
        curved = search + couple(image)
        curvature = np.vdot(image, curved)
        if not curvature > 0:  # of rounding
            break
        step = square / curvature
        coupled += step * search
        residual -= step * curved
        before = square
    return np.stack([inverse, (damped - coupled) @ inverse])


@dataclass
class GaussNewtonRun(MomentumRun):
    """A run that, with `second_order`, turns from momentum's iterations to Gauss-Newton steps.

    A step moves all factors but the longest, which then becomes the best one for the others: its
    MTTKRP gives that factor and the error. If the error rises, the step is taken back at the cost
    of that MTTKRP, and tried with more damping. Else the other MTTKRPs follow, for the next step.
    """

    second_order: str = field(default="", kw_only=True)

    def prepare(self) -> None:
        super().prepare()
        self._damping = float(self.state.get("damping", 0))  # 0 before the first step
        if self.second_order and self.weights is not None:  # ones, but for normalised starts
            self.factors[0] = self.factors[0] * self.weights
            self.weights = self.weights**0
        self._grams = np.empty(0)  # of all modes
        if self._damping:
            self._loss = float(self.state["loss"])
            self._grams = np.stack(_find_products(self.factors, self.factors))

    def save_state(self) -> Mapping[str, Array]:
        if not self._damping:
            return super().save_state()
        return {"damping": np.asarray(self._damping), "loss": np.asarray(self._loss)}

    def normalize(self) -> None:
        if not self.second_order:  # whose MTTKRPs are of the factors as they are
            super().normalize()

    def finish(self) -> Any:
        if self.second_order and self.normalize_factors:
            super().normalize()
        return super().finish()

    def step(self, iteration: int) -> Any:
        if self.second_order and not self._damping and self._is_turn():
            self._damping = _DAMPING
            self._before = {}
            _, self._loss, self._grams = self._solve_longest()
        return self._step_all() if self._damping else super().step(iteration)

    @property
    def _longest(self) -> int:
        """The mode whose factor is the best one for the others, before and after each step."""
        return max(self.modes, key=lambda n: self.factors[n].shape[0])

    def _is_turn(self) -> bool:
        """Return whether momentum has done its part."""
        if self.second_order == GAUSS_NEWTON:
            return len(self.errors) >= _NUM_FIRST
        rank = self.factors[0].shape[1]
        past = self.errors[-1 - _WINDOW :]
        if len(past) <= _WINDOW or self.tensor.nnz < 4 * _MAX_CG * rank**2:
            return False  # conjugate gradients would cost more than half a sweep
        return bool(past[0] - past[-1] < _CRAWL * (1 - past[-1]))

    def _step_all(self) -> Any:
        """Change all factors; return the error."""
        longest = self._longest
        start = list(self.factors)
        products = {}
        place = self.modes.index(longest)
        others = self.modes[place + 1 :] + self.modes[:place]  # in which groups share their passes
        for n in others:
            products[n] = self.data.mttkrp(None, start, n)
        moved = _find_products([start[n] for n in others], [products[n] for n in others])
        inner = dict(zip(others, moved, strict=True))
        grams = self._grams
        eps = float(np.finfo(self.tensor.dtype).eps)
        limit = (float(self._loss) ** 2 + 8 * eps) ** 0.5  # a smaller rise is rounding
        while self._damping < _MAX_DAMPING:
            step = call_lapack(find_step, grams, inner, self.modes, self._damping, self.l2_reg)
            x, y = self.tensor._engine.xp.asarray(step.astype(self.tensor.dtype))
            for n in others:
                self.factors[n] = multiply(products[n], x[n])
                self.factors[n] += multiply(start[n], y[n])
            with contextlib.suppress(np.linalg.LinAlgError):  # of a step that overflows
                error, loss, found = self._solve_longest()
                if loss <= limit:
                    self._loss = min(loss, self._loss)
                    self._grams = found
                    self._damping = max(self._damping / _EASE, eps**0.5)
                    return error
            self._damping *= _BRAKE
        self.factors[:] = start
        return self.errors[-1]

    def _solve_longest(self) -> tuple[float, float, np.ndarray]:
        """Make the longest factor the best one; return the error, the loss and the Gram matrices.

        The loss is the error, or with `l2_reg` the root of its square and of the ridge's share.
        """
        product = self.update_mode(self._longest)
        square = float(self.data.norm()) ** 2
        inside = inner_product(product, self.factors[self._longest])
        grams = np.stack(_find_products(self.factors, self.factors))
        residual = abs(square + grams.prod(axis=0).sum() - 2 * float(inside)) / square
        ridge = self.l2_reg * grams.trace(axis1=1, axis2=2).sum() / square
        return float(residual**0.5), float((residual + ridge) ** 0.5), grams


def _find_products(left: Sequence[Array], right: Sequence[Array]) -> list[np.ndarray]:
    """Return a^T b of each pair, on the host, and in float64: of them differences are taken."""
    products = []
    for a, b in zip(left, right, strict=True):
        exact = a.astype(np.float64, copy=False)
        other = exact if b is a else b.astype(np.float64, copy=False)
        products.append(transposed_product(exact, other))
    return [move(product, np) for product in products]  # the host waits for a GPU, once
