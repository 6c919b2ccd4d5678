"""The base class of arrays that are never formed, such as unfoldings of a sparse tensor."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike

from ..base.array_modules import Array
from ..base.checks import densify_error


class LazyArray(NDArrayOperatorsMixin):
    """An array that is never formed; operations that need its elements raise a DensifyError."""

    shape: tuple[int, ...]
    dtype: np.dtype
    ndim: int = 2

    #: The caller's tensor of which this is a view; None where results stay inside a computation.
    source: Any = None

    #: What to use instead: the end of error messages.
    _instead: str

    #: Above CuPy's, so that its arrays defer operators to us; NumPy's call `__array_ufunc__`.
    __array_priority__ = 1000

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        raise densify_error(f"using the elements of {self!r}", self.shape, self._instead)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Array:
        raise densify_error(f"numpy.{ufunc.__name__} of {self!r}", self.shape, self._instead)

    #: As of any object: the operators compare elements, which would be formed.
    __hash__ = object.__hash__
