"""The benchmark of PARAFAC2, on few nonzeros."""

import benchmark_parafac2
import pytest


@pytest.mark.parametrize(
    "options",
    [[], ["--rows", "300", "--host", "--dtype", "float32", "--center", "--non-negative"]],
    ids=str,
)
def test_it_prints_seconds_and_bytes(options, capsys):
    sizes = ["--slices", "20", "--columns", "50", "--nnz", "3000", "--rank", "3"]
    results = benchmark_parafac2.main([*sizes, "--iterations", "1", *options])
    assert min(results.values()) > 0
    out = capsys.readouterr().out
    assert "20 slices" in out
    assert "peak memory" in out
