"""The benchmark of sampled sweeps, on a small tensor."""

import benchmark_sampled
import pytest


@pytest.mark.slow
def test_the_table_has_a_row_for_each_way(capsys):
    options = ["--tensors", "nell-2", "--share", "2e-5", "--ranks", "4", "--starts", "1"]
    benchmark_sampled.main([*options, "--limit-s", "0.3"])
    page = capsys.readouterr().out
    for way in benchmark_sampled.WAYS:
        assert way in page
