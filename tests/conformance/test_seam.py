"""Importing the package replaces the module attributes in one table and changes no object.

Each test runs in a new process, because this one has already imported the package.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorly_snapshot

from tensorly_flycoo.backend.replacements import TABLE

_SUPPORT = str(Path(tensorly_snapshot.__file__).parent)


def run(script, **variables):
    """Run a script in a new process; parse the last line of its output as JSON."""
    environment = {name: text for name, text in os.environ.items() if "TENSORLY_B" not in name}
    path = os.pathsep.join(filter(None, [_SUPPORT, environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:tensorly", "-c", script],
        env=environment | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


# What changes


def test_no_object_of_tensorly_changes():
    script = """
import json, tensorly_snapshot as snapshot
snapshot.import_all()
before = snapshot.describe_objects()
import tensorly_flycoo
after = snapshot.describe_objects()
same = {value: after.get(value, old) == old for value, old in before.items()}
changed = [value.__qualname__ for value, is_same in same.items() if not is_same]
print(json.dumps([len(before), changed]))
"""
    count, changed = run(script)
    assert count > 500
    # The hooks are methods that TensorLy's own `register_method` sets.
    assert sorted(changed) == ["CoreTenalgBackend", "EinsumTenalgBackend"]


def test_the_attributes_that_change_are_those_of_the_table():
    script = """
import json, tensorly_snapshot as snapshot
snapshot.import_all()
before = snapshot.describe_attributes()
import tensorly_flycoo
after = snapshot.describe_attributes()
print(json.dumps([
    [module, name] for module, attributes in before.items() for name, value in attributes.items()
    if after[module].get(name) is not value and not name.startswith("__")
]))
"""
    expected = {
        (f"tensorly.{module}", name)
        for row in TABLE
        for module in row.modules.split()
        for name in row.names.split()
        if hasattr(importlib.import_module(f"tensorly.{module}"), name)
    }
    assert {tuple(pair) for pair in run(script)} == expected


def test_the_environment_does_not_change():
    script = """
import json, os
seen = []
class Environment(type(os.environ)):
    def __delitem__(self, name):
        seen.append(name)
        super().__delitem__(name)
os.environ.__class__ = Environment
import tensorly_flycoo, tensorly as tl
print(json.dumps([seen, os.environ["TENSORLY_BACKEND"], tl.get_backend()]))
"""
    assert run(script, TENSORLY_BACKEND="flycoo") == [[], "flycoo", "flycoo"]


def test_the_table():
    for row in TABLE:
        assert row.reason
        assert row.needless_if
    names = [name for row in TABLE for name in row.names.split()]
    assert len(set(names)) == len(names)


_LACKING = """
import json, tensorly.decomposition._cp as _cp
del _cp.error_calc
import tensorly.decomposition._nn_cp as _nn_cp
{more}
try:
    import tensorly_flycoo
except ImportError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("more", ["", "del _nn_cp.error_calc"], ids=["a module", "both"])
def test_a_name_that_tensorly_lacks_is_an_error_at_import(more):
    message = run(_LACKING.format(more=more))
    assert "'error_calc'" in message
    assert "install tensorly>=0.9,<0.11" in message


def test_a_replacement_unwraps_to_tensorlys_function():
    script = """
import inspect, json
import tensorly.decomposition, tensorly.tenalg.svd, importlib
own = tensorly.decomposition.parafac, tensorly.decomposition._cp.error_calc
import tensorly_flycoo
from tensorly.decomposition import parafac, _cp
found = parafac, _cp.error_calc
print(json.dumps([
    [inspect.unwrap(f) is o, f is not o, inspect.signature(f) == inspect.signature(o),
     f.__name__ == o.__name__, inspect.getsource(f) == inspect.getsource(o)]
    for f, o in zip(found, own)
]))
"""
    assert run(script) == [[True] * 5] * 2


# Dense users


