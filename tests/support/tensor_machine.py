"""Random sequences of operations on one tensor, which must always give the same correct results.

Hypothesis drives one tensor through modes in and out of order, layouts, numbers of threads, copies,
concurrent threads, wrong arguments, failure of any allocation, interrupts at any launch and
exceptions in any call of parafac's callback. It shrinks a failure to the shortest sequence.
"""

import contextlib
import copy
import operator
import pickle
import signal
import threading
import weakref
from unittest import mock

import numpy as np
import pytest
import reference
import tensorly as tl
from error_bounds import bound_mttkrp
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from strategies import Nonzeros, seeds
from tensorly.decomposition import parafac

from tensorly_flycoo import FlycooTensor, Progress, mttkrp
from tensorly_flycoo.base.array_modules import move

LAYOUTS = st.sampled_from(["remap", "replicated", "indexed"])
MODES = st.integers(0, 2)

#: Operations that give bitwise the same tensor.
DUPLICATES = [
    copy.copy,
    copy.deepcopy,
    lambda x: pickle.loads(pickle.dumps(x)),
    lambda x: operator.neg(-x),
    lambda x: 0.25 * (x * 4),
    lambda x: FlycooTensor.from_coo(x.to_coo(), layout=x.layout),
]


@st.composite
def nonzeros(draw, max_size, nnzs):
    """Draw nonzeros from a seed: shrinking the sequence matters more than shrinking them.

    Most of the sizes `nnzs` should be large enough for several tiles and buckets.
    """
    sizes = st.integers(1, max_size)
    shape, nnz = tuple(draw(st.lists(sizes, min_size=1, max_size=3))), draw(st.sampled_from(nnzs))
    random = np.random.default_rng(draw(seeds))
    coords = np.stack([random.integers(0, size, nnz) for size in shape])
    factors = [random.standard_normal((size, 3)) for size in shape]
    return Nonzeros(coords, random.standard_normal(nnz), shape, factors)


@contextlib.contextmanager
def interrupted_launch(module, failing, fails_after):
    """Interrupt the `failing`-th call of ``module.launch``, before its start or after its end."""
    num, launch = 0, module.launch

    def count(*arguments, **options):
        nonlocal num
        num += 1
        if num - 1 == failing and not fails_after:
            raise KeyboardInterrupt
        launch(*arguments, **options)
        if num - 1 == failing:
            raise KeyboardInterrupt

    with mock.patch.object(module, "launch", count):
        yield


