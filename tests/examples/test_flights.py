"""The main example runs from end to end, prints its output and writes its figure."""

import importlib
import re
import sys

import numpy as np
import pandas as pd
import pytest
import tensorly as tl
from matplotlib import image

from tensorly_flycoo.models import LabelledCP

# Other tests compile kernels for rank 8 too.
RANK, ITERATIONS, STARTS = 8, 4, 2


@pytest.fixture(scope="module")
def flights():
    """Import the example in a test: it loads its data, which would slow down collection."""
    yield importlib.import_module("flights")
    del sys.modules["flights"]


def test_flights(flights, tmp_path, capsys):
    output = tmp_path / "flights.png"
    numbers = {"--rank": RANK, "--iterations": ITERATIONS, "--starts": STARTS}
    arguments = [str(part) for pair in numbers.items() for part in pair] + ["--output", str(output)]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = flights.main(arguments)
    page = capsys.readouterr().out

    x, cp_tensor, fit = result["x"], result["starts"].best, result["fit"]
    assert x.shape == (16, 3, 105, 365, 20)
    assert x.nnz == 330_813
    assert isinstance(cp_tensor, LabelledCP)
    assert cp_tensor.rank == RANK
    assert len(result["starts"].runs) == STARTS
    assert all(np.all(factor >= 0) for factor in cp_tensor.factors)
    assert 0.4 < fit.explained < 0.7

    # One paragraph per component.
    shares = re.findall(r"^Component (\d): (\S+)% of all flights$", page, re.MULTILINE)
    assert [number for number, _ in shares] == [*"01234567"]
    assert [float(share) for _, share in shares] == pytest.approx(
        (100 * result["totals"]).tolist(), abs=0.1
    )
    for name in ["carriers", "from", "to", "hours", "months", "weekdays"]:
        assert len(re.findall(rf"^  {name} +\S", page, re.MULTILINE)) == RANK
    assert "EWR Newark Liberty Intl" in page
    assert "B6 JetBlue Airways" in page
    # The low share of the deviance beside the high one of the flights is explained.
    assert f"explain only {fit.explained:.0%} of the deviance. Both are right" in " ".join(
        page.split()
    )
    assert f"Wrote {output}" in page
    check_leading_labels(x, cp_tensor)

    # The figure is a readable image and not blank.
    pixels = image.imread(output)
    height, width = pixels.shape[:2]
    assert 1000 <= width <= 2000
    assert 300 <= height <= 1500
    assert np.ptp(pixels[..., :3]) > 0.5


def check_leading_labels(x, cp_tensor):
    """Components agree with the data: the first carrier of each flies its first route."""
    routes = set(zip(*x.to_coo().coords[:3].tolist(), strict=True))
    leaders = [np.abs(factor).argmax(axis=0) for factor in cp_tensor.factors]
    for carrier, origin, destination, _, hour in zip(*leaders, strict=True):
        assert (carrier, origin, destination) in routes
        assert 5 <= x.labels["hour"][hour] <= 23


def test_tensor_counts_the_flights(flights):
    x = flights.build_tensor()
    table, coo = flights.flights, x.tensor.to_coo()
    assert list(x.labels) == ["carrier", "origin", "destination", "day", "hour"]
    assert coo.data.sum() == len(table) == 336_776
    for mode, name, column in [(0, "carrier", "carrier"), (2, "destination", "dest")]:
        counts = np.bincount(coo.coords[mode], weights=coo.data)
        codes = [label.split()[0] for label in x.labels[name]]
        assert counts.tolist() == table[column].value_counts()[codes].tolist()


def test_components_are_described_independently_of_scale_and_sign():
    from showing import format_largest, list_shares, list_totals

    columns = np.array([[3.0, 1.0], [1.0, 1.0]])
    factors = [columns * [1, 1], columns * [-2, 1], columns * [-0.5, 1]]
    labels = {name: ["a", "b"] for name in "xyz"}
    cp_tensor = LabelledCP((None, factors), labels)
    assert list_totals(cp_tensor).tolist() == pytest.approx([64, 8])
    for frame in list_shares(cp_tensor).values():
        np.testing.assert_allclose(frame, [[0.75, 0.5], [0.25, 0.5]])
    assert format_largest(pd.Series({"a": 0.019, "b": 0.25, "c": 0.731}), 3) == "c 73%, b 25%"
    assert format_largest(pd.Series({"a": 0.25, "b": 0.75}), 1) == "b 75%"
