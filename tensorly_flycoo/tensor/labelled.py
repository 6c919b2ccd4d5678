"""A tensor that remembers what its indices stand for."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .tensor import FlycooTensor


class Labels(dict[str, np.ndarray]):
    """The labels of each mode; `ordered` names the modes whose labels are ordered categories."""

    def __init__(self, labels: Mapping[str, np.ndarray], ordered: Iterable[str] = ()) -> None:
        super().__init__(labels)
        self.ordered = tuple(ordered)


class _Fields(NamedTuple):
    tensor: FlycooTensor
    labels: dict[str, np.ndarray]


class LabelledTensor(_Fields):
    """A tensor together with the labels of its indices.

    TensorLy and this package take it wherever they take a sparse tensor, and compute with its
    `tensor`. A CP decomposition of it is a `LabelledCP`. The attributes and methods of its tensor
    are its own too; operators and NumPy's functions refuse it, because they would lose the labels.

    Attributes
    ----------
    tensor : FlycooTensor
    labels : dict of str to array (I_n,)
        For each mode, in order, the name of its column and the label of each index: row i of factor
        n belongs to ``labels[column][i]``.

    Examples
    --------
    >>> x = FlycooTensor([[0, 1], [1, 0]], [3.0, 4.0], (2, 2))
    >>> labels = {"shop": np.array(["a", "b"]), "day": np.array([7, 9])}
    >>> labelled = LabelledTensor(x, labels)
    >>> labelled
    <LabelledTensor: shop (2), day (2); dtype=float64, nnz=2>
    >>> labelled.norm()
    np.float64(5.0)
    >>> labelled * 2
    Traceback (most recent call last):
        ...
    TypeError: this operation does not take a LabelledTensor: use its .tensor
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"LabelledTensor has no attribute {name!r}: see its .tensor")
        return getattr(self.tensor, name)

    def __repr__(self) -> str:
        modes = zip(self.labels, self.shape, strict=True)
        names = ", ".join(f"{name} ({size})" for name, size in modes)
        return f"<LabelledTensor: {names}; dtype={self.dtype}, nnz={self.nnz}>"

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse an operator, which for a tuple might even have a meaning."""
        raise TypeError("this operation does not take a LabelledTensor: use its .tensor")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = (
        _refuse
    )
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __array__ = __array_ufunc__ = _refuse

    def __array_function__(self, function: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        if function is np.shape or function is np.ndim:
            return function(self.tensor)
        self._refuse()


def refuse_labels(x: object) -> None:
    """Refuse to write a LabelledTensor to a file that has no place for labels.

    Examples
    --------
    >>> refuse_labels(FlycooTensor([[0], [1]], [3.0], (2, 2)))
    """
    if isinstance(x, LabelledTensor):
        raise TypeError("x is a LabelledTensor, whose labels the file would lose: pass x.tensor")
