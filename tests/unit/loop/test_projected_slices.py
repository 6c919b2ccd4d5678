"""Products of the slices of PARAFAC2; `test_parafac2.py` tests projections and MTTKRPs."""

import numpy as np
import pytest
import scipy.sparse

from tensorly_flycoo import RaggedTensor
from tensorly_flycoo.loop import projected_slices
from tensorly_flycoo.loop.projected_slices import ProjectedSlices


@pytest.mark.parametrize("longest", [2**12, 4], ids=["batched", "one by one"])
@pytest.mark.parametrize("masked", [False, True])
def test_columns_of_each_slice_times_one_another(masked, longest, monkeypatch):
    """In the order of the slices, and of imputed entries those of the start: the mean."""
    monkeypatch.setattr(projected_slices, "_MAX_BATCHED_ROWS", longest)
    rng = np.random.default_rng(0)
    dense = [rng.random((n, 7)) for n in (6, 2, 9, 4, 6, 1)]
    columns = rng.random((7, 3))
    masks = [np.ones(x.shape) for x in dense]
    if masked:
        masks[2][:4, 3] = 0
    x = RaggedTensor([scipy.sparse.csr_array(part) for part in dense])
    data = ProjectedSlices(x, 3, center=False, mask=masks if masked else None)
    found = data.cross_columns(columns)
    for part, mask, product in zip(dense, masks, found, strict=True):
        filled = np.where(mask == 1, part, part[mask == 1].mean())
        rows = filled @ columns
        np.testing.assert_allclose(product, rows.T @ rows, rtol=1e-13)
    if masked:
        numbers = np.arange(1.0, 5.0)
        assert data.sum_imputed(numbers).tolist() == [0, 0, numbers.sum(), 0, 0, 0]
