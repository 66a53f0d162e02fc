"""What the workers of the tests of large values return: at the top level of a module, so that it can be pickled."""

import mmap
import os
import pickle
import resource
import signal
from pathlib import Path
from typing import Any, Self

from tests.processes.work import say

KIBI = 1024


def numbers(count: int) -> Any:
    """An array of the numbers below `count`, 8 bytes each."""
    import numpy as np

    return np.arange(count, dtype=np.int64)


def zoo() -> dict[str, Any]:
    """Arrays of many kinds, each with more than 64 KiB unless its name says otherwise."""
    import numpy as np

    grid = np.arange(300 * 300, dtype=np.float64).reshape(300, 300)
    frozen = np.arange(20 * KIBI)
    frozen.flags.writeable = False
    record = np.zeros(10 * KIBI, dtype=[("a", "i4"), ("b", "f8")])
    record["b"] = 0.5
    return {
        "grid": grid,
        "fortran": np.asfortranarray(grid),
        "strided": grid[::2, ::3],
        "frozen": frozen,
        "record": record,
        "small": np.arange(4),
        "empty": np.empty((0, 3)),
        "objects": np.array([{"a": 1}, None], dtype=object),
        "again": grid,
    }


def many_small(count: int) -> list[Any]:
    """As many arrays of 1 KiB."""
    import numpy as np

    return [np.full(KIBI, n % 251, dtype=np.uint8) for n in range(count)]


class Blob:
    """An object whose pickle has a view of its memory, as the documentation of `pickle` suggests."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), (pickle.PickleBuffer(self.memory),)


class Pair:
    """Two of them, one read-only, and an attribute."""

    def __init__(self, size: int) -> None:
        self.left, self.right, self.name = Blob(bytearray(b"l") * size), Blob(b"r" * size), "pair"

    @classmethod
    def of(cls, size: int) -> Self:
        return cls(size)


def cut_off(handled: bool) -> Any:
    """Return 8 MiB where 4 MiB is all that a file may have; beyond, a signal kills unless it is handled."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN if handled else signal.SIG_DFL)
    return numbers(1 << 20)


def killed_in_the_table() -> Any:
    """Everything is in the file but its header."""

    def stop(*_: Any) -> None:
        say("written")
        signal.pause()

    os.pwrite = stop  # type: ignore[assignment]
    return numbers(1 << 20)


def kept_mapped(count: int, shared: bool) -> Any:
    """Leave a process of another session behind, which has the file mapped and writes to the mapping when told."""
    fd = next(int(f.name) for f in Path("/proc/self/fd").iterdir() if "supervise-outcome" in str(f.resolve()))
    array = numbers(count)
    os.ftruncate(fd, array.nbytes + 2 * mmap.PAGESIZE)
    ready, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        how = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        memory = mmap.mmap(fd, array.nbytes, flags=how)
        os.write(tell, b"1")
        with Path(os.environ["GATE"]).open() as gate:
            gate.readline()
        memory[:] = bytes(array.nbytes)
        say("overwritten")
        os._exit(0)
    os.read(ready, 1)
    return array


def peak_kib() -> int:
    """The most memory that this process has had so far, as the kernel counts it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
