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
    available = [1024 * kilobytes for name, kilobytes in table if name == "MemAvailable:"]
    return min([*available, *_read_limits(proc, cgroups)], default=None)


def _read_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the bytes that each control group with a limit leaves; versions 1 and 2."""
    for line in _read_lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":  # version 1
            limit_name = "memory.limit_in_bytes"
            used_name = "memory.usage_in_bytes"
            prefix = "total_"
        elif not controllers:  # version 2
            limit_name = "memory.max"
            used_name = "memory.current"
            prefix = ""
        else:
            continue
        root = cgroups / controllers
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):  # each limits those inside it
            if not group.is_relative_to(root):
                break
            limits = _read_lines(group / limit_name)
            used = _read_lines(group / used_name)
            if not limits or not used or limits[0] == "max":
                continue
            cached = _count_cached_nbytes(group, prefix)
            yield max(0, int(limits[0]) - int(used[0]) + cached)


def _count_cached_nbytes(group: Path, prefix: str) -> int:
    """Count the bytes of cached files, which the kernel gives up before it kills."""
    names = (f"{prefix}active_file", f"{prefix}inactive_file")
    return sum(nbytes for name, nbytes in _read_table(group / "memory.stat") if name in names)


def _read_table(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of each line."""
    for line in _read_lines(path):
        name, number, *_ = line.split()
        yield name, int(number)


def _read_lines(path: Path) -> list[str]:
    """Read the lines of a file; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
