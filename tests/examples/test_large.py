"""The large example, scaled down: its components, its memory, resuming and further starts."""

import re

import large
import numpy as np
import pytest
import tensorly as tl

from tensorly_flycoo import FlycooTensor, estimate_memory
from tensorly_flycoo.base.array_modules import move


def test_large(tmp_path, capsys):
    arguments = ["--scale", "0.0005", "--rank", "4", "--checkpoint", str(tmp_path / "large.npz")]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = large.main([*arguments, "--iterations", "12"])
        again = large.main([*arguments, "--iterations", "12"])
    assert result["found"] == 4
    assert result["errors"][-1] < 0.01
    x = result["x"]
    assert 0.8 * large.NNZ < x.nnz / 0.0005 < 1.2 * large.NNZ
    assert x.shape == tuple(large.scale_down(0.0005)[0])
    estimate = estimate_memory(x.shape, x.nnz, dtype="float32")
    # Combinations of planted indices repeat, and are numbered, which no estimate foresees.
    apart = FlycooTensor(*x.nonzeros(), x.shape, groups=None)
    assert apart.nbytes == pytest.approx(estimate.nbytes, rel=0.1)
    page = capsys.readouterr().out
    for layout in large.LAYOUTS:
        assert f"  {layout} " in page
    # The second run starts where the first one stopped.
    assert again["errors"][: len(result["errors"])] == result["errors"]
    # Its further iterations change no more than the rounding of float32 does.
    for a, b in zip(again["cp_tensor"].factors, result["cp_tensor"].factors, strict=True):
        np.testing.assert_allclose(move(a, np), move(b, np), rtol=1e-5, atol=1e-6)


def run_small(*arguments):
    with tl.backend_context(tl.get_backend()):
        return large.main(["--scale", "0.0002", "--rank", "3", "--iterations", "5", *arguments])


def test_further_starts_follow_a_poor_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(large, "GOOD_FIT", 2)
    result = run_small("--starts", "3", "--checkpoint", str(tmp_path / "large.npz"))
    fits = re.findall(r"^start \d: fit (\S+) after", capsys.readouterr().out, re.MULTILINE)
    assert len(fits) == 3
    assert max(map(float, fits)) == pytest.approx(1 - result["errors"][-1], abs=1e-4)


def test_ctrl_c_ends_the_starts(monkeypatch, capsys):
    """A run that stops early without converging was stopped by Ctrl-C."""
    monkeypatch.setattr(large, "GOOD_FIT", 2)
    call = large.Progress.__call__

    def stop_after_two(progress, *arguments):
        return call(progress, *arguments) or progress.iteration == 2

    monkeypatch.setattr(large.Progress, "__call__", stop_after_two)
    run_small()
    assert capsys.readouterr().out.count("start ") == 1


def test_a_start_that_misses_components_is_reported(capsys):
    """Nothing is asserted: one iteration is not enough."""
    run_small("--starts", "1", "--iterations", "1")
    assert re.search(
        r"fit -?\d.\d{4} after \S+ s in all; \d of 3 components", capsys.readouterr().out
    )


def test_the_full_scale_is_the_size_of_nell_2():
    shape, nnz = large.scale_down(1)
    assert (tuple(shape), nnz) == (large.SHAPE, large.NNZ)
