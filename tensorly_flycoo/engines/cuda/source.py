"""Read CUDA sources and inline the headers that they include.

CuPy's cache identifies a source by its text, which does not contain the headers that the compiler
finds: after a change to one of them the cache would return stale machine code.
"""

import functools
import re
from collections.abc import Iterator
from importlib import resources

_INCLUDE = re.compile(r'^#include "([^"]+)"$')


@functools.cache
def load_source(name: str) -> str:
    """Return the text of a CUDA source with its headers inlined where they are first included.

    `name` is that of a file in `kernels/`, or the absolute path of one elsewhere, which may include
    the headers of `kernels/`. ``#line`` gives the file and number of the next line; paths start at
    the folder that holds the package.

    >>> print(load_source("sum_groups.cu").splitlines()[0])
    #line 1 "tensorly_flycoo/engines/cuda/kernels/sum_groups.cu"
    """
    return "\n".join(_inline(name, set())) + "\n"


def _inline(name: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    label = name if name.startswith("/") else f"{__package__.replace('.', '/')}/kernels/{name}"
    text = resources.files(__package__).joinpath("kernels", name).read_text()
    yield f'#line 1 "{label}"'
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            yield line
            continue
        if match[1] not in seen:
            yield from _inline(match[1], seen)
        yield f'#line {number + 1} "{label}"'
