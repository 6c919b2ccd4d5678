"""What a table does not say: whether cells without a row are zeros or unknown."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tensorly_flycoo import from_dataframe
from tensorly_flycoo.io.absent_blocks import find_absent

EXPRESSION = ["gene", "cell type", "donor"]
LOG = ["sensor", "day", "hour"]


def make_expression(share=0.7, seed=0):
    """Make genes of 10 cell types of 24 donors, 58 pairs of which were not measured."""
    random = np.random.default_rng(seed)
    is_absent = np.zeros(240, bool)
    is_absent[random.choice(240, 58, replace=False)] = True
    shares = random.beta(2 * share, 2 * (1 - share), (300, 1))
    gene, pair = np.nonzero((random.random((300, 240)) < shares) & ~is_absent)
    values = random.lognormal(size=gene.size)
    table = {"gene": gene, "cell type": pair // 24, "donor": pair % 24, "v": values}
    return pd.DataFrame(table).sample(frac=1, random_state=0), is_absent.reshape(10, 24)


def make_log(share=1.0, has_gap=True):
    """Make readings of 20 sensors for 30 days, of which sensor 3 is off for five."""
    random = np.random.default_rng(0)
    sensor, day, hour = np.indices((20, 30, 24)).reshape(3, -1)
    log = pd.DataFrame({"sensor": sensor, "day": day, "hour": hour})
    log = log.assign(v=random.normal(20, 1, sensor.size)).sample(frac=share, random_state=0)
    is_off = (log["sensor"] == 3) & log["day"].between(11, 15)
    return log[~is_off] if has_gap else log


def make_ratings(shape, num_rows, tail):
    random = np.random.default_rng(0)
    chances = [np.arange(1, size + 1) ** -float(tail) for size in shape[:2]]
    columns = {
        name: random.choice(p.size, num_rows, p=p / p.sum())
        for name, p in zip("ui", chances, strict=True)
    }
    ratings = pd.DataFrame(columns).assign(d=random.integers(0, shape[2], num_rows))
    return ratings.drop_duplicates().assign(v=random.integers(1, 6, num_rows)[0])


def list_warnings(*args, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_dataframe(*args, **options)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("share", [0.999, 0.7, 0.3])
def test_absent_pairs_are_named_once(share):
    table, _ = make_expression(share)
    (message,) = list_warnings(table, EXPRESSION, "v")
    assert message == (
        "58 of 240 pairs (cell type, donor) have no row: zeros to parafac; pass missing="
        '["cell type", "donor"] if they were not measured, or missing="raise" if they are zeros'
    )
    with pytest.warns(UserWarning, match=r"58 of 240 pairs \(donor, cell type\)") as caught:
        from_dataframe(pl.DataFrame(table), EXPRESSION[::-1], "v", missing="drop")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_gap_in_a_log_is_named(share):
    (message,) = list_warnings(make_log(share), LOG, "v")
    assert message.startswith("5 of 600 pairs (sensor, day) have no row")
    assert not list_warnings(make_log(share, has_gap=False), LOG, "v")
    with_place = make_log(share).assign(place=0)
    with_place = pd.concat([with_place, with_place.assign(place=1, v=1.0)])
    (message,) = list_warnings(with_place, [*LOG, "place"], "v")
    assert message.startswith("5 of 600 pairs (sensor, day) have no row")


def test_a_block_of_three_modes_is_named():
    place, sensor, day, hour = np.indices((4, 5, 6, 24)).reshape(4, -1)
    table = pd.DataFrame({"place": place, "sensor": sensor, "day": day, "hour": hour, "v": 1.0})
    table = table.query("not (place == 1 and sensor == 2 and day == 3)")
    (message,) = list_warnings(table, ["place", *LOG], "v")
    assert message.startswith("1 of 120 combinations (place, sensor, day) have no row")


def test_who_has_said_it_is_not_warned():
    table, _ = make_expression()
    for options in (
        {"missing": "raise"}, {"missing": "unknown"}, {"missing": ["cell type", "donor"]},
        {"aggregate": "count"},
    ):  # fmt: skip
        assert not list_warnings(table, EXPRESSION, "v", **options)
    assert not list_warnings(table, EXPRESSION)
    assert not list_warnings(table, EXPRESSION[1:], "v", aggregate="mean")


@pytest.mark.parametrize("tail", [0, 0.5, 1.1])
@pytest.mark.parametrize(
    ("shape", "num_rows"),
    [
        ((3000, 1000, 30), 50_000), ((100, 1000, 7), 20_000), ((50, 60, 12), 5000),
        ((20, 20, 20), 2000), ((10, 10, 10), 300), ((40, 40, 5), 3000),
    ],
)  # fmt: skip
def test_ratings_and_counts_have_no_absent_blocks(shape, num_rows, tail):
    assert not list_warnings(make_ratings(shape, num_rows, tail), ["u", "i", "d"], "v")


def test_labels_that_rarely_come_together_are_no_absent_blocks():
    """As names of girls and boys: many were given to both in some years, others never."""
    random = np.random.default_rng(0)
    chances = random.permuted(np.stack([np.full(500, 0.6), random.beta(0.15, 3, 500)], 1), axis=1)
    name, sex, year = np.nonzero(random.random((500, 2, 100)) < chances[..., None])
    table = pd.DataFrame({"name": name, "sex": sex, "year": year, "n": 1.0})
    pairs = table[["name", "sex"]].drop_duplicates()
    assert 600 < len(pairs) < 950
    assert not list_warnings(table, ["name", "sex", "year"], "n")


def test_absent_pairs_are_unknown_blocks():
    table, is_absent = make_expression()
    x = from_dataframe(table, EXPRESSION, "v", missing=["donor", "cell type"])
    assert x.unknown.shape == (1, 10, 24)
    np.testing.assert_array_equal(x.unknown.todense()[0] == 0, is_absent)
    assert repr(x).endswith("unknown: 58 blocks of cell type x donor>")
    means = table.pivot_table(index="cell type", columns="donor", values="v", aggfunc="sum") / 300
    found = x.mean("gene")
    np.testing.assert_allclose(found.to_coo().todense(), means.fillna(0), rtol=1e-12)
    np.testing.assert_array_equal(found.unknown.todense() == 0, is_absent)


def test_a_pair_of_zeros_is_measured():
    table = make_log()
    table.loc[(table["sensor"] == 7) & (table["day"] == 2), "v"] = 0.0
    for zeros in ("drop", "keep"):
        x = from_dataframe(table, LOG, "v", missing=["sensor", "day"], zeros=zeros)
        assert x.unknown.coords.tolist() == [[3] * 5, [*range(11, 16)], [0] * 5]
        assert x.nnz == 20 * 30 * 24 - 5 * 24 - (24 if zeros == "drop" else 0)
    with pytest.raises(ValueError, match="24 of 14280 values of column 'v' are 0"):
        from_dataframe(table, LOG, "v", missing=["sensor", "day"])


def test_single_gaps_in_blocks_that_were_measured_are_named():
    """Such as of a sensor that loses an hour now and then: the blocks are nearly full."""
    table = make_log()
    lossy = table[np.random.RandomState(0).rand(len(table)) > 0.02]
    num_lost = 14_280 - len(lossy)
    message = f"{num_lost} of 14,280 cells have no row, though their pairs \\(sensor, day\\) have"
    with pytest.warns(UserWarning, match=message):
        from_dataframe(lossy, LOG, "v", missing=["sensor", "day"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_dataframe(table, LOG, "v", missing=["sensor", "day"])
        from_dataframe(lossy, LOG, "v", missing="unknown")
        sparse_table = table.sample(frac=0.5, random_state=0)  # as of genes that are not all listed
        from_dataframe(sparse_table, LOG, "v", missing=["sensor", "day"])


@pytest.mark.parametrize("missing", ["unknown", ["a", "b"]])
def test_what_is_unknown_is_not_given_up_to_leave_rows_out(missing):
    table = pd.DataFrame({"a": [0, None], "b": [0, 1], "c": [1, 2], "v": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"no entry in row 1, .*; .* df.dropna\(subset=\['a'\]\)"):
        from_dataframe(table, ["a", "b", "c"], "v", missing=missing)


def test_all_cells_without_a_row_are_unknown(tmp_path):
    table = pd.DataFrame({"a": [0, 0, 1, 2], "b": [0, 1, 1, 0], "v": [2.0, 0.0, np.nan, 4.0]})
    for missing in ("unknown", ["b", "a"]):
        x = from_dataframe(table, ["a", "b"], "v", missing=missing)
        assert x.unknown == "all"
        assert x.nonzeros()[0].tolist() == [[0, 0, 1], [0, 1, 0]]
        np.testing.assert_allclose(x.nonzeros()[1], [2, 0, 4], atol=1e-18)
        assert x.labels["a"].tolist() == [0, 2]
        np.testing.assert_allclose(x.mean("b"), [1, 4])
    with pytest.raises(ValueError, match="1 of 3 values of column 'v' are 0"):
        from_dataframe(table, ["a", "b"], "v", missing="unknown", zeros="raise")
    with pytest.raises(ValueError, match=r"no value in row 2, .* or missing=\"unknown\" if cells"):
        from_dataframe(table, ["a", "b"], "v")
    with pytest.raises(ValueError, match="column 'a' has no entry in row 1"):
        from_dataframe(table.assign(a=[0, None, 1, 2]), ["a", "b"], "v", missing="unknown")


def test_slices_of_labels_without_rows_are_unknown():
    table = make_log(has_gap=False)
    with pytest.raises(ValueError, match=r"missing is \['hour'\], but each label of one mode has"):
        from_dataframe(table, LOG, "v", missing=["hour"])
    labels = {"day": range(32)}
    x = from_dataframe(table, LOG, "v", missing=["day"], labels=labels)
    assert x.unknown.shape == (1, 32, 1)
    assert x.unknown.coords.tolist() == [[0, 0], [30, 31], [0, 0]]
    x = from_dataframe(table, LOG, "v", missing=["day"], labels={"day": range(30)})
    assert x.unknown is None


def test_wrong_names_of_missing_modes():
    for missing in (["sensor", "place"], ["day", "day"], []):
        with pytest.raises(ValueError, match=r"missing is .*, expected distinct ones of the modes"):
            from_dataframe(make_log(), LOG, "v", missing=missing)


def test_combinations_are_not_too_many():
    with pytest.raises(ValueError, match=r"100,000,000 combinations, expected at most 67,108,864"):
        find_absent(np.zeros((2, 1), int), (10_000, 10_000), ["a", "b"])


# Rows of one cell

STARS = pd.DataFrame({"user": [0, 0, 1, 1, 1], "film": [0, 0, 0, 1, 1], "v": [4.0, 4, 3, -1, 2]})


def test_added_values_are_named():
    message = "2 of 5 rows fall into the cell of an earlier one, and the values are added: pass agg"
    for table in (STARS, STARS.assign(v=[4.0, 4, 3, 1, 2])):  # two ways to add
        (found,) = list_warnings(table, ["user", "film"], "v")
        assert found.startswith(message)
        assert not list_warnings(table, ["user", "film"], "v", aggregate="sum")
        assert not list_warnings(table, ["user", "film"], "v", aggregate="mean")
        assert not list_warnings(table, ["user", "film"])
        assert not list_warnings(table[1:4], ["user", "film"], "v")
    cancelled = STARS.assign(v=[4.0, -4, 3, 0, 2])
    for zeros, count in [("drop", "1 of 4"), ("keep", "2 of 5")]:
        (found,) = list_warnings(cancelled, ["user", "film"], "v", zeros=zeros)
        assert found.startswith(f"{count} rows fall into the cell of an earlier one")


@pytest.mark.parametrize("aggregate", ["sum", "mean", "last", "max", "count", None])
@pytest.mark.filterwarnings("ignore:.*rows fall into the cell")
def test_a_dropped_zero_is_as_if_its_row_were_not_there(aggregate):
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.integers(0, 8, (400, 2)), columns=["a", "b"])
    table["v"] = random.integers(-2, 4, 400) * 1.0
    x = from_dataframe(table, ["a", "b"], "v", aggregate=aggregate, zeros="drop")
    cells = table[table["v"] != 0].groupby(["a", "b"])["v"].agg(aggregate or "sum")
    expected = cells.unstack(fill_value=0).reindex(index=range(8), columns=range(8), fill_value=0)
    np.testing.assert_allclose(x.to_coo().todense(), expected, rtol=1e-14)
    assert x.nnz == np.count_nonzero(expected)


def test_a_cell_of_4_and_0_has_the_mean_4():
    table = pd.DataFrame({"k": ["a", "a", "b", "c"], "v": [4.0, 0, 3, 0]})
    for aggregate, of_a in [("mean", 4), ("last", 4), ("max", 4), ("sum", 4), ("count", 1)]:
        x = from_dataframe(table, ["k"], "v", aggregate=aggregate, zeros="drop")
        assert x.nonzeros()[1].tolist() == [of_a, 1 if aggregate == "count" else 3]
        assert x.labels["k"].tolist() == ["a", "b", "c"]
        zeros = from_dataframe(table[3:], ["k"], "v", aggregate=aggregate, zeros="drop")
        assert zeros.nnz == 0
    assert from_dataframe(table, ["k"], "v", aggregate="mean", zeros="keep").max() == 3
