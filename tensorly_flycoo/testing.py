"""Sparse tensors for tests: random ones, and ones with a known decomposition.

Part of the public interface: ``from tensorly_flycoo.testing import planted_tensor``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorly as tl

from .base.checks import check_rank, check_shape
from .tensor.tensor import FlycooTensor


def random_tensor(
    shape: Sequence[int],
    nnz: int,
    *,
    skew: float = 1.0,
    random_state: int | np.random.RandomState | None = None,
    **options: Any,
) -> FlycooTensor:
    """Make a random tensor with `nnz` nonzeros, or fewer if coordinates coincide.

    Parameters
    ----------
    shape : sequence of int
    nnz : int
    skew : float
        Indices are ``floor(size * u**skew)`` with uniform u: 1 is uniform, 3 favours low indices.
    random_state : int or numpy.random.RandomState, optional
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    FlycooTensor
        Values are uniform in (0, 1] before duplicates are summed.

    Raises
    ------
    TypeError, ValueError
        As for `FlycooTensor`.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> random_tensor((10**6, 10**7, 10**8), 1000, random_state=0).nnz
    1000
    """
    random = tl.check_random_state(random_state)
    sizes = np.array(check_shape(shape))[:, None]
    uniform = random.random_sample((sizes.size, nnz))
    coords = np.minimum((sizes * uniform**skew).astype(np.int64), sizes - 1)
    return FlycooTensor(coords, 1.0 - random.random_sample(nnz), shape, **options)


def planted_tensor(
    shape: Sequence[int],
    rank: int,
    nnz_per_component: int,
    *,
    noise: float = 0.0,
    random_state: int | np.random.RandomState | None = None,
    **options: Any,
) -> tuple[FlycooTensor, list[np.ndarray]]:
    """Make a sum of `rank` sparse outer products; return the tensor and its factors.

    Noise is added only at the nonzeros, so the tensor stays sparse.

    Parameters
    ----------
    shape : sequence of int
    rank : int
    nnz_per_component : int
        Approximate number of nonzeros in each outer product, whose vectors have equally many.
    noise : float
        Standard deviation of the normal noise, relative to the root mean square of the nonzeros:
        the relative error of the planted factors is about `noise`.
    random_state : int or numpy.random.RandomState, optional
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    x : FlycooTensor
        Its rank is at most `rank` without noise.
    factors : list of array (I_n, rank)
        NumPy arrays, with few nonzeros in each column.

    Raises
    ------
    TypeError, ValueError
        If `rank` is not an integer of at least 1; else as for `FlycooTensor`.

    Examples
    --------
    >>> from tensorly_flycoo.testing import planted_tensor
    >>> x, factors = planted_tensor((50, 60, 70), rank=2, nnz_per_component=100, random_state=0)
    >>> y, _ = planted_tensor((50, 60, 70), 2, 100, noise=0.1, random_state=0)
    >>> y.nnz == x.nnz, round(float((y - x).norm() / x.norm()), 1)
    (True, 0.1)
    >>> [factor.shape for factor in factors]
    [(50, 2), (60, 2), (70, 2)]
    """
    shape = check_shape(shape)
    rank = check_rank(rank)
    random = tl.check_random_state(random_state)
    extent = max(1, round(nnz_per_component ** (1 / len(shape))))
    factors = [np.zeros((size, rank)) for size in shape]
    coord_parts = []
    value_parts = []
    for component in range(rank):
        supports = [random.choice(size, min(extent, size), replace=False) for size in shape]
        vectors = [1.0 - random.random_sample(support.size) for support in supports]
        for factor, support, vector in zip(factors, supports, vectors, strict=True):
            factor[support, component] = vector
        index_grids = np.meshgrid(*supports, indexing="ij")
        coord_parts.append(np.stack([grid.ravel() for grid in index_grids]))
        value_grids = np.meshgrid(*vectors, indexing="ij")
        value_parts.append(np.prod([grid.ravel() for grid in value_grids], axis=0))
    coords = np.concatenate(coord_parts, axis=1)
    values = np.concatenate(value_parts)
    if noise:
        # Sum overlapping components first, so that each nonzero gets noise once.
        coords, values = FlycooTensor(coords, values, shape, device="cpu").nonzeros()
        scale = noise * np.sqrt(np.mean(values**2))
        values = values + scale * random.standard_normal(values.size)
    return FlycooTensor(coords, values, shape, **options), factors
