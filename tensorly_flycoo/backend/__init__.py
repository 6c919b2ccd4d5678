"""The seam with TensorLy: its backend "flycoo", and the hooks in its tensor algebra."""

from .registration import register

__all__ = ["register"]