_TRACEBACK = """
import json, sys, traceback, numpy as np, tensorly as tl
{imports}
x = np.random.RandomState(0).random_sample((4, 5, 6))
def fail(*args):
    raise ZeroDivisionError
functions = {{
    "unfold": lambda: tl.unfold(x, 7),
    "inner": lambda: tl.tenalg.inner(x, x[:2]),
    "robust_pca": lambda: tl.decomposition.robust_pca(x, mask=fail),
    "parafac": lambda: tl.decomposition.parafac(x, 2, callback=fail),
}}
frames = {{}}
for name, function in functions.items():
    try:
        function()
    except Exception as error:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        frames[name] = sum("tensorly_flycoo" in file for file in files)
print(json.dumps(frames))
"""


def test_dense_users_see_our_frames_only_in_replaced_functions():
    frames = run(_TRACEBACK.format(imports="import tensorly_flycoo"))
    # `inner` is a method with a hook, `parafac` a row of the table.
    assert frames == {
        "unfold": 0,
        "inner": 1,
        "robust_pca": 0,
        "parafac": 1,
    }


# Living with others


_DECORATED = """
import functools, json, numpy as np, sparse, tensorly as tl, tensorly.decomposition
NAME, calls = tl.decomposition.parafac, []
@functools.wraps(NAME)
def counted(*args, **kwargs):
    calls.append(type(args[0]).__name__)
    return NAME(*args, **kwargs)
tl.decomposition.parafac = counted
import tensorly_flycoo
tl.set_backend("flycoo")
x = sparse.random((5, 6, 7), nnz=60, random_state=0)
few = {"rank": 2, "n_iter_max": 2, "random_state": 0}
mask = sparse.COO([[0], [0], [0]], [0.0], x.shape, fill_value=1.0)
ranks = [
    tl.decomposition.parafac(x, **few).rank,
    tl.decomposition.parafac(x, callback=lambda *a: None, **few).rank,
    tl.decomposition.parafac(x, mask=mask, **few).rank,
    tl.decomposition.parafac(np.ones((3, 4, 5)), **few).rank,
]
print(json.dumps([ranks, calls]))
"""


@pytest.mark.parametrize("name", ["own", "parafac"])
def test_a_parafac_decorated_by_someone_else(name):
    """Their function still runs, except with a mask, which needs our own loop.

    It calls TensorLy's function, although the name "parafac" is bound anew.
    """
    ranks, calls = run(_DECORATED.replace("NAME", name))
    assert ranks == [2, 2, 2, 2]
    assert calls == ["WholeTensor", "WholeTensor", "ndarray"]


_BOUND_BEFORE = """
import json, sys, types
from tensorly.decomposition import (
    CP, constrained_parafac, non_negative_parafac, non_negative_parafac_hals, parafac,
    partial_tucker, randomised_parafac, tensor_train, tucker,
)
import sparse, tensorly as tl
names = sys.modules["__main__"]
kept = types.SimpleNamespace(**vars(tl.decomposition))
neighbour = types.ModuleType("neighbour")
neighbour.own, neighbour.parafac, neighbour.tucker = parafac, parafac, "a text"
sys.modules["neighbour"] = neighbour
import tensorly_flycoo
tl.set_backend("flycoo")
x = abs(sparse.random((6, 7, 8), nnz=90, random_state=0))
flycoo = tensorly_flycoo.FlycooTensor.from_coo(x)
mask = sparse.COO([[0], [0], [0]], [0.0], x.shape, fill_value=1.0)
few = {"n_iter_max": 2, "random_state": 0}
works = {
    "parafac": lambda: HOLDER.parafac(x, 2, **few),
    "randomized_svd": lambda: HOLDER.parafac(x, 2, svd="randomized_svd", **few),
    "callback": lambda: HOLDER.parafac(x, 2, callback=lambda *a: None, **few),
    "linesearch": lambda: HOLDER.parafac(x, 2, linesearch=True, **few | {"n_iter_max": 9}),
    "CP": lambda: HOLDER.CP(2, **few).fit_transform(x),
    "non_negative": lambda: HOLDER.non_negative_parafac(x, 2, **few),
    "hals": lambda: HOLDER.non_negative_parafac_hals(x, 2, **few),
    "constrained": lambda: HOLDER.constrained_parafac(x, 2, non_negative=True, **few),
    "tucker": lambda: HOLDER.tucker(x, [2, 2, 2], **few),
    "partial_tucker": lambda: HOLDER.partial_tucker(x, [2, 2], modes=[0, 1], **few),
}
refused = {
    "mask": lambda: HOLDER.parafac(x, 2, mask=mask, **few),
    "non_negative mask": lambda: HOLDER.non_negative_parafac(x, 2, mask=mask, **few),
    "randomised": lambda: HOLDER.randomised_parafac(TENSOR, 2, 20, **few),
    "tensor_train": lambda: HOLDER.tensor_train(x, [1, 2, 2, 1]),
}
def attempt(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"
found = [{name: attempt(f) for name, f in group.items()} for group in (works, refused)]
replacement = tl.decomposition.parafac
are_new = [function is replacement for function in (neighbour.parafac, neighbour.own)]
print(json.dumps([*found, are_new, neighbour.tucker]))
"""


@pytest.mark.parametrize(
    "kind",
    ["flycoo", pytest.param("x", marks=pytest.mark.slow)],  # sparse compiles how a COO is indexed
    ids=["FlycooTensor", "COO"],
)
def test_names_bound_before_the_import(kind):
    """They are bound anew, in all modules, but for other names and values of other kinds."""
    script = _BOUND_BEFORE.replace("TENSOR", kind).replace("HOLDER", "names")
    works, others, are_new, text = run(script)
    assert set(works.values()) == {"works"}, works
    assert others["mask"] == others["non_negative mask"] == "works"
    for name in ("randomised", "tensor_train"):
        assert others[name].startswith(("DensifyError: ", "IndexError: ")), others
    assert are_new == [True, False]
    assert text == "a text"


def test_functions_kept_before_the_import():
    """They work wherever TensorLy's loop does; otherwise they are refused."""
    script = _BOUND_BEFORE.replace("TENSOR", "flycoo").replace("HOLDER", "kept")
    works, refused, *_ = run(script)
    assert set(works.values()) == {"works"}, works
    for name, text in refused.items():
        assert text.startswith(("DensifyError: ", "IndexError: ")), (name, text)
        if "mask" in name:
            assert "tensorly_flycoo.decomposition." in text, (name, text)


_THREADED = """
import hashlib, json, sys, threading, numpy as np, tensorly as tl
from tensorly.decomposition import parafac, tucker
sys.setswitchinterval(1e-5)
x = np.random.RandomState(0).random_sample((9, 8, 10))
def decompose():
    few = {"n_iter_max": 3, "tol": 0, "random_state": 0}
    results = [parafac(x, 3, **few), tucker(x, [2, 3, 2], **few)]
    arrays = [a for _, factors in results for a in factors]
    return hashlib.sha256(b"".join(map(np.ascontiguousarray, arrays))).hexdigest()
expected, found, errors, done = decompose(), [], [], threading.Event()
def repeat():
    while not done.is_set():
        try:
            found.append(decompose())
        except Exception as error:
            errors.append(repr(error))
threads = [threading.Thread(target=repeat) for _ in range(3)]
for thread in threads:
    thread.start()
import tensorly_flycoo
for _ in range(5):
    found.append(decompose())
done.set()
for thread in threads:
    thread.join()
print(json.dumps([len(found) >= 5, set(found) == {expected}, errors]))
"""


def test_other_threads_decompose_while_the_package_is_imported():
    assert run(_THREADED, OPENBLAS_NUM_THREADS="1") == [True, True, []]


