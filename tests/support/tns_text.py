"""Tensors as .tns text, for the tests of what reads it."""

import importlib
import sys
from pathlib import Path


def write_tns(path, x, index_base=1):
    """Write a tensor and its shape; the file is compressed if its name ends in .gz or .zst."""
    coords, values = x.nonzeros()
    entries = zip(*(coords + index_base).tolist(), values.tolist(), strict=True)
    lines = [" ".join(map(str, entry)) + "\n" for entry in [("# shape:", *x.shape), *entries]]
    Path(path).write_bytes(compress("".join(lines).encode(), str(path)))


def compress(data, name):
    """Compress bytes as a file of this name is."""
    zstd = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    for suffix, module in {".gz": "gzip", ".zst": zstd}.items():
        if name.endswith(suffix):
            return importlib.import_module(module).compress(data)
    return data
