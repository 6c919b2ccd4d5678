"""The commands that take a model: "predict", "recommend", "anomalies" and "diagnose"."""

import numpy as np
import pandas
import pytest

from tensorly_flycoo import (
    FitRecord,
    FlycooTensor,
    LabelledCP,
    anomaly_scores,
    diagnose,
    from_dataframe,
    recommend,
    write_tns,
)
from tensorly_flycoo.base.fit_record import attach
from tensorly_flycoo.command_line import main
from tensorly_flycoo.models import LabelledTucker

USERS = ["007", "7", "ann", "zoë"]
DAYS = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "M8[D]")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cp():
    """A model of users, of whom some are called like numbers, films that are numbers, and days."""
    random = np.random.RandomState(0)
    factors = [random.rand(size, 2) for size in (4, 5, 3)]
    cp = LabelledCP((None, factors), {"user": USERS, "film": range(1, 6), "time:day": DAYS})
    cp.save("model.npz")
    return cp


@pytest.fixture
def rows(cp):
    """Rows of which two are one cell, in no order."""
    return pandas.DataFrame({
        "user": ["7", "007", "7", "7"],
        "film": [5, 1, 5, 2],
        "time": ["2026-01-03 10:00:00", "2026-01-01 00:30:00", "2026-01-03 23:00:00", "2026-01-02"],
    })  # fmt: skip


def round_times(rows):
    times = pandas.to_datetime(rows["time"], format="mixed")
    return rows.assign(**{"time:day": times.dt.floor("D")})


@pytest.mark.parametrize("name", ["new.csv", "new.parquet", "new.tsv"])
def test_predict(name, cp, rows, capsys):
    """Each row is predicted; "7" is text where the labels of the model are."""
    rows = rows[rows["user"] == "7"]
    if name == "new.parquet":
        rows.assign(time=pandas.to_datetime(rows["time"], format="mixed")).to_parquet(name)
    else:
        rows.to_csv(name, index=False, sep="\t" if name == "new.tsv" else ",")
    assert main(["predict", "model.npz", name]) == 0
    found = pandas.read_csv("new_predictions.csv", dtype={"user": str})
    assert [*found.columns] == ["user", "film", "time:day", "prediction"]
    assert found["user"].tolist() == ["7", "7", "7"]
    assert found["film"].tolist() == [5, 5, 2]
    assert found["time:day"].tolist() == ["2026-01-03", "2026-01-03", "2026-01-02"]
    np.testing.assert_array_equal(found["prediction"], cp.predict(round_times(rows)))
    out, error = capsys.readouterr()
    assert out.endswith("wrote new_predictions.csv, rows: 3\n")
    assert error == ""


def test_a_mode_that_is_called_as_a_result(capsys):
    labels = {"user": ["ann"], "prediction": ["x"]}
    LabelledCP((None, [np.ones((1, 1)), np.ones((1, 1))]), labels).save("model.npz")
    pandas.DataFrame(labels).to_csv("new.csv", index=False)
    for command in (["predict", "model.npz", "new.csv"], ["recommend", "model.npz", "--mode=user"]):
        assert main(command) == 1
        assert "a mode is called 'prediction'" in capsys.readouterr().err


def test_predict_leaves_rows_out(cp, capsys):
    with open("new.csv", "w") as file:
        file.write("user;film;time\n7;;2026-01-01\nNA;1;2026-01-01\n7;2;2026-01-02\n")
    options = ["--sep", ";", "--missing-text", "NA", "--output", "new/out.csv", "--quiet"]
    assert main(["predict", "model.npz", "new.csv", *options]) == 1
    assert "or pass --missing drop" in capsys.readouterr().err
    assert main(["predict", "model.npz", "new.csv", *options, "--missing", "drop"]) == 0
    found = pandas.read_csv("new/out.csv")
    assert found["film"].tolist() == [2]
    out, error = capsys.readouterr()
    assert out == "wrote new/out.csv, rows: 1\n"
    assert error == "warning: left out 2 of 3 rows: an entry is missing\n"


