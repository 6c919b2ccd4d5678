"""Whatever happens to a tensor, in whatever order, it goes on giving the same right answers.

Hypothesis drives one tensor through modes in and out of turn, layouts, numbers of threads, copies,
several threads at once, wrong arguments, memory that runs out at any allocation, interrupts at any
launch and exceptions at any call of parafac's callback, and shrinks what goes wrong to the shortest
such story.
"""

import contextlib
import copy
import operator
import pickle
import signal
import threading
import weakref
from unittest import mock

import numba
import numpy as np
import pytest
import tensorly as tl
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from strategies import Nonzeros, seeds, sizes
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, Progress, mttkrp
from tensorly_flycoo.engines import cpu, reference

LAYOUTS = st.sampled_from(["remap", "replicated", "indexed"])
MODES = st.integers(0, 2)

#: NumPy's, as far as the engine and the format call them by name.
ALLOCATORS = (
    "empty", "empty_like", "zeros", "ones", "arange", "argsort", "flatnonzero", "concatenate",
    "require", "ascontiguousarray", "where",
)  # fmt: skip

#: Ways to the same tensor, to the bit.
DUPLICATES = [
    copy.copy,
    copy.deepcopy,
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: operator.neg(-x),
    lambda x: 0.25 * (x * 4),
    lambda x: FlycooTensor.from_coo(x.to_coo(), layout=x.layout),
]

#: How many nonzeros are drawn: most often enough for several tiles and buckets.
NNZS = st.sampled_from([60, 30, 17, 5, 1, 0])


@st.composite
def nonzeros(draw):
    """Draw nonzeros from a seed: there is little to shrink, and the story matters more."""
    shape, nnz = tuple(draw(st.lists(sizes, min_size=1, max_size=3))), draw(NNZS)
    random = np.random.default_rng(draw(seeds))
    coords = np.stack([random.integers(0, size, nnz) for size in shape])
    factors = [random.standard_normal((size, 3)) for size in shape]
    return Nonzeros(coords, random.standard_normal(nnz), shape, factors)


class FailingAllocators:
    """Let the `failing`-th allocation fail, and remember the arrays of those before."""

    def __init__(self, failing):
        self.failing, self.arrays = failing, []

    def watch(self, function):
        def allocate(*arguments, **options):
            if len(self.arrays) == self.failing:
                raise MemoryError("simulated")
            array = function(*arguments, **options)
            if not any(array is argument for argument in arguments):
                self.arrays.append(weakref.ref(array))
            return array

        return allocate

    @contextlib.contextmanager
    def patch(self):
        with contextlib.ExitStack() as stack:
            for name in ALLOCATORS:
                stack.enter_context(mock.patch.object(np, name, self.watch(getattr(np, name))))
            yield


@contextlib.contextmanager
def interrupted_launch(failing, fails_after):
    """Interrupt the `failing`-th launch, before it or after it has written everything."""
    num, launch = 0, cpu.launch

    def count(*arguments):
        nonlocal num
        num += 1
        if num - 1 == failing and not fails_after:
            raise KeyboardInterrupt
        launch(*arguments)
        if num - 1 == failing:
            raise KeyboardInterrupt

    with mock.patch.object(cpu, "launch", count):
        yield


