"""Modes of times by hour of the day and by weekday, since single hours say little.

A profile averages the rows of a factor over the hours, or days, from its first to its last label.
Those that have no label count as zeros, unless cells without a row were unknown to the model.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .. import FitRecord, LabelledCP
from ..base.array_modules import move
from ..tensor.labelled import Labels

_HOUR = np.timedelta64(1, "h")
_DAY = np.timedelta64(1, "D")
_WEEK = np.timedelta64(1, "W")

_HOURS = [f"{hour:02}:00" for hour in range(24)]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

#: The epoch, 1970-01-01, was a Thursday: so many days after a Monday.
_EPOCH_WEEKDAY = 3


class Profile(NamedTuple):
    """The mean rows of a factor at the times of a period."""

    unit: str  # "hour" or "weekday"
    times: list[str]
    rows: np.ndarray  # (number of times, R)


def find_profiles(cp: LabelledCP) -> dict[str, list[Profile]]:
    """Return the profiles of each mode of times of day: by hour, and by weekday if over weeks."""
    record = cp.flycoo or FitRecord()
    is_known = record.absent != "unknown"
    profiles = {}
    for (name, labels), array in zip(cp.labels.items(), cp.factors, strict=True):
        if not _are_times_of_day(labels):
            continue
        factor = move(array, np)
        hours = labels.astype("M8[h]").astype(np.int64)
        profiles[name] = [Profile("hour", _HOURS, _average(hours, factor, 24, is_known))]
        if labels.max() - labels.min() >= 2 * _WEEK:
            days = labels.astype("M8[D]").astype(np.int64) + _EPOCH_WEEKDAY
            rows = _average(days, factor, 7, is_known)
            profiles[name].append(Profile("weekday", _WEEKDAYS, rows))
    return profiles


def _are_times_of_day(labels: np.ndarray) -> bool:
    """Return whether labels are times of which some are on one day, over more than a day."""
    if labels.dtype.kind != "M" or labels.size < 2:
        return False
    gaps = np.diff(np.sort(labels))
    return bool(gaps.min() < _DAY and gaps.sum() > _DAY)


def _average(slots: np.ndarray, factor: np.ndarray, period: int, is_known: bool) -> np.ndarray:
    """Return the mean row of each place in a period, of slots that are counted without a break."""
    places = slots % period
    sums = np.zeros((period, factor.shape[1]))
    np.add.at(sums, places, factor)
    if is_known:
        counts = _count_slots(slots.min(), slots.max(), period)
    else:
        counts = np.bincount(places, minlength=period)
    return sums / np.maximum(counts, 1)[:, None]


def _count_slots(first: int, last: int, period: int) -> np.ndarray:
    """Count how many of the slots from `first` to `last` are at each place of a period.

    >>> _count_slots(5, 8, 3)  # the places 2, 0, 1 and 2
    array([1, 1, 2])
    """
    places = np.arange(period)
    return (last - places) // period - (first - 1 - places) // period


def show_profiles(cp: LabelledCP, profiles: Mapping[str, list[Profile]]) -> LabelledCP:
    """Return a model to describe, which has profiles in place of modes of times."""
    labels: dict[str, object] = {}
    factors: list[np.ndarray] = []
    numbers = []  # where each mode begins
    for name, factor in zip(cp.names, cp.factors, strict=True):
        numbers.append(len(factors))
        if name not in profiles:
            labels[name] = cp.labels[name]
            factors.append(move(factor, np))
        for profile in profiles.get(name, ()):
            labels[f"{name} by {profile.unit}"] = profile.times
            factors.append(profile.rows)
    numbers.append(len(factors))  # that of the mean
    record = cp.flycoo or FitRecord()
    bias_modes = tuple(numbers[mode] if mode >= 0 else mode for mode in record.bias_modes)
    record = record.replace(bias_modes=bias_modes)
    return LabelledCP._from_parts(move(cp.weights, np), factors, Labels(labels), record)
