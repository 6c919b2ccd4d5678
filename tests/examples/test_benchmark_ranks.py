"""The benchmark of many starts and rank searches, on few and small ones."""

import benchmark_ranks


def test_parts(monkeypatch):
    assert benchmark_ranks.main(["starts", "--iterations", "2"]) > 0
    assert benchmark_ranks.main(["search", "--ranks", "1", "--runs", "2", "--size", "20"]) > 0
    monkeypatch.setattr(benchmark_ranks, "PLANTED", [((20, 30, 40), 2, 300, 0.1)])
    assert benchmark_ranks.main(["planted", "--seeds", "1", "--runs", "2"]) == [1]
