"""Foretell facts of a knowledge graph: CP of a tensor of triples, held against unseen ones.

UMLS says how 135 medical terms are related, by 46 relations: (virus, causes, disease). The triples
are the nonzeros of a tensor, head x relation x tail; a CP decomposition with few components gives
unseen triples that are true higher scores than others. For each triple that was held out, the
true tail is ranked among all tails, and the true head among all heads, without the known others.
How many components is decided on other triples than those of the test.

The data are files of the package pykeen, which is not installed for them (it needs PyTorch): pip
downloads its wheel, of 0.7 MB.

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

import tensorly_flycoo  # noqa: F401 (makes TensorLy know the backend)

HEAD, RELATION, TAIL = range(3)
PARTS = ("train", "valid", "test")


def read_files(dataset):
    """Return the text of the three files of a dataset, from pykeen or from its wheel."""
    names = [f"pykeen/datasets/{dataset}/{part}.txt" for part in PARTS]
    spec = importlib.util.find_spec("pykeen")  # which does not import it
    if spec is not None:
        folder = Path(spec.origin).parents[1]
        return [(folder / name).read_text() for name in names]
    return [content.decode() for content in read_from_wheel("pykeen==1.11.1", names)]


def read_triples(dataset):
    """Return the triples of each part as indices (3, n), and the names of entities and relations.

    Triples with an entity or relation that no training triple has are left out.
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
    """Decompose the tensor of the training triples."""
    tensor = sparse.COO(train, np.ones(train.shape[1]), shape=shape)
    # l2_reg keeps rare terms from being explained by large numbers that cancel out.
    options = {"init": "random", "random_state": 0, "l2_reg": 0.1, "tol": 1e-6}
    return parafac(tensor, rank, n_iter_max=iterations, **options)


def rank_missing(cp_tensor, triples, known, mode):
    """Return the rank of each triple's index of a mode, among those that make no known triple.

    1 is best; equal scores count half.
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
    """Return the mean reciprocal rank, and how often the truth is first and among the first 10."""
    ranks = [rank_missing(cp_tensor, triples, known, mode) for mode in (HEAD, TAIL)]
    ranks = np.concatenate(ranks)
    return {
        "mrr": np.mean(1 / ranks),
        "first": np.mean(ranks == 1),
        "hits_10": np.mean(ranks <= 10),
    }


def count_alone(train, shape):
    """Return, as a CP tensor, what counts alone foretell: how often each relation has each tail.

    And each head; a relation is its own component.
    """
    heads, tails = (np.zeros((shape[mode], shape[RELATION])) for mode in (HEAD, TAIL))
    np.add.at(heads, (train[HEAD], train[RELATION]), 1)
    np.add.at(tails, (train[TAIL], train[RELATION]), 1)
    return np.ones(shape[RELATION]), [heads, np.eye(shape[RELATION]), tails]


def print_foretold(cp_tensor, triples, known, entities, relations, count=8):
    """Print the held-out triples that have the highest scores, and the rank of their tails."""
    weights, factors = cp_tensor
    scores = np.prod([f[row] for f, row in zip(factors, triples, strict=True)], axis=0) @ weights
    ranks = rank_missing(cp_tensor, triples, known, TAIL)
    for n in np.argsort(-scores)[:count]:
        head, relation, tail = triples[:, n]
        print(f"  {entities[head]} {relations[relation]} {entities[tail]} (rank {ranks[n]:.0f})")


def main(argv=None):
    """Do it all, and return what was found."""
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
    results = {
        "counts alone": evaluate(count_alone(train, shape), test, known),
        f"CP, rank {best}": evaluate(models[best], test, known),
    }
    for name, result in results.items():
        print(f"{name:14} mean reciprocal rank {result['mrr']:.3f}, true one first "
              f"{result['first']:.1%}, among the first ten {result['hits_10']:.1%}")  # fmt: skip
    print("Held-out triples of which it is most certain:")
    print_foretold(models[best], test, known, entities, relations)

    counts, ours = results.values()
    assert all(np.isfinite(factor).all() for factor in models[best].factors)
    assert 0 < ours["first"] <= ours["mrr"] <= 1
    assert ours["mrr"] > counts["mrr"]  # it has learned more than what is frequent
    return {"train": train, "test": test, "known": known, "cp_tensor": models[best]}


if __name__ == "__main__":
    main()
