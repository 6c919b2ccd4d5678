"""Tensors in files: text for other programs, and .npz files and folders ready to compute with."""

from .saving import load, save
from .slab_folder import open_slabs, save_slabs
from .tns import read_tns, write_tns

__all__ = ["load", "open_slabs", "read_tns", "save", "save_slabs", "write_tns"]
