"""The terminal that controls supervise, the stdin of the ranks, and job control."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import termios
import threading
import time
from contextlib import suppress
from signal import SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._files import temporary_folder
from supervise._process.launch.program import Stdin
from supervise._runtime.descriptors import clear_of_stdio, close
from supervise._runtime.wakeup import WakeFd
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.cli.options.groups import Choice
    from supervise.cli.options.options import Options
    from supervise.cli.run.console import Console


# The terminal: its modes, and which process group has the foreground


class Terminal:
    """The controlling terminal, on a descriptor. Used on the main thread.

    SIGTTOU is ignored from the start on. Otherwise, while a rank has the foreground, the kernel would suspend supervise
    when supervise writes to the terminal or takes the foreground back.
    """

    def __init__(self, fd: int) -> None:
        """Save the modes of the terminal.

        Raises:
            OSError: The descriptor is not the controlling terminal.
            termios.error: The terminal has no modes.
        """
        self._fd = fd
        self.holder: int | None = None
        """The process group to which supervise gave the foreground; None before, and after supervise has it back."""
        self.in_front()
        self._modes = termios.tcgetattr(fd)
        self._before = signal.signal(SIGTTOU, signal.SIG_IGN)

    def in_front(self) -> bool:
        """Return whether the process group of supervise has the foreground."""
        return os.tcgetpgrp(self._fd) == os.getpgrp()

    def give(self, group: int) -> bool:
        """Give the foreground to a process group of this session; return whether that was possible.

        It is not possible if supervise itself runs in the background, or if the group is empty.
        """
        try:
            if self.holder is None and not self.in_front():
                return False
            os.tcsetpgrp(self._fd, group)
        except OSError:
            return False
        self.holder = group
        return True

    def take(self) -> None:
        """Take the foreground back and restore the modes, unless supervise runs in the background. Idempotent."""
        with suppress(OSError, termios.error):  # the terminal has hung up
            if self.holder is not None:
                self.holder = None
                os.tcsetpgrp(self._fd, os.getpgrp())
            if self.in_front() and termios.tcgetattr(self._fd) != self._modes:
                termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)

    def close(self, *, restore: bool) -> None:
        """Take the foreground back, and restore the modes; with `restore`, also restore the disposition of SIGTTOU."""
        self.take()
        if restore:
            signal.signal(SIGTTOU, self._before)


def controlling(fd: int) -> Terminal | None:
    """Return the terminal on a descriptor if it controls this process, and job control is possible; otherwise None.

    If the process group of this process belongs to another PID namespace, the group has no number here. Then
    supervise could not take the foreground back.
    """
    if not os.isatty(fd) or not os.getpgrp():
        return None
    try:
        return Terminal(fd)
    except (OSError, termios.error):
        return None


# Copies of the stdin of supervise, one for each rank. An unnamed file holds the input that a rank has yet to read


CHUNK_BYTES = 64 * 1024
_END_S = 1.0
MOST_BYTES = 1 << 30
"""The size of the file, a ring. While a rank has not read so many bytes, no more input is read."""


class StdinCopies:
    """A thread that copies a descriptor to a pipe for each rank. A rank that does not read delays no other rank."""

    def __init__(self, source: int, count: int, complain: Callable[[str], object]) -> None:
        """Make the pipes and start the thread.

        Args:
            source: The descriptor to read.
            count: The number of ranks.
            complain: Called on the thread if input is lost.

        Raises:
            OSError: There are too few descriptors, or no temporary file can be made.
        """
        import tempfile  # lazy: few runs copy their stdin

        self._source = source
        self._complain = complain
        self.read_ends: list[int] = []
        """The read end of each rank's pipe, by rank; the caller closes these descriptors."""
        self._sent: dict[int, int] = {}  # write end to the number of bytes that were written to it
        self._size = 0  # the number of bytes that were read
        self._at_end = False
        self._wake = WakeFd()
        self._file = tempfile.TemporaryFile(buffering=0, dir=temporary_folder())  # noqa: SIM115 - `_run` closes it
        try:
            for _ in range(count):
                read, write = os.pipe2(os.O_CLOEXEC)
                self.read_ends.append(clear_of_stdio(read))
                os.set_blocking(write, False)
                self._sent[write] = 0
            self._thread = threading.Thread(target=self._run, name="supervise-stdin", daemon=True)
            self._thread.start()
        except BaseException:
            close(*self.read_ends)
            self._release()
            raise

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._wake.set()
        self._thread.join(_END_S)  # with a time limit: a read blocks if another process has read the input first

    def _run(self) -> None:
        try:
            while self._sent and self._step():
                pass
        except OSError as error:
            self._complain(f"the copies of stdin end here: {error.strerror}")
        finally:
            self._release()

    def _step(self) -> bool:
        """Wait, read and write once; return False after `close`."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._at_end and self._room():
            poll.register(self._source, select.POLLIN)
        for fd, sent in self._sent.items():
            poll.register(fd, select.POLLOUT if sent < self._size else 0)  # an error is reported in any case
        for fd, what in poll.poll():
            if fd == self._wake.fileno():
                return False
            if fd == self._source:
                self._read()
            elif what & select.POLLERR:  # no process can read from the pipe
                self._drop(fd)
            else:
                self._write(fd)
        for fd in [fd for fd, sent in self._sent.items() if self._at_end and sent == self._size]:
            self._drop(fd)
        if self._size and self._sent and min(self._sent.values()) == self._size:
            self._size = 0
            self._sent = dict.fromkeys(self._sent, 0)
            self._file.truncate(0)
        return True

    def _room(self) -> int:
        return MOST_BYTES - (self._size - min(self._sent.values()))

    def _read(self) -> None:
        at = self._size % MOST_BYTES
        try:
            chunk = os.read(self._source, min(CHUNK_BYTES, self._room(), MOST_BYTES - at))
        except BlockingIOError:
            return
        self._at_end = not chunk
        while chunk:
            written = os.pwrite(self._file.fileno(), chunk, at)
            self._size, at, chunk = self._size + written, at + written, chunk[written:]

    def _write(self, fd: int) -> None:
        at = self._sent[fd] % MOST_BYTES
        length = min(CHUNK_BYTES, self._size - self._sent[fd], MOST_BYTES - at)
        chunk = os.pread(self._file.fileno(), length, at)
        try:
            self._sent[fd] += os.write(fd, chunk)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        del self._sent[fd]
        os.close(fd)

    def _release(self) -> None:
        """Close all descriptors except the read ends. The ranks then read to the end of their input."""
        for fd in list(self._sent):
            self._drop(fd)
        self._file.close()
        self._wake.close()


# The stdin of the ranks: which rank reads the stdin of supervise, and the kind of that stdin


_FD = 0


class RankStdin:
    """The stdin of each rank of a run. Made on the main thread before the ranks start."""

    def __init__(self, options: Options, complain: Callable[[str], object]) -> None:
        """Inspect stdin.

        Args:
            options: The validated options.
            complain: Called with a message if input is lost, on any thread; must not block.

        Raises:
            OSError: There are too few descriptors for all ranks.
        """
        self._complain = complain
        self._nproc = options.nproc
        self._fds: dict[int, int] = {}
        self._copies: StdinCopies | None = None
        self._keeps = options.restarts is not None
        self.rank: int | None = None
        """The rank that reads the stdin of supervise; None if no rank does, or all."""
        self.terminal: Terminal | None = None
        """The terminal, if it controls supervise and a rank reads it."""
        kind = _kind()
        chosen = _chosen(options) if kind else "none"
        self._may_drop = options.stdin is None and chosen == "none" and kind in (stat.S_IFIFO, stat.S_IFREG)
        if isinstance(chosen, int):
            self.rank = chosen
            self.terminal = controlling(_FD)
        elif chosen == "all":
            self._copy(kind)

    def of_ranks(self) -> dict[int, Stdin]:
        """Return rank to stdin; a rank without one has the null device."""
        if self.rank is not None:
            return {self.rank: Stdin(_FD, foreground=self.terminal is not None)}
        return {rank: Stdin(fd) for rank, fd in self._fds.items()}

    def _copy(self, kind: int) -> None:
        """Open a regular file once more for each rank; copy any other input to a pipe for each."""
        try:
            if kind == stat.S_IFREG and self._open_again():
                return
            self._copies = StdinCopies(_FD, self._nproc, self._complain)
            self._fds = dict(enumerate(self._copies.read_ends))
        except BaseException:
            self.close_fds()
            raise

    def _open_again(self) -> bool:
        """Open the file for each rank; return False if this user may not open it."""
        position = os.lseek(_FD, 0, os.SEEK_CUR)
        for rank in range(self._nproc):
            try:
                self._fds[rank] = clear_of_stdio(os.open(f"/proc/self/fd/{_FD}", os.O_RDONLY | os.O_CLOEXEC))
            except PermissionError:  # another user has opened the file for supervise
                return False
            os.lseek(self._fds[rank], position, os.SEEK_SET)
        return True

    def warn_if_dropped(self) -> None:
        """Complain once if stdin has input that no rank reads."""
        if self._may_drop and _has_input():
            self._may_drop = False
            self._complain("stdin has input, but no rank reads it; --stdin RANK or --stdin all passes it on")

    def ended(self, rank: int) -> None:
        """Release the copy of a rank that has ended and does not restart, so that it delays no other rank."""
        if self._copies is not None and not self._keeps:
            close(self._fds.pop(rank, None))

    def close_fds(self) -> None:
        """Close the descriptors of the ranks."""
        close(*self._fds.values())
        self._fds.clear()

    def close(self, *, restore: bool) -> None:
        """Release all, and restore the terminal. Idempotent.

        Args:
            restore: Whether to restore the dispositions of signals, because this process continues afterwards.
        """
        self.close_fds()
        if self._copies is not None:
            self._copies.close()
        if self.terminal is not None:
            self.terminal.close(restore=restore)


def reads_terminal(options: Options) -> bool:
    """Return whether a rank reads the terminal of supervise. That terminal then has no rows for unfinished lines."""
    return isinstance(_chosen(options), int) and os.isatty(_FD)


def _chosen(options: Options) -> Choice:
    """Return the choice. By default it is the rank whose role says so, or the only rank, unless it has a gate."""
    if options.stdin is not None:
        return options.stdin
    kinds = [part.settings.get("stdin") for part in options.parts for _ in range(part.count)]
    if "inherit" in kinds:
        return kinds.index("inherit")
    return 0 if kinds == [None] and not options.settings["gate"] else "none"


def _kind() -> int:
    """Return the kind of file that stdin is, as in `stat.S_IFMT`; 0 if it is closed."""
    if sys.__stdin__ is None:  # stdin was closed at the start, and another file may have its number
        return 0
    try:
        return stat.S_IFMT(os.fstat(_FD).st_mode)
    except OSError:
        return 0


def _has_input() -> bool:
    with suppress(OSError):
        found = os.fstat(_FD)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(_FD, 0, os.SEEK_CUR)
        from supervise._process.exits.thread import bytes_in  # lazy: few runs have input that no rank reads

        return bytes_in(_FD) > 0
    return False


# Job control: the foreground of the terminal, and suspension by Ctrl-Z


_WANTS_TERMINAL = (SIGTTIN.name, SIGTTOU.name)
_TYPED = {SIGINT.name: SIGINT, SIGQUIT.name: SIGQUIT, SIGHUP.name: SIGHUP}
"""Signals that the terminal sends to the process group in the foreground, and that end a process."""
_REPLY_S = 5.0  # the gang replies at once, unless the machine stands still
_AT_ONCE_S = 0.05
"""A shorter suspension had no effect: if no shell can continue supervise, the kernel does not suspend it."""


class JobControl:
    """Suspends and continues the ranks together with supervise, and gives a rank the foreground.

    Used on the main thread. A rank that has the terminal as its stdin starts in the background. When the rank first
    reads from the terminal, or changes its modes, the kernel suspends the rank by SIGTTIN or SIGTTOU. Then supervise
    gives the rank the foreground, and continues it. So Ctrl-C goes to supervise until the rank uses the terminal, and
    from then on to the rank until its end.
    """

    def __init__(self, stdin: RankStdin, console: Console, ask: Callable[[object], Any]) -> None:
        """Prepare.

        Args:
            stdin: The stdin of the ranks.
            console: Destination of messages.
            ask: Sends a message to the Supervisor and returns the pending reply.
        """
        self._stdin = stdin
        self._terminal = stdin.terminal
        self._console = console
        self._ask = ask
        self._given_up = False
        self.stopping: bool = False
        """Whether the ranks are being stopped, so that supervise must not suspend itself for a rank."""

    def takes(self, event: dict[str, Any]) -> bool:
        """Process an event of the gang; return whether it concerns only job control."""
        if event["event"] in ("supervise.gang.stopping", "supervise.gang.restarting"):
            self.stopping = event["event"] == "supervise.gang.stopping"
        stopped = event["event"] == "supervise.process.stopped" and event["local_rank"] == self._stdin.rank
        if not stopped or self._terminal is None:
            return False
        if event["signal"] in _WANTS_TERMINAL:
            self._serve(self._terminal, event["local_rank"], event["pid"])
            return True
        if event["signal"] == SIGTSTP.name and self._terminal.holder is not None:
            self.suspend(SIGTSTP, group=True)
            return True
        return False

    def typed(self, event: dict[str, Any]) -> Signals | None:
        """Process the exit of a rank. If a signal that the user typed ended it, return that signal; otherwise None.

        Exit code 130 counts as Ctrl-C: a program that handles Ctrl-C may exit with this code, as shells do.
        """
        if event["event"] != "supervise.process.exited":
            return None
        self._stdin.ended(event["local_rank"])
        terminal = self._terminal
        if terminal is None or event["local_rank"] != self._stdin.rank:
            return None
        in_front = terminal.holder is not None
        terminal.take()
        if not in_front or not event["spontaneous"]:
            return None
        return SIGINT if event["exit_code"] == 128 + SIGINT else _TYPED.get(event["exit_signal"] or "")

    def _serve(self, terminal: Terminal, rank: int, pid: int) -> None:
        """Give the terminal to a rank that waits for it. If supervise is in the background, suspend everything."""
        if terminal.give(pid):
            self._tell(SIGCONT, frozenset({rank}))
            return
        if self._given_up or self.stopping:
            return
        began_s = time.monotonic()
        self.suspend(SIGTTIN, group=True, waiting=pid)
        if time.monotonic() - began_s < _AT_ONCE_S and terminal.holder is None:
            self._given_up = True
            self._console.note(
                f"rank {rank} waits for the terminal, but supervise runs in the background of a shell that has ended;"
                " with --stdin none its stdin is empty"
            )

    def suspend(self, sig: Signals, *, group: bool = False, waiting: int | None = None) -> None:
        """Suspend the ranks and this process. When a shell continues this process, continue the ranks and return.

        Args:
            sig: SIGTSTP or SIGTTIN, which shells report.
            group: Whether to suspend all of this process's group, such as the other programs of a pipeline. At Ctrl-Z,
                the terminal does so unless a rank has the foreground.
            waiting: The process group that gets the foreground if supervise has the foreground afterwards; None: the
                group that has it now.
        """
        self._suspend_ranks()
        self._console.clear()
        if self._terminal is not None:
            waiting, self._terminal.holder = self._terminal.holder or waiting, None  # the shell takes the foreground
        before = signal.signal(sig, signal.SIG_DFL)
        os.kill(0 if group else os.getpid(), sig)  # 0: the group of this process
        signal.signal(sig, before)
        if self._terminal is not None and waiting is not None:
            self._terminal.give(waiting)
        self._tell(SIGCONT)

    def _suspend_ranks(self) -> None:
        """Suspend all ranks. A start in progress goes on, and no signal reaches a rank before its start is reported."""
        deadline_s = time.monotonic() + _REPLY_S
        reached, running = self._tell(SIGSTOP)
        while (missed := running - reached) and time.monotonic() < deadline_s:
            more, running = self._tell(SIGSTOP, missed)
            reached |= more

    def _tell(self, sig: Signals, ranks: frozenset[int] | None = None) -> tuple[frozenset[int], frozenset[int]]:
        """Signal the process groups of running ranks, and wait until the signals are sent.

        Return the ranks that were reached, and all ranks that now run or start.
        """
        reached = running = frozenset[int]()
        with suppress(pykka.ActorDeadError, pykka.Timeout, SuperviseError):
            reached = self._ask(say.Signal(sig=sig, ranks=ranks, group=True)).get(timeout=_REPLY_S)
            running = self._ask(say.Status()).get(timeout=_REPLY_S).running  # after the orders to the Workers
        return reached, running
