"""Read CUDA sources, with what they include put in their place.

The compiler's cache knows a source by its text. Headers that it finds for itself are no part of
that text, so after a change to one of them old machine code would go on being used.
"""

import functools
import re
from importlib import resources

_INCLUDE = re.compile(r'^#include "([^"]+)"$')


@functools.cache
def load_source(name):
    """Return the text of a CUDA source of this package, whole.

    Parameters
    ----------
    name : str
        The name of a file in this folder, or the absolute path of one elsewhere, which may include
        the headers of this folder.

    Returns
    -------
    str
        Each of our headers once, where it is first included; ``#line`` says where a line is from.

    Raises
    ------
    FileNotFoundError
        If there is no such source.

    Examples
    --------
    >>> print(load_source("partial_rows.cu")[:28])
    #line 1 "partial_rows.cu"
    //
    """
    return "\n".join(_inline(name, set())) + "\n"


def _inline(name, seen):
    seen.add(name)
    yield f'#line 1 "{name}"'
    text = resources.files(__package__).joinpath("kernels", name).read_text()
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            yield line
            continue
        if match[1] not in seen:
            yield from _inline(match[1], seen)
        yield f'#line {number + 1} "{name}"'
