"""The tutorial: who buys what, and when, in a café that we made up
================================================================
Run it with a folder for its picture and its model: python examples/answers.py folder
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import tensorly as tl
from showing import save_components

from tensorly_flycoo import from_dataframe
from tensorly_flycoo.models import LabelledCP, best_of, select_rank

#: What guests buy, and around which hour: the answer, which is not given to the model.
HABITS = {
    "breakfast": (["coffee", "croissant", "juice", "newspaper"], 8),
    "lunch": (["soup", "salad", "sandwich", "water"], 13),
    "tea time": (["tea", "cake", "coffee", "cookies"], 16),
    "evening": (["wine", "olives", "cheese", "water"], 21),
}


def make_purchases(habits, random, count=100):
    """Make a table with a row for each purchase; every guest has one habit."""
    lines = []
    for guest, habit in habits.items():
        items, peak = HABITS[habit]
        hours = np.clip(random.normal(peak, 1.5, count).round(), 6, 23).astype(int)
        lines += zip([guest] * count, random.choice(items, count), hours, strict=True)
    return pd.DataFrame(lines, columns=["guest", "item", "hour"])


def main(folder=Path()):
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(0)
    habits = {f"guest {n}": habit for n, habit in enumerate([*HABITS] * 60)}
    x = from_dataframe(make_purchases(habits, random), ["guest", "item", "hour"])
    tl.set_backend("flycoo")

    ranks = select_rank(x, range(1, 7), n_runs=5, random_state=0)  # scores of each rank
    starts = best_of(tl.decomposition.non_negative_parafac_hals, x, ranks.rank, random_state=0)
    cp = starts.best  # of ten starts; it has the names
    print(f"{x}\n\n{ranks}\n\n{starts}\n")
    for r, (items, hours) in enumerate(zip(cp.top("item", 4), cp.top("hour", 1), strict=True)):
        print(f"component {r}: {', '.join(items)}, around {next(iter(hours))} h")
    save_components(cp, folder / "answers.png", "What guests buy, and when", top=5)

    cp.save(folder / "answers.npz")  # and, some other day:
    new = make_purchases({"Ann": "lunch", "Ben": "evening"}, random)
    rows = LabelledCP.load(folder / "answers.npz").transform(new, "guest", non_negative=True)
    print(f"New guests, in the components of old ones:\n{rows.round(3)}")
    return {"x": x, "ranks": ranks, "starts": starts, "rows": rows}


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
