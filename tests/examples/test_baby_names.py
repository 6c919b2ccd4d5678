"""The baby names with small settings: the model, the output and the figure."""

import baby_names
import numpy as np
import tensorly as tl
from matplotlib import image


def test_baby_names(tmp_path, capsys):
    output = tmp_path / "names.png"
    arguments = ["--rank", "3", "--iterations", "10", "--names", "300", "--output", str(output)]
    with tl.backend_context(tl.get_backend()):  # restores the backend that the example sets
        result = baby_names.main(arguments)
    x, cp_tensor, table = result["x"], result["cp_tensor"], result["table"]
    assert baby_names.load_table()["n"].sum() == 348_120_517
    assert x.shape == (138, 2, 300)
    assert len(table) == x.nnz
    counts = table.groupby("name")["n"].sum()[x.labels["name"]]
    assert x.sum(axis=(0, 1)).tolist() == counts.tolist()
    assert all((factor >= 0).all() for factor in cp_tensor.factors)
    assert np.all(np.diff(result["errors"]) < 1e-6)  # each update solves its problem exactly
    check_leading_labels(cp_tensor, table)
    page = capsys.readouterr().out
    assert page.count("million, most in") == 3
    assert f"Wrote {output}" in page
    pixels = image.imread(output)
    assert 700 < pixels.shape[1] < 1500
    assert np.ptp(pixels[..., :3]) > 0.5


def check_leading_labels(cp_tensor, table):
    """The leading name of a component was common in its peak year, not given just by chance."""
    for leaders in zip(*(cp_tensor.top(mode, 1) for mode in range(3)), strict=True):
        (year,), (sex,), (name,) = leaders
        rows = table[(table["name"] == name) & (table["sex"] == sex)]
        of_year = rows[rows["year"].astype(int) == year]["n"].sum()
        assert of_year > rows["n"].sum() / 138
