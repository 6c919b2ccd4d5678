"""The commands that use a model that "fit" has saved."""

import argparse
import contextlib

import numpy as np

from .. import anomaly_scores
from ..base.checks import require
from ..base.watching import watch
from ..models import diagnose as find_diagnosis
from ..models import recommend as find_best
from ..tensor.labelled import take_labels
from .reading import (
    check_modes,
    load_model,
    name_after,
    read_cells,
    read_for_model,
    read_rows,
)
from .writing import name_mode, write_table, write_text

_NEED_PANDAS = 'tables need pandas: pip install "tensorly-flycoo[tables]"'


def predict(arguments: argparse.Namespace) -> None:
    """Predict the value of each row of a file by a saved model, such as ratings not yet given.

    The file needs a column for each mode of the model, named as the file's that was decomposed. The
    result has these columns and one of predictions, with the rows in their order.
    """
    require("pandas", _NEED_PANDAS)
    cp = load_model(arguments.model)
    rows = read_rows(arguments, cp)
    with watch("predicting"):
        rows.insert(len(cp.names), "prediction", cp.predict(rows))
        path = arguments.output or name_after(arguments.file, "_predictions.csv")
        write_table(rows, path, arguments)


def recommend(arguments: argparse.Namespace) -> None:
    """List the labels with the highest predictions of a saved model, such as films for a user.

    Rows of modes other than --mode and --of are averaged.
    """
    pandas = require("pandas", _NEED_PANDAS)
    cp = load_model(arguments.model)
    mode, *texts = arguments.mode
    check_modes("--mode", [mode], cp.names)
    others = [name for name in cp.names if name != mode]
    of = arguments.of or others[0]
    check_modes("--of", [of], others)
    labels = cp.labels[mode]
    if texts:
        labels = labels[[_find_place(text, labels, mode) for text in texts]]
    excluded = None
    if arguments.exclude is not None:
        excluded = read_cells(arguments.exclude, arguments, cp)
    with watch("recommending"):
        best = find_best(cp, mode, labels, arguments.n, of=of, exclude=excluded)
        counts = [len(found) for found in best]
        names = [name for found in best for name in found]
        predictions = [value for found in best for value in found.values()]
        frame = pandas.DataFrame({mode: np.repeat(labels, counts), of: names})
        frame.insert(2, "prediction", predictions)
        path = arguments.output or name_mode(mode, "_recommendations.csv")
        write_table(frame, path, arguments)


def anomalies(arguments: argparse.Namespace) -> None:
    """Score how unlikely the counts of a file are by a saved model, the least likely first.

    The model gives the mean of each count, as one of --loss poisson_count does. A score of 6 means
    that chance makes a count so large once in a million cells.
    """
    require("pandas", _NEED_PANDAS)
    cp = load_model(arguments.model)
    x = read_for_model(arguments, cp)
    with watch("scoring"):
        frame = anomaly_scores(x, cp).sort_values("score", ascending=False, kind="stable")
        path = arguments.output or name_after(arguments.file, "_anomalies.csv")
        write_table(frame, path, arguments)


def diagnose(arguments: argparse.Namespace) -> None:
    """Say how far to trust a saved model, beside the file that it was made of.

    The digits of a component are those that noise and further iterations would not change.
    """
    require("pandas", _NEED_PANDAS)
    cp = load_model(arguments.model)
    x = read_for_model(arguments, cp)
    with watch("judging the model"):
        found = find_diagnosis(x, cp)
    path = arguments.output or name_after(arguments.file, "_diagnosis.csv")
    write_text(path, found.table.to_csv(index_label="component"))
    if not arguments.quiet:
        print(repr(found))
    print(f"wrote {path}")


def _find_place(text: str, labels: np.ndarray, mode: str) -> int:
    """Return the place of a label that is written so on the command line: text, number or date."""
    with contextlib.suppress(TypeError, ValueError):  # NumPy's, of what is no number or date
        label = np.array(text).astype(labels.dtype)
        (places,) = np.nonzero(labels == label)
        if places.size:
            return int(places[0])
    example = take_labels(labels, slice(1))[0]
    raise ValueError(f"{text!r} is none of the {labels.size} labels of {mode!r}, such as {example}")
