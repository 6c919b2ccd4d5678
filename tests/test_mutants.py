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
    with pytest.raises(ValueError, match="occurs 0 times"):
        plant(mutant, tmp_path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_tests_of_a_fault_exist(mutant):
    named, room = list_tests(mutant)
    for test in named + room:
        file, _, function = test.partition("::")
        if function:
            assert f"def {function}(" in (ROOT / file).read_text()
        elif file.startswith("tests/"):  # no option
            assert (ROOT / file).exists()
