"""Profiles of modes of times, by hour of the day and by weekday."""

import numpy as np
import pandas
import pytest

from tensorly_flycoo import FitRecord, LabelledCP
from tensorly_flycoo.base.fit_record import attach
from tensorly_flycoo.command_line import main
from tensorly_flycoo.command_line.profiles import find_profiles, show_profiles

HOURS = pandas.date_range("2026-01-01 05:00", "2026-01-20 17:00", freq="h")


@pytest.fixture
def cp():
    """A model of some hours of three weeks: not of all, so that means differ."""
    random = np.random.RandomState(0)
    kept = random.rand(len(HOURS)) < 0.7
    kept[[0, -1]] = True
    times = HOURS[kept].to_numpy()
    factors = [np.ones((2, 3)), random.rand(times.size, 3)]
    return LabelledCP((None, factors), {"user": ["ann", "bob"], "time": times})


def test_hours_and_weekdays(cp):
    """As pandas finds them, where hours without a label are zeros; and where they are unknown."""
    (hours, weekdays) = find_profiles(cp)["time"]
    assert (hours.unit, weekdays.unit) == ("hour", "weekday")
    rows = pandas.DataFrame(cp.factors[1], index=cp.labels["time"])
    of_all = rows.reindex(HOURS, fill_value=0)
    expected = of_all.groupby(HOURS.hour).mean()
    np.testing.assert_allclose(hours.rows, expected, rtol=1e-13)
    assert hours.times[5] == "05:00"
    days = of_all.resample("D").sum()
    expected = days.groupby(days.index.day_of_week).mean()
    np.testing.assert_allclose(weekdays.rows, expected, rtol=1e-13)
    assert weekdays.times[HOURS[0].weekday()] == "Thursday"

    attach(cp, FitRecord(absent="unknown"))
    hours, _ = find_profiles(cp)["time"]
    np.testing.assert_allclose(hours.rows, rows.groupby(rows.index.hour).mean(), rtol=1e-13)


@pytest.mark.parametrize(
    ("times", "units"),
    [
        (pandas.date_range("2026-01-01", periods=30, freq="D"), []),
        (pandas.date_range("2026-01-01 05:00", periods=12, freq="h"), []),
        (pandas.date_range("2026-01-01 05:00", periods=30, freq="h"), ["hour"]),
        (pandas.date_range("1969-12-20", periods=400, freq="h"), ["hour", "weekday"]),
        (pandas.to_datetime(["2026-01-01"]), []),
        (np.arange(40), []),
    ],
)
def test_which_labels_are_times_of_day(times, units):
    cp = LabelledCP((None, [np.ones((len(times), 1))]), {"time": np.asarray(times)})
    assert [profile.unit for profile in find_profiles(cp).get("time", [])] == units


def test_times_before_the_epoch():
    """1969-12-31 was a Wednesday."""
    times = np.array(["1969-12-31T23:00", "1969-12-31T22:00", "1970-01-20T00:00"], "M8[m]")
    cp = LabelledCP((None, [np.array([[3.0], [0.0], [0.0]])]), {"time": times})
    hours, weekdays = find_profiles(cp)["time"]
    assert np.flatnonzero(hours.rows).tolist() == [23]
    assert [weekdays.times[n] for n in np.flatnonzero(weekdays.rows)] == ["Wednesday"]


def test_biases_keep_their_names(cp):
    record = FitRecord(bias_modes=(1, 0, 2))
    shown = show_profiles(attach(cp, record), find_profiles(cp))
    assert shown.names == ("user", "time by hour", "time by weekday")
    assert shown.components == ("time by hour bias", "user bias", "mean")


def test_fit_prints_and_writes_profiles(tmp_path, monkeypatch, capsys):
    """Two groups of users, in the morning and on evenings of Saturdays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    morning = pandas.date_range("2026-01-05 08:10", periods=28, freq="D")
    evening = morning[morning.day_of_week == 5] + pandas.Timedelta("12h")
    tables = []
    for users, times in (("ab", morning), ("cd", evening)):
        pairs = pandas.MultiIndex.from_product([list(users), times], names=["user", "time"])
        tables.append(pairs.to_frame(index=False))
    pandas.concat(tables).to_csv("events.csv", index=False)
    options = ["--rank", "2", "--device", "cpu", "--output", "out"]
    assert main(["fit", "events.csv", "--modes", "user,time:hour", *options]) == 0
    page = capsys.readouterr().out
    first, second = page.split("component ")[1:]
    assert "time:hour by hour     08:00" in first
    assert "time:hour by hour     20:00" in second
    assert "time:hour by weekday  Saturday" in second
    assert "2026-" not in page
    assert "wrote out/profile_time_hour.csv" in page
    profile = pandas.read_csv("out/profile_time_hour.csv", index_col=["by", "time"])
    assert profile.shape == (31, 2)
    assert profile.loc["weekday"].idxmax().tolist()[1] == "Saturday"
    assert profile.loc["hour"].idxmax().tolist() == ["08:00", "20:00"]
