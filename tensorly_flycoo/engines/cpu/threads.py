"""Run compiled loops on several threads, in numba's number.

numba's own parallel loops would not do: their default layer (OpenMP) spins at the end of each loop,
which makes it up to a hundred times slower when another process needs a core, and another layer
does not allow two threads at a time.

A loop is cut into parts, which the caller and its helpers take by an atomic counter. Helpers are
threads in compiled code, without the GIL. They go to sleep if no loop follows soon; to wake one
takes a few microseconds and no Python. A call lasts until no helper is at work, so nothing writes
to its arguments afterwards.
"""

import ctypes
import functools
import os
import platform
import threading
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numpy import ndarray as Array

from ...base.reporting import log_compilation
from .compiling import kernel
from .lowering import compile_within
from .records import intrinsic

#: Work of a thread for which it is worth waking, and for which it is worth calling while awake.
_WORTH_NS = 2e4
_WORTH_AWAKE_NS = 1e4

#: Parts of a loop for each thread; more than one, so that a delayed thread gets less to do.
_PARTS_PER_THREAD = 8

#: Work of a part: threads that take shorter ones wait for each other at the counter.
_PART_NS = 5e3

#: Time after which a loop comes back to Python, where an interrupt can be raised.
_INTERRUPTIBLE_NS = 1e8

#: Turns of a thread that waits for another before it sleeps; 1000 take 5 to 50 us.
_TURNS = 1000

#: Further turns of a helper that waits for the next job, in each of which any other thread that
#: needs the core goes first; they take 100 to 300 us. Loops of an iteration follow each other
#: sooner: on 16 cores a small tensor's take .88 of the time that they take with helpers asleep.
_PATIENT_TURNS = 500

#: So soon after a loop its helpers are awake.
_AWAKE_NS = 200_000

_WORD = ir.IntType(64)

# The words of a helper, in a cache line of its own (a processor fetches two at a time).
_STATE, _FUNCTION, _DATA, _WAKES, _IS_DONE = range(5)
_NUM_WORDS = 16

# A helper's states; the last three are added to the address of a job. A caller moves a helper from
# ASLEEP or AWAKE over CLAIMED to CALLED, and the helper goes on to RUNNING and AWAKE. If the parts
# are all taken before it runs, the caller moves it to DISMISSED. A caller that waits for it for
# long moves it from RUNNING to AWAITED, goes to sleep, and wakes up when it is ASLEEP.
_ASLEEP, _AWAKE, _CLAIMED, _DISMISSED, _CALLED, _RUNNING, _AWAITED = range(7)
_ADDRESS = ~7

# The words of a job.
_NEXT, _LAST, _PART_SIZE, _HAS_FAILED = range(4)

# These functions of CPython need no GIL.
_acquire: Any = types.ExternalFunction(
    "PyThread_acquire_lock", types.int32(types.intp, types.int32)
)
_release: Any = types.ExternalFunction("PyThread_release_lock", types.void(types.intp))

_let_others_go: Any = types.ExternalFunction(
    "SwitchToThread" if os.name == "nt" else "sched_yield", types.int32()
)


def _point_at(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    words = context.make_array(array_type)(context, builder, array)
    return builder.gep(words.data, [index])


@intrinsic
def _make_job(typing_context: Any, first: Any, last: Any, part_size: Any) -> Any:
    """Return the address of the words of a job, in the frame of the function that calls this."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        has_failed = _WORD(0)
        job = cgutils.pack_array(builder, [*args, has_failed])
        return builder.ptrtoint(cgutils.alloca_once_value(builder, job), _WORD)

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def _has_failed(typing_context: Any, job: Any) -> Any:
    """Say whether a part of a job has raised an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.inttoptr(args[0], _WORD.as_pointer())
        has_failed = builder.load(builder.gep(words, [_WORD(_HAS_FAILED)]))
        return builder.icmp_signed("!=", has_failed, _WORD(0))

    return types.boolean(job), generate


@intrinsic
def _load(typing_context: Any, words: Any, index: Any) -> Any:
    """Read a word that other threads write."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _point_at(context, builder, words, *args)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(words, index), generate


@intrinsic
def _store(typing_context: Any, words: Any, index: Any, value: Any) -> Any:
    """Write a word that other threads read."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _point_at(context, builder, words, *args[:2])
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, index, types.int64), generate


