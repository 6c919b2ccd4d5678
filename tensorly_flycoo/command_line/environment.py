"""The commands that set Python up: "run", "autoload", and "info", which says what is installed."""

import argparse
import os
import runpy
import sys
import sysconfig
from pathlib import Path

import tensorly as tl

from .. import profile, show_versions
from .writing import write_text


def run_script(arguments: argparse.Namespace) -> None:
    """Run a Python script with TensorLy's backend "flycoo", unchanged.

    Its sparse tensors are decomposed by this package, everything else as before.
    """
    os.environ["TENSORLY_BACKEND"] = "flycoo"
    tl.set_backend("flycoo")
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path[0] = str(Path(arguments.script).resolve().parent)
    with profile() as recorded:
        try:
            runpy.run_path(arguments.script, run_name="__main__")
        finally:
            if arguments.profile:
                print(recorded, file=sys.stderr)


def autoload(arguments: argparse.Namespace) -> None:
    """Let TENSORLY_BACKEND=flycoo work in this environment without an import.

    "on" writes a .pth file of one line, which all Python processes read when they start, also
    spawned workers; with the variable they import the package at once. "off" removes it.
    """
    path = Path(sysconfig.get_path("purelib")) / "tensorly_flycoo_autoload.pth"
    if arguments.state == "on":
        is_wanted = "os.environ.get('TENSORLY_BACKEND') == 'flycoo'"
        write_text(path, f"import os; {is_wanted} and __import__('tensorly_flycoo')\n")
        print(f"wrote {path}: TENSORLY_BACKEND=flycoo now works without an import")
    elif path.exists():
        path.unlink()
        print(f"removed {path}")
    else:
        print(f"there is no {path}")


def info(arguments: argparse.Namespace) -> None:
    """Print versions, the CPU, the GPU and the caches of compiled kernels, as for a bug report."""
    from ..engines.cpu.sorting import pack_records

    show_versions()
    cupy = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    caches = {
        "CPU kernels": Path(pack_records.stats.cache_path),
        "GPU kernels": Path(cupy).expanduser(),
    }
    for name, folder in caches.items():
        files = [*folder.glob("*.nb[ic]"), *folder.glob("*.cubin")]
        nbytes = sum(file.stat().st_size for file in files)
        contents = f"{len(files)} files, {nbytes / 1e6:.1f} MB" if files else "empty"
        print(f"{name:15}  {folder}, {contents}")
