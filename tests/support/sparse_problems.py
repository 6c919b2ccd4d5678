"""Shared by the conformance tests: small sparse tensors, their dense twins, and the alarm.

The alarm catches densification. NumPy makes the dense twins from the coordinates, which neither
triggers nor hides the alarm.
"""

import contextlib

import numpy as np
import pytest
import sparse

import tensorly_flycoo

#: The two kinds of tensor that a user may pass to TensorLy.
AS_COO = pytest.param(lambda coo: coo, id="COO")
AS_FLYCOO = pytest.param(tensorly_flycoo.FlycooTensor.from_coo, id="FlycooTensor")
BOTH_KINDS = pytest.mark.parametrize("kind", [AS_COO, AS_FLYCOO])

#: Each kind in one precision only, for slow tests.
BOTH_PRECISIONS = pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        pytest.param("float64", *AS_COO.values, id="float64-COO"),
        pytest.param("float32", *AS_FLYCOO.values, id="float32-FlycooTensor"),
    ],
)

#: Methods that make a sparse array dense, or let pydata/sparse compute on a tensor itself
#: (where `COO - ndarray` silently becomes dense).
_OF_PYDATA = [
    (sparse.COO, "todense"),
    (sparse.COO, "maybe_densify"),
    (sparse.COO, "__array__"),
    (sparse.COO, "__array_ufunc__"),
    (sparse.COO, "__array_function__"),
    (sparse.GCXS, "todense"),
    (sparse.DOK, "todense"),
]
#: Methods that a FlycooTensor refuses; a decomposition should not even try them.
_OF_FLYCOO = [
    (tensorly_flycoo.FlycooTensor, "__array__"),
    (tensorly_flycoo.FlycooTensor, "__array_ufunc__"),
    (tensorly_flycoo.FlycooTensor, "__array_function__"),
]

#: NumPy functions that TensorLy calls on tensors and that read no elements.
_HARMLESS_FUNCTIONS = (np.shape, np.ndim)


@contextlib.contextmanager
def densification_alarm(allow_refusals=False):
    """Fail if anything makes a sparse tensor dense, even if the failure is caught and hidden.

    If refusals are allowed, a FlycooTensor may raise its own `DensifyError`.
    """
    calls = []

    def ring(owner, name):
        original = getattr(owner, name)

        def rung(x, *args, **kwargs):
            if name == "__array_function__" and args[0] in _HARMLESS_FUNCTIONS:
                return original(x, *args, **kwargs)
            calls.append(f"{owner.__name__}.{name}{args[:1]}")
            raise AssertionError(f"{calls[-1]} was called")

        return rung

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _OF_PYDATA if allow_refusals else _OF_PYDATA + _OF_FLYCOO:
            patch.setattr(owner, name, ring(owner, name))
        yield
    assert not calls, f"densified by {calls}"


def random_coo(shape, nnz, dtype=np.float64, seed=0):
    """Make a COO of `nnz` distinct cells; the shape must be small enough for linear indices."""
    rng = np.random.RandomState(seed)
    cells = np.sort(rng.choice(np.prod(shape), size=nnz, replace=False))
    coords = np.stack(np.unravel_index(cells, shape))
    return sparse.COO(coords, _draw_values(nnz, dtype, rng), shape=shape)


#: Tensors that are edge cases.
EDGE_CASES = {
    "one nonzero": lambda: sparse.COO([[1], [2], [3]], [2.5], shape=(4, 5, 6)),
    "empty rows": lambda: sparse.COO(
        random_coo((4, 5, 6), 40).coords * 3, np.ones(40), (12, 15, 18)
    ),
    "sizes 1": lambda: random_coo((1, 7, 1, 7), 30),
    "nnz 0": lambda: sparse.COO(np.zeros((3, 0), int), np.zeros(0), shape=(4, 5, 6)),
    "float32": lambda: random_coo((4, 5, 6), 40, np.float32),
}


def community_coo(shape, dtype=np.float64, seed=0):
    """Make a noisy COO of three communities, dense inside and sparse between them.

    Its least squares problems of rank 3 are well conditioned and its leading three singular values
    well separated, for any `dtype`.
    """
    rng = np.random.RandomState(seed)
    factors = [np.where(np.arange(size)[:, None] % 3 == np.arange(3), 1.0, 0.15) for size in shape]
    probabilities = reconstruct(factors, np.array([1.0, 0.7, 0.4]))
    coords = np.stack(np.nonzero(rng.random_sample(shape) < probabilities))
    return sparse.COO(coords, _draw_values(coords.shape[1], dtype, rng), shape=shape)


def _draw_values(nnz, dtype, rng):
    """Draw values around 1: uniform in [0.5, 1.5), counts 1 to 5, or True."""
    draws = rng.random_sample(nnz)
    values = 0.5 + draws if np.dtype(dtype).kind == "f" else 1 + np.floor(5 * draws)
    return values.astype(dtype)


def planted_coo(shape, rank, seed, orthogonal=False):
    """Make a COO of exact CP rank `rank`: a sum of outer products of sparse columns.

    In each mode, a row belongs to one component if `orthogonal`; otherwise each component has about
    half of the rows.
    """
    rng = np.random.RandomState(seed)
    factors = [rng.uniform(0.5, 1.5, (size, rank)) for size in shape]
    for factor in factors:
        owner = rng.permutation(np.arange(len(factor)) % rank)[:, None] == np.arange(rank)
        factor *= owner if orthogonal else owner | (rng.random_sample(factor.shape) < 0.3)
    dense = reconstruct(factors)
    coords = np.stack(np.nonzero(dense))
    return sparse.COO(coords, dense[tuple(coords)], shape=shape)


def spread(coo, shape):
    """Spread the rows of a COO over a larger shape, keeping their order.

    Returns the COO and, for each mode, the new indices of its rows.
    """
    rng = np.random.RandomState(0)
    rows = [
        np.sort(rng.choice(size, small, replace=False))
        for size, small in zip(shape, coo.shape, strict=True)
    ]
    coords = np.stack([row[c] for row, c in zip(rows, coo.coords, strict=True)])
    return sparse.COO(coords, coo.data, shape=shape, sorted=True, has_duplicates=False), rows


def dense_of(x, dtype=None):
    """Make the dense twin of a COO or a FlycooTensor with NumPy alone."""
    is_coo = isinstance(x, sparse.COO)
    coords, values = (x.coords, x.data) if is_coo else x.nonzeros()
    dense = np.zeros(x.shape, values.dtype if dtype is None else dtype)
    dense[tuple(coords)] = values
    return dense


def reconstruct(factors, weights=None):
    """Form the dense tensor of CP factors with NumPy alone."""
    letters = "abcdefgh"[: len(factors)]
    weights = np.ones(factors[0].shape[1]) if weights is None else weights
    terms = ",".join(f"{letter}z" for letter in letters)
    return np.einsum(f"z,{terms}->{letters}", weights, *factors)


class ErrorTracker:
    """A callback of parafac that records each error and stops after `stop_after` of them."""

    def __init__(self, stop_after=None):
        self.errors = []
        self.stop_after = stop_after

    def __call__(self, cp_tensor, error):
        self.errors.append(float(error))
        return len(self.errors) == self.stop_after
