"""The fleets of aircraft: PARAFAC2 of a table with a column for the slice."""

import aircraft
import pytest


@pytest.mark.slow
def test_a_penalty_leaves_fewer_routes_to_each_fleet():
    plain, few = (aircraft.main(["--iterations", "12", *own]) for own in ([], ["--l1", "3e-5"]))
    counts = [(found["model"].factors[2] > 0).sum(axis=0) for found in (plain, few)]
    assert counts[1].sum() < counts[0].sum() / 2
    assert few["errors"][-1] < plain["errors"][-1] + 0.01


@pytest.mark.slow
def test_fleets():
    found = aircraft.main(["--iterations", "12"])
    assert (found["x"].shape, found["x"].nnz) == ((4043, 336, 223), 314_645)
    assert found["errors"][-1] < found["errors"][0] < 1
    assert (found["by_carrier"].max() > 0.3).all()  # of 16 carriers
    months = found["months"]
    assert len(months) == 12
    # The aircraft changed its airport in September.
    before, after = months[:"2013-08-01"].sum(), months["2013-09-01":].sum()
    change = after / after.sum() - before / before.sum()
    assert change.max() > 0.2
