"""Runs of `run_together`, compared with each other."""


def assert_same(runs, expected):
    """Assert that runs end alike, with the same bits of errors and factors, on any device."""
    for run, other in zip(runs, expected, strict=True):
        assert run.errors == other.errors
        assert (run.is_dropped, run.leader) == (other.is_dropped, other.leader)
        for factor, array in zip(run.cp_tensor.factors, other.cp_tensor.factors, strict=True):
            assert bool((factor == array).all())