def test_a_tensor_of_indices(folder):
    """Its indices are the labels of a model of such a file, also if it lacks the last ones."""
    factors = [np.arange(1.0, 4.0)[:, None], np.ones((2, 1))]
    LabelledCP((None, factors), [np.arange(1, 4), np.arange(1, 3)]).save("model.npz")
    write_tns("new.tns", FlycooTensor([[0, 1], [1, 0]], [5.0, 3.0], (2, 2)))
    assert main(["predict", "model.npz", "new.tns"]) == 0
    found = pandas.read_csv("new_predictions.csv").sort_values("mode 0")
    assert found["mode 1"].tolist() == [2, 1]
    np.testing.assert_allclose(found["prediction"], [1, 2], rtol=1e-15)
    assert main(["anomalies", "model.npz", "new.tns"]) == 0
    assert pandas.read_csv("new_anomalies.csv")["value"].tolist() == [5, 3]


@pytest.mark.parametrize(
    ("mode", "ids", "of"),
    [
        (["user"], None, "film"),
        (["user", "zoë", "7"], ["zoë", "7"], "film"),
        (["film", "5"], [5], "user"),
        (["time:day", "2026-01-02"], DAYS[1:2], "film"),
    ],
)
def test_recommend(mode, ids, of, cp):
    options = ["--of", of, "-n", "2", "--output", "out.csv"]
    assert main(["recommend", "model.npz", *options, "--mode", *mode]) == 0
    expected = recommend(cp, mode[0], ids, 2, of=of)
    found = pandas.read_csv("out.csv", dtype={"user": str})
    assert [*found.columns] == [mode[0], of, "prediction"]
    shown = cp.labels[mode[0]] if ids is None else ids
    assert found[mode[0]].astype(str).tolist() == [str(label) for label in shown for _ in range(2)]
    assert found[of].tolist() == [label for best in expected for label in best]
    assert found["prediction"].tolist() == [value for best in expected for value in best.values()]


def test_recommend_leaves_out_what_is_known(cp, rows, capsys):
    """Whatever the value of a row: a rating of 0 is known too."""
    rows.assign(stars=0).to_csv("known.csv", index=False)
    command = ["recommend", "model.npz", "--exclude", "known.csv", "--mode", "user", "7"]
    assert main(command) == 0
    found = pandas.read_csv("user_recommendations.csv")
    assert {*found["film"]} == {1, 3, 4}
    assert "wrote user_recommendations.csv, rows: 3" in capsys.readouterr().out


def test_anomalies(cp, rows, capsys):
    """The counts of cells, the least likely first; the file lacks most labels."""
    rows.to_csv("events.csv", index=False)
    assert main(["anomalies", "model.npz", "events.csv"]) == 0
    x = from_dataframe(round_times(rows), cp.names, labels=cp.labels)
    expected = anomaly_scores(x, cp).sort_values("score", ascending=False)
    found = pandas.read_csv("events_anomalies.csv", dtype={"user": str})
    assert found["value"].tolist() == expected["value"].tolist()
    np.testing.assert_array_equal(found["score"], expected["score"])
    assert "wrote events_anomalies.csv, rows: 3" in capsys.readouterr().out
    rows.assign(number=[1, 2, 3, 0]).to_csv("numbers.csv", index=False)
    options = ["--values", "number", "--aggregate", "max"]
    assert main(["anomalies", "model.npz", "numbers.csv", *options]) == 0
    assert {*pandas.read_csv("numbers_anomalies.csv")["value"]} == {3, 2}


def test_the_values_of_a_model_are_read_again(cp, rows, folder):
    """A fit of a column of counts knows it."""
    rows.assign(number=[1, 2, 3, 4]).to_csv("numbers.csv", index=False)
    fit = ["fit", "numbers.csv", "--modes", "user,film", "--rank", "1", "--loss", "poisson_count"]
    options = ["--values", "number", "--aggregate", "sum", "--starts", "1", "--quiet"]
    assert main([*fit, *options, "--output", "."]) == 0
    assert main(["anomalies", "model.npz", "numbers.csv", "--aggregate", "sum"]) == 0
    assert {*pandas.read_csv("numbers_anomalies.csv")["value"]} == {4, 2}


