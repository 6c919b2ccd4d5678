"""The benchmark of functions other than parafac runs and applies its limits."""

import json

import benchmark_sparse as benchmark
import pytest
import tensorly as tl

from tensorly_flycoo import engines


def test_all_experiments_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engines, "_chosen_device", None)  # so that the device is restored
    path = tmp_path / "figures.json"
    sizes = ["--rows", "200", "--nnz", "1000", "--rounds", "1", "--iterations", "1"]
    figures = benchmark.main([*sizes, "--json", str(path)])
    assert json.loads(path.read_text()) == figures
    names = [figure["name"] for figure in figures]
    assert names[:2] == [f"{name} / parafac, an iteration" for name in ("MU", "HALS")]
    assert len(names) == len(set(names)) == 8
    assert all(figure["s"] > 0 for figure in figures[2:])
    assert names[0] in capsys.readouterr().out
    assert tl.get_backend() == "numpy"


@pytest.mark.parametrize(("seconds", "verdict"), [(3.0, "met"), (3.1, "MISSED")])
def test_verdicts(seconds, verdict, capsys):
    figure = benchmark.compare("a / b", seconds, 2.0, bar=1.5)
    assert figure["ratio"] == seconds / 2
    assert capsys.readouterr().out.rstrip().endswith(f"bar 1.5: {verdict}")


def test_turns_are_taken_and_the_best_counts(monkeypatch):
    clock, order = [0.0], []
    lasting = iter([9.0, 9.0, 5.0, 2.0, 4.0, 3.0])  # the first round compiles

    def make(name):
        def function():
            order.append(name)
            clock[0] += next(lasting)

        return function

    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])
    functions = {"a": make("a"), "b": make("b")}
    best = benchmark.time_in_turns(functions, rounds=2, synchronize=lambda: None)
    assert best == {"a": 4.0, "b": 2.0}
    assert order == ["a", "b"] * 3
