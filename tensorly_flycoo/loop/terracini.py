r"""How the components of a CP model change with the data: by Terracini's matrix.

A component is a tensor of rank one, :math:`w \, u_1 \otimes \dots \otimes u_N`, with columns of
norm 1. If the data change by a small E, those of least squares change by :math:`T^+ E`: the columns
of T are orthonormal bases of the tangents of each component, along itself and along the vectors
orthogonal to :math:`u_n` of each mode. One over the least singular value of T is the condition
number of the model (Vannieuwenhoven, "Condition numbers for the tensor rank decomposition", Linear
Algebra and its Applications 535, 2017).

T has :math:`R (1 + \sum (I_n - 1))` columns. Tangents orthogonal to all columns of a factor are
orthogonal to all other tangents, and alike: they need only matrices (R, R). The others are written
in a basis of the factor's columns, at most R vectors: :math:`R (1 + \sum (\min(I_n, R) - 1))`
tangents are left, whose Gram matrix is inverted on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.sparse.linalg import eigsh

from ..engines.tall import eigh, one_blas_thread
from .cp_model import multiply_all

#: Directions in which the columns of a factor are shorter than the root of this are left to the
#: tangents orthogonal to them.
_LEAST_SHARE = 1e-12

#: A Gram matrix of n tangents is exact to rounding, n eps. This many times that is added to its
#: diagonal, and eigenvalues below the second number times that count as zero.
_SHIFT = 10
_SINGULAR = 100

#: Up to this size all eigenvalues of a matrix are computed.
_MAX_DENSE = 200


def count_tangents(shape: Sequence[int], rank: int) -> int:
    """Return the size of the largest matrix, at most: 3,008 at rank 32 and three long modes.

    >>> count_tangents((10**6, 10**6, 10**6), 32)
    3008
    """
    return rank * (1 + sum(min(size, rank) - 1 for size in shape))


@dataclass(frozen=True)
class Projections:
    """A change of the data, E, seen from one mode: by the products Z (I_n, R) of it with units.

    Column r of Z is E times the :math:`u_m` of component r, in all modes but n.
    """

    inner: np.ndarray  # (R, R): U^T Z, with the columns u_n in U
    gram: np.ndarray  # (R, R): Z^T Z


class Tangents:
    """The tangents of components with these `cosines` (ndim, R, R) between the columns u_n.

    Attributes
    ----------
    condition : float
        That of the model; inf if it is singular.
    conditions : array (R,)
        By how much a change of the data, at worst, changes each component; inf if that has no
        bound.
    """

    def __init__(self, cosines: np.ndarray, shape: Sequence[int]) -> None:
        rank = cosines.shape[1]
        self._bases = [_FactorBasis(of_mode) for of_mode in cosines]
        gram = _make_gram(cosines, self._bases)
        size = rank * gram.shape[1]
        limit = 1 / (_SINGULAR * _SHIFT * size * np.finfo(float).eps)
        self._inverse = _invert(gram.reshape(size, size))
        blocks = self._inverse.reshape(gram.shape)
        squares = np.array([eigh(blocks[r, :, r])[0][-1] for r in range(rank)])
        self.conditions = np.sqrt(np.where(squares > limit, np.inf, squares))
        square = _find_largest_eigenvalue(self._inverse)
        self.condition = np.inf if square > limit else square**0.5
        # The orthogonal tangents of a mode that is longer than its basis. Their conditions are not
        # worse: along a vector of the basis, a component is as near to the others, or nearer.
        self._inverse_grams = {}
        for n, basis in enumerate(self._bases):
            if shape[n] > len(basis.columns):
                self._inverse_grams[n] = _invert(multiply_all(cosines, skip=n))

    def find_changes(self, projections: Sequence[Projections]) -> np.ndarray:
        """Return the norms (R,) of the changes of all components, if the data change by E."""
        products = []
        squares = np.zeros(len(self.conditions))
        for n, (basis, seen) in enumerate(zip(self._bases, projections, strict=True)):
            inside = basis.projection @ seen.inner  # of Z on the basis: (k, R)
            if n == 0:
                products.append(np.einsum("kr,kr->r", basis.columns, inside)[:, None])
            products.append(np.einsum("rki,kr->ri", basis.complements, inside))
            if n in self._inverse_grams:
                outside = seen.gram - inside.T @ inside
                inverse = self._inverse_grams[n]
                squares += np.maximum(np.diagonal(inverse @ outside @ inverse), 0)
        gradient = np.concatenate(products, axis=1)
        with one_blas_thread():
            changes = self._inverse @ gradient.reshape(-1)
        squares += (changes.reshape(gradient.shape) ** 2).sum(axis=1)
        return np.sqrt(squares)


class _FactorBasis:
    """A basis of the columns u_n of a factor, and of the vectors orthogonal to each in their span.

    Attributes
    ----------
    projection : array (k, R)
        Times ``U.T @ z`` it gives the coordinates of a vector z.
    columns : array (k, R)
        The coordinates of the u_n.
    complements : array (R, k, k - 1)
        For each component those of an orthonormal basis of the vectors orthogonal to u_n.
    """

    def __init__(self, cosines: np.ndarray) -> None:
        values, vectors = eigh(cosines)
        is_kept = values > _LEAST_SHARE
        roots = np.sqrt(values[is_kept])[:, None]
        self.projection = vectors[:, is_kept].T / roots
        columns = vectors[:, is_kept].T * roots
        self.columns = columns / np.linalg.norm(columns, axis=0)
        # The first column of each Q is the component's, the others are orthogonal to it.
        completed, _ = np.linalg.qr(self.columns.T[:, :, None], mode="complete")
        self.complements = completed[:, :, 1:]


def _make_gram(cosines: np.ndarray, bases: Sequence[_FactorBasis]) -> np.ndarray:
    """Return the Gram matrix (R, d, R, d) of the tangents in the span of the factors' columns.

    Of a component's d tangents the first is along itself, then come those of each mode.
    """
    ndim, rank, _ = cosines.shape
    sizes = [basis.complements.shape[2] for basis in bases]
    ends = 1 + np.cumsum(sizes)
    places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    num_tangents = int(ends[-1])
    gram = np.empty((rank, num_tangents, rank, num_tangents))
    gram[:, 0, :, 0] = multiply_all(cosines)
    # Of u_n of component r with the complement of component s: (R, R, k - 1).
    mixed = [np.einsum("kr,skj->rsj", basis.columns, basis.complements) for basis in bases]
    for n, basis in enumerate(bases):
        others = multiply_all(cosines, skip=n)
        along = others[:, :, None] * mixed[n]
        gram[:, 0, :, places[n]] = along
        gram[:, places[n], :, 0] = along.transpose(1, 2, 0)
        turned = np.tensordot(basis.complements, basis.complements, axes=(1, 1))
        gram[:, places[n], :, places[n]] = others[:, None, :, None] * turned
        for m in range(n):
            rest = multiply_all([cosines[p] for p in range(ndim) if p not in (n, m)] or [others**0])
            block = np.einsum("rs,sri,rsj->risj", rest, mixed[n], mixed[m], optimize=True)
            gram[:, places[n], :, places[m]] = block
            gram[:, places[m], :, places[n]] = block.transpose(2, 3, 0, 1)
    return gram


def _invert(gram: np.ndarray) -> np.ndarray:
    """Invert a Gram matrix of unit vectors in place.

    It takes one thread, so that the bits do not depend on how many there are.
    """
    size = len(gram)
    gram.flat[:: size + 1] += _SHIFT * size * np.finfo(float).eps
    with one_blas_thread():
        # LAPACK's matrices are column by column; a symmetric one is its own transposed.
        inverse, info = lapack.dpotrf(gram.T, lower=1, overwrite_a=1)
        if info == 0:
            inverse, info = lapack.dpotri(inverse, lower=1, overwrite_c=1)
    if info:
        raise ValueError(f"the Gram matrix of {size} tangents is not positive: LAPACK gave {info}")
    for n in range(size):  # LAPACK has written the lower triangle
        inverse[n, n + 1 :] = inverse[n + 1 :, n]
    return inverse


def _find_largest_eigenvalue(matrix: np.ndarray) -> float:
    """Return the largest eigenvalue of a positive matrix, by Lanczos' method if it is large."""
    if len(matrix) <= _MAX_DENSE:
        return float(eigh(matrix)[0][-1])
    start = np.random.RandomState(0).standard_normal(len(matrix))
    with one_blas_thread():
        values = eigsh(matrix, k=1, which="LA", v0=start, tol=1e-6, return_eigenvectors=False)
    return float(values[0])
