"""Job control: the foreground of a terminal, and suspension by Ctrl-Z."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from signal import SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.cli.run.console import Console
    from supervise.cli.run.rank_stdin import RankStdin


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

    def takes(self, event: dict[str, Any]) -> bool:
        """Process an event of the gang; return whether it concerns only job control."""
        if event["event"] != "supervise.process.stopped" or self._terminal is None:
            return False
        if event["local_rank"] != self._stdin.rank:
            return False
        in_front = self._terminal.holder is not None
        if event["signal"] in _WANTS_TERMINAL:
            self._serve(event["local_rank"], event["pid"])
            return True
        if event["signal"] == SIGTSTP.name and in_front:
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

    def _serve(self, rank: int, pid: int) -> None:
        """Give the terminal to a rank that waits for it. If supervise is in the background, suspend everything."""
        assert self._terminal is not None  # noqa: S101 - a rank reads it
        if self._terminal.give(pid):
            self._tell(SIGCONT, frozenset({rank}))
            return
        if self._given_up:
            return
        began_s = time.monotonic()
        self.suspend(SIGTTIN, group=True, waiting=pid)
        if time.monotonic() - began_s < _AT_ONCE_S and self._terminal.holder is None:
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
        self._tell(SIGSTOP)
        self._console.clear()
        if self._terminal is not None:
            waiting = self._terminal.forget() or waiting
        before = signal.signal(sig, signal.SIG_DFL)
        os.kill(0 if group else os.getpid(), sig)  # 0: the group of this process
        signal.signal(sig, before)
        if self._terminal is not None and waiting is not None:
            self._terminal.give(waiting)
        self._tell(SIGCONT)

    def _tell(self, sig: Signals, ranks: frozenset[int] | None = None) -> None:
        """Signal the process groups of running ranks, and wait until the signals are sent."""
        with suppress(pykka.ActorDeadError, pykka.Timeout, SuperviseError):
            self._ask(say.Signal(sig=sig, ranks=ranks, group=True)).get(timeout=_REPLY_S)
            self._ask(say.Poll()).get(timeout=_REPLY_S)  # the Supervisor's orders to the Workers precede this reply
