"""The command "info": versions, the GPU, and the caches of compiled kernels."""

import argparse
import os
from pathlib import Path
from typing import Any

from ..diagnostics.versions import show_versions

_DESCRIPTION = """Print the versions of this package and of its dependencies, the CPU and the GPU,
and where compiled kernels are cached. Paste it into a bug report."""


def add_parser(commands: Any) -> None:
    """Add the parser of this command."""
    parser = commands.add_parser(
        "info", help="print versions, the GPU and the caches", description=_DESCRIPTION
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print everything."""
    show_versions()
    for name, folder in find_caches().items():
        print(f"{name:15}  {folder}, {_measure(folder)}")


def find_caches() -> dict[str, Path]:
    """Return the folders of the kernels that numba and CuPy have compiled."""
    from ..engines.cpu.building import pack_records

    cupy = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    return {
        "CPU kernels": Path(pack_records.stats.cache_path),
        "GPU kernels": Path(cupy).expanduser(),
    }


def _measure(folder: Path) -> str:
    if not folder.is_dir():
        return "empty"
    kinds = (".nbi", ".nbc", ".cubin")
    sizes = [path.stat().st_size for path in folder.iterdir() if path.suffix in kinds]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"
