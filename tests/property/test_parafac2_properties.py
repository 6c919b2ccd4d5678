"""Laws of PARAFAC2, for slices of any sizes, many of them deficient."""

import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from strategies import quick

from tensorly_flycoo.decomposition import parafac2

EPS = np.finfo(np.float64).eps


@st.composite
def ragged_slices(draw):
    """Draw dense slices, at least one of them with a nonzero, and a rank."""
    width = draw(st.integers(1, 6))
    heights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    density = draw(st.sampled_from([0.1, 0.5, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    slices = [rng.random((n, width)) * (rng.random((n, width)) < density) for n in heights]
    slices[0][0, 0] = 1.0
    return slices, draw(st.integers(1, width))


@quick
@given(ragged_slices(), st.booleans())
def test_projections_are_orthonormal_and_errors_those_of_the_model(drawn, center):
    """The squared error is a difference of sums of squares, rounded relative to their terms."""
    dense, rank = drawn
    if center:
        dense[0][0, 0] += 1.0
        mean = np.concatenate(dense).mean(axis=0)
        if np.allclose(np.concatenate(dense), mean):
            return
    model, errors = parafac2(
        [scipy.sparse.csr_array(part) for part in dense], rank, n_iter_max=4, tol=0,
        random_state=0, linesearch=False, return_errors=True, center=center,
    )  # fmt: skip
    a, b, c = model.factors
    residual = total = 0.0
    for row, part, projection in zip(a, dense, model.projections, strict=True):
        short = projection if len(part) >= rank else projection.T
        np.testing.assert_allclose(short.T @ short, np.eye(short.shape[1]), atol=1e-9)
        part = part - mean if center else part
        residual += ((part - projection @ (b * row) @ c.T) ** 2).sum()
        total += (part**2).sum()
    # Components that cancel have squares far above that of the model.
    squares = abs((a.T @ a) * (b.T @ b) * (c.T @ c)).sum()
    bound = 1e3 * sum(map(np.size, dense)) * EPS * (1 + squares / total)
    assert abs(errors[-1] ** 2 - residual / total) <= bound
