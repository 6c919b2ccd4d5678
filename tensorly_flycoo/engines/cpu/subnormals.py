"""Arithmetic without subnormal numbers, which take a processor up to a hundred times as long.

Elements of a non-negative factor may shrink from step to step until they are subnormal. As on a
GPU, they are then zero.
"""

import platform
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .records import intrinsic

_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
_IS_ARM = platform.machine().lower() in ("arm64", "aarch64")

#: The bits of the control register that flush results and, on x86, operands.
_X86_FLUSH = 0x8040
_ARM_FLUSH = 1 << 24

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _read_control(builder: Any) -> Any:
    """Return the control register of floating-point arithmetic; 0 where it is not known."""
    if _IS_X86:
        place = cgutils.alloca_once(builder, _INT32)
        pointer = builder.bitcast(place, _POINTER)
        _call(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), pointer)
        return builder.zext(builder.load(place), _INT64)
    if _IS_ARM:
        return _call(builder, "llvm.aarch64.get.fpcr", _INT64)
    return _INT64(0)


def _write_control(builder: Any, control: Any) -> None:
    if _IS_X86:
        place = cgutils.alloca_once(builder, _INT32)
        builder.store(builder.trunc(control, _INT32), place)
        pointer = builder.bitcast(place, _POINTER)
        _call(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), pointer)
    elif _IS_ARM:
        _call(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), control)


@intrinsic
def begin_flushing(typing_context: Any) -> Any:
    """Let this thread take subnormal numbers as 0; return what `end_flushing` needs.

    Nothing may be raised in between.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        control = _read_control(builder)
        flush = _X86_FLUSH if _IS_X86 else _ARM_FLUSH
        _write_control(builder, builder.or_(control, _INT64(flush)))
        return control

    return types.int64(), generate


@intrinsic
def end_flushing(typing_context: Any, control: Any) -> Any:
    """Let this thread compute as it did before `begin_flushing`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _write_control(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate
