"""`run` and `autoload`: scripts that stay as they are."""

import json
import os
import subprocess
import sys
import sysconfig

import pytest
import tensorly as tl

from tensorly_flycoo import command_line

SCRIPT = """
import json, sys
import sparse
import tensorly as tl
x = sparse.random((10, 20, 30), density=0.02, random_state=0)
cp = tl.decomposition.parafac(x, 2, n_iter_max=2, init="random", random_state=0)
print(json.dumps([sys.argv[1:], __name__, tl.get_backend(), [f.shape for f in cp.factors]]))
"""


def python(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_run(script):
    code, out, err = python("-m", "tensorly_flycoo", "run", "--profile", str(script), "a", "--b")
    assert code == 0, err
    shapes = [[10, 2], [20, 2], [30, 2]]
    assert json.loads(out) == [["a", "--b"], "__main__", "flycoo", shapes]
    assert "COO 10 x 20 x 30, 120 float64" in err


def test_run_imports_what_is_beside_the_script(script):
    (script.parent / "beside.py").write_text("WORD = 'found'")
    script.write_text("import beside\nprint(beside.WORD)")
    assert python("-m", "tensorly_flycoo", "run", str(script))[1] == "found\n"


def test_a_script_that_does_not_exist(capsys):
    assert command_line.main(["run", "nowhere.py"]) == 2
    assert capsys.readouterr().err == "error: there is no file nowhere.py\n"


def test_errors_of_a_script_are_its_own(script):
    script.write_text("def fail():\n    raise ValueError('mine')\nfail()")
    code, _, err = python("-m", "tensorly_flycoo", "run", str(script))
    assert code == 1
    assert f'File "{script}", line 2, in fail' in err
    script.write_text("import sys; sys.exit(7)")
    assert python("-m", "tensorly_flycoo", "run", str(script))[0] == 7


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder that stands for the environment's packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(folder))
    return folder


def test_autoload(packages, capsys):
    assert command_line.main(["autoload", "on"]) == 0
    (file,) = packages.iterdir()
    assert str(file) in capsys.readouterr().out
    start = f"import site; site.addsitedir({str(packages)!r}); import sys\n"
    asks = (
        start + "import tensorly as tl; print(tl.get_backend(), 'tensorly_flycoo' in sys.modules)"
    )
    for name, expected in [("flycoo", "flycoo True"), ("numpy", "numpy False"), ("", None)]:
        code, out, err = python("-W", "error", "-c", asks, TENSORLY_BACKEND=name)
        if expected is not None:
            assert (code, out.strip()) == (0, expected), err
    # Without the variable nothing is imported, and the package may come first.
    asks = start + "print(*{'numpy', 'tensorly', 'tensorly_flycoo'} & {*sys.modules})"
    for name in ("", "numpy"):
        assert python("-c", asks, TENSORLY_BACKEND=name) == (0, "\n", "")
    first = start + "import tensorly_flycoo, tensorly as tl; print(tl.get_backend())"
    assert python("-W", "error", "-c", first, TENSORLY_BACKEND="flycoo")[1] == "flycoo\n"
    assert command_line.main(["autoload", "off"]) == 0
    assert list(packages.iterdir()) == []
    assert command_line.main(["autoload", "off"]) == 0
    assert "there is no" in capsys.readouterr().out


def test_autoload_without_the_package(packages):
    """If pip removed the package, a process says so when it starts."""
    command_line.main(["autoload", "on"])
    ask = f"""
import site, sys
sys.modules["tensorly_flycoo"] = None
site.addsitedir({str(packages)!r})
import tensorly as tl
print(tl.get_backend())
"""
    code, out, err = python("-c", ask, TENSORLY_BACKEND="flycoo")
    assert (code, out) == (0, "numpy\n")
    assert "tensorly_flycoo_autoload.pth" in err
    assert "import of tensorly_flycoo halted" in err


def test_a_notebook_loads_the_backend():
    import tensorly_flycoo

    with tl.backend_context("numpy"):
        tensorly_flycoo.load_ipython_extension(None)
        assert tl.get_backend() == "flycoo"
        tensorly_flycoo.unload_ipython_extension(None)
        assert tl.get_backend() == "numpy"
