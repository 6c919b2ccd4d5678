"""Recommending films to users
===========================

Draw ratings like MovieLens', fit nine in ten of them, and recommend films.

A rating is the sum of a mean, a bias of the user, a bias of the film, and what two tastes of the
user make of the film; a few films have most of the ratings. `observed_parafac` fits the known
ratings alone, `evaluate` compares the model with the others, and `recommend` names the best films
that a user has not rated.

Run it::

    python examples/recommending.py
"""

import argparse

import numpy as np
import pandas as pd

from tensorly_flycoo import evaluate, from_dataframe, observed_parafac, recommend

MODES = ["user", "film", "month"]


def draw_ratings(num_ratings, num_users=1000, num_films=400, seed=0):
    """Return a table of users, films, months and stars, with one row for a user and a film."""
    rng = np.random.default_rng(seed)
    users = (num_users * rng.random(num_ratings) ** 1.5).astype(int)
    films = (num_films * rng.random(num_ratings) ** 2).astype(int)
    tastes, kinds = rng.normal(0, 0.7, (num_users, 2)), rng.normal(0, 0.7, (num_films, 2))
    of_users, of_films = rng.normal(0, 0.4, num_users), rng.normal(0, 0.5, num_films)
    stars = 3.5 + of_users[users] + of_films[films] + (tastes[users] * kinds[films]).sum(axis=1)
    stars = np.clip(np.round(stars + rng.normal(0, 0.5, num_ratings)), 1, 5)
    months = rng.integers(1, 13, num_ratings)
    table = pd.DataFrame({"user": users, "film": films, "month": months, "stars": stars})
    table["film"] = [f"film {number:03}" for number in films]
    return table.drop_duplicates(["user", "film"], ignore_index=True)


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ratings", type=int, default=60_000)
    arguments = parser.parse_args(argv)

    ratings = draw_ratings(arguments.ratings)
    is_out = np.random.default_rng(1).random(len(ratings)) < 0.1
    x = from_dataframe(ratings[~is_out], MODES, "stars")
    is_known = ratings["user"].isin(x.labels["user"]) & ratings["film"].isin(x.labels["film"])
    is_liked = is_out & is_known & (ratings["stars"] >= 4)
    liked = from_dataframe(ratings[is_liked], MODES, "stars", labels=x.labels)
    cp = observed_parafac(x, 2, biases=True, random_state=0)
    print(f"{cp}, fitted to {x.nnz} ratings")

    # %%
    # Of the best ten films for each user, how many have 4 or 5 held-out stars? Precision is low,
    # since a user gave that many to only two or three held-out films. By the biases alone, the same
    # films are the best for everyone. The errors are those at these ratings too.
    is_bias = np.array(cp.flycoo.bias_modes) >= 0
    weights = np.where(is_bias, cp.weights, 0)
    models = {"biases": (weights, cp.factors), "biases and two tastes": cp}
    found = {}
    for name, model in models.items():
        found[name] = evaluate(model, liked, exclude=x)
        listed = ", ".join(f"{what} {value:.3f}" for what, value in found[name].items())
        print(f"{name}: {listed}")

    # %%
    # The best films that two users have not rated, with their predicted stars in an average month.
    best = recommend(cp, "user", [0, 7], 3, exclude=x)
    for films in best:
        print(", ".join(f"{film} ({stars:.1f})" for film, stars in films.items()))
    return {"found": found, "best": best}


if __name__ == "__main__":
    main()
