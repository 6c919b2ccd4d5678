"""Tensors in files: text for exchange with other programs, and .npz ready to compute with."""

from .saving import load, save
from .tns import read_tns, write_tns

__all__ = ["load", "read_tns", "save", "write_tns"]
