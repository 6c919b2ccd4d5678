"""Sparse tensors to try things on: random ones, and ones with a known decomposition.

Part of the public interface: ``from tensorly_flycoo.testing import planted_tensor``.
"""

import numpy as np

from .checks import check_rank, check_shape
from .tensor.tensor import FlycooTensor


def random_tensor(shape, nnz, *, skew=1.0, random_state=None, **options):
    """Make a random tensor with `nnz` nonzeros, less what falls on the same coordinates.

    Parameters
    ----------
    shape : sequence of int
    nnz : int
    skew : float
        Indices are ``floor(size * u**skew)`` with uniform u: 1 is uniform, 3 has heavy rows.
    random_state : int or numpy.random.RandomState, optional
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    FlycooTensor
        Values are uniform between 0 and 1, before duplicates are summed.

    Raises
    ------
    TypeError, ValueError
        As `FlycooTensor`.

    Examples
    --------
    >>> from tensorly_flycoo.testing import random_tensor
    >>> random_tensor((10**6, 10**7, 10**8), 1000, random_state=0).nnz
    1000
    """
    random = _as_random_state(random_state)
    coords = _random_coords(check_shape(shape), nnz, skew, random)
    return FlycooTensor(coords, 1.0 - random.random_sample(nnz), shape, **options)


def planted_tensor(shape, rank, nnz_per_component, *, noise=0.0, random_state=None, **options):
    """Make a sparse tensor that is a sum of `rank` sparse outer products, and return both.

    Noise, if any, is at the nonzeros only: the tensor stays as sparse as it is.

    Parameters
    ----------
    shape : sequence of int
    rank : int
    nnz_per_component : int
        About this many cells are nonzero in each outer product, spread evenly over the modes.
    noise : float
        Standard deviation of normal noise that is added at each nonzero, relative to the root mean
        square of the values there: the relative error of the planted factors is about `noise`.
    random_state : int or numpy.random.RandomState, optional
    **options
        ``dtype``, ``layout`` and ``device`` of `FlycooTensor`.

    Returns
    -------
    x : FlycooTensor
        Exactly of rank `rank` or less, without noise.
    factors : list of array (I_n, rank)
        Its factors, with few nonzeros in each column.

    Raises
    ------
    TypeError, ValueError
        If `rank` is not an integer of at least 1; and as `FlycooTensor`.

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
    shape, rank, random = check_shape(shape), check_rank(rank), _as_random_state(random_state)
    extent = max(1, round(nnz_per_component ** (1 / len(shape))))
    factors = [np.zeros((size, rank)) for size in shape]
    coords, values = [], []
    for r in range(rank):
        supports = [random.choice(size, min(extent, size), replace=False) for size in shape]
        vectors = [1.0 - random.random_sample(support.size) for support in supports]
        for factor, support, vector in zip(factors, supports, vectors, strict=True):
            factor[support, r] = vector
        coords.append(np.stack([c.ravel() for c in np.meshgrid(*supports, indexing="ij")]))
        grids = np.meshgrid(*vectors, indexing="ij")
        values.append(np.prod([grid.ravel() for grid in grids], axis=0))
    coords, values = np.concatenate(coords, axis=1), np.concatenate(values)
    if noise:
        # Where components overlap, their sum is one nonzero, with noise once.
        exact = FlycooTensor(coords, values, shape, device="cpu")
        coords, values = exact.nonzeros()
        scale = noise * np.sqrt(np.mean(values**2))
        values = values + scale * random.standard_normal(values.size)
    return FlycooTensor(coords, values, shape, **options), factors


def _random_coords(shape, nnz, skew, random):
    uniform = random.random_sample((len(shape), nnz))
    sizes = np.array(shape)[:, None]
    return np.minimum((sizes * uniform**skew).astype(np.int64), sizes - 1)


def _as_random_state(random_state):
    is_one = isinstance(random_state, np.random.RandomState)
    return random_state if is_one else np.random.RandomState(random_state)
