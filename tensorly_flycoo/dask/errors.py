"""Errors of clusters."""

from collections.abc import Iterable


class WorkerLost(ConnectionError):
    """A worker that held part of a tensor is gone; `ClusterTensor.recover` replaces it.

    Attributes
    ----------
    addresses : tuple of str
        The workers that are lost.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self.addresses = tuple(addresses)
        super().__init__(self.addresses)

    def __str__(self) -> str:
        return (
            f"lost {', '.join(self.addresses)}, and with it slabs and rows of factors: call "
            "x.recover(), which loads the slabs on other workers, then start from a checkpoint "
            "(Progress.resume) or anew"
        )
