"""The uniform numbers of NumPy's RandomState, made on a GPU by many thread blocks at once.

The generator, MT19937, is a chain of states of 624 words, of which each double takes two. Chunks of
the chain are drawn side by side: the state in which a chunk begins is found by jumping ahead.
"""

import math
from typing import Any

import cupy
import numpy as np

from ...base.array_modules import GpuArray as Array
from . import launch

_STATE_WORDS = 624

#: Fewer numbers are drawn on the host, in at most 3 ms, and then no kernel need be compiled for
#: them. With kernels at hand the GPU is faster from 2**15 on [H100].
MIN_NUMBERS = 2**18

#: States of a chunk at least, a power of two, and chunks at most. A round of jumps takes as long as
#: a thousand states [H100]; 815M numbers took 12, 9.0, 8.0 and 8.7 ms in at most 2**8, 2**9, 2**10
#: and 2**11 chunks.
MIN_CHUNK = 2**10
MAX_CHUNKS = 2**10

#: Threads of a block that draws: each has one number of a state.
_DRAW_THREADS = 320

#: The states that a jump keeps in shared memory (`window_states` of the kernel).
_WINDOW_NBYTES = 33 * 4 * _STATE_WORDS


def suits(random: Any, shape: tuple[int, ...]) -> bool:
    """Return whether `draw_uniform` can draw from this generator, and is fastest."""
    # A subclass may draw in its own way.
    if type(random) is not np.random.RandomState or math.prod(shape) < MIN_NUMBERS:
        return False
    return random.get_state(legacy=False)["bit_generator"] == "MT19937"


def draw_uniform(random: np.random.RandomState, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return ``random.random_sample(shape).astype(dtype)`` on the GPU, and advance `random`.

    If memory runs out, `random` does not change. Waits for the GPU.
    """
    values = cupy.empty(shape, dtype)
    with random._bit_generator.lock:
        state = random.get_state(legacy=False)
        position = state["state"]["pos"]  # of the next word in the current state
        end = position + 2 * values.size
        num_states = (end - 1) // _STATE_WORDS  # after the current one
        last_key = _draw(state["state"]["key"], position, num_states, values)
        last_position = end - num_states * _STATE_WORDS
        random.set_state({**state, "state": {"key": last_key, "pos": last_position}})
    return values


def _draw(key: np.ndarray, position: int, num_states: int, values: Array) -> np.ndarray:
    """Fill `values` from a position in the state `key`; return the state `num_states` after it."""
    chunk = MIN_CHUNK
    while chunk * MAX_CHUNKS < num_states:
        chunk *= 2
    num_chunks = max(1, -(-num_states // chunk))
    states = _find_chunks(key, chunk, num_chunks, values.dtype)
    last_state = cupy.empty(_STATE_WORDS, np.uint32)
    kernel = _get_kernel("draw_uniform", values.dtype)
    arguments = (
        np.int32(position),
        np.int64(values.size),
        np.int64(num_states),
        np.int64(chunk),
        states,
        values,
        last_state,
    )
    launch.launch(kernel, (num_chunks,), _DRAW_THREADS, arguments)
    return last_state.get()


def _find_chunks(key: np.ndarray, chunk: int, num_chunks: int, dtype: np.dtype) -> Array:
    """Return every `chunk`-th state from `key` on: (num_chunks, 624).

    Each launch doubles the number of known states, by jumps twice as long as the previous one's.
    """
    states = cupy.empty((num_chunks, _STATE_WORDS), np.uint32)
    states[0].set(key)
    num_doublings = (num_chunks - 1).bit_length()
    if num_doublings == 0:
        return states
    # The polynomials that jump over 1, 2, 4, ... states: the kernel squares each to get the next.
    chunk_bits = chunk.bit_length() - 1
    host_polynomials = np.zeros((chunk_bits + num_doublings, _STATE_WORDS), np.uint32)
    host_polynomials[0, _STATE_WORDS // 32] = 1 << _STATE_WORDS % 32  # t^624
    polynomials = cupy.asarray(host_polynomials)
    square = _get_kernel("square_polynomial", dtype)
    launch.launch(square, (1,), 1024, (np.int32(len(host_polynomials) - 1), polynomials))
    jump = _get_kernel("jump_states", dtype)
    for doubling in range(num_doublings):
        num_known = 1 << doubling
        num_jumps = min(num_known, num_chunks - num_known)
        arguments = (polynomials[chunk_bits + doubling], np.int64(num_known), states)
        launch.launch(jump, (num_jumps,), _STATE_WORDS, arguments, _WINDOW_NBYTES)
    return states


def _get_kernel(name: str, dtype: np.dtype) -> cupy.RawKernel:
    """Return an entry of `mersenne_twister.cu`."""
    return launch.get_kernel("mersenne_twister.cu", name, VALUE=dtype)
