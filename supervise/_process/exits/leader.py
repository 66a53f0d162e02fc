"""What the handles of all real processes have in common: reaping, and signals to the group that the process leads."""

from __future__ import annotations

import errno
import os
import signal
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from supervise._process import platform
from supervise._process.containment.groups import Member, members
from supervise._process.containment.procfs import look
from supervise._process.exits.handle import Exit
from supervise._process.exits.status import is_within_ours

if TYPE_CHECKING:
    from supervise._process.exits.handle import ExitNotice

_ROUNDS = 10
"""How often members are looked for that were forked while their group was signaled."""


class GroupLeader(ABC):
    """A started process that leads its own session.

    Its number is used only while no other process can have it; otherwise the process and the members of its group
    are signaled by descriptors.
    """

    def __init__(self, pid: int, notice: ExitNotice, *, execs: bool) -> None:
        """Take over a process.

        Args:
            pid: Its number.
            notice: Of its exit, taken over.
            execs: Whether the kernel counted the host's memory as its peak before it had a program of its own.
        """
        self.pid = pid
        self._notice = notice
        self._execs = execs
        self._reaped = False
        self._killed = False
        self._gone_at_once = notice.fileno() < 0
        """Whether there never was a descriptor; the group may have members all the same."""
        self._members: tuple[Member, ...] = ()
        self._ended: Exit | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable at the exit; -1 if the process was gone at once."""
        return self._notice.fileno()

    @property
    def noticed_ns(self) -> int | None:
        """When a waiting thread has noticed the exit, monotonic; None if there is no such thread."""
        return self._notice.at_ns

    def ring_if_dead(self) -> None:
        """Make the descriptor readable now if the process is dead: without pidfds, a thread may have yet to run."""
        self._notice.look()

    # The exit

    def reap(self) -> Exit | None:
        """Reap the process if that is possible now; None: not yet (it runs, or a tracer holds it). Idempotent."""
        if self._ended is None:
            self._ended = self._take_exit()
        return self._ended

    @abstractmethod
    def _take_exit(self) -> Exit | None:
        """Return the exit, None if it cannot be told now."""

    def _reap_own(self) -> Exit | None:
        if self.fileno() < 0:
            return Exit(code=None)
        found = None
        try:
            found = self._peek()
            if found is None:
                return None
            killed = (found.si_code, found.si_status) == (os.CLD_KILLED, signal.SIGKILL)
            oom = killed and not self._killed and killed_for_memory(self.pid)
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

    def _peek(self) -> os.waitid_result | None:
        """Return the status of our child without reaping it; see `ExitNotice.peek`."""
        return self._notice.peek()

    def _peak(self, max_rss_kb: int) -> int | None:
        """Return the peak of memory; None up to the host's, because a program starts to count from there."""
        return None if self._execs and is_within_ours(max_rss_kb) else max_rss_kb * 1024

    def _mark(self, code: int | None) -> None:  # noqa: ARG002 - for handles that note the code
        """Note that the process is reaped."""
        self._reaped = True

    def _reaped_by_other(self, found: os.waitid_result | None) -> Exit:
        """Return the exit of a child that other code has reaped: as seen before, or as the kernel remembers it."""
        found = found or self._notice.found
        if found is not None:
            code: int | None = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            dumped = found.si_code == os.CLD_DUMPED
        else:
            code, dumped = self._notice.lost_status()
        if code is None:
            code = self._code_of_launcher()
        self._mark(code)
        return Exit(code=code, core_dumped=dumped)

    def _is_being_reaped(self) -> bool:
        """Whether another reaper is about to finish with our child."""
        return False

    def _code_of_launcher(self) -> int | None:
        """Return the exit code that the launcher has noted; None if there is none."""
        return None

    # The group

    def signal_group(self, sig: signal.Signals) -> bool:
        """Signal the group, also after its leader was reaped; tell whether a process was there."""
        if self.fileno() < 0:
            return self._gone_at_once and self._signal_members(sig)
        self._killed = self._killed or sig == signal.SIGKILL
        if platform.GROUP_BY_PIDFD:
            return self._send(sig, platform.PIDFD_SIGNAL_PROCESS_GROUP) or self._send(sig, 0)
        if not self._holds_number():
            return self._knows_members() and self._signal_members(sig)
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:  # it does not lead its group yet
            return self._send(sig, 0)
        except PermissionError:
            return False
        return True

    @abstractmethod
    def _holds_number(self) -> bool:
        """Whether the number is its own now: it runs, or is a zombie that only we would reap."""

    @abstractmethod
    def _knows_members(self) -> bool:
        """Whether the members of the group may be signaled one by one, since the number may not be used."""

    @abstractmethod
    def _number_is_anothers(self) -> bool:
        """Whether a new process has the number."""

    def _send(self, sig: int, flags: int) -> bool:
        try:
            self._notice.send(sig, flags)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EPERM):
                return False
            raise
        return True

    def group_alive(self) -> bool:
        """Whether the group has members although its leader was reaped; the handle holds them from now on."""
        if self._gone_at_once or (self.fileno() >= 0 and not platform.GROUP_BY_PIDFD):
            return self._group_has_members()
        if self.fileno() < 0:
            return False
        try:
            self._notice.send(0, platform.PIDFD_SIGNAL_PROCESS_GROUP)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def _group_has_members(self) -> bool:
        try:
            os.killpg(self.pid, 0)  # most often the group is empty, and that is cheap to know
        except ProcessLookupError:
            return False
        except PermissionError:  # it has members; perhaps strangers
            pass
        try:
            return bool(self.members())
        except OSError:  # too few descriptors to find out: the Worker looks again
            return True

    @property
    def holds_members(self) -> bool:
        """Whether `group_alive` has had to find the members: only this handle knows them, so they must be watched."""
        return (self._gone_at_once or not platform.GROUP_BY_PIDFD) and bool(self._members)

    def members(self) -> list[Member]:
        """Return the live members of the group of a reaped process.

        While a group has members, the kernel gives its number to no new process. So if a new process has it, the
        group was empty in between, and its members of now are strangers.

        Raises:
            OSError: There are too few descriptors to find out.
        """
        held = [member for member in self._members if member.alive()]
        if (platform.GROUP_BY_PIDFD and not self._gone_at_once) or not self._number_is_anothers():
            known = {member.pid for member in held}
            for member in members(self.pid):
                if member.pid in known:
                    member.close()
                else:
                    held.append(member)
        # Members that have ended may be watched still; the Worker that watches them closes them.
        self._members = (*held, *(old for old in self._members if old.fileno() >= 0 and old not in held))
        return held

    def _signal_members(self, sig: signal.Signals) -> bool:
        """Signal each member of the group, also those that are forked meanwhile; never by the group's number."""
        tried: set[int] = set()
        reached = False
        for _ in range(_ROUNDS):
            try:
                new = [member for member in self.members() if member.pid not in tried]
            except OSError:  # too few descriptors to find out: signal those that are known; the Worker tries again
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

    def close(self) -> None:
        """Close the descriptors; unwatch them first. Idempotent."""
        held, self._members = self._members, ()
        for member in held:
            member.close()
        self._gone_at_once = False
        self._notice.close()


def killed_for_memory(pid: int | None) -> bool:
    """Tell whether a killed process was probably killed for want of memory; see `oom`."""
    from supervise._process.exits import oom

    return oom.killed_for_memory(pid)


def as_signal(number: int) -> signal.Signals:
    """Return the signal of a stop; SIGSTOP if the kernel does not say which."""
    try:
        return signal.Signals(number)
    except ValueError:
        return signal.SIGSTOP