class TensorMachine(RuleBasedStateMachine):
    """A state machine for a tensor on any engine; a subclass chooses the engine.

    Attributes
    ----------
    device : str
    xp : module
        The engine's array module.
    launcher : module
        The module whose function `launch` starts a kernel.
    nonzeros : strategy
    """

    @contextlib.contextmanager
    def failing_allocations(self, failing):
        """Make the `failing`-th allocation fail; yield a function that counts the live arrays."""
        raise NotImplementedError

    @initialize(data=st.data(), layout=LAYOUTS, is_single=st.booleans())
    def build(self, data, layout, is_single):
        self.drawn = drawn = data.draw(self.nonzeros)
        self.layout, self.errors = layout, {}
        # Each pair of dtype and ndim compiles a kernel, so not all pairs are used.
        self.dtype = "float32" if is_single and len(drawn.shape) == 3 else "float64"
        self.values = drawn.values.astype(self.dtype)
        self.factors = [self.xp.asarray(factor.astype(self.dtype)) for factor in drawn.factors]
        self.x = self.make(layout)
        results = [mttkrp(self.x, self.factors, mode) for mode in range(self.x.ndim)]
        self.hold_against_the_oracle([move(result, np) for result in results])
        self.expected = [result.tobytes() for result in results]
        self.nonzeros = [array.tobytes() for array in self.x.nonzeros()]

    def make(self, layout):
        nonzeros = (self.drawn.coords, self.values, self.drawn.shape)
        return FlycooTensor(*nonzeros, layout=layout, device=self.device)

    def hold_against_the_oracle(self, results):
        for mode, result in enumerate(results):
            factors = [move(factor, np) for factor in self.factors]
            arguments = (self.drawn.coords, self.values, self.drawn.shape, factors, mode)
            bound = bound_mttkrp(self.x, self.drawn.coords, self.values, factors, mode)
            assert (np.abs(result - reference.mttkrp(*arguments)) <= bound).all()

    def compute(self, mode):
        """Compute a mode into memory full of nan and compare its bits."""
        out = self.xp.full((self.x.shape[mode], 3), np.nan, self.dtype)
        mttkrp(self.x, self.factors, mode, out=out)
        assert out.tobytes() == self.expected[mode]

    @invariant()
    def is_right(self):
        """Compute all modes from the resident one, so that it stays resident; poison T_out."""
        assert self.x.layout == self.layout
        assert self.x.dtype == self.dtype
        first = 0
        if self.layout == "remap":
            for piece in self.list_pieces():
                assert not getattr(piece.lock, "_lock", piece.lock).locked()
                first = piece.mode
        for mode in range(self.x.ndim):
            self.compute((first + mode) % self.x.ndim)
        assert [array.tobytes() for array in self.x.nonzeros()] == self.nonzeros
        if self.layout == "remap":
            for piece in self.list_pieces():
                piece.spare[...] = 0
                piece.record_format.values(piece.spare)[...] = np.nan

    def list_pieces(self):
        """List the layouts of the slabs, or that of the whole tensor."""
        layout = self.x._layout
        return [slab.layout for slab in getattr(layout, "slabs", [])] or [layout]

    @rule(mode=MODES)
    def go_to_a_mode(self, mode):
        self.compute(mode % self.x.ndim)

    @rule(layout=LAYOUTS)
    def change_the_layout(self, layout):
        self.layout = layout
        self.x = FlycooTensor(*self.x.nonzeros(), self.x.shape, layout=layout, device=self.device)

    @rule(duplicate=st.sampled_from(DUPLICATES))
    def duplicate(self, duplicate):
        """Continue with the duplicate."""
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
        factors = [self.xp.asfortranarray(f) for f in self.factors] if is_strided else self.factors
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
        """Return the result of `task`, or the error's message if it failed and freed its arrays."""
        with self.failing_allocations(failing) as count_held:
            try:
                return task(), None
            except MemoryError as error:
                held, message = count_held(), str(error)
        assert held == 0
        return None, message

    @rule(mode=MODES, failing=st.integers(0, 2), fails_after=st.booleans())
    def interrupt_a_launch(self, mode, failing, fails_after):
        mode, result = mode % self.x.ndim, None
        interrupted = interrupted_launch(self.launcher, failing, fails_after)
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            result = mttkrp(self.x, self.factors, mode)
        assert result is None or result.tobytes() == self.expected[mode]

    @precondition(lambda self: self.x.ndim > 1 and self.x.nnz > 0)
    @rule(failing=st.integers(0, 3), checkpoint=st.sampled_from([None, "/nowhere/run.npz"]))
    def raise_in_a_callback(self, failing, checkpoint):
        """Raise at the start, after an iteration or never (3), or before, for want of a folder."""
        before = (tl.get_backend(), signal.getsignal(signal.SIGINT))
        errors, factors = [], []

        def callback(cp_tensor, error):
            errors.append(float(error))
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
        progress = None  # which keeps the last factors
        assert errors == self.errors.setdefault(len(errors), errors)
        assert [factor for factor in factors if factor() is not None] == []
        assert (tl.get_backend(), signal.getsignal(signal.SIGINT)) == before

    @rule(mode=MODES, name=st.sampled_from(["mode", "factors", "dtype", "out", "weights"]))
    def pass_a_wrong_argument(self, mode, name):
        mode = mode % self.x.ndim
        wrong = {
            "mode": {"mode": self.x.ndim},
            "factors": {"factors": self.factors[1:]},
            "dtype": {"factors": [factor.astype(np.int64) for factor in self.factors]},
            "out": {"out": self.xp.empty((self.x.shape[mode] + 1, 3), self.dtype)},
            "weights": {"weights": self.xp.ones(4, self.dtype)},
        }[name]
        with pytest.raises((TypeError, ValueError)):
            mttkrp(self.x, **{"factors": self.factors, "mode": mode, **wrong})
