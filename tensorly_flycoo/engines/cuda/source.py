"""Read CUDA sources, inline the headers that they include, and define their macros. Needs no GPU.

CuPy's cache identifies a source by its text, which does not contain the headers that the compiler
finds: after a change to one of them the cache would return stale machine code.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.value_dtypes import VALUE_DTYPES
from .structs import layout_macro

_ROOT = Path(__file__).parents[3]  # the folder that holds the package
_INCLUDE = re.compile(r'^#include "([^"]+)"$')
_MACRO = re.compile(r"^// MACRO ((\w+): .+)$", re.MULTILINE)

#: The types in CUDA sources.
_TYPES = {
    **{row.dtype: row.c_type for row in VALUE_DTYPES.values()},
    np.dtype(np.int8): "signed char",
    np.dtype(np.int16): "short",
    np.dtype(np.int32): "int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.uint64): "unsigned long long",
}

_ITEM_SIZES = {"bool": 1} | {c_type: dtype.itemsize for dtype, c_type in _TYPES.items()}
_DEFINE = re.compile(r"^#define (\w+) (.+)$", re.MULTILINE)
_POINTER = re.compile(r"(?:const )?([\w: ]+?)\s*\*\s*(?:__restrict__ )?\w+")


def specialise(name: str, macros: dict[str, Any]) -> str:
    """Return the text of a CUDA source with its macros defined.

    A macro is a number, a text, or a dtype, which stands for its C type, or for the layout of a
    structure. A source names each that it needs by a line ``// MACRO NAME: meaning``.
    """
    text = load_source(name)
    for meaning, macro in _MACRO.findall(text):
        if macro not in macros:
            raise TypeError(f"{name} needs a macro {meaning}")
    # Not options: for each new set of options CuPy asks NVRTC for its version, which takes 10 ms.
    defines = [f"#define {macro} {express(value)}\n" for macro, value in macros.items()]
    return "".join(defines) + text


def express(value: Any) -> str:
    """Return the text of a macro: see `specialise`.

    >>> express(np.dtype(np.int64)), express(True)
    ('long long', '1')
    """
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, np.dtype):
        return str(value)
    if value.fields is not None:
        return layout_macro(value)
    return _TYPES[value]


def check_arguments(text: str, name: str, arguments: Sequence[Any]) -> None:
    """Refuse arrays whose items have another size than those that the kernel `name` points to.

    A TypeError names the argument, by its place.
    """
    sizes = find_item_sizes(text, name)
    for place, (argument, expected) in enumerate(zip(arguments, sizes, strict=True)):
        is_array = getattr(argument, "ndim", 0) > 0
        if is_array and expected is not None and argument.itemsize != expected:
            raise TypeError(
                f"argument {place} of the kernel {name} has the dtype {argument.dtype}, expected "
                f"items of {expected} bytes"
            )


@functools.cache
def find_item_sizes(text: str, kernel: str) -> tuple[int | None, ...]:
    """Return for each parameter of a kernel how many bytes the items have that it points to.

    None for a parameter that is no pointer, or points to a type that C++ defines in the `text`.

    >>> define, entry = "#define ROW unsigned short", 'extern "C" __global__ void'
    >>> find_item_sizes(f"{define}\\n{entry} add(long long n, const ROW* rows, bool* flags)", "add")
    (None, 2, 1)
    """
    macros = dict(_DEFINE.findall(text))
    match = re.search(rf"__global__[^;{{]*?\b{kernel}\s*\(([^)]*)\)", text)
    if match is None:
        raise ValueError(f"kernel is {kernel!r}, expected one of the text")
    sizes: list[int | None] = []
    for parameter in match[1].split(","):
        pointer = _POINTER.fullmatch(parameter.strip())
        c_type: str = pointer[1] if pointer else ""
        sizes.append(_ITEM_SIZES.get(macros.get(c_type, c_type)))
    return tuple(sizes)


@functools.cache
def load_source(name: str) -> str:
    """Return the text of a CUDA source with its headers inlined where they are first included.

    `name` is that of a file in a folder of `kernels/`, or the absolute path of one elsewhere, which
    may include the headers of `kernels/`. ``#line`` gives the file and number of the next line;
    paths start at the folder that holds the package.

    >>> print(load_source("sum_values.cu").splitlines()[0])
    #line 1 "tensorly_flycoo/engines/cuda/kernels/building/sum_values.cu"
    """
    return "\n".join(_inline(name, set())) + "\n"


def _inline(name: str, seen: set[str]) -> Iterator[str]:
    """Yield the lines of a source, with the headers that are not among the names `seen` inlined."""
    seen.add(name)
    path = list_files().get(name, Path(name))
    label = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else name
    yield f'#line 1 "{label}"'
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            yield line
            continue
        if match[1] not in seen:
            yield from _inline(match[1], seen)
        yield f'#line {number + 1} "{label}"'


@functools.cache
def list_files() -> dict[str, Path]:
    """Return the paths of all sources and headers by their names, which are distinct."""
    return {path.name: path for path in sorted(Path(__file__).parent.glob("kernels/**/*.cu*"))}
