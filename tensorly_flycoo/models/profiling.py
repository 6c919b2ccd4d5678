"""A profile: which calls took a sparse tensor, where they ran, and where their seconds went."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ..base.notebooks import make_paragraphs, make_text_table
from ..base.reporting import recorder
from ..base.tables import format_table
from ..tensor.coo_cache import find_converted

#: The parts of a call that are timed; the rest is iterations.
PARTS = ("conversion", "start", "way back")

#: The longest text that a table shows of where a call ran.
_MAX_PLACE_LENGTH = 60


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

    def describe_tensor(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"{self.given} {shape}, {self.nnz:,} {self.dtype}"

    def describe_place(self) -> str:
        """Describe why the call failed, or its device and layout; "" if these are unknown."""
        if self.failure:
            return self.failure[:_MAX_PLACE_LENGTH]
        if not self.device:
            return ""
        place = f"{self.device}, {self.layout}"
        merged = [group for group in self.groups or () if len(group) > 1]
        if merged:
            names = ["+".join(map(str, group)) for group in merged]
            place += f", modes {' '.join(names)} merged"
        return place[:_MAX_PLACE_LENGTH]

    def list_times(self) -> list[float]:
        """List the seconds of the call, of each part, of the rest, and of compiling."""
        # What comes back does so after the call.
        rest = self.seconds - self.parts["conversion"] - self.parts["start"]
        return [self.seconds, *(self.parts[part] for part in PARTS), rest, self.compiling]


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
        self._open: ProfiledCall | None = None  # the call that runs now

    def to_dict(self) -> dict[str, Any]:
        """Return calls and refusals as lists and dicts, as JSON has them."""
        return {"calls": [asdict(call) for call in self.calls], "refusals": self.refusals}

    def time(self, name: str, tensor: Any) -> contextlib.AbstractContextManager[None]:
        """Time a call that has a tensor, or a part of one that has none.

        Calls inside another call, and parts of no call, are not timed.
        """
        if tensor is None:
            if self._open is not None:
                return _time_part(self._open, name)
            if self.calls:  # what comes back to the host after a call belongs to it
                return _time_part(self.calls[-1], name)
        elif self._open is None:
            return self._time_call(name, tensor)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _time_call(self, name: str, tensor: Any) -> Iterator[None]:
        """Record a call; the layout of its converted tensor is known only when it ends."""
        call = ProfiledCall(name, tuple(tensor.shape), int(tensor.nnz), type(tensor).__name__)
        self.calls.append(call)
        self._open = call
        start = time.perf_counter()
        try:
            yield
            _wait_for_gpu()
        except BaseException as error:
            call.failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            call.seconds = time.perf_counter() - start
            self._open = None
            x = find_converted(tensor)
            if x is not None:  # else the call failed before
                call.dtype = str(x.dtype)
                call.device = x.device
                call.layout = x.layout
                call.groups = x.groups

    def add_compiling(self, seconds: float) -> None:
        """Add the compilation of a call; ignored outside a call."""
        if self._open is not None:
            self._open.compiling += seconds

    def __repr__(self) -> str:
        lines = self._list_remarks()
        if self.calls:
            lines.insert(0, format_table(self._list_rows(), "<"))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same table for a notebook."""
        remarks = make_paragraphs(self._list_remarks())
        if not self.calls:
            return remarks
        return make_text_table(self._list_rows()) + remarks

    def _list_rows(self) -> list[list[str]]:
        """Return a row for all calls that are alike, with the sums of their seconds, as texts."""
        times_of: dict[tuple[str, str, str], list[list[float]]] = {}
        for call in self.calls:
            key = call.name, call.describe_tensor(), call.describe_place()
            times_of.setdefault(key, []).append(call.list_times())
        rows = [["calls", "function", "tensor", "ran on", "seconds", *PARTS, "rest", "compiling"]]
        for key, times in times_of.items():
            sums = [sum(column) for column in zip(*times, strict=True)]
            rows.append([str(len(times)), *key, *(f"{seconds:.3g}" for seconds in sums)])
        return rows

    def _list_remarks(self) -> list[str]:
        """List remarks: that there was no call, or how often each operation was refused."""
        remarks = []
        if not self.calls:
            remarks.append('no decomposition took a sparse tensor under the backend "flycoo"')
        for text, count in Counter(self.refusals).items():
            remarks.append(f"refused, {count} x: {text}")
        return remarks


@contextlib.contextmanager
def _time_part(call: ProfiledCall, name: str) -> Iterator[None]:
    """Add the seconds of a block to a part of a call."""
    start = time.perf_counter()
    try:
        yield
        _wait_for_gpu()
    finally:
        call.parts[name] += time.perf_counter() - start


def _wait_for_gpu() -> None:
    """Wait for launched kernels, which belong to the block that is timed."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and cupy.cuda.is_available():
        cupy.cuda.Device().synchronize()


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
