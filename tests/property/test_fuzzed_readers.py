"""A short version of tests/support/fuzz_readers.py."""

from collections import Counter

import pytest
from damaged_files import NAMES, damage, edit, make_corpus, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.mark.usual_limits("slabs")
def test_readers(tmp_path):
    corpus, is_good = make_corpus(tmp_path), Counter()

    @settings(
        max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(NAMES), st.integers(1, 4), st.randoms(use_true_random=False))
    def read_one(name, num_changes, random):
        data = random.choice(corpus[name])
        for _ in range(num_changes):
            data = damage(name, data, random, lambda data: edit(data, random))
        (tmp_path / name).write_bytes(data)
        is_good[name, read(tmp_path / name)] += 1

    read_one()
    # Each reader accepts some inputs and refuses others; otherwise this would test nothing.
    assert set(is_good) == {(name, good) for name in NAMES for good in (True, False)}
