"""The benchmark of seconds to a fit, on small tensors."""

import importlib.util
import math

import numpy as np
import pytest
import runs
import seconds_to_fit


@pytest.fixture
def _small(monkeypatch):
    tensors = {
        "collinear": (lambda: seconds_to_fit.make_collinear(2, 0.9, 0.1, (8, 9, 10)), 2),
        "nell-2": (lambda: seconds_to_fit.make_structured("nell-2", 1e-5, 2), 2),
    }
    monkeypatch.setattr(seconds_to_fit, "TENSORS", tensors)


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_ours_reach_the_best_fit(tmp_path, capsys):
    ways = ["flycoo", "momentum", "line search"]
    options = ["--iterations", "12", "--starts", "2", "--threads", "1", "--results", str(tmp_path)]
    results = seconds_to_fit.main(["--tensors", "collinear", "nell-2", "--ways", *ways, *options])
    assert [result["tensor"] for result in results] == ["collinear", "nell-2"]
    kept = runs.load_runs(tmp_path / "fit")
    assert [run["tensor"] for run in kept] == ["collinear", "nell-2"]
    for result, run in zip(results, kept, strict=True):
        assert [row["num_calls"] for row in run["rows"]] == [2, 2, 2]
        assert [len(row["calls"]) for row in result["rows"]] == [2, 2, 2]
        fits = [fit for row in result["rows"] for call in row["calls"] for fit in call["fits"]]
        assert result["best_fit"] == max(fits)
        assert any(math.isfinite(row["same_0.99_s"]) for row in result["rows"])
        for row in result["rows"]:
            for call in row["calls"]:
                assert (np.diff(call["seconds"]) >= 0).all()
                assert call["seconds"][0] > 0
    assert "99.90% of same" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["contrib.sparse", "pygenten", "pyttb"])
def test_the_others_begin_at_the_same_guess(way):
    package = seconds_to_fit.NEEDS.get(way)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    coo = seconds_to_fit.make_collinear(2, 0.9, 0.1, (8, 9, 10))
    arguments = (coo, 2, 0, 4, "cpu")
    _, expected, _ = seconds_to_fit.run_flycoo(*arguments)
    times, fits, end = seconds_to_fit.WAYS[way](*arguments)
    np.testing.assert_allclose(fits, expected, atol=1e-5)
    assert len(times) == 4
    assert times[-1] <= end


def test_medians_count_calls_that_do_not_get_there():
    calls = [{"seconds": [1.0, 2.0], "fits": [0.5, 1.0]}, {"seconds": [3.0], "fits": [0.4]}]
    rows = [{"way": "a", "calls": calls}, {"way": "b", "calls": []}]
    assert seconds_to_fit.find_medians(rows, 2) == 1.0
    assert rows[0]["any_0.99_s"] == math.inf
    assert rows[0]["same_0.99_s"] == 2.5
    assert rows[0]["same_0.99_iterations"] == 1.5
    assert math.isnan(rows[1]["same_0.99_s"])
    kept = seconds_to_fit.keep_medians(rows)
    assert [row["any_0.99_s"] for row in kept] == [None, None]
    assert [(row["num_calls"], "calls" in row) for row in kept] == [(2, False), (0, False)]
