"""Where the kernel cannot signal a hang-up: one tiny process a host, which outlives it and kills its groups.

The guard is a shell in a session of its own. It reads which groups there are from a socket whose other
end the host alone holds, and does nothing else until the host is gone, however it went: then it sends
SIGKILL to every group that is left, and ends. It takes about a megabyte.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
from typing import TYPE_CHECKING, Literal

from supervise import _threads
from supervise._process.files import clear_of_stdio
from supervise._process.launch import posix_spawn

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("supervise")

_SHELL = "/bin/sh"
_PROGRAM = """
cd /
trap '' HUP INT QUIT PIPE TERM USR1 USR2
while read -r word group; do
    case $word in
        led | left) eval "g$group=$word" ;;
        gone) unset "g$group" ;;
    esac
done
groups=$(set | while IFS== read -r name word; do case $name in g[0-9]*) echo "${name#g}:$word" ;; esac; done)
for turn in 1 2 3 4 5 6 7 8 9 10; do
    again=
    for each in $groups; do
        group=${each%%:*}
        case $each in *left*) kill -s 0 "$group" && continue ;; esac
        kill -s KILL -- "-$group" && again="$again $each"
    done
    [ "$again" ] || break
    groups=$again
    sleep 0.02
done
"""
"""A last line that the host could not finish is not acted on: its number may be a part of one.

Of a group that its leader has left (`left`), the number is still ours only while no process has it.
Killing goes on until nobody is left, since a group can grow while it is signalled; for a moment only,
since members that cannot be killed may be there for ever.
"""

_MOST_STARTS = 10
"""A guard that something ends again and again is not replaced for ever."""

Word = Literal["led", "left", "gone"]
"""What can be said of a group: its leader is not reaped; it is, and others may be there; it is no more."""


class Guard:
    """The host's side. Everything but `await_end` is called under the lock that keeps a fork away."""

    def __init__(self, lock: threading.RLock) -> None:
        """Start it.

        Args:
            lock: Held by the caller; it also keeps the write end out of a forked child's hands.

        Raises:
            OSError: No process, descriptor or thread is to be had.
        """
        self._lock = lock
        self._groups: dict[int, Word] = {}
        self._unsent = bytearray()
        self._catching_up = False
        self._wanted = True
        self._starts = 0
        self._start()
        try:
            self._thread = self._in_thread(self._await_ends)
        except OSError:
            self._socket.close()
            self._reap()
            raise

    def _start(self) -> None:
        self._starts += 1
        ours, theirs = socket.socketpair()
        with theirs:
            self._socket = ours = socket.socket(fileno=clear_of_stdio(ours.detach()))
            try:
                self._pid = _run(theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        if hasattr(socket, "SO_NOSIGPIPE"):  # where there is no MSG_NOSIGNAL
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_NOSIGPIPE, 1)
        self._unsent = bytearray().join(_line(word, group) for group, word in self._groups.items())
        self._send()

    def kill(self, group: int) -> None:
        """Do its work for one group, now, and have it forget that."""
        if group in self._groups:
            kill(group, self._groups[group])
            self.say("gone", group)

    def say(self, word: Word, group: int) -> None:
        """Have it know of a group. Never blocks."""
        if word == "gone":
            self._groups.pop(group, None)
        else:
            self._groups[group] = word
        self._unsent += _line(word, group)
        self._send()

    def _send(self) -> None:
        """Write what fits; a thread sees to the rest. A socket, since a pipe's SIGPIPE may end the host."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent, _NO_SIGNAL)]
        except BlockingIOError:
            if not self._catching_up:
                with contextlib.suppress(OSError):  # no more threads: the rest goes with what is said next
                    self._in_thread(self._catch_up)
                    self._catching_up = True
        except OSError:  # it has just ended; the next one is told everything
            self._unsent.clear()

    def _catch_up(self) -> None:
        """Wait until the guard reads on; it may be short of processor time."""
        while True:
            poll = select.poll()
            with self._lock:
                self._send()
                if not self._unsent:
                    self._catching_up = False
                    return
                poll.register(self._socket, select.POLLOUT)
            poll.poll()

    def _in_thread(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="supervise-guard", daemon=True)
        _threads.start(thread, "the process that ends the ranks if this one dies")
        return thread

    def _await_ends(self) -> None:
        """Reap it, and replace it if nobody has ended it."""
        while True:
            pid = self._pid
            with contextlib.suppress(ChildProcessError):  # reaped by somebody else
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            with self._lock:  # so that `dismiss` does not signal the number when it is another's
                self._reap()
                self._socket.close()
                if not self._wanted:
                    return
                log.warning("pid %d, which ends the workers if this process dies, was killed", pid)
                if self._starts >= _MOST_STARTS:
                    log.error("it was killed %d times and is not started again", self._starts)
                    return
                try:
                    self._start()
                except OSError:
                    log.exception("the guard could not be started again")
                    return

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # reaped by somebody else
            os.waitpid(self._pid, 0)
        self._pid = 0

    def dismiss(self) -> None:
        """Have it end: the host has killed what there was to kill."""
        self._wanted = False
        if self._unsent and self._pid:  # it has not heard of all that is gone
            with contextlib.suppress(ProcessLookupError):  # reaped by somebody else
                os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(OSError):  # it has gone by itself
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def await_end(self, timeout_s: float) -> None:
        """Wait until it has been dismissed and reaped, outside of the lock."""
        self._thread.join(timeout_s)

    def forget(self) -> None:
        """In a forked child: close the write end, or the guard would live as long as the child."""
        self._socket.close()


def _run(stdin: int) -> int:
    """Start the shell, which goes to the root folder by itself; return its pid."""
    null = clear_of_stdio(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
    try:
        argv = [_SHELL, "-c", _PROGRAM]
        return posix_spawn.spawn(argv, {"PATH": os.defpath}, (stdin, null, null), (), reset=frozenset())[0]
    finally:
        os.close(null)


def kill(group: int, word: Word) -> None:
    """Send SIGKILL to a group, unless its number is a stranger's by now."""
    try:
        if word == "left":
            try:
                os.kill(group, 0)
            except ProcessLookupError:
                pass
            else:
                return
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _line(word: Word, group: int) -> bytes:
    return f"{word} {group}\n".encode()


_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
