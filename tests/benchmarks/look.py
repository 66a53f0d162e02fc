"""What the kernel says about this process."""

from __future__ import annotations

from pathlib import Path


def status(key: str, task: Path = Path("/proc/self")) -> int:
    """Return a number of the status file of a process or thread.

    Raises:
        KeyError: There is no such line.
    """
    for line in (task / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    raise KeyError(key)


def threads(*, but: int) -> dict[int, tuple[int, int]]:
    """Return what each thread has used so far: id to nanoseconds on a processor and times it gave it up to wait.

    Args:
        but: The id of a thread that is left out: the one that looks.
    """
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != but:
            on_cpu_ns = int((task / "schedstat").read_text(encoding="ascii").split()[0])
            found[int(task.name)] = on_cpu_ns, status("voluntary_ctxt_switches", task)
    return found
