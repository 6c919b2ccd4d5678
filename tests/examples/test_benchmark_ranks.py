"""The benchmark of many starts and rank searches, on few and small ones."""

import benchmark_ranks
import pytest


def test_parts(monkeypatch):
    assert benchmark_ranks.main(["starts", "--iterations", "2"]) > 0
    assert benchmark_ranks.main(["search", "--ranks", "1", "--runs", "2", "--size", "20"]) > 0
    monkeypatch.setattr(benchmark_ranks, "METHODS", {"parafac": (0.05,)})
    monkeypatch.setattr(benchmark_ranks, "PLANTED_RANKS", (2,))
    for name in benchmark_ranks.THREADS:
        monkeypatch.setenv(name, "1")  # and back
    counts = benchmark_ranks.main(["planted", "--seeds", "1", "--runs", "2"])
    assert counts == {("parafac", 0.05, 2): 1}


@pytest.mark.slow
def test_sparse_counts(monkeypatch, capsys):
    monkeypatch.setattr(benchmark_ranks, "SPARSE_RANKS", (2,))
    for name in benchmark_ranks.THREADS:
        monkeypatch.setenv(name, "1")
    counts = benchmark_ranks.main(["sparse", "--seeds", "1", "--runs", "2", "--means", "0.03"])
    assert counts == {(0.03, 2): 1}
    assert "| 0.03 | 2 | 1 | 0 | 0 | 0, 0 |" in capsys.readouterr().out
