"""A worker's process as the host holds it: notice of its exit, its status, its group."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from supervise._process import platform
from supervise._process.containment.groups import Member, members, readable
from supervise._process.containment.procfs import look
from supervise._process.exits.lost_status import remembered
from supervise._process.exits.peak_memory import is_within_ours

if TYPE_CHECKING:
    from supervise._process.exits.thread import ExitThread

_ROUNDS = 10
"""How often those are looked for that were forked while their group was signalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int | None
    """0 to 255, ``-N`` for signal N, None when nobody can tell."""
    core_dumped: bool = False
    max_rss_bytes: int | None = None
    cpu_time_s: float | None = None
    oom_kill: bool = False
    """Whether the kernel has killed it for want of memory."""


class Parent(Protocol):
    """What the parent of a process that is not our child says of it: a fork server's pipe."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is something new."""

    def read(self) -> int | None:
        """Return its exit code, None while there is none; EOFError: the parent is gone."""

    def is_process(self, pid: int) -> bool:
        """Whether the parent runs and has this number."""


class Process:
    """A started process that leads its own session.

    It is never waited for with a blocking call on the caller's thread. Its number is used only while it
    cannot be a stranger's; otherwise it and what is in its group are signalled by descriptors.
    """

    # Also of the fakes of `supervise.testing`, which have no process
    _parent: Parent | None = None
    _notice: ExitThread | None = None
    _started = 0.0
    _reaped = False
    _killed = False
    _stopped = False
    _gone_at_once = False
    """Whether there never was a descriptor; others may be left in its group all the same."""
    _members: tuple[Member, ...] = ()
    _ended: Exit | None = None

    def __init__(
        self, pid: int, *, keep: object = None, parent: Parent | None = None, execs: bool = True, pidfd: int = -1
    ) -> None:
        """Take over a process.

        Args:
            pid: Its number. Not reaped yet, if it is our child.
            keep: What must live as long (a `Popen`, which would otherwise reap by itself).
            parent: Who tells its exit code, where it is not our child.
            execs: Whether the kernel counted this process's memory as its peak before it had its own program.
            pidfd: Of the process, taken over; -1: it is opened here.

        Raises:
            OSError: There can be no descriptor for it, or no thread where that takes one.
        """
        self.pid = pid
        self.keep = keep
        self._parent = parent
        self._execs = execs
        if parent is not None and not platform.GROUP_BY_PIDFD and (seen := look(pid)) is not None:
            self._started = seen.started
        if not platform.PIDFD:
            from supervise._process.exits.thread import ExitThread

            self._notice = ExitThread(pid, parents_word=None if parent is None else parent.fileno())
            self._fd = self._notice.fileno()
            return
        try:
            self._fd = os.pidfd_open(pid) if pidfd < 0 else pidfd
        except ProcessLookupError:  # dead, and reaped already: by its parent, or behind our back
            self._fd = -1
            self._gone_at_once = True

    def fileno(self) -> int:
        """The descriptor that becomes readable when the process is dead; -1 where it was gone at once."""
        return self._fd

    # Its end

    def ring_if_dead(self) -> None:
        """Have the descriptor be readable now if it is dead: without pidfds, a thread may have yet to run."""
        if self._notice is not None:
            self._notice.look()

    def reap(self) -> Exit | None:
        """Reap, if it can be reaped at this moment; None: not yet (it runs, or a tracer holds it).

        Once it is reaped, the answer is always the same.
        """
        if self._ended is None:
            self._ended = self._reap_own() if self._parent is None else self._ask(self._parent)
        return self._ended

    def give_up(self) -> Exit | None:
        """Return its end although its parent does not tell it; None: it may yet, for it has not reaped it.

        By what the kernel knows, or lost: a killed fork server's pipe is silent where somebody inherited it.
        """
        seen = None if self._number_is_anothers() else look(self.pid)
        if seen is not None and self._parent is not None and self._parent.is_process(seen.parent):
            return None
        if self._ended is None:
            self._ended = self._reap_own() or self._reaped_by_other(None)
        return self._ended

    def _ask(self, parent: Parent) -> Exit | None:
        try:
            code = parent.read()
        except EOFError:  # its parent died: whoever inherited it may be we, or the kernel may still know
            return None if self._is_between_parents(parent) else self._reap_own()
        if code is None:
            return None
        self._mark(code)
        return Exit(code=code, oom_kill=code == -signal.SIGKILL and not self._killed and _killed_for_memory(None))

    def _reap_own(self) -> Exit | None:
        if self._fd < 0:
            return Exit(code=None)
        found = None
        try:
            found = self._end()
            if found is None:
                return None
            killed = (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)
            oom = killed and not self._killed and _killed_for_memory(self.pid)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None if found is None and self._is_being_reaped() else self._reaped_by_other(found)
        if pid == 0:
            return None
        code = os.waitstatus_to_exitcode(status)
        self._mark(code)
        return Exit(
            code=code,
            core_dumped=os.WCOREDUMP(status),
            max_rss_bytes=self._peak(usage.ru_maxrss),
            cpu_time_s=usage.ru_utime + usage.ru_stime,
            oom_kill=oom,
        )

    def _end(self) -> os.waitid_result | None:
        """Return how our child ended, without reaping it; None while it runs, or is held by a tracer.

        Raises:
            ChildProcessError: Somebody else has reaped it.
        """
        if self._notice is None:
            return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if not self._notice.dead:
            return None
        if self._notice.found is None and self._parent is None:  # the number may be another child's by now
            raise ChildProcessError(errno.ECHILD, "reaped by somebody else")
        if self._parent is not None and self._number_is_anothers():
            raise ChildProcessError(errno.ECHILD, "reaped by somebody else")
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def _is_between_parents(self, parent: Parent) -> bool:
        """Whether it runs, or is a zombie whose parent dies just now: whose it is then is not known yet."""
        seen = look(self.pid)
        if seen is None or self._number_is_anothers():
            return False
        if not seen.dead:
            return not self._noticed()
        if seen.parent in (0, os.getpid()):
            return False
        above = look(seen.parent)
        return above is None or above.dead or parent.is_process(seen.parent)

    @property
    def noticed_ns(self) -> int | None:
        """When a waiting thread has noticed its end, monotonic; None where there is no thread."""
        return None if self._notice is None else self._notice.at_ns

    def _noticed(self) -> bool:
        return self._notice.dead if self._notice is not None else readable(self._fd)

    def _peak(self, max_rss_kb: int) -> int | None:
        """Return its peak of memory. Up to ours it may be just that: a program starts to count from its host's."""
        return None if self._execs and is_within_ours(max_rss_kb) else max_rss_kb * 1024

    def _mark(self, code: int | None) -> None:
        """Note the end where a Popen keeps it, so that it never waits for the number by itself."""
        self._reaped = True
        if self.keep is not None and getattr(self.keep, "returncode", 0) is None:
            self.keep.returncode = code if code is not None else 0  # type: ignore[attr-defined]

    def _reaped_by_other(self, found: os.waitid_result | None) -> Exit:
        """Somebody waited for our child: tell what we saw before, or the kernel, or the launcher's own record."""
        if found is None and self._notice is not None:
            found = self._notice.found
        if found is not None:
            code: int | None = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            dumped = found.si_code == os.CLD_DUMPED
        else:
            code, dumped = self._kernel_memory()
        if code is None:
            code = getattr(self.keep, "returncode", None) or None  # Popen says 0 when it lost the status
        self._mark(code)
        return Exit(code=code, core_dumped=dumped)

    def _is_being_reaped(self) -> bool:
        """Whether our child is about to be gone: its end is told some microseconds before its status is kept."""
        return self._parent is None and self._notice is None and self._send(0, 0) and self._kernel_memory()[0] is None

    def _kernel_memory(self) -> tuple[int | None, bool]:
        return (None, False) if self._notice is not None else remembered(self._fd)

    # Its group

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the process's group, also after its leader was reaped; tell whether anybody was there."""
        if self._fd < 0:
            return self._gone_at_once and self._signal_members(sig)
        self._killed = self._killed or sig == signal.SIGKILL
        if platform.GROUP_BY_PIDFD:
            return self._send(sig, platform.PIDFD_SIGNAL_PROCESS_GROUP) or self._send(sig, 0)
        if not self._holds_number():
            return (self._reaped or self._parent is not None) and self._signal_members(sig)
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:  # it does not lead its group yet
            return self._send(sig, 0)
        except PermissionError:
            return False
        return True

    def _holds_number(self) -> bool:
        """Whether the number is its own now: it runs, or is a zombie that nobody but we would reap."""
        if self._reaped:
            return False
        if self._parent is not None:
            seen = look(self.pid)
            return seen is not None and seen.started == self._started and not seen.dead
        try:
            self._end()
        except ChildProcessError:
            return False
        return True

    def _send(self, sig: int, flags: int) -> bool:
        try:
            if self._notice is None:
                signal.pidfd_send_signal(self._fd, sig, None, flags)
            else:
                os.kill(self.pid, sig)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EPERM):
                return False
            raise
        return True

    def group_alive(self) -> bool:
        """Whether anything is in the group of a process that was reaped just now; those are held from now on."""
        if self._gone_at_once or (self._fd >= 0 and not platform.GROUP_BY_PIDFD):
            return self._group_has_members()
        if self._fd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._fd, 0, None, platform.PIDFD_SIGNAL_PROCESS_GROUP)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def _group_has_members(self) -> bool:
        try:
            os.killpg(self.pid, 0)  # harms nobody; most often the group is empty, and that is cheap to know
        except ProcessLookupError:
            return False
        except PermissionError:  # somebody is there; perhaps a stranger
            pass
        try:
            return bool(self.members())
        except OSError:  # too few descriptors to find out: it will be looked for again
            return True

    @property
    def holds_members(self) -> bool:
        """Whether `group_alive` has had to find them: nobody else knows who they are, so they must be watched."""
        return (self._gone_at_once or not platform.GROUP_BY_PIDFD) and bool(self._members)

    def members(self) -> list[Member]:
        """Look who is alive in the group of a process that was reaped; OSError: too few descriptors to find out.

        While somebody is in the group, the kernel gives its number to no new process: so if there is one
        that has it, the group was empty in between, and whoever is in it now is a stranger.
        """
        held = [member for member in self._members if member.alive()]
        if (platform.GROUP_BY_PIDFD and not self._gone_at_once) or not self._number_is_anothers():
            known = {member.pid for member in held}
            for member in members(self.pid):
                if member.pid in known:
                    member.close()
                else:
                    held.append(member)
        # Those that have ended may be watched yet; who watches them closes them.
        self._members = (*held, *(old for old in self._members if old.fileno() >= 0 and old not in held))
        return held

    def _number_is_anothers(self) -> bool:
        """Whether a new process has this one's number. Not to be asked of a child of ours that is not reaped."""
        seen = look(self.pid)
        return seen is not None and (self._gone_at_once or self._parent is None or 0 < self._started != seen.started)

    def _signal_members(self, sig: signal.Signals) -> bool:
        """Signal who is left of the group, one by one, and who was forked meanwhile; never by the group's number."""
        tried: set[int] = set()
        reached = False
        for _ in range(_ROUNDS):
            try:
                new = [member for member in self.members() if member.pid not in tried]
            except OSError:  # too few descriptors to find out: those that are known, and the others later
                reached = sum(member.send(sig) for member in self._members if member.pid not in tried) > 0 or reached
                break
            if not new:
                break
            tried |= {member.pid for member in new}
            reached = sum(member.send(sig) for member in new) > 0 or reached
        return reached

    # Its state

    def stopped_by(self) -> signal.Signals | None:
        """Return what has stopped it, once for each stop; None: it runs, or that stop was told."""
        if self._parent is not None:
            return self._stopped_ward()
        try:
            if self._notice is None:
                found = os.waitid(os.P_PIDFD, self._fd, os.WSTOPPED | os.WNOHANG)
            else:
                found = None if self._notice.dead else os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except OSError:  # gone, and reaped by somebody else
            return None
        return None if found is None else _signal(found.si_status)

    def _stopped_ward(self) -> signal.Signals | None:
        """Its parent alone is told of stops, so look."""
        seen = look(self.pid) if self._fd >= 0 and not self._noticed() else None
        told, self._stopped = self._stopped, seen is not None and seen.state == "T"
        return _signal(seen.stop_signal) if seen is not None and self._stopped and not told else None

    def kernel_state(self) -> str:
        """The state letter of /proc, such as D or t; "?" where it cannot be read."""
        seen = look(self.pid)
        return "?" if seen is None else seen.state

    def close(self) -> None:
        """Let the descriptors go; unwatch them first. Idempotent."""
        held, self._members = self._members, ()
        for member in held:
            member.close()
        fd, self._fd, self._gone_at_once = self._fd, -1, False
        if self._notice is not None:
            self._notice.close()
        elif fd >= 0:
            os.close(fd)


def _killed_for_memory(pid: int | None) -> bool:
    from supervise._process.exits.oom import killed_for_memory

    return killed_for_memory(pid)


def _signal(number: int) -> signal.Signals:
    """Return the signal of a stop; SIGSTOP where the kernel does not say which."""
    try:
        return signal.Signals(number)
    except ValueError:
        return signal.SIGSTOP
