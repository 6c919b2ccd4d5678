"""The knowledge graph with small settings: its scores, and its ranks against plain loops."""

import subprocess

import knowledge_graph
import numpy as np
import pytest
import tensorly as tl


def test_knowledge_graph():
    """One test, because each process downloads the files; skipped without a network."""
    try:
        with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
            result = knowledge_graph.main(["--ranks", "5", "30", "--iterations", "15"])
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot download the wheel of pykeen")
    assert result["train"].shape == (3, 5216)
    assert result["test"].shape == (3, 661)
    assert result["cp_tensor"].rank == 30  # chosen on validation triples
    assert result["cp_tensor"].shape == (135, 46, 135)
    counts, ours, rescal = result["results"].values()
    assert all(np.isfinite(factor).all() for factor in result["cp_tensor"].factors)
    assert 0 < ours["first"] <= ours["mrr"] <= 1
    assert ours["mrr"] > counts["mrr"]  # CP has learned more than frequencies
    assert rescal["mrr"] > ours["mrr"]
    for mode in (0, 2):
        check_ranks(result, mode)


def check_ranks(result, mode):
    """Rank the triples one by one in the dense tensor of scores."""
    cp_tensor, known, triples = result["cp_tensor"], result["known"], result["test"][:, :20]
    dense = tl.cp_to_tensor(cp_tensor)
    dense_known = np.zeros(dense.shape, bool)
    dense_known[tuple(known)] = True
    ranks = knowledge_graph.rank_missing(cp_tensor, triples, known, mode)
    for triple, rank in zip(triples.T, ranks, strict=True):
        others = tuple(slice(None) if n == mode else index for n, index in enumerate(triple))
        candidates = dense[others][~dense_known[others]]
        assert rank == 1 + np.sum(candidates > dense[tuple(triple)])


def test_ties_count_half():
    cp_tensor = np.ones(1), [np.ones((2, 1)), np.ones((2, 1)), np.ones((5, 1))]
    triples = np.array([[0], [1], [3]])
    known = np.array([[0, 0], [1, 1], [3, 4]])
    assert knowledge_graph.rank_missing(cp_tensor, triples, known, 2).tolist() == [1 + 0.5 * 3]