class TensorMachine(RuleBasedStateMachine):
    @initialize(drawn=nonzeros(), layout=LAYOUTS, is_single=st.booleans())
    def build(self, drawn, layout, is_single):
        self.drawn, self.layout, self.errors = drawn, layout, {}
        # Each dtype and ndim is a kernel to compile, so not all are crossed with all.
        self.dtype = "float32" if is_single and len(drawn.shape) == 3 else "float64"
        self.values = drawn.values.astype(self.dtype)
        self.factors = [factor.astype(self.dtype) for factor in drawn.factors]
        self.x = self.make(layout)
        results = [mttkrp(self.x, self.factors, mode) for mode in range(self.x.ndim)]
        self.hold_against_the_oracle(results)
        self.expected = [result.tobytes() for result in results]
        self.nonzeros = [array.tobytes() for array in self.x.nonzeros()]

    def make(self, layout):
        return FlycooTensor(self.drawn.coords, self.values, self.drawn.shape, layout=layout)

    def hold_against_the_oracle(self, results):
        for mode, result in enumerate(results):
            arguments = (self.drawn.coords, self.values, self.drawn.shape, self.factors, mode)
            bound = reference.mttkrp_error_bound(*arguments, self.dtype)
            assert (np.abs(result - reference.mttkrp(*arguments)) <= bound).all()

    def compute(self, mode):
        """Compute a mode into poisoned memory and compare its bits."""
        out = np.full((self.x.shape[mode], 3), np.nan, self.dtype)
        mttkrp(self.x, self.factors, mode, out=out)
        assert out.tobytes() == self.expected[mode]

    @invariant()
    def is_right(self):
        """In the turn that the tensor is in, so that it stays there; and T_out is poisoned."""
        assert self.x.layout == self.layout
        assert self.x.dtype == self.dtype
        first = 0
        if self.layout == "remap":
            assert not self.x._layout.lock.locked()
            first = self.x._layout.mode
        for mode in range(self.x.ndim):
            self.compute((first + mode) % self.x.ndim)
        assert [array.tobytes() for array in self.x.nonzeros()] == self.nonzeros
        if self.layout == "remap":
            self.x._layout.spare[...] = 0
            self.x._layout.record_format.values(self.x._layout.spare)[...] = np.nan

    @rule(mode=MODES)
    def go_to_a_mode(self, mode):
        self.compute(mode % self.x.ndim)

    @rule(num_threads=st.sampled_from([1, 2]))
    def use_other_threads(self, num_threads):
        numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))

    @rule(layout=LAYOUTS)
    def change_the_layout(self, layout):
        self.layout = layout
        self.x = FlycooTensor(*self.x.nonzeros(), self.x.shape, layout=layout)

    @rule(duplicate=st.sampled_from(DUPLICATES))
    def duplicate(self, duplicate):
        """And go on with the duplicate."""
        self.x = duplicate(self.x)

    @rule(orders=st.tuples(*[st.lists(MODES, min_size=1, max_size=4)] * 2))
    def use_two_threads_at_once(self, orders):
        errors = []

        def work(modes):
            try:
                for mode in modes:
                    self.compute(mode % self.x.ndim)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(modes,)) for modes in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    @rule(mode=MODES, failing=st.integers(0, 4), is_strided=st.booleans())
    def run_out_of_memory(self, mode, failing, is_strided):
        mode = mode % self.x.ndim
        factors = [np.asfortranarray(f) for f in self.factors] if is_strided else self.factors
        result, message = self.starve(lambda: mttkrp(self.x, factors, mode), failing)
        assert message is None or f"mttkrp of mode {mode} and rank 3" in message
        assert message is not None or result.tobytes() == self.expected[mode]

    @rule(layout=LAYOUTS, failing=st.integers(0, 30))
    def run_out_of_memory_while_building(self, layout, failing):
        x, message = self.starve(lambda: self.make(layout), failing)
        assert message is None or "building a FlycooTensor" in message
        if x is not None:
            self.x, self.layout = x, layout

    def starve(self, task, failing):
        """Return what `task` returns, or else the error's message, when it holds nothing."""
        allocators = FailingAllocators(failing)
        try:
            with allocators.patch():
                return task(), None
        except MemoryError as error:
            held = [array for array in allocators.arrays if array() is not None]
            message = str(error)
        assert held == []
        return None, message

    @rule(mode=MODES, failing=st.integers(0, 2), fails_after=st.booleans())
    def interrupt_a_launch(self, mode, failing, fails_after):
        mode, result = mode % self.x.ndim, None
        with contextlib.suppress(KeyboardInterrupt), interrupted_launch(failing, fails_after):
            result = mttkrp(self.x, self.factors, mode)
        assert result is None or result.tobytes() == self.expected[mode]

    @precondition(lambda self: self.x.ndim > 1 and self.x.nnz > 0)
    @rule(failing=st.integers(0, 3), checkpoint=st.sampled_from([None, "/nowhere/run.npz"]))
    def raise_in_a_callback(self, failing, checkpoint):
        """At the start, after an iteration, or (at 3) not; writing the checkpoint fails too."""
        errors, factors, handler = [], [], signal.getsignal(signal.SIGINT)

        def callback(cp_tensor, error):
            errors.append(error)
            factors.extend(weakref.ref(factor) for factor in cp_tensor.factors)
            if len(errors) - 1 == failing:
                raise RuntimeError("simulated")
            progress(cp_tensor, error)

        options = {"init": "random", "random_state": 0, "tol": 1e-300, "n_iter_max": 2}
        with (
            contextlib.suppress(RuntimeError, FileNotFoundError),
            tl.backend_context("flycoo"),
            Progress(2, show=None, checkpoint=checkpoint) as progress,
        ):
            parafac(self.x, 3, callback=callback, **options)
        assert errors == self.errors.setdefault(len(errors), errors)
        assert [factor for factor in factors if factor() is not None] == []
        assert (tl.get_backend(), signal.getsignal(signal.SIGINT)) == ("numpy", handler)

    @rule(mode=MODES, name=st.sampled_from(["mode", "factors", "dtype", "out", "weights"]))
    def ask_for_nonsense(self, mode, name):
        mode = mode % self.x.ndim
        wrong = {
            "mode": {"mode": self.x.ndim},
            "factors": {"factors": self.factors[1:]},
            "dtype": {"factors": [factor.astype(np.int64) for factor in self.factors]},
            "out": {"out": np.empty((self.x.shape[mode] + 1, 3), self.dtype)},
            "weights": {"weights": np.ones(4, self.dtype)},
        }[name]
        with pytest.raises((TypeError, ValueError)):
            mttkrp(self.x, **{"factors": self.factors, "mode": mode, **wrong})


@pytest.fixture(autouse=True)
def small_tiles_and_threads_as_before(monkeypatch):
    monkeypatch.setattr(cpu, "TILE_SIZE", 4)
    monkeypatch.setattr(cpu, "BUCKET_SIZE", 8)
    num_threads = numba.get_num_threads()
    yield
    numba.set_num_threads(num_threads)


TestTensorMachine = TensorMachine.TestCase
TestTensorMachine.settings = settings(
    max_examples=200, stateful_step_count=20, deadline=None, database=None
)
