"""The deliberate faults of `support/mutants.py` still apply: the program plants them by hand."""

import ast
import shutil

import pytest
from mutants import MUTANTS, PACKAGE, ROOT, list_tests, plant


def test_there_are_thirty():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_applies(mutant, tmp_path):
    path = tmp_path / PACKAGE / mutant.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / PACKAGE / mutant.file, path)
    plant(mutant, tmp_path)
    if path.suffix == ".py":
        ast.parse(path.read_text())
    for arguments in list_tests(mutant):
        assert (ROOT / arguments[0].split("::")[0]).exists()
    with pytest.raises(ValueError, match="occurs 0 times"):
        plant(mutant, tmp_path)
