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
from numba._dynfunc import make_function
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_internal
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from ...base.reporting import add_compiled, log_compilation

_logger = logging.getLogger("tensorly_flycoo")


#: Options of all that is compiled. Division by zero raises nothing, as in NumPy. Without numba's
#: runtime nothing counts references to arrays.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


class _KernelLibrary(JITCodeLibrary):
    """The code of a kernel; what unpacks its arguments is not optimised.

    It calls functions of Python most of the time: a launch takes as long, and compiling less.
    """

    def add_ir_module(self, ir_module: Any) -> None:
        for function in ir_module.functions:
            if function.name.startswith(_UNPACKING_PREFIX) and not function.is_declaration:
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        super().add_ir_module(ir_module)


#: How names begin of functions that unpack arguments from Python.
_UNPACKING_PREFIX = "_ZN7cpython"


class _SubroutineLibrary(JITCodeLibrary):
    """The code of a subroutine, which waits to be linked to that of its callers.

    numba would optimise it here too, and make machine code that nobody runs.
    """

    def finalize(self) -> None:
        """Link the subroutines that this one calls, and no more."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):
    """numba's pass that generates code, into a `_KernelLibrary`."""

    _name = "tensorly_flycoo_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class _SubroutineLowering(NativeLowering):
    """numba's pass that generates code, into a `_SubroutineLibrary`."""

    _name = "tensorly_flycoo_subroutine_lowering"

    def run_pass(self, state: Any) -> bool:
        """Let callers find the code by a function without an address."""
        state.library = _SubroutineLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        description = lowered.fndesc
        module = description.lookup_module()
        address = 0
        key = make_function(module, description.qualname, "", address, lowered.env, ())
        state.targetctx.insert_user_function(key, description, [state.library])
        state["cr"] = lowered._replace(cfunc=key)
        return True


def _replace_lowering(lowering: type[NativeLowering]) -> type[CompilerBase]:
    """Return numba's compiler, but with another pass that generates code."""

    class Compiler(CompilerBase):
        def define_pipelines(self) -> list[Any]:
            manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
            manager.passes = [
                (lowering if step is NativeLowering else step, description)
                for step, description in manager.passes
            ]
            manager.finalize()
            return [manager]

    return Compiler


def compile_within(context: Any, dispatcher: Any, signature: Any) -> Any:
    """Compile a kernel as a part of the one whose code is being generated, for it to call.

    Return the description by which it is called. As a subroutine it would be compiled once more.
    """
    flags: Any = Flags()
    flags.nrt = dispatcher.targetoptions["_nrt"]
    flags.error_model = _OPTIONS["error_model"]
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    library = context.active_code_library
    compiled = compile_internal(
        context.typing_context,
        context,
        library,
        dispatcher.py_func,
        signature.args,
        signature.return_type,
        flags,
        locals={},
    )
    function = library._final_module.get_function(compiled.fndesc.llvm_func_name)
    function.linkage = "linkonce_odr"  # no code of its own, once it is inlined
    return compiled.fndesc


_KernelCompiler = _replace_lowering(_KernelLowering)


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function at its first call, to run without the GIL; cache it on disk."""
    options = {"pipeline_class": _KernelCompiler, **_OPTIONS, **options}
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

_SUBROUTINE_OPTIONS = {**_OPTIONS, "no_cpython_wrapper": True}

#: Compiles what only kernels call, as a part of them; a kernel's file in the cache holds its
#: subroutines.
subroutine = njit(pipeline_class=_replace_lowering(_SubroutineLowering), **_SUBROUTINE_OPTIONS)

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
