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

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ..base.array_modules import Array, move
from ..engines.tall import transposed_product
from .cp_model import multiply_all

#: Values of `linesearch=`: for Gauss-Newton steps, and for these where they pay.
GAUSS_NEWTON = "gauss-newton"
AUTO = "auto"

#: The first damping, relative to the diagonals of the :math:`\Gamma_n`, and the largest; the least
#: is the root of the rounding, which it keeps from scaling columns that no other damping holds.
_DAMPING = 1e-2
_MAX_DAMPING = 1e2

#: A step that lowers the error divides the damping by this number, another one multiplies it.
_EASE = 3
_BRAKE = 10

#: The roundings by which the square of a loss may rise in a step.
SLACK = 8

#: Conjugate gradients end at this part of the first residual, or after so many iterations.
_SHARE_LEFT = 0.1
_MAX_CG = 30


class Damping:
    """How strongly steps are damped: less after each that lowers the loss, more after another.

    >>> damping = Damping(eps=1e-16)
    >>> damping.brake()
    >>> damping.strength, damping.may_help
    (0.1, True)
    """

    def __init__(self, eps: float, strength: float = _DAMPING) -> None:
        self.strength = strength
        self._least = eps**0.5

    @property
    def may_help(self) -> bool:
        """Whether a step with this damping may lower the loss, where one with less has not."""
        return self.strength < _MAX_DAMPING

    def ease(self) -> None:
        self.strength = max(self.strength / _EASE, self._least)

    def brake(self) -> None:
        self.strength *= _BRAKE


def multiply_pairs(left: Sequence[Array], right: Sequence[Array]) -> list[np.ndarray]:
    """Return a^T b of each pair, on the host, and in float64: of them differences are taken."""
    products = []
    for a, b in zip(left, right, strict=True):
        exact_a = a.astype(np.float64, copy=False)
        exact_b = exact_a if b is a else b.astype(np.float64, copy=False)
        products.append(transposed_product(exact_a, exact_b))
    return [move(product, np) for product in products]  # the host waits for a GPU, once


def is_step_cheap(nnz: int, rank: int) -> bool:
    """Return whether the conjugate gradients of a step cost less than half a sweep."""
    return nnz >= 4 * _MAX_CG * rank**2


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
    identity = np.eye(grams.shape[1])
    pairs, products = _multiply_others(grams)
    products += ridge * identity
    diagonals = products.diagonal(axis1=1, axis2=2)[:, None]
    damped = np.where(diagonals > 0, damping * diagonals, 1) * identity
    inverse = np.linalg.inv(products + damped)
    inverse[[n not in modes for n in range(ndim)]] = 0  # so their V_n is

    def couple(steps: np.ndarray) -> np.ndarray:
        """Return the S_n of A_n^T V_n."""
        return np.einsum("npij,pji->nij", pairs, steps)

    # S + couple(A^T A S P) = couple(A^T (M - A Gamma) P), P the inverse, is symmetric and positive
    # definite for the inner product <S, A^T A S P>. So each S has its image A^T A S P beside it:
    # (search, image) of the direction, and (residual, its image) of the gradient.
    direction = np.zeros((2, *grams.shape))
    gradient = np.zeros((2, *grams.shape))
    search, image = direction
    residual, residual_image = gradient
    for n, product in inner.items():
        residual_image[n] = (product - grams[n] @ products[n]) @ inverse[n]
    residual[:] = couple(residual_image)
    coupled = np.zeros_like(grams)
    limit = 0.0
    before = np.inf
    for _ in range(_MAX_CG):
        residual_image[:] = grams @ residual @ inverse
        square = np.vdot(residual, residual_image)
        limit = limit or _SHARE_LEFT**2 * square
        if not square > limit:
            break
        # Both the search direction and its image.
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


def _multiply_others(grams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the products of all Gram matrices but two, :math:`\Gamma_{np}`, and but one."""
    ndim = len(grams)
    pairs = np.zeros((ndim, *grams.shape))
    products = np.empty_like(grams)
    for n, p in itertools.combinations(range(ndim), 2):
        rest = [grams[m] for m in range(ndim) if m not in (n, p)]
        pair = multiply_all(rest) if rest else np.ones_like(grams[n])
        pairs[n, p] = pair
        pairs[p, n] = pair
        products[n] = pair * grams[p]
        products[p] = pair * grams[n]
    return pairs, products
