"""Blocks of a factor: results have the bits of the loop without them."""

import pytest
from problems import make_problem

from tensorly_flycoo import mttkrp
from tensorly_flycoo.engines.cpu import engine, segments


@pytest.fixture
def small_cache(monkeypatch):
    """Let a cache of 1 KB count as one that is worth blocks, and windows hold two tiles."""
    monkeypatch.setattr(engine, "TILE_SIZE", 64)
    monkeypatch.setattr(engine, "LEAST_NNZ", 0)
    monkeypatch.setattr(segments, "_LEAST_CACHE_NBYTES", 2**10)
    monkeypatch.setattr(segments, "_count_cache_nbytes", lambda: 2**10)
    monkeypatch.setattr(segments, "_LEAST_NONZEROS", 0)
    monkeypatch.setattr(segments, "_WINDOW_SIZE", 128)


def count_blocked(x):
    return sum(key[0] == "segments" for key in x._layout.prepared)


#: The first and the last are computed in steps that leave columns over.
RANKS = (3, 16, 70)


@pytest.mark.parametrize(
    ("shape", "dtype", "ranks"),
    [
        ((100, 120), "float32", RANKS[2:]),
        ((90, 100, 110), "float64", RANKS[:2]),
        pytest.param((100, 120), "float32", RANKS[:2], marks=pytest.mark.slow),
        pytest.param((90, 100, 110), "float64", RANKS[2:], marks=pytest.mark.slow),
        pytest.param((100, 120), "float64", RANKS, marks=pytest.mark.slow),
        pytest.param((90, 100, 110), "float32", RANKS, marks=pytest.mark.slow),
    ],
)
def test_blocks_keep_every_bit(small_cache, shape, dtype, ranks):
    for rank in ranks:
        problem = make_problem(shape, 6000, rank, dtype, skew=2)
        x, pulled = (problem.tensor(layout=name, groups=None) for name in ("replicated", "indexed"))
        problem.check_tensor(x)
        assert count_blocked(x) == len(shape)
        for mode in range(1, len(shape)):  # which "indexed" pulls, so that it has no blocks
            result = mttkrp(x, problem.factors, mode)
            assert result.tobytes() == mttkrp(pulled, problem.factors, mode).tobytes()
        assert count_blocked(pulled) <= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("_LEAST_NONZEROS", 50, id="short rows"),
        pytest.param("_LEAST_CACHE_NBYTES", 2**11, id="a small cache"),
        pytest.param("_count_cache_nbytes", lambda: 2**20, id="a small factor"),
    ],
)
def test_no_blocks(small_cache, monkeypatch, name, value):
    monkeypatch.setattr(segments, name, value)
    problem = make_problem((40, 70), 4000, 16)
    x = problem.tensor(layout="replicated")
    problem.check_tensor(x)
    assert count_blocked(x) == 0
