"""The free memory of the host."""

from collections.abc import Iterator
from pathlib import Path


def count_free_nbytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Count the bytes that this process may still allocate; None if that is unknown.

    The least of what Linux has available and what the limits of the process's control groups
    leave: containers and batch systems set those, and the kernel kills what exceeds them.
    """
    table = _read_table(proc / "meminfo")
    available = [1024 * nbytes for name, nbytes in table if name == "MemAvailable:"]
    return min([*available, *_read_limits(proc, cgroups)], default=None)


def _read_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the bytes that each control group with a limit leaves; versions 1 and 2."""
    for line in _read_lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            prefix = "total_"
        elif not controllers:
            names = ("memory.max", "memory.current")
            prefix = ""
        else:
            continue
        root = cgroups / controllers
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            numbers = [line for name in names for line in _read_lines(group / name)]
            if len(numbers) == 2 and numbers[0] != "max":
                limit, used = map(int, numbers)
                # The kernel gives cached files up before it kills.
                cached = (f"{prefix}active_file", f"{prefix}inactive_file")
                stat = _read_table(group / "memory.stat")
                yield max(0, limit - used + sum(n for name, n in stat if name in cached))


def _read_table(path: Path) -> Iterator[tuple[str, int]]:
    for line in _read_lines(path):
        name, number, *_ = line.split()
        yield name, int(number)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