_RELOADED = """
import importlib, json, sparse, tensorly as tl, tensorly.decomposition
import tensorly_flycoo
tl.set_backend("flycoo")
x = tl.tensor(sparse.random((5, 6, 7), nnz=60, random_state=0))
few = {"rank": 2, "n_iter_max": 2, "random_state": 0}
def attempt(**options):
    try:
        return len(tl.decomposition.parafac(x, **few, **options).factors)
    except Exception as error:
        return type(error).__name__
results = []
for name in ("_cp", "_nn_cp", "_tucker", "_tt"):
    importlib.reload(importlib.import_module(f"tensorly.decomposition.{name}"))
importlib.reload(tl.decomposition)
results += [attempt(), attempt(callback=lambda *a: None)]
tensorly_flycoo.backend.register()
results += [attempt(), attempt(callback=lambda *a: None)]
print(json.dumps(results))
"""


def test_reloading_tensorlys_modules():
    """parafac still works; what a reload undid is refused until `register` restores it."""
    assert run(_RELOADED) == [3, "DensifyError", 3, 3]


def test_functions_of_tensorly_are_pickled_by_name():
    script = """
import json, pickle, tensorly as tl, tensorly.decomposition
import tensorly_flycoo
from tensorly.decomposition import CP, parafac, tensor_train, tucker
names = [parafac, tensor_train, tucker, tl.tenalg.svd_interface]
same = [pickle.loads(pickle.dumps(f)) is f for f in names]
print(json.dumps([same, pickle.loads(pickle.dumps(CP(3))).rank]))
"""
    assert run(script) == [[True] * 4, 3]


# A forgotten backend

_FORGOTTEN = """
import tensorly as tl
from tensorly_flycoo import FlycooTensor
def use(name):
    x = FlycooTensor([[0, 1, 2, 3], [2, 0, 1, 3], [1, 1, 0, 2]], [1.0, 2.0, 3.0, 4.0], (4, 5, 3))
    uses = {
        "parafac": lambda: tl.decomposition.parafac(x, 2),
        "random": lambda: tl.decomposition.parafac(x, 2, init="random"),
        "tucker": lambda: tl.decomposition.tucker(x, [2, 2, 2]),
        "tucker random": lambda: tl.decomposition.tucker(x, [2, 2, 2], init="random"),
        "hals": lambda: tl.decomposition.non_negative_parafac_hals(x, 2),
        "prod": lambda: tl.prod(x),
        "unfold": lambda: tl.unfold(x, 1),
        "mode_dot": lambda: tl.tenalg.mode_dot(x, tl.ones(4), 0),
    }
    try:
        uses[name]()
    except Exception as error:
        return str(error)
    return "works"
NAMES = "parafac|random|tucker|tucker random|hals|prod|unfold|mode_dot".split("|")
"""
_HERE = "import json\n" + _FORGOTTEN + "print(json.dumps({name: use(name) for name in NAMES}))"
_SPAWNED = """
import concurrent.futures, json, multiprocessing
from forgotten import NAMES, use
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        print(json.dumps(dict(zip(NAMES, pool.map(use, NAMES)))))
"""
_LOKY = """
import json, joblib, tensorly as tl
from forgotten import NAMES, use
tl.set_backend("flycoo")
answers = joblib.Parallel(2, backend="loky")(joblib.delayed(use)(name) for name in NAMES)
print(json.dumps(dict(zip(NAMES, answers))))
"""


@pytest.mark.parametrize(
    "where", ["here", *[pytest.param(name, marks=pytest.mark.slow) for name in ("spawned", "loky")]]
)
def test_a_forgotten_backend_is_named(where, tmp_path):
    """The most common mistake; a worker starts with TensorLy's default backend."""
    if where == "here":
        answers = run(_HERE)
    else:
        (tmp_path / "forgotten.py").write_text(_FORGOTTEN)
        program = tmp_path / "program.py"
        program.write_text(_SPAWNED if where == "spawned" else _LOKY)
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, program], env=os.environ | {"PYTHONPATH": path},
            capture_output=True, text=True, timeout=250,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        answers = json.loads(done.stdout)
    for name, text in answers.items():
        assert "TensorLy's backend is 'numpy'" in text, (name, text)
        assert 'call tl.set_backend("flycoo")' in text, (name, text)
