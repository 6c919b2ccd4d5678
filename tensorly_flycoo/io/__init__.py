"""Tensors in files: text that other programs know, and tensors that are ready to compute with."""

from .tns import read_tns, write_tns

__all__ = ["read_tns", "write_tns"]
