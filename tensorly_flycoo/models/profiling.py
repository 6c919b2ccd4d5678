"""A profile: which calls took a sparse tensor, where they ran, and where their seconds went."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ..base.reporting import recorder
from ..base.tables import format_table
from ..tensor.coo_cache import find_converted

#: The parts of a call that are timed; the rest is iterations.
PARTS = ("conversion", "start", "way back")


@dataclass
class ProfiledCall:
    """A call with a sparse tensor; it is filled in when the call ends."""

    name: str
    shape: tuple[int, ...]
    nnz: int
    given: str  # the type of the tensor, such as "COO"
    dtype: str = ""
    device: str = ""
    layout: str = ""
    groups: tuple[tuple[int, ...], ...] | None = None
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    compiling: float = 0.0  # seconds, of any part
    failure: str | None = None


class Profile:
    """The record of a `profile`, shown as a table; `to_dict` returns it.

    Attributes
    ----------
    calls : list of ProfiledCall
        Each outermost call of a decomposition with a sparse tensor: its function, tensor, device,
        layout, groups of modes, seconds in all and by part, how many of them compiled kernels, and
        failure, if it raised an exception. Seconds in ``"way back"``, which come after a call, are
        not among its own. Where slices in a list were is not recorded (a RaggedTensor's place is),
        nor are `coupled_parafac` and starts that run together.
    refusals : list of str
        What the `DensifyError` of each refused operation says, with what to use instead.
    """

    def __init__(self) -> None:
        self.calls: list[ProfiledCall] = []
        self.refusals: list[str] = []
        self._open: ProfiledCall | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return calls and refusals as lists and dicts, as JSON has them."""
        return {"calls": [asdict(call) for call in self.calls], "refusals": self.refusals}

    @contextlib.contextmanager
    def time(self, name: str, tensor: Any) -> Iterator[None]:
        """Time a call that has a tensor, or a part of one that has none."""
        call = self._open
        is_part = tensor is None
        if is_part and call is None and self.calls:  # what comes back belongs to the call before
            call = self.calls[-1]
        if is_part == (call is None):  # a part of no call, or a call inside another one
            yield
            return
        if call is None:
            sizes = tuple(tensor.shape), int(tensor.nnz)
            call = self._open = ProfiledCall(name, *sizes, type(tensor).__name__)
            self.calls.append(call)
        start = time.perf_counter()
        try:
            yield
            cupy = sys.modules.get("cupy")
            if cupy is not None and cupy.cuda.is_available():
                cupy.cuda.Device().synchronize()
        except BaseException as error:
            if not is_part:
                call.failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            seconds = time.perf_counter() - start
            if is_part:
                call.parts[name] += seconds
            else:
                call.seconds = seconds
                self._open = None
                if (x := find_converted(tensor)) is not None:  # if it came so far
                    call.dtype = str(x.dtype)
                    call.device = x.device
                    call.layout = x.layout
                    call.groups = x.groups

    def add_compiling(self, seconds: float) -> None:
        """Add what a call has compiled; ignored outside a call."""
        if self._open is not None:
            self._open.compiling += seconds

    def __repr__(self) -> str:
        columns = ["calls", "function", "tensor", "ran on", "seconds", *PARTS, "rest", "compiling"]
        rows: dict[tuple[str, str, str], list[list[float]]] = {}
        for call in self.calls:
            shape = " x ".join(map(str, call.shape))
            merged = ["+".join(map(str, group)) for group in call.groups or () if len(group) > 1]
            groups = f", modes {' '.join(merged)} merged" if merged else ""
            where = call.failure or (f"{call.device}, {call.layout}{groups}" if call.device else "")
            key = call.name, f"{call.given} {shape}, {call.nnz:,} {call.dtype}", where[:60]
            rest = call.seconds - call.parts["conversion"] - call.parts["start"]
            times = [call.seconds, *(call.parts[part] for part in PARTS), rest, call.compiling]
            rows.setdefault(key, []).append(times)
        table = [columns]
        for key, calls in rows.items():
            sums = map(sum, zip(*calls, strict=True))
            table.append([str(len(calls)), *key, *(f"{seconds:.3g}" for seconds in sums)])
        none = 'no decomposition took a sparse tensor under the backend "flycoo"'
        refused = [f"refused, {n} x: {text}" for text, n in Counter(self.refusals).items()]
        return "\n".join([format_table(table, "<") if self.calls else none, *refused])


@contextlib.contextmanager
def profile() -> Iterator[Profile]:
    """Record which calls take a sparse tensor, where they run, and where their time goes.

    Yields
    ------
    Profile
        It is complete when the block ends.

    Notes
    -----
    Records calls of the thread, or asyncio task, that entered the block; a profile inside another
    takes its place. ``"conversion"`` is from a `sparse.COO` to a `FlycooTensor`, ``"start"`` the
    initial guess, ``"way back"`` is `tl.to_numpy` of arrays on a GPU, and the rest are iterations.
    The host waits for the GPU at the end of each, which a call does anyway. Costs some microseconds
    a call.

    Examples
    --------
    >>> import sparse, tensorly as tl
    >>> x = sparse.random((30, 40, 50), density=0.01, random_state=0)
    >>> with tl.backend_context("flycoo"), profile() as p:
    ...     cp = tl.decomposition.parafac(x, rank=3, n_iter_max=5, init="random", random_state=0)
    >>> [(call.name, call.given, call.nnz, call.device) for call in p.calls]
    [('parafac', 'COO', 600, 'cpu')]
    """
    current = Profile()
    token = recorder.set(current)
    try:
        yield current
    finally:
        recorder.reset(token)