@intrinsic
def _replace(typing_context: Any, words: Any, index: Any, old: Any, new: Any) -> Any:
    """Replace a word if it is `old`, and say whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _point_at(context, builder, words, *args[:2])
        old_and_success = builder.cmpxchg(pointer, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(old_and_success, 1)

    return types.boolean(words, index, types.int64, types.int64), generate


@intrinsic
def _rest(typing_context: Any) -> Any:
    """Wait for some ten nanoseconds, in which the other thread of a core may go first."""
    machine = platform.machine().lower()
    int32 = ir.IntType(32)
    instructions = {
        **dict.fromkeys(("x86_64", "amd64"), ("llvm.x86.sse2.pause", [])),
        **dict.fromkeys(("arm64", "aarch64"), ("llvm.aarch64.isb", [int32(15)])),
    }

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if machine in instructions:
            name, arguments = instructions[machine]
            kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)
        return context.get_dummy_value()

    return types.void(), generate


_TAKE_PARTS = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _WORD.as_pointer()])


@intrinsic
def _bind(typing_context: Any, loop: Any, arguments: Any) -> Any:
    """Return the addresses of a function that takes parts of a loop, and of the arguments for it.

    The arguments lie in the frame of the function that calls this.
    """
    loop_signature = types.void(types.int64, types.int64, *arguments)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        description = compile_within(context, loop.dispatcher, loop_signature)
        name = builder.module.get_unique_name("take_parts")
        function = ir.Function(builder.module, _TAKE_PARTS, name)
        function.linkage = "internal"
        _generate_parts(context, function, args[1].type, description, loop_signature)
        data = cgutils.alloca_once_value(builder, args[1])
        addresses = [builder.ptrtoint(pointer, _WORD) for pointer in (function, data)]
        return context.make_tuple(builder, signature.return_type, addresses)

    return types.UniTuple(types.int64, 2)(loop, arguments), generate


def _generate_parts(
    context: Any, function: Any, arguments_type: Any, description: Any, signature: Any
) -> None:
    """Generate ``while (first = next += part_size) < last: loop(first, ..., *arguments)``."""
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    data, job = function.args
    packed = builder.load(builder.bitcast(data, arguments_type.as_pointer()))
    arguments = cgutils.unpack_tuple(builder, packed)
    pointers = [builder.gep(job, [_WORD(place)]) for place in range(4)]
    last = builder.load(pointers[_LAST])
    part_size = builder.load(pointers[_PART_SIZE])
    take = builder.append_basic_block("take")
    builder.branch(take)
    builder.position_at_end(take)
    first = builder.atomic_rmw("add", pointers[_NEXT], part_size, "monotonic")
    with builder.if_then(builder.icmp_signed("<", first, last)):
        full_end = builder.add(first, part_size)
        is_full = builder.icmp_signed("<", full_end, last)
        end = builder.select(is_full, full_end, last)
        status, _ = context.call_internal_no_propagate(
            builder, description, signature, [first, end, *arguments]
        )
        with builder.if_then(status.is_error, likely=False):
            builder.store_atomic(_WORD(1), pointers[_HAS_FAILED], "monotonic", 8)
            builder.store_atomic(last, pointers[_NEXT], "monotonic", 8)
        builder.branch(take)
    builder.ret_void()


@intrinsic
def _take_parts(typing_context: Any, function: Any, data: Any, job: Any) -> Any:
    """Call a function of `_bind`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [_TAKE_PARTS.as_pointer(), *_TAKE_PARTS.args]
        function_, *arguments = map(builder.inttoptr, args, pointers)
        builder.call(function_, arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def _serve(words: Array) -> None:
    """Take parts of the jobs to which a helper is called, for ever.

    `is_awake` says whether to look for a job before going to sleep. `_replace` fails if a caller
    has changed the state meanwhile.
    """
    is_awake = False
    while True:
        if is_awake:
            for turn in range(_TURNS + _PATIENT_TURNS):
                if _load(words, _STATE) != _AWAKE:
                    break
                if turn < _TURNS:
                    _rest()
                else:
                    _let_others_go()
            # If this fails, a caller has claimed the helper: there is a job.
            is_awake = not _replace(words, _STATE, _AWAKE, _ASLEEP)
        if not is_awake:
            _acquire(words[_WAKES], 1)
        state = _load(words, _STATE)
        while state == _CLAIMED:
            _rest()
            state = _load(words, _STATE)
        job = state & _ADDRESS
        if state == job + _CALLED and _replace(words, _STATE, state, job + _RUNNING):
            _take_parts(words[_FUNCTION], words[_DATA], job)
            is_awake = _replace(words, _STATE, job + _RUNNING, _AWAKE)
            if not is_awake:  # AWAITED: wake the caller, which sets the state to ASLEEP
                _release(words[_IS_DONE])
        else:  # dismissed before it could begin
            _store(words, _STATE, _AWAKE)
            is_awake = True


@kernel
def _run(helpers: Array, num_helpers: int, job: int, function: int, data: int) -> None:
    """Run the loop here and on up to `num_helpers` idle threads.

    Drivers call it by its address: it is compiled once, not again in each of them.
    """
    # Call helpers that have nothing to do.
    num_called = 0
    for h in range(helpers.shape[0]):
        if num_called == num_helpers:
            break
        words = helpers[h]
        is_asleep = _replace(words, _STATE, _ASLEEP, _CLAIMED)
        if is_asleep or _replace(words, _STATE, _AWAKE, _CLAIMED):
            words[_FUNCTION] = function
            words[_DATA] = data
            _store(words, _STATE, job + _CALLED)
            if is_asleep:
                _release(words[_WAKES])
            num_called += 1
    _take_parts(function, data, job)
    # All parts are taken: dismiss helpers that have not begun, and wait for the others.
    for h in range(helpers.shape[0]):
        words = helpers[h]
        if _load(words, _STATE) & _ADDRESS != job:
            continue
        if _replace(words, _STATE, job + _CALLED, _DISMISSED):
            continue
        for _ in range(_TURNS):
            if _load(words, _STATE) != job + _RUNNING:
                break
            _rest()
        if _replace(words, _STATE, job + _RUNNING, job + _AWAITED):
            _acquire(words[_IS_DONE], 1)
            _store(words, _STATE, _ASLEEP)


#: The types of the arguments of `_run`.
_RUN_ARGUMENTS = (
    types.Array(types.int64, 2, "C"),
    types.int64,
    types.int64,
    types.int64,
    types.int64,
)


@intrinsic
def _call_run(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call `_run`, which is at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(types.none, _RUN_ARGUMENTS)
        function = builder.inttoptr(args[0], kind.as_pointer())
        unpacked = cgutils.unpack_tuple(builder, args[1])
        convention.call_function(builder, function, types.none, _RUN_ARGUMENTS, unpacked)
        return context.get_dummy_value()

    return types.void(types.int64, types.Tuple(_RUN_ARGUMENTS)), generate


def _loop(first: int, last: int) -> None:
    """Stand for the loop in `_drive`, whose copies have one of their own."""


def _drive(
    run: int,
    helpers: Array,
    num_helpers: int,
    first: int,
    last: int,
    part_size: int,
    *arguments: Any,
) -> bool:
    """Run the parts of a job here and on helpers, from compiled code; say whether one failed."""
    function, data = _bind(_loop, arguments)
    job = _make_job(first, last, part_size)
    _call_run(run, (helpers, num_helpers, job, function, data))
    return _has_failed(job)


@functools.cache
def _make_driver(loop: Any) -> Any:
    """Compile `_drive` for a loop.

    numba finds a function's cache by its file, line and name: give the driver those of the loop, so
    that the caches of both lie together, and are out of date together.
    """
    loop_code = loop.py_func.__code__
    code = _drive.__code__.replace(
        co_filename=loop_code.co_filename,
        co_firstlineno=loop_code.co_firstlineno,
        co_name=f"{loop_code.co_name}_parts",
    )
    driver = FunctionType(code, {**globals(), "_loop": loop}, code.co_name)
    driver.__module__ = loop.py_func.__module__
    driver.__qualname__ = code.co_name
    return kernel(driver)


def launch(loop: Callable[..., None], count: int, *arguments: Any, work_ns: float) -> None:
    """Run a compiled ``loop(first, last, *arguments)`` for parts that together are range(count).

    As many threads take part as the work is worth; `work_ns` says roughly how long one would take.
    """
    global _last_end_ns
    num_threads = 1
    if work_ns >= 2 * _WORTH_AWAKE_NS:
        are_awake = time.perf_counter_ns() - _last_end_ns < _AWAKE_NS
        num_threads = _choose_threads(count, work_ns, are_awake)
    share_ns = work_ns / num_threads
    num_parts = num_threads * min(_PARTS_PER_THREAD, max(1, int(share_ns / _PART_NS)))
    step = max(num_parts, int(count / max(1, share_ns / _INTERRUPTIBLE_NS)))
    driver = _make_driver(loop)
    run = _find_run()
    helpers = _get_helpers() if _helpers is None else _helpers
    for first in range(0, count, step):
        last = min(first + step, count)
        part_size = max(1, (last - first) // num_parts)
        if driver(run, helpers, num_threads - 1, first, last, part_size, *arguments):
            raise MemoryError(f"a part of {loop.__name__} found no memory for its work")
    if num_threads > 1:
        _last_end_ns = time.perf_counter_ns()


#: When the last loop on several threads ended.
_last_end_ns = -_AWAKE_NS


def _choose_threads(count: int, work_ns: float, are_awake: bool) -> int:
    """Return the threads that work is worth: at most numba's number, and the items of its loop."""
    worth_ns = _WORTH_AWAKE_NS if are_awake else _WORTH_NS
    most = min(count, int(work_ns / worth_ns))
    return min(most, numba.get_num_threads()) if most > 1 else 1


@functools.cache
def _find_run() -> int:
    """Compile `_run`, and return its address."""
    with log_compilation():
        _run.compile(_RUN_ARGUMENTS)
    compiled = _run.overloads[_RUN_ARGUMENTS]
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


_helpers: Array | None = None
_turn = threading.Lock()


def _get_helpers() -> Array:
    """Return the words of all helpers, which are started by the first call."""
    global _helpers
    with _turn, log_compilation():
        if _helpers is None:
            _helpers = _start_helpers(numba.config.NUMBA_NUM_THREADS - 1)  # type: ignore[attr-defined]
        return _helpers


def _start_helpers(count: int) -> Array:
    """Start so many threads, which sleep until they are called; return their words."""
    allocate = ctypes.pythonapi.PyThread_allocate_lock
    allocate.restype = ctypes.c_void_p
    helpers = np.full((count, _NUM_WORDS), _ASLEEP, np.int64)
    _serve.compile((numba.typeof(helpers).copy(ndim=1),))  # here, where it may be logged
    for words in helpers:
        for place in (_WAKES, _IS_DONE):
            words[place] = allocate()
            ctypes.pythonapi.PyThread_acquire_lock(ctypes.c_void_p(int(words[place])), 1)
        name = "tensorly-flycoo"
        threading.Thread(target=_serve, args=(words,), name=name, daemon=True).start()
    return helpers


def _forget_helpers() -> None:
    """Let the next call start helpers."""
    global _helpers, _turn
    _helpers = None
    _turn = threading.Lock()


# A child process has none of its parent's threads. (Windows has no fork.)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_helpers)
