"""Compare a decomposition of a sparse tensor with TensorLy's of its dense twin.

The bound. The MTTKRP of a row is a sum of row_nnz products of ndim numbers. So the computed MTTKRP
is the exact one of a tensor whose elements differ by a relative (row_nnz + ndim) * eps at most
(Higham, Accuracy and Stability of Numerical Algorithms, 3.1); products of rank numbers add to that
in each step. So the dense decomposition is run again on tensors with random errors of this size.
The sparse result may differ from the dense one as much as these runs do, times a safety factor
for errors that a few draws miss. Where it differs more, more draws look for the larger errors that
one draw in ten has near a discontinuity.

A test fails if its bound is so weak that it would accept anything.
"""

import numpy as np
import tensorly as tl
from sparse_problems import dense_of, densification_alarm

from tensorly_flycoo.base.array_modules import move

_NUM_DRAWS = 2
_MOST_DRAWS = 20
_SAFETY = 10

#: Relative to the largest element of the compared arrays.
_WEAKEST_BOUNDS = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-2}


def check_same_as_dense(decompose, coo, kind, rank, dense_backend="numpy", has_tensors_dtype=False):
    """Check that ``decompose(x)`` agrees for a sparse tensor and its dense twin, up to rounding.

    `decompose` takes only the tensor and returns a CPTensor, or a CPTensor and a list of errors. It
    must start from the same guess each time. With `has_tensors_dtype` the result has the dtype of
    the tensor, whatever TensorLy's has.
    """
    dtype = np.dtype(np.float32 if coo.dtype == np.float32 else np.float64)
    dense, rng = dense_of(coo, dtype), np.random.RandomState(0)
    row_nnz = max(np.bincount(rows).max() for rows in coo.coords)
    unit = (row_nnz + coo.ndim + rank) * np.finfo(dtype).eps

    def draw():
        noise = dense * rng.uniform(-unit, unit, dense.shape).astype(dtype)
        with tl.backend_context(dense_backend):
            return _list_arrays(decompose(dense + noise))

    def find_bound(n):
        largest = np.abs(expected[n]).max()
        deviation = max(np.abs(other[n] - expected[n]).max() for other in others)
        bound = _SAFETY * (deviation + unit * largest)
        assert bound < _WEAKEST_BOUNDS[dtype] * largest
        return bound

    with tl.backend_context(dense_backend):
        expected = _list_arrays(decompose(dense))
    others = [draw() for _ in range(_NUM_DRAWS)]
    with tl.backend_context("flycoo"), densification_alarm():
        got = _list_arrays(decompose(kind(coo)))
    assert [array.shape for array in got] == [array.shape for array in expected]
    for n, array in enumerate(expected):
        assert got[n].dtype == (dtype if has_tensors_dtype else array.dtype)
        deviation = np.abs(got[n] - array).max()
        while deviation > find_bound(n) and len(others) < _MOST_DRAWS:
            others.append(draw())
        assert deviation <= find_bound(n)


def _list_arrays(result):
    """Return the weights, factors and errors, if any, as arrays."""
    cp_tensor, errors = result if isinstance(result, tuple) else (result, [])
    weights, factors = cp_tensor
    arrays = [weights, *factors, np.array([float(error) for error in errors], weights.dtype)]
    return [move(array, np) for array in arrays if len(array)]
