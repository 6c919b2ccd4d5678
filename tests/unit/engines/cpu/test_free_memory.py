"""What counts as free memory: the system's, and the limits of control groups."""

import pytest

from tensorly_flycoo.engines.cpu.free_memory import count_free_nbytes

GB = 2**30


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def places(tmp_path):
    """Return made-up /proc and /sys/fs/cgroup; 8 GB are available."""
    write(tmp_path / "proc/self")
    write(tmp_path / "proc", meminfo=f"MemTotal: {2**24} kB\nMemAvailable: {2**23} kB")
    return tmp_path / "proc", tmp_path / "cgroup"


def test_without_files(tmp_path):
    assert count_free_nbytes(tmp_path, tmp_path) is None


def test_without_limits(places):
    assert count_free_nbytes(*places) == 8 * GB
    write(places[0] / "self", cgroup="0::/job")
    write(places[1] / "job", memory__max="max", memory__current=GB)
    assert count_free_nbytes(*places) == 8 * GB


@pytest.mark.parametrize("group", ["", "slurm", "slurm/job"])
def test_the_limit_of_a_group_or_of_one_around_it(places, group):
    """Cached files do not count as used."""
    proc, cgroups = places
    write(proc / "self", cgroup="0::/slurm/job")
    stat = f"anon {GB}\nactive_file {GB // 4}\ninactive_file {GB // 4}"
    files = {"memory__max": 4 * GB, "memory__current": 3 * GB, "memory__stat": stat}
    write(cgroups / group, **files)
    assert count_free_nbytes(proc, cgroups) == 3 * GB // 2


@pytest.mark.parametrize("group", ["docker/1234", ""], ids=["outside", "seen as the root"])
def test_the_limit_of_a_group_of_version_1(places, group):
    proc, cgroups = places
    write(proc / "self", cgroup="5:cpu:/x\n4:memory:/docker/1234\n0::/")
    files = {"memory__limit_in_bytes": 4 * GB, "memory__usage_in_bytes": 5 * GB}
    stat = f"inactive_file 7\ntotal_active_file {GB}\ntotal_inactive_file {GB}"
    write(cgroups / "memory" / group, **files, memory__stat=stat)
    assert count_free_nbytes(proc, cgroups) == GB
