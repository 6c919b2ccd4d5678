"""TensorLy's own example scripts, with a sparse tensor under ``run`` and a dense one under numpy.

Both run the same text, the script's own with few edits: `thin` sets four fifths of its tensor's
cells to zero, and under "flycoo" makes it sparse; lines that need its cells get a `dense` one.
docs/supported.md lists the scripts.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytestmark = pytest.mark.slow

#: The packages of TensorLy have no examples. Until November 2025 one import in them has changed.
SOURCE = os.environ.get("TENSORLY_SOURCE", "https://github.com/tensorly/tensorly")
TAG = "0.9.0"

#: What runs a script, by its backend; the profile tells of its sparse tensors.
COMMANDS = {"flycoo": ["-m", "tensorly_flycoo", "run", "--profile"], "numpy": []}

_BEFORE = """
import sys
import numpy as np, sparse, tensorly as tl

np.random.seed(0)
cells = np.random.default_rng(0)

def thin(array):
    array = np.where(cells.random(array.shape) < 0.2, array, 0)
    return sparse.COO.from_numpy(array) if tl.get_backend() == "flycoo" else array

def dense(x):
    return sparse.asnumpy(x.to_coo() if hasattr(x, "to_coo") else x)
"""


class Script(NamedTuple):
    """Edits of a script, old text to new, and the arrays to compare, by relative tolerance."""

    edits: dict[str, str]
    results: dict[float, str]


SCRIPTS = {
    "plot_tensor": Script(
        {
            "np.arange(24).reshape((3, 4, 2))": "thin(np.arange(24).reshape((3, 4, 2)))",
            "(folded, tensor)": "(dense(folded), dense(tensor))",
        },
        {1e-6: "[dense(folded)]"},
    ),
    "applications/plot_IL2": Script(
        {
            "= load_IL2data()": "= load_IL2data()\n"
            "response_data.tensor = thin(response_data.tensor)",
            "np.nan_to_num(response_data.tensor)": "np.where(tensor_mask, response_data.tensor, 0)",
        },
        {1e-6: "sig_tensor_fact.factors"},
    ),
    "applications/plot_covid": Script(
        {
            "= load_covid19_serology()": "= load_covid19_serology()\n"
            "data.tensor = thin(data.tensor)",
            "(f, data.tensor)": "(f, dense(data.tensor))",
            'cmap="PiYG"))': 'cmap="PiYG"), ax=ax)',  # which today's Matplotlib needs
        },
        {1e-6: "[CMTFR2X, *(factor for f in CMTFfacs for factor in f.factors)]"},
    ),
    "decomposition/plot_cp_line_search": Script(
        {
            "= random_cp(": "= thin(random_cp(",
            "full=True)": "full=True))",
            "- tensor)": "- dense(tensor))",
        },
        {1e-6: "[err, err_ls]"},
    ),
    "decomposition/plot_guide_for_constrained_cp": Script(
        {  # with a tenth of the penalties, of which all factors become zero: TensorLy then fails
            "np.random.rand(6, 8, 10)": "thin(np.random.rand(6, 8, 10))",
            "l1_reg=0.05": "l1_reg=0.005",
            "l1_reg=[0.01, 0.02, 0.03])": "l1_reg=[0.001, 0.002, 0.003])\nl1_factors = factors",
        },
        {1e-6: "[*l1_factors, *factors]"},
    ),
    "decomposition/plot_nn_cp_hals": Script(
        {
            "tl.tensor(np.arange(24000)": "tl.tensor(thin(np.arange(24000)",
            "(30, 40, 20))": "(30, 40, 20)))",
            "exact=True": "exact=True, nn_modes={2}, n_iter_max=1",  # one makes 50,000 sweeps
            "RMSE(tensor,": "RMSE(dense(tensor),",
        },
        {1e-5: "[errors_mu, errors_hals, errors_exact]"},  # in float32
    ),
    "decomposition/plot_nn_tucker": Script(
        {"= tl.tensor(array,": "= tl.tensor(thin(array),", "RMSE(tensor,": "RMSE(dense(tensor),"},
        # HALS clips the SVD start to factors as small as rounding errors, and goes on from those.
        {1e-6: "[error_mu]", 1e-2: "[error_fista, error_as]"},
    ),
    "decomposition/plot_parafac2": Script(
        {
            "tensor += noise": "tensor = thin(tensor + noise)",
            "la.norm(est_tensor - tensor)": "la.norm(est_tensor - dense(tensor))",
            "la.norm(tensor)": "tl.norm(tensor)",
        },
        {1e-6: "[err, *decomposition.factors]"},
    ),
}

_REGRESSION = {"loc=0, scale=1))": "loc=0, scale=1))\nX = thin(X)"}

#: Scripts that are refused: edits, and what the DensifyError says.
REFUSED = {
    "decomposition/plot_parafac2_compression": (
        {"10_000, 15": "1_000, 15", "n_inits = 5": "n_inits = 1", "[X_i + E_i": "[thin(X_i + E_i)"},
        "parafac2 takes sparse slices",
    ),
    "regression/plot_cp_regression": (_REGRESSION, "tl.dot would make a dense array"),
    "regression/plot_tucker_regression": (_REGRESSION, "tl.dot would make a dense array"),
}


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Return the folder of TensorLy's scripts."""
    folder = tmp_path_factory.mktemp("tensorly")
    clone = ["git", "clone", "-q", "--depth=1", "--filter=blob:none", "--sparse", "--branch", TAG]
    checkout = ["git", "-C", folder, "sparse-checkout", "set", "examples", "doc"]
    for command in ([*clone, SOURCE, folder], checkout):
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip(f"git cannot clone TensorLy: let TENSORLY_SOURCE be a clone with tag {TAG}")
    return folder / "examples"


