"""The example on smooth days: errors of flights that the models have not seen."""

import importlib
import re
import sys

import pytest
import tensorly as tl


@pytest.fixture(scope="module")
def smoothing():
    yield importlib.import_module("smoothing")
    for name in ("smoothing", "flights"):
        del sys.modules[name]


def test_smooth_models_predict_better(smoothing, tmp_path, capsys):
    output = tmp_path / "smoothing.png"
    with tl.backend_context(tl.get_backend()):
        errors = smoothing.main(["--rank", "3", "--output", str(output)])["errors"]
    assert len(re.findall(r"^ +\d+  0\.\d{3}$", capsys.readouterr().out, re.MULTILINE)) == 5
    assert errors[100] < 0.8 * errors[0]
    assert output.stat().st_size > 10_000
