"""parafac on a GPU, stopped and resumed from a checkpoint on the host."""

import cupy
import pytest
from tensorly.decomposition import parafac

from tensorly_flycoo import Progress
from tensorly_flycoo.testing import random_tensor

RANK, STOP, END = 4, 4, 10


def run(x, n_iter_max, progress, **options):
    options = {"init": "random", "random_state": 0, "tol": 1e-300} | options
    return parafac(x, RANK, n_iter_max=n_iter_max, callback=progress, **options)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"normalize_factors": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_resumed_is_the_same(tmp_path, options, dtype):
    x = random_tensor((9, 400, 3000), 20_000, random_state=0, dtype=dtype, device="cuda")
    path = tmp_path / "run.npz"
    with Progress(END, show=None) as whole:
        expected = run(x, END, whole, **options)
    with Progress(STOP, show=None, checkpoint=path) as progress:
        run(x, STOP, progress, **options)
    with Progress(END, show=None, checkpoint=path) as progress:
        init = progress.resume()
        result = run(x, progress.n_iter_left, progress, **options | {"init": init})
    assert progress.errors == pytest.approx(whole.errors, rel=1e-4)
    for a, b in zip(result.factors, expected.factors, strict=True):
        assert isinstance(a, cupy.ndarray)
        tolerance = 1e-3 if dtype == "float32" else 1e-9
        assert float(abs(a - b).max()) <= tolerance * float(abs(b).max())
