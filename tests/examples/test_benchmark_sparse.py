"""The benchmark of functions other than parafac runs, each experiment once."""

import json

import benchmark_sparse as benchmark
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
