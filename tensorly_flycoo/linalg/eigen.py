"""Leading eigenvectors of a symmetric operator by block Lanczos iteration, on NumPy or CuPy arrays.

Used for tensors on a GPU, where ARPACK would copy vectors to the host and back in each step. CuPy's
`eigsh` divides by zero if the operator has fewer eigenvalues than it looks for.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..array_modules import Array, array_module, move
from .tall_skinny import column_norms, qr, transposed_product

#: Seed of the initial vectors.
_SEED = 20240507

#: Vectors in a block beyond those wanted, since the last ones converge slowly.
_NUM_GUARDS = 8

#: Blocks in the basis before a restart keeps the best two.
MAX_BLOCKS = 4

#: Norm of a converged residual, relative to the largest eigenvalue.
_TOLERANCE = 1e-10

#: Rounds after which the best pairs so far are returned: by then eigenvalues are so close together
#: that any combination of their vectors is as good an initial guess as another.
_MAX_ROUNDS = 300


def find_leading_eigenpairs(
    multiply: Callable[[Array], Array], size: int, rank: int, xp: ModuleType
) -> tuple[Array, Array]:
    """Compute the largest eigenvalues of a positive semidefinite operator, and their vectors.

    Block Lanczos iteration with thick restarts: each round adds the residuals of a block of Ritz
    vectors to the basis. A block finds as many copies of an eigenvalue as it has vectors.

    Parameters
    ----------
    multiply : callable
        Multiplies the operator by a float64 array (size, k).
    size : int
        At least four times `rank`.
    rank : int
        The number of eigenpairs wanted.
    xp : module
        numpy or cupy.

    Returns
    -------
    values : array (rank,)
        Descending.
    vectors : array (size, rank)
        Orthonormal columns.
    """
    num_columns = min(rank + _NUM_GUARDS, size // MAX_BLOCKS)
    random = xp.random.RandomState(_SEED)
    basis = [qr(random.standard_normal((size, num_columns)))[0]]
    images = [multiply(basis[0])]
    for num_rounds in range(1, _MAX_ROUNDS + 1):
        values, coefficients = _find_ritz_pairs(basis, images)
        lead = coefficients[:, :num_columns]
        vectors = _combine(basis, lead)
        residuals = _combine(images, lead) - vectors * xp.asarray(values[:num_columns])
        is_converged = move(column_norms(residuals), np) <= _TOLERANCE * values[0]
        if num_rounds == _MAX_ROUNDS or is_converged[:rank].all():
            break
        if len(basis) == MAX_BLOCKS:
            following = coefficients[:, num_columns : 2 * num_columns]
            images = [_combine(images, lead), _combine(images, following)]
            basis = [vectors, _combine(basis, following)]
        basis.append(_find_next_block(basis, residuals, is_converged, random))
        images.append(multiply(basis[-1]))
    return xp.asarray(values[:rank]), vectors[:, :rank]


def _find_ritz_pairs(
    basis: Sequence[Array], images: Sequence[Array]
) -> tuple[np.ndarray, np.ndarray]:
    """Decompose the operator projected on the basis, on the host; eigenvalues are descending."""
    projected = np.block([[move(transposed_product(v, w), np) for w in images] for v in basis])
    values, coefficients = np.linalg.eigh((projected + projected.T) / 2)
    return values[::-1], np.ascontiguousarray(coefficients[:, ::-1])


def _combine(blocks: Sequence[Array], coefficients: np.ndarray) -> Array:
    """Multiply the blocks, side by side as one matrix, by coefficients from the host."""
    parts = np.split(array_module(blocks[0]).asarray(coefficients), len(blocks))
    return sum(block @ part for block, part in zip(blocks, parts, strict=True))


def _find_next_block(
    basis: Sequence[Array], residuals: Array, is_converged: np.ndarray, random: Any
) -> Array:
    """Orthonormalise residuals against the basis, with random vectors for the converged ones."""
    if is_converged.any():
        xp = array_module(residuals)
        # A converged residual is only rounding noise.
        replacements = random.standard_normal(residuals.shape)
        residuals = xp.where(xp.asarray(is_converged), replacements, residuals)
    block, _ = qr(residuals / column_norms(residuals))
    for _ in range(2):  # the second pass removes what rounding left
        for known in basis:
            block = block - known @ transposed_product(known, block)
        block, _ = qr(block)
    return block
