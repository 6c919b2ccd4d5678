"""The large example, scaled down: its own asserts, its memory, and resuming."""

import large
import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import estimate_memory


def test_large(tmp_path, capsys):
    arguments = ["--scale", "0.0005", "--rank", "4", "--checkpoint", str(tmp_path / "large.npz")]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = large.main([*arguments, "--iterations", "12"])
        again = large.main([*arguments, "--iterations", "12"])
    assert result["found"] >= 3  # two may match the same planted one
    x = result["x"]
    assert x.shape == tuple(large.scale_down(0.0005)[0])
    estimate = estimate_memory(x.shape, x.nnz, dtype="float32")
    assert x.nbytes == pytest.approx(estimate.nbytes, rel=0.1)
    page = capsys.readouterr().out
    for layout in large.LAYOUTS:
        assert f"  {layout} " in page
    # The second run starts where the first one stopped.
    assert again["errors"][: len(result["errors"])] == result["errors"]
    for a, b in zip(again["cp_tensor"].factors, result["cp_tensor"].factors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_full_scale_is_the_size_of_nell_2():
    shape, nnz = large.scale_down(1)
    assert (tuple(shape), nnz) == (large.SHAPE, large.NNZ)
