"""The benchmark of PARAFAC2, on few nonzeros."""

import benchmark_parafac2
import numpy as np
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


def test_rows_have_the_same_number_of_nonzeros():
    matrix = benchmark_parafac2.draw_matrix(np, 7, 50, 4, "float32")
    assert np.diff(matrix.indptr).tolist() == [4] * 7
    assert matrix.has_canonical_format
    assert 0 < matrix.indices.max() < 50
    assert matrix.dtype == np.float32
