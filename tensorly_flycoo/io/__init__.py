"""Tensors in files: text for other programs, and .npz files that are ready to compute with."""

from .saving import load, save
from .tns import read_tns, write_tns

__all__ = ["load", "read_tns", "save", "write_tns"]
