"""Sparse arrays of other libraries: how to know them, and which constructor takes them."""

import functools
from collections.abc import Callable
from typing import Any

#: For the sparse arrays of each library: how to know one, and the constructor of `FlycooTensor`.
CONVERTERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "scipy": (lambda x: hasattr(x, "tocoo"), "from_scipy"),
    "torch": (lambda x: str(getattr(x, "layout", "")).startswith("torch.sparse"), "from_torch"),
    "pyttb": (lambda x: hasattr(x, "subs") and hasattr(x, "vals"), "from_coo"),
}


@functools.cache
def library_of(kind: type) -> str:
    """Return the package that defines a class; "scipy" for CuPy's twin of SciPy too."""
    return kind.__module__.removeprefix("cupyx.").partition(".")[0]


def find_converter(x: Any) -> str | None:
    """Name the constructor of `FlycooTensor` for a sparse array of a library in `CONVERTERS`."""
    kind: type = type(x)
    is_known, converter = CONVERTERS.get(library_of(kind), (None, ""))
    return converter if is_known and is_known(x) else None
