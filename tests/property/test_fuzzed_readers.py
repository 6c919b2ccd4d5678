"""A short run of tests/fuzz_readers.py."""

from fuzz_readers import fuzz


def test_readers(tmp_path):
    counts = fuzz(tmp_path, 600)
    assert set(counts) == {"x.tns", "x.tns.gz", "x.npz"}
    # Neither are all inputs refused, which would test nothing, nor none.
    assert all(0 < num_good < num_read for num_read, num_good in counts.values())
