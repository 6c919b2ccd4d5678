"""How numba generates the code of kernels and of their subroutines, in less time than by itself.

This takes parts of numba that it does not promise to keep: pyproject.toml names the versions that
were tried.
"""

from typing import Any

from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_internal
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

#: Options of all that is compiled. Division by zero raises nothing, as in NumPy. Without numba's
#: runtime nothing counts references to arrays.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


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
    flags.error_model = OPTIONS["error_model"]
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


KernelCompiler = _replace_lowering(_KernelLowering)
SubroutineCompiler = _replace_lowering(_SubroutineLowering)
