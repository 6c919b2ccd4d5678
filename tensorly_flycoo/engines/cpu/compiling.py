"""The decorators of the engine's compiled loops, with a cache on disk that is never stale."""

import contextlib
import functools
import gc
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock

from ...base.reporting import add_compiled, log_compilation
from .lowering import OPTIONS, KernelCompiler, SubroutineCompiler

_logger = logging.getLogger("tensorly_flycoo")


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function at its first call, to run without the GIL; cache it on disk."""
    options = {"pipeline_class": KernelCompiler, **OPTIONS, **options}
    compiled: Any = njit(nogil=True, **options)(function)
    try:
        compiled._cache = _FolderCache(function)
    except RuntimeError:  # numba finds no folder for it
        _warn_uncached()
    compile_for_args = compiled._compile_for_args

    # All threads call a kernel for the first time together. numba locks the compilation itself, but
    # not the look-ups around it.
    @global_compiler_lock
    def compile_and_log(*args: Any, **kwargs: Any) -> Any:
        with log_compilation(), _pause_collection():
            return compile_for_args(*args, **kwargs)

    compiled._compile_for_args = compile_and_log
    return compiled


#: Compiles a function that makes arrays.
allocating_kernel = functools.partial(kernel, _nrt=True)

_SUBROUTINE_OPTIONS = {**OPTIONS, "no_cpython_wrapper": True}

#: Compiles what only kernels call, as a part of them; a kernel's file in the cache holds its
#: subroutines.
subroutine = njit(pipeline_class=SubroutineCompiler, **_SUBROUTINE_OPTIONS)

#: A subroutine that is optimised alone, too: it takes longer to compile. Loops over nonzeros or
#: rows that call subroutines take up to 1.4 times as long without.
hot_loop = njit(**_SUBROUTINE_OPTIONS)

#: A subroutine whose code numba puts into its callers, which compiles in less time than any other.
#: It may not return early.
inlined = njit(inline="always", **_SUBROUTINE_OPTIONS)

#: A subroutine whose sums the compiler may add up in another order, one that suits its vectors.
#: For sums that only decide when to stop: they differ from one kind of processor to another.
fast_sum = njit(fastmath={"reassoc"}, **_SUBROUTINE_OPTIONS)


@contextlib.contextmanager
def _pause_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: numba leaves little, and to look for it takes its time."""
    restore = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        restore()


@functools.cache  # once
def _warn_uncached() -> None:
    _logger.warning(
        "numba cannot write its cache, so each process compiles all kernels anew: let the "
        "environment variable NUMBA_CACHE_DIR name a folder that can be written"
    )


class _CacheFile(IndexDataCacheFile):
    """numba's index, which is of no use if a class that its signatures name has gone since."""

    def _load_index(self) -> dict[Any, Any]:
        try:
            return super()._load_index()
        except (AttributeError, ImportError):
            return {}


class _FolderCache(FunctionCache):
    """numba's cache, valid as long as no source file in the function's folder or in ours changes.

    numba itself checks only the function's own file. A helper in another file could change, and the
    old machine code of its callers would still run. It compiles a signature between a
    `load_overload` that finds nothing and `save_overload`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folders = {Path(file).parent for file in (function.__code__.co_filename, __file__)}
        stamp = tuple(_hash_folder(folder) for folder in sorted(folders))
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, stamp)
        self._starts_s: dict[Any, float] = {}

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = super().load_overload(sig, target_context)
        if overload is not None and tuple(overload.signature.args) != tuple(sig):
            # Two processes that compile at once may give different signatures one file.
            overload = None
        if overload is None:
            self._starts_s[sig] = time.perf_counter()
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        super().save_overload(sig, data)
        start_s = self._starts_s.pop(sig)
        if self._enabled:
            add_compiled(start_s)

    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        """Go on without the cache if it cannot be read or written."""
        try:
            yield
        except OSError:
            self.disable()
            _warn_uncached()


@functools.cache
def _hash_folder(folder: Path) -> str:
    """Hash the names and the contents of all source files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
