"""The timing of completion, scaled down: its epochs, and recall against plain loops."""

import completion
import numpy as np


def test_epochs_of_all_solvers(capsys, monkeypatch):
    monkeypatch.setattr(completion, "SHAPE", (400, 70, 20))
    results = completion.main(["--nnz", "3000", "--rank", "4", "--epochs", "2"])
    assert len(results) == 3
    assert all(times.shape == (2,) and (times > 0).all() for times in results.values())
    assert capsys.readouterr().out.count(" s an epoch, ") == 3


def test_recall():
    rng = np.random.default_rng(0)
    factors = [rng.random((size, 3)) for size in (6, 40)]
    cells = np.stack(np.unravel_index(rng.permutation(240)[:120], (6, 40)))
    known, held_out = cells[:, :60], cells[:, 60:]
    hits = possible = 0
    for person in range(6):
        scores = factors[1] @ factors[0][person]
        seen, wanted = (set(part[1][part[0] == person]) for part in (known, held_out))
        best = [film for film in np.argsort(-scores) if film not in seen][:10]
        hits, possible = hits + len(wanted & set(best)), possible + min(10, len(wanted))
    assert completion.measure_recall(factors, known, held_out) == hits / possible


def test_comparison_finds_the_groups():
    """Each person clicks on films of one of two groups: the best films are of that group."""
    persons, films = np.mgrid[:30, :40].reshape(2, -1)
    clicks = np.stack([persons, films])[:, persons % 2 == films % 2]
    clicks = clicks[:, np.random.default_rng(0).permutation(clicks.shape[1])]
    found = completion.compare(clicks, 4, 5)
    assert len(found["ours"]) == 5
    assert found["ours"][-1][1] > 0.95
