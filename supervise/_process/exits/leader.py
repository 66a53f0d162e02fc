"""The handle of the process of a rank: its reaping, its status, and signals to it and its group. A table of handles."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import struct
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform
from supervise._process.containment import cgroup
from supervise._process.containment.groups import Member, members, readable
from supervise._process.containment.procfs import look, state_of, tracks_resources
from supervise._record import NamedTuple
from supervise._runtime.wakeup import OwnedFd

if TYPE_CHECKING:
    from supervise._process.exits.thread import ExitThread
    from supervise._process.launch.return_value import OutcomeFile

# Status of a process that other code has reaped, and check of a peak of memory


_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_known_kb = 0
"""The last known peak of memory of this process. A peak only grows."""


def remembered(pidfd: int) -> tuple[int | None, bool]:
    """Return (exit code, core dumped) of a reaped process; (None, False) before Linux 6.15, and for another file."""
    info = bytearray(64)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None, False
    (mask,) = struct.unpack_from("Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None, False
    (status,) = struct.unpack_from("i", info, 60)
    return os.waitstatus_to_exitcode(status), os.WCOREDUMP(status)


def is_within_ours(peak_kb: int) -> bool:
    """Return whether a peak is at most that of this process, with which the kernel begins for a program."""
    global _known_kb  # noqa: PLW0603 - called once for each rank; the known value avoids most calls of getrusage
    if peak_kb <= _known_kb:
        return True
    try:
        _known_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except OSError:  # a sandbox
        return True
    return peak_kb <= _known_kb


# The end of a process


class Exit(NamedTuple):
    """How a process ended."""

    code: int | None
    """0 to 255; ``-N`` for signal N; None if the status is lost."""
    core_dumped: bool = False
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    oom_kill: bool = False
    """Whether the kernel's OOM killer has probably killed the process."""


# The notice of the exit of a process: by pidfd, or by a thread


