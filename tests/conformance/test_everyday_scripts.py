"""Scripts that users write for TensorLy: a sparse tensor gives what its dense twin gives."""

import everyday_scripts
import numpy as np
import pytest
import tensorly as tl


def run(script):
    scope = {}
    exec(script, scope)
    return np.array([float(number) for number in scope["result"]])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", everyday_scripts.SCRIPTS)
def test_a_script_runs_unchanged(name, flycoo_backend):
    script = everyday_scripts.HEAD + everyday_scripts.SCRIPTS[name]
    found = run(script)
    with tl.backend_context("numpy"):
        expected = run(
            script.replace("random_state=0)\n", "random_state=0).todense()\n", 1).replace(
                "x.todense()", "x"
            )
        )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