def test_the_patch_of_the_page_applies(examples):
    patch = Path(__file__).parents[2] / "docs" / "upstream" / "sparse_page.patch"
    command = ["git", "-C", examples.parent, "apply", "--check", patch]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def edit(examples, name, edits, after, folder):
    """Write the edited script and return its path."""
    text = (examples / f"{name}.py").read_text()
    for old, new in edits.items():
        assert old in text, f"{name} no longer has {old!r}"
        text = text.replace(old, new)
    script = folder / f"{Path(name).name}.py"
    script.write_text(f"{_BEFORE}\n{text}\n{after}")
    return script


def run(*arguments):
    """Run Python without a display; return what it wrote, and its exit status."""
    settings = {"MPLBACKEND": "agg", "TENSORLY_BACKEND": "numpy"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    return done.stdout + done.stderr, done.returncode


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_as_dense(name, examples, tmp_path):
    edits, results = SCRIPTS[name]
    saving = [f"np.savez(sys.argv[1] + '{rtol}', *{text})\n" for rtol, text in results.items()]
    script = edit(examples, name, edits, "".join(saving), tmp_path)
    for backend, command in COMMANDS.items():
        output, status = run(*command, script, tmp_path / backend)
        assert status == 0, output
        has_sparse = "COO" in output or "FlycooTensor" in output
        assert has_sparse == (backend == "flycoo")
    for rtol in results:
        found, expected = (np.load(tmp_path / f"{backend}{rtol}.npz") for backend in COMMANDS)
        assert expected.files
        for key in expected:
            atol = rtol * abs(expected[key]).max()
            np.testing.assert_allclose(found[key], expected[key], rtol=0, atol=atol)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, examples, tmp_path):
    edits, text = REFUSED[name]
    output, status = run(*COMMANDS["flycoo"], edit(examples, name, edits, "", tmp_path))
    assert status == 1
    error = output.strip().splitlines()[-1]
    assert "DensifyError" in error, output
    assert text in error
