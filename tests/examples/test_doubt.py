"""The example on uncertainty: intervals of flights, and the share of them that hold the truth."""

import importlib
import re
import sys

import pytest
import tensorly as tl


@pytest.fixture(scope="module")
def doubt():
    yield importlib.import_module("doubt")
    for name in ("doubt", "flights"):
        del sys.modules[name]


@pytest.mark.slow
def test_flights(doubt, tmp_path, capsys):
    output = tmp_path / "doubt.png"
    with tl.backend_context(tl.get_backend()):
        found = doubt.main(["--rank", "2", "--fits", "8", "--output", str(output)])["found"]
    page = capsys.readouterr().out
    assert page.startswith("<Uncertainty of rank 2: 90% intervals from 8 fits>")
    assert len(re.findall(r"^  \w{3} \S.* ranks? \d", page, re.MULTILINE)) == 10
    for lower, upper in found.cp_tensor.intervals:
        assert (lower <= upper).all()
    assert output.stat().st_size > 10_000


def test_coverage(doubt, capsys):
    with tl.backend_context(tl.get_backend()):
        shares = doubt.main(["--planted", "1"])
    assert len(capsys.readouterr().out.splitlines()) == len(shares) == 10
    assert all(0.7 < elements < 1 for elements, _ in shares.values())