def test_diagnose(cp, rows, capsys):
    """The table of each component, beside the cells that `fit` would see; text says the same."""
    rows.to_csv("events.csv", index=False)
    command = ["diagnose", "model.npz", "events.csv"]
    assert main(command) == 0
    x = from_dataframe(round_times(rows), cp.names, labels=cp.labels)
    expected = diagnose(x, cp)
    found = pandas.read_csv("events_diagnosis.csv", index_col="component", dtype={"user": str})
    for name in ("size", "congruence", "noise"):
        np.testing.assert_array_equal(found[name], expected.table[name])
    assert found["user"].tolist() == expected.labels["user"]
    assert capsys.readouterr().out == f"{expected!r}\nwrote events_diagnosis.csv\n"
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().out == "wrote events_diagnosis.csv\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "none.npz", "rows.csv"], "none.npz does not exist"),
        (["predict", "model.npz", "none.csv"], "none.csv does not exist"),
        (["predict", "rows.csv", "rows.csv"], "rows.csv is damaged, or not a saved LabelledCP"),
        (["predict", "tucker.npz", "rows.csv"], "tucker.npz is a saved LabelledTucker, expected"),
        (["predict", "model.npz", "bad.csv"], "'bob' in row 0, expected one of its 4 labels"),
        (["predict", "model.npz", "less.csv"], "less.csv has no column 'film'"),
        (["predict", "model.npz", "x.tns"], "the labels of 'user' in the model are others"),
        (["recommend", "model.npz", "--mode", "item"], "--mode has 'item', expected some of user"),
        (["recommend", "model.npz", "--mode", "user", "bob"], "'bob' is none of the 4 labels of"),
        (["recommend", "model.npz", "--mode", "film", "bob"], "'bob' is none of the 5 labels of"),
        (["recommend", "model.npz", "--mode", "time:day", "2025"], "'2025' is none of the 3"),
        (["recommend", "model.npz", "--mode", "user", "--of", "user"], "--of has 'user'"),
        (["recommend", "model.npz", "--mode", "user", "--exclude", "none.csv"], "does not exist"),
        (["recommend", "model.npz", "--mode", "user", "--exclude", "bad.csv"], "'bob' in row 0"),
        (["anomalies", "model.npz", "rows.csv", "--values", "n"], "has no column 'n'"),
        (["anomalies", "model.npz", "x.tns", "--values", "n"], "--values is for tables"),
        (["diagnose", "model.npz", "bad.csv"], "'bob' in row 0, expected one of its 4 labels"),
        (["anomalies", "odds.npz", "rows.csv"], "for anomaly_scores: its values are no means"),
    ],
)
def test_what_fails_has_exit_code_1(arguments, message, cp, rows, folder, capsys):
    rows.to_csv("rows.csv", index=False)
    rows.assign(user="bob").to_csv("bad.csv", index=False)
    rows.drop(columns="film").to_csv("less.csv", index=False)
    write_tns("x.tns", FlycooTensor([[0], [0], [0]], [1.0], (4, 5, 3)))
    core = np.ones((1, 1))
    LabelledTucker((core, [core, core]), {"user": ["ann"], "film": [1]}).save("tucker.npz")
    attach(cp, FitRecord(loss="bernoulli_odds")).save("odds.npz")
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert "cp_tensor" not in error
    assert not [*folder.glob("*_*.csv")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict"],
        ["predict", "model.npz"],
        ["predict", "model.npz", "rows.xlsx"],
        ["recommend", "model.npz"],
        ["recommend", "model.npz", "--mode", "user", "-n", "0"],
        ["recommend", "model.npz", "--mode", "user", "--exclude", "rows.xlsx"],
        ["anomalies", "model.npz", "rows.xlsx"],
    ],
)
def test_a_wrong_command_line_has_exit_code_2(arguments, cp):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
