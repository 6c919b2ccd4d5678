"""Which cells talk, about what, and in which patients
===================================================

Find programs of communication between cells in the long table that LIANA writes, which has a row
for each sample, source, target, ligand and receptor, with a rank. Two things are special:

- A sample may lack a cell type. Its scores there are unknown, not zero. A small mask says so: it
  has size 1 in the mode of the pairs, since it is the same for all of them. In a table that lists
  some pair for all cell types that meet, `from_dataframe` makes it itself, by the option
  ``missing=["sample", "source", "target"]``.
- Many scores are exactly 0. They were seen, so the tensor keeps them. What has no row is also 0
  for `non_negative_parafac`, except under the mask; it is unknown for `observed_parafac`.

The table is made here, of the programs below, which the models are not told about. The model with
the mask finds them, and the one without it does not. The model of listed scores alone has less to
go by.

Run it with a folder for its picture::

    python examples/communication.py folder
"""

import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import tensorly as tl
from showing import format_largest, list_shares, save_components

from tensorly_flycoo import best_of, cp_fit, from_dataframe, observed_parafac
from tensorly_flycoo.decomposition import non_negative_parafac
from tensorly_flycoo.models import factor_match_score

#: Each program: its level in healthy, mild and severe patients, its pairs, sources and targets.
PROGRAMS = {
    "alarm": (
        (0.1, 1, 0.4), ["IFNA1^IFNAR1", "CXCL10^CXCR3", "IL15^IL2RB"],
        ["dendritic", "plasma"], ["NK", "CD8 T", "B"],
    ),
    "inflammation": (
        (0.1, 0.3, 1), ["IL1B^IL1R1", "TNF^TNFRSF1A", "CXCL8^CXCR2", "OSM^OSMR"],
        ["monocyte", "neutrophil"], ["endothelial", "neutrophil"],
    ),
    "repair": (
        (0.7, 0.5, 0.6), ["TGFB1^TGFBR2", "PDGFB^PDGFRB", "CSF1^CSF1R"],
        ["fibroblast", "endothelial"], ["fibroblast", "monocyte"],
    ),
    "help": (
        (1, 0.5, 0.2), ["CD40LG^CD40", "IL21^IL21R", "TNF^TNFRSF1A"],
        ["CD4 T"], ["B", "dendritic", "CD8 T"],
    ),
}  # fmt: skip
MODES = ["sample", "pair", "source", "target"]
GROUPS, COUNT = ["healthy", "mild", "severe"], 8


def plant_programs(random):
    """Return the labels of each mode, sorted, and the factors that the scores are made of."""
    levels, *members = zip(*PROGRAMS.values(), strict=True)
    pairs, sources, targets = ({*chain(*names)} for names in members)
    cells = sorted(sources | targets)
    samples = [f"{group} {n}" for group in GROUPS for n in range(COUNT)]
    labels = dict(zip(MODES, map(np.array, [samples, sorted(pairs), cells, cells]), strict=True))
    factors = [np.repeat(np.transpose(levels), COUNT, axis=0)]
    for names, of in zip(members, [*labels.values()][1:], strict=True):
        factors.append(np.stack([np.isin(of, own) for own in names], axis=1))
    return labels, [factor * random.uniform(0.6, 1, factor.shape) for factor in factors]


def make_table(labels, factors, random):
    """Make LIANA's table of noisy scores, of the cell types that each sample has.

    It lists all positive scores, and some zeros, whose rank is 1.
    """
    scores = tl.cp_to_tensor((None, factors))
    scores = np.minimum(1, scores * random.lognormal(0, 0.2, scores.shape))
    has_type = random.uniform(size=(len(labels["sample"]), len(labels["source"]))) < 0.75
    is_listed = (scores > 0) | (random.uniform(size=scores.shape) < 0.015)
    is_listed &= has_type[:, None, :, None] & has_type[:, None, None, :]
    places = zip(labels.items(), is_listed.nonzero(), strict=True)
    table = pd.DataFrame({mode: of[ids] for (mode, of), ids in places})
    pairs = table.pop("pair").str.split("^", expand=True, regex=False)
    table[["ligand_complex", "receptor_complex"]] = pairs
    return table.assign(magnitude_rank=1 - scores[is_listed])


def build_tensor(table):
    """Make the tensor of a LIANA table, and the mask of the cell types that samples lack."""
    pairs = table["ligand_complex"] + "^" + table["receptor_complex"]
    table = table.assign(pair=pairs, score=1 - table["magnitude_rank"])
    x = from_dataframe(table, MODES, "score", zeros="keep")
    samples, _, *cells = x.tensor.nonzeros()[0]
    sources, targets = (pd.crosstab(samples, of).to_numpy() > 0 for of in cells)
    mask = sources[:, None, :, None] & targets[:, None, None, :]
    return x, mask


def main(folder=Path()):
    """Run the example and return its results."""
    folder.mkdir(parents=True, exist_ok=True)
    random, rank = np.random.RandomState(0), len(PROGRAMS)
    labels, planted = plant_programs(random)
    table = make_table(labels, planted, random)
    tl.set_backend("flycoo")

    x, mask = build_tensor(table)
    options = {"n_starts": 5, "random_state": 0, "n_iter_max": 500}
    cp = best_of(non_negative_parafac, x, rank, mask=mask, **options).best
    shares = list_shares(cp)
    levels = shares["sample"].groupby(shares["sample"].index.str.split().str[0]).sum()
    zeros = (table["magnitude_rank"] == 1).mean()
    print(f"{x}\n{zeros:.0%} of the scores are 0, {1 - mask.mean():.0%} of the cells are unknown")
    print(f"Fit to the others: {cp_fit(x, cp, mask=mask).fit:.3f}\n")
    for r in range(rank):
        pairs, sources, targets = (format_largest(shares[mode][r], 3) for mode in MODES[1:])
        print(f"component {r}: from {sources} to {targets}, by {pairs}")
    print(f"Shares of the groups:\n{levels.round(2)}\n")
    save_components(cp, folder / "communication.png", "Who talks to whom, about what", top=6)

    others = {
        "with the mask": cp,
        "without it": best_of(non_negative_parafac, x, rank, **options).best,
        "of listed scores": observed_parafac(x, rank, non_negative=True, random_state=0),
    }
    scores = {name: factor_match_score(of, (None, planted)) for name, of in others.items()}
    for name, score in scores.items():
        print(f"Match of the model {name:17} with the planted programs: {score:.3f}")
    return {"table": table, "x": x, "mask": mask, "cp": cp, "levels": levels, "scores": scores}


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