class Pidfd(OwnedFd):
    """The exit notice of a kernel that has pidfds: it needs no thread. Its descriptor is the pidfd.

    The pidfd is -1 if other code reaped the process before its descriptor was opened.
    """

    at_ns: int | None = None
    """Monotonic time at which a waiting thread noticed the exit; None, because no thread waits."""
    found: os.waitid_result | None = None
    """Status that a waiting thread saw before other code reaped the process; None, because no thread waits."""

    @property
    def dead(self) -> bool:
        """Whether the pidfd is readable."""
        return readable(self.fd)

    def look(self) -> None:
        """Do nothing, because the kernel makes a pidfd readable at once."""

    def peek(self) -> os.waitid_result | None:
        """Return the status of a child of the host without reaping it; None if the child runs, or if a tracer holds it.

        Raises:
            ChildProcessError: The child is reaped already.
        """
        return os.waitid(os.P_PIDFD, self.fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def stop(self) -> os.waitid_result | None:
        """Return how a child of the host was suspended, once per suspension; None if there is no new suspension.

        Raises:
            OSError: The child is reaped.
        """
        return os.waitid(os.P_PIDFD, self.fd, os.WSTOPPED | os.WNOHANG)

    def send(self, sig: int, flags: int) -> bool:
        """Signal the process; with the flag for it, the group of the process. Return whether a process received it."""
        try:
            signal.pidfd_send_signal(self.fd, sig, None, flags)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def is_being_reaped(self) -> bool:
        """Return whether other code is reaping the process now.

        During the reap, the process can still be signaled, and the kernel does not keep its status yet.
        """
        return self.send(0, 0) and remembered(self.fd)[0] is None


def exit_notice(pid: int, *, pidfd: int = -1, parents_word: int | None = None) -> Pidfd | ExitThread:
    """Return the exit notice of a process: by pidfd, or by a thread if the kernel lacks pidfds.

    Args:
        pid: A child of this process that is not reaped. With `parents_word`: a child of another process.
        pidfd: Pidfd of the process, which the notice takes over; -1 to open one.
        parents_word: A descriptor that becomes readable when the parent has reaped the process or has exited.

    Raises:
        OSError: No descriptor is left, or no thread is available.
    """
    if not platform.PIDFD:
        from supervise._process.exits.thread import ExitThread

        return ExitThread(pid, parents_word=parents_word)
    try:
        return Pidfd(platform.open_pidfd(pid) if pidfd < 0 else pidfd)
    except ProcessLookupError:  # reaped already by its parent or by other code of this program
        return Pidfd(-1)


# The handles of processes


_KEEP_TRACKERS = frozenset(
    signal.Signals[f"SIG{name}"]
    for name in ("TERM", "INT", "KILL", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "CHLD", "URG", "WINCH")
)
"""The signals that end no resource tracker, and SIGKILL, whose sender spares trackers itself."""
_ROUNDS = 10
"""Limit on the scans for members that were forked while the group was signaled."""


class Process:
    """Handle of a started process that leads its own session: exit notice, status and group. No method blocks.

    The process is a child of this process, which reaps it, unless a subclass says otherwise. The handle uses the pid
    only while no other process can have it. After that, it signals the process and the members of the group by
    descriptors.
    """

    _by_members: bool = False
    """Whether to signal each member of the group separately also before the reap is known.

    After the reap, a new group may have the number.
    """

    def __init__(self, pid: int, notice: Pidfd | ExitThread, *, execs: bool = True, keep: Any = None) -> None:
        """Take over a process that is not reaped yet.

        Args:
            pid: Its pid.
            notice: Its exit notice, which the handle takes over.
            execs: Whether the process executes a program. Until the exec, the kernel counts the host's memory as its
                peak.
            keep: The `Popen` of the process, if there is one. The handle stores the exit code in the `Popen`, which
                then does not reap.
        """
        self.pid = pid
        self._notice = notice
        self._execs = execs
        self._keep = keep
        self._killed = False
        self._gone_at_once = notice.fd < 0
        """Whether other code reaped the process before its descriptor was opened. Its group may still have members."""
        self._members: tuple[Member, ...] = ()
        self._ended: Exit | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit.

        -1 if other code reaped the process before its descriptor was opened.
        """
        return self._notice.fd

    @property
    def noticed_ns(self) -> int | None:
        """Monotonic time at which a waiting thread noticed the exit; None if no thread waits."""
        return self._notice.at_ns

    def ring_if_dead(self) -> None:
        """Make the descriptor readable now if the process is dead.

        The method is needed without pidfds, because the exit thread may run late.
        """
        self._notice.look()

    # The exit

    def reap(self) -> Exit | None:
        """Reap the process if it is dead, and return its exit. Idempotent.

        None if the process runs, or if a tracer holds it.
        """
        if self._ended is None:
            self._ended = self._take_exit()
        return self._ended

    def give_up(self) -> Exit | None:
        """Do the same as `reap`. A child of the fork server does not wait for the server's report."""
        return self.reap()

    def stopped_by(self) -> signal.Signals | None:
        """Return the signal that has suspended the process, once per suspension; None if there is no new suspension."""
        try:
            found = self._notice.stop()
        except OSError:  # reaped by other code of this program
            return None
        return None if found is None else as_signal(found.si_status)

    def _take_exit(self) -> Exit | None:
        """Return the exit of a child of this process, and reap it; None if it is not known yet."""
        if self._notice.fd < 0:
            return Exit(code=None)
        found = None
        try:
            found = self._notice.peek()
            if found is None:
                return None
            killed = (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)
            out_of_memory = killed and not self._killed and cgroup.killed_for_memory(self.pid)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None if found is None and self._is_being_reaped() else self._reaped_by_other(found)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        if self._keep is not None:
            self._mark(code)
        return Exit(
            code=code,
            core_dumped=os.WCOREDUMP(status),
            max_rss_bytes=None if self._execs and is_within_ours(usage.ru_maxrss) else usage.ru_maxrss * 1024,
            cpu_time_s=usage.ru_utime + usage.ru_stime,
            oom_kill=out_of_memory,
        )

    def _mark(self, code: int | None) -> None:
        """Store the code of the reaped process in the `Popen`, so that it never waits for a reused pid."""
        if self._keep is not None and self._keep.returncode is None:
            self._keep.returncode = code if code is not None else 0

    def _reaped_by_other(self, found: os.waitid_result | None) -> Exit:
        """Return the exit of a child that other code has reaped.

        The status is that of a reading before the reap, or the kernel's or the launcher's.
        """
        found = found or self._notice.found
        if found is not None:
            code: int | None = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            dumped = found.si_code == os.CLD_DUMPED
        else:
            code, dumped = remembered(self._notice.fd)
        if code is None:
            code = getattr(self._keep, "returncode", None) or None  # Popen has 0 if it lost the status
        self._mark(code)
        return Exit(code=code, core_dumped=dumped)

    def _is_being_reaped(self) -> bool:
        """Return whether other code is reaping the process at this moment."""
        return self._notice.is_being_reaped()

    # The group

    def signal_group(self, sig: signal.Signals, *, since_s: float | None = None) -> bool:
        """Signal the group, also after the reap of its leader; return whether a process received the signal.

        A scan for resource trackers is reused if it began after `since_s`, a monotonic time. None: scan now.
        """
        if self._notice.fd < 0:
            return self._gone_at_once and self._signal_members(sig)
        self._killed = self._killed or sig == signal.SIGKILL
        spared = sig not in _KEEP_TRACKERS and self._ended is None and self._signal_all_but_trackers(sig, since_s)
        if spared or platform.GROUP_BY_PIDFD:
            send = self._notice.send
            return spared or send(sig, platform.PIDFD_SIGNAL_PROCESS_GROUP) or send(sig, 0)
        if not self._holds_number():
            return (self._by_members or self._ended is not None) and self._signal_members(sig)
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:  # the process has not called setsid yet
            return self._notice.send(sig, 0)
        except PermissionError:
            return False
        return True

    def signal_process(self, sig: signal.Signals) -> bool:
        """Signal the process, not its group; return whether the process received the signal."""
        if self.fileno() < 0 or not (platform.PIDFD or self._holds_number()):
            return False
        self._killed = self._killed or sig == signal.SIGKILL
        return self._notice.send(sig, 0)

    def _holds_number(self) -> bool:
        """Return whether the process still has its pid: it runs, or it is a zombie that only the host would reap."""
        if self._ended is not None:
            return False
        try:
            self._notice.peek()
        except ChildProcessError:
            return False
        return True

    def _number_is_anothers(self) -> bool:
        """Return whether a new process has the pid of this one, which is reaped."""
        return look(self.pid) is not None

    def group_alive(self) -> bool:
        """Return whether the group of a reaped leader has members.

        If this needed a scan of /proc, the handle keeps the members that it found; see `holds_members`.
        """
        if self._notice.fd < 0 and not self._gone_at_once:
            return False
        if self._gone_at_once or not platform.GROUP_BY_PIDFD:
            return self._group_has_members()
        try:
            signal.pidfd_send_signal(self._notice.fd, 0, None, platform.PIDFD_SIGNAL_PROCESS_GROUP)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def _group_has_members(self) -> bool:
        try:
            os.killpg(self.pid, 0)  # a cheap check: most groups are empty
        except ProcessLookupError:
            return False
        except PermissionError:  # a group with this number has members, whose user may be another one
            pass
        try:
            return bool(self.members())
        except OSError:  # too few descriptors to find out: the Worker checks again
            return True

    @property
    def holds_members(self) -> bool:
        """Whether `group_alive` has found the members by a scan, so that the Worker must watch them."""
        return (self._gone_at_once or not platform.GROUP_BY_PIDFD) and bool(self._members)

    def members(self, *, since_s: float | None = None) -> list[Member]:
        """Return the live members of the group of a reaped process.

        `since_s` is a monotonic time: the last scan is reused if it began after this time. None: scan now.

        While a group has members, the kernel does not give its number to a new process. So if a new process has the
        number, the group was empty in between, and the present members do not belong to the gang.

        Raises:
            OSError: There are too few descriptors to find out.
        """
        held = [member for member in self._members if member.alive()]
        if (platform.GROUP_BY_PIDFD and not self._gone_at_once) or not self._number_is_anothers():
            known = {member.pid for member in held}
            for member in members(self.pid, since_s=since_s):
                if member.pid in known:
                    member.close()
                else:
                    held.append(member)
        # Members that have exited may still be watched; the Worker that watches them closes them.
        self._members = (*held, *(old for old in self._members if old.fileno() >= 0 and old not in held))
        return held

    def _signal_all_but_trackers(self, sig: signal.Signals, since_s: float | None) -> bool:
        """Signal the members of the group, except resource trackers; return whether there are any of these.

        A tracker ignores SIGTERM and SIGINT. A signal such as SIGHUP would end it before it unlinks the shared memory
        of the other members, which would then stay in use until the machine restarts.
        """
        if not self._holds_number():
            return False
        try:
            found = members(self.pid, since_s=since_s)
        except OSError:  # too few descriptors for a scan
            return False
        with contextlib.ExitStack() as stack:
            for member in found:
                stack.callback(member.close)
            trackers = {member.pid for member in found if tracks_resources(member.pid)}
            if trackers:
                self._notice.send(sig, 0)
                for member in found:
                    if member.pid not in {self.pid, *trackers}:
                        member.send(sig)
        return bool(trackers)

    def _signal_members(self, sig: signal.Signals) -> bool:
        """Signal each member of the group, without the number of the group.

        SIGKILL also reaches members that are forked meanwhile. Another signal does not, because the handlers of the
        members may have started them, for instance to save.
        """
        tried: set[int] = set()
        reached = False
        for _ in range(_ROUNDS if sig == signal.SIGKILL else 1):
            try:
                new = [member for member in self.members() if member.pid not in tried]
            except OSError:  # too few descriptors for a scan: signal the known members; the Worker repeats it
                reached = sum(member.send(sig) for member in self._members if member.pid not in tried) > 0 or reached
                break
            if not new:
                break
            tried |= {member.pid for member in new}
            reached = sum(member.send(sig) for member in new) > 0 or reached
        return reached

    # The state

    def kernel_state(self) -> str:
        """Return the state letter of /proc, such as D or t; "?" if it cannot be read."""
        seen = look(self.pid)
        return "?" if seen is None else seen.state

    def survivor(self) -> tuple[int, str] | None:
        """Return pid and state of a process that is left: the leader, or a member of its group; None if none is.

        Reaps a dead leader; `reap` returns its exit.
        """
        pid = self.pid
        self.ring_if_dead()
        if self._ended is not None or self.reap() is not None:
            try:
                living = self.members() if self.group_alive() else []
            except OSError:  # too few descriptors to find out
                return pid, "?"
            if not living:
                return None
            pid = living[0].pid
        return pid, state_of(pid)

    def close(self) -> None:
        """Close the descriptors, which the caller has unwatched before. Idempotent."""
        held, self._members = self._members, ()
        for member in held:
            member.close()
        self._gone_at_once = False
        self._notice.close()


def as_signal(number: int) -> signal.Signals:
    """Return the signal that suspended a process; SIGSTOP if the kernel does not report it."""
    try:
        return signal.Signals(number)
    except ValueError:
        return signal.SIGSTOP


class ExitSlots:
    """Processes and result channels of a gang, by local rank, for a cleanup that uses no actors."""

    def __init__(self) -> None:
        """Make an empty table."""
        self.processes: dict[int, Process] = {}
        """Processes, from the start of a rank until no process of its group is left."""
        self.outcomes: dict[int, OutcomeFile] = {}
        """Result channels, from the start of a rank until the host has read its return value."""

    def close_outcomes(self) -> None:
        """Close all result channels that the host has not read."""
        while self.outcomes:
            self.outcomes.popitem()[1].close()

    def ring_if_dead(self) -> None:
        """Make the descriptors of all dead processes readable now."""
        if not platform.PIDFD:
            for process in self.processes.values():
                process.ring_if_dead()

    def kill_all(self) -> None:
        """Send SIGKILL to every group."""
        for process in list(self.processes.values()):
            with contextlib.suppress(BaseException):  # an error at one group must not spare the others
                process.signal_group(signal.SIGKILL)
