"""The lease keeper: a small process beside a host. It kills the host and its ranks when the lease is over.

It runs as ``python -I -S keeper.py HOST_PID FIRST_S IP``. It imports nothing of supervise, so that it starts at once
and stays small. Its stdin is a pipe from the host, with one command per line:

- ``lease NS``: the lease is over at NS nanoseconds of CLOCK_BOOTTIME, a clock that also runs while the machine is
  suspended. The first such command replaces the lease of FIRST_S seconds, during which the host has no ranks. A later
  one can only extend the lease.
- ``rank PID START``: the host has a process group that is led by PID. START is the start time in ``/proc/PID/stat``.
- ``gone PID``: nothing is left of that group.
- ``bye``: the host has no ranks any more; the keeper exits.

The keeper writes the number of a TCP port to its stdout. The driver connects to that port. When the keeper has killed
the ranks and the host, and has seen their ends, it writes a line to the driver's connection: ``gone`` and the reason.
So the driver knows at once that nothing runs on that host, and need not wait for the end of the lease.

The keeper kills the ranks and the host in three cases: the lease is over, the host dies, or stdin ends without ``bye``.
The keeper does not depend on the host and is not its child. So the lease also holds for a
host that is suspended or whose interpreter is busy: when it is over, the keeper kills the ranks and the host.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import os
import select
import signal
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

_NS_PER_S = 1_000_000_000
_MOST_DRIVERS = 8
_PGRP = 2
_TO_GROUP = 1 << 2
"""PIDFD_SIGNAL_PROCESS_GROUP, from linux/pidfd.h."""
_LOOK_MS = 2
_DEATH_MS = 1000
"""Time for killed processes to end. After it, the keeper exits without a report."""
_TFD_TIMER_ABSTIME = 1
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


class Keeper:
    """The state of the keeper."""

    def __init__(self, host: int, first_s: float, ip: str) -> None:
        """Begin a first lease of `first_s` seconds for the process `host`. Let the driver connect to `ip`."""
        self._host = os.pidfd_open(host)
        self._ranks: dict[int, tuple[int, str]] = {}
        """Pid of a leader to its pidfd and its start time. The pidfd is -1 if the leader was already reaped."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = self._libc.timerfd_create(time.CLOCK_BOOTTIME, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._listener = _socket.socket(_socket.AF_INET6 if ":" in ip else _socket.AF_INET, _socket.SOCK_STREAM)
        self._listener.bind((ip, 0))
        self._listener.listen(_MOST_DRIVERS)
        self._listener.setblocking(False)
        self._drivers: list[int] = []
        self._rest = b""
        os.write(1, b"%d\n" % self._listener.getsockname()[1])
        self._due_ns = self._renewed_ns = 0
        self._lease(time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(first_s * _NS_PER_S))

    def run(self) -> None:
        """Obey the host until it ends or says ``bye``. Without ``bye``, kill its ranks and the host itself."""
        poll = select.poll()
        for fd in (0, self._host, self._timer, self._listener.fileno()):
            poll.register(fd, select.POLLIN)
        why = None
        while why is None:
            why = self._serve({fd for fd, _ in poll.poll()})
        if why and self._kill():
            _ignore(self._accept)  # for a driver that connects while the host ends
            for driver in self._drivers:
                _ignore(os.write, driver, f"gone {why}\n".encode())

    def _serve(self, ready: set[int]) -> str | None:
        """Serve the descriptors that are ready.

        Return the reason if all must be killed, "" after ``bye``, and None to continue.
        """
        # After a thaw, a renewal that was sent in time may be pending although the lease has expired. It has no effect.
        # Pending ranks are still added, because the keeper then reports that nothing of the host runs.
        over = self._timer in ready and time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= self._due_ns
        said_bye, ended = False, self._host in ready
        if 0 in ready:
            chunk = os.read(0, 65536)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            said_bye, ended = any(self._obey(line.decode().split()) for line in lines), not chunk
        if over:
            return "its lease was over"
        if said_bye:
            return ""
        if ended:
            return "its process has ended"
        if self._listener.fileno() in ready:
            _ignore(self._accept)
        return None

    def _accept(self) -> None:
        driver, _ = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - socket.py would cost 10 ms
        if len(self._drivers) < _MOST_DRIVERS:
            self._drivers.append(driver)
        else:
            os.close(driver)

    def _obey(self, words: list[str]) -> bool:
        """Carry out one command; return whether it was the last one."""
        match words:
            case ["lease", due_ns]:
                self._renewed_ns = max(int(due_ns), self._renewed_ns)
                self._lease(self._renewed_ns)
            case ["rank", pid, started]:
                self._add(int(pid), started)
            case ["gone", pid]:
                self._forget(int(pid))
            case ["bye"]:
                return True
            case _:
                pass
        return False

    def _add(self, pid: int, started: str) -> None:
        self._forget(pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno not in {errno.ESRCH, errno.EINVAL}:  # EINVAL: it is being reaped, before Linux 6.15
                raise
            self._ranks[pid] = -1, started
            return
        if start_time(pid) == started:
            self._ranks[pid] = pidfd, started
        else:  # the pid is in use again, so the rank was reaped and its whole group has ended
            os.close(pidfd)

    def _forget(self, pid: int) -> None:
        pidfd, _ = self._ranks.pop(pid, (-1, ""))
        if pidfd >= 0:
            os.close(pidfd)

    def _lease(self, due_ns: int) -> None:
        self._due_ns = due_ns = max(due_ns, 1)  # 0 would disarm the timer
        when = struct.pack("@4l", 0, 0, *divmod(due_ns, _NS_PER_S))
        if self._libc.timerfd_settime(self._timer, _TFD_TIMER_ABSTIME, when, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _kill(self) -> bool:
        """Kill the groups of the ranks, then the host; return whether all of them have ended.

        Ranks that the keeper does not know are killed by their lifelines, because the host ends.
        """
        for pid, (pidfd, started) in self._ranks.items():
            # Since Linux 6.9, this works also if the leader is gone
            _ignore(signal.pidfd_send_signal, pidfd, signal.SIGKILL, None, _TO_GROUP)
            _ignore(signal.pidfd_send_signal, pidfd, signal.SIGKILL)
            if start_time(pid) == started:  # not reaped, so no other group can have the number
                _ignore(os.killpg, pid, signal.SIGKILL)
        _ignore(signal.pidfd_send_signal, self._host, signal.SIGKILL)
        poll, due_ns = select.poll(), time.monotonic_ns() + _DEATH_MS * 1_000_000
        left = {pidfd for pidfd, _ in self._ranks.values() if pidfd >= 0} | {self._host}
        for pidfd in left:
            poll.register(pidfd, select.POLLIN)
        while (rest_ms := (due_ns - time.monotonic_ns()) // 1_000_000) > 0:
            for pidfd, _ in poll.poll(rest_ms if left else _LOOK_MS):
                poll.unregister(pidfd)
                left.discard(pidfd)
            if not left and not any(
                _is_running(int(name), self._ranks) for name in os.listdir("/proc") if name.isdigit()
            ):
                return True
        return False


def _ignore(call: object, *args: object) -> None:
    """Call a function, and ignore an error. An error means that the process has exited."""
    try:
        call(*args)  # type: ignore[operator]  # one of two functions of this file
    except OSError:
        return


def _is_running(pid: int, groups: Container[int]) -> bool:
    """Return whether a process belongs to one of the groups and is not a zombie."""
    found = _stat(pid)
    return len(found) > _PGRP and int(found[_PGRP]) in groups and found[0] not in ("Z", "X")


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since the boot; "" if there is no such process."""
    found = _stat(pid)
    return found[19] if found else ""


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name; no fields if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


if __name__ == "__main__":
    if os.fork():  # the keeper must not be a child of Ray's worker, which kills its children when it loses its node
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    Keeper(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]).run()
