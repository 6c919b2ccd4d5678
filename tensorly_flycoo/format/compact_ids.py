"""Ids that an engine keeps in a form of its own."""

from abc import ABC, abstractmethod

from ..array_modules import Array


class CompactIds(ABC):
    """Ids in fewer bytes than an array of them takes."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all arrays."""

    @abstractmethod
    def expand(self) -> Array:
        """Return the ids as an array (nnz,)."""


def expand(ids: CompactIds | Array) -> Array:
    """Return ids, compact or not, as an array (nnz,)."""
    return ids.expand() if isinstance(ids, CompactIds) else ids
