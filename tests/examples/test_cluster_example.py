"""The example of a cluster finds what one process finds."""

import numpy as np
import pytest


@pytest.mark.slow
def test_it_gives_the_labels_of_one_process(tmp_path):
    import cluster
    import flights

    found = cluster.main(["--iterations", "2", "--folder", str(tmp_path)])
    expected = flights.build_tensor()
    assert found["x"].nnz == expected.nnz
    for name, labels in expected.labels.items():
        np.testing.assert_array_equal(found["x"].labels[name], labels)
    assert len(found["errors"]) == 3
