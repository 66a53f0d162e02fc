"""The state of a run as its events report it, and the messages about it."""

from __future__ import annotations

import errno
import math
import re
import time
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any

from supervise._views.story import Story, Unlaunched
from supervise._views.wording import failed_or_ended, seconds, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise.cli.console import Console
    from supervise.cli.options import Options
    from supervise.result import RunProcsResult

_QUIET_S = 1.0
"""A shorter stop is not announced, unless the user requested it at a terminal."""
_TICK_S = 1.0
_PIDS = 5
_WHY_CHARS = 100

OF_INTEREST = frozenset(
    {
        "supervise.gang.restarting",
        "supervise.gang.started",
        "supervise.gang.starting",
        "supervise.gang.stopping",
        "supervise.gang.stacks",
        "supervise.process.exited",
        "supervise.process.hung",
        "supervise.process.leaked",
        "supervise.process.restarting",
        "supervise.process.signaled",
        "supervise.process.start_failed",
        "supervise.process.stopped",
        "supervise.log.failed",
    }
)
"""The events that `Progress.take` processes."""


def has_no_reader(event: dict[str, Any]) -> bool:
    """Return whether an event says that no process reads the console any more."""
    broken = str(event.get("error")).startswith(f"[Errno {errno.EPIPE}]")
    return event["event"] == "supervise.log.failed" and event["path"] is None and broken


class Progress:
    """The progress of one run, by its events. Used on the main thread."""

    def __init__(self, options: Options, console: Console, left_behind: Callable[[], bool] = lambda: True) -> None:
        """Create the state before the start of the gang.

        Args:
            options: The validated options.
            console: Destination of the messages.
            left_behind: Returns whether processes remain in the groups of ranks that have ended.
        """
        self._left_behind = left_behind
        self._options = options
        self._console = console
        read = console.live or not options.output.merge  # with --merge, stderr may be in the log of stdout only
        self.story: Story = Story(
            nproc=options.nproc,
            grace_s=options.grace_s,
            hosts=options.hosts.count,
            host=options.hosts.number,
            titles=tuple(f"{role} {number}" for role, number in options.titles) if options.file is not None else (),
            timeout_s=options.timeout_s,
            stderr_shown=frozenset(
                rank for rank in range(options.nproc) if read and options.shows_recorded_stderr(rank)
            ),
        )
        self.reason: str | None = None
        """Why the gang is being stopped: the event's reason, ``user``, or ``left behind`` for remaining processes."""
        self.unstarted_rank: int | None = None
        """The first rank that failed to start."""
        self._first_failure: tuple[int, str] | None = None
        self._ended: set[int] = set()
        self._over = False
        """Whether the gang has its result."""
        self._speak_at_s = 0.0
        self._kill_at_s = 0.0
        self._announced = False

    def finish(self, result: RunProcsResult) -> None:
        """Complete the story with the facts of the result."""
        policy, root = self._options.restarts, result.root_cause
        if policy is None or root is None or root not in result.ends:
            return
        end = result.ends[root]
        counted = tuple(restart.end.ended_ns for restart in result.restarts if restart.counted)
        counting = len(policy.counting(counted, end.ended_ns))
        self.story.used_up = end.exitcode in policy.never_restart_exit_codes or (
            end.exitcode not in policy.uncounted_exit_codes and counting >= policy.max_restarts
        )
        if self.story.used_up and not self.story.restarts:  # only single ranks have restarted
            self.story.restarts = counting

    def take(self, event: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - one case per event
        """Process one event of `OF_INTEREST`."""
        rank = event.get("local_rank")
        match event["event"], rank:
            case "supervise.gang.stopping", _:
                self._stops(event["reason"])
            case "supervise.gang.restarting", _:
                self._restarts(event)
            case "supervise.gang.starting", _:
                self._begin_anew()
            case "supervise.process.exited", int():
                self._ended.add(rank)
                fine = event["exit_code"] == 0 and not event["complaint"]
                if self._first_failure is None and event["spontaneous"] and not fine:
                    self._first_failure = rank, event["exit_signal"] or f"exit code {event['exit_code']}"
            case "supervise.process.restarting", int():
                self._rank_restarts(rank, event)
            case "supervise.process.signaled", int():
                told = self.story.passed_on if event["reason"] == "user" else self.story.sent
                told.setdefault(rank, []).append(Signals[event["signal"]])
            case "supervise.process.start_failed", int():
                self._ended.add(rank)
                self.unstarted_rank = rank if self.unstarted_rank is None else self.unstarted_rank
                if self.story.waiting is not None:  # the files of the new attempt could not be made
                    self._begin_anew()
                self.story.unlaunched[rank] = Unlaunched(event["errno"], event["exception_message"])
            case "supervise.process.stopped", int():
                pid = event["pid"]
                self._console.note(
                    f"rank {rank} (pid {pid}) was stopped by {event['signal']}; kill -CONT {pid} continues it"
                )
            case "supervise.process.hung", int():
                self._hangs(rank, event)
            case "supervise.gang.stacks", _:
                self._shows_stacks(event)
            case "supervise.process.leaked", _:
                self._leaked(event)
            case "supervise.gang.started", _:
                pass
            case _:  # an error of a log file, or of the stream that shows it
                self.story.stderr_shown = frozenset()
                self._not_shown(event)

    def _not_shown(self, event: dict[str, Any]) -> None:
        why = re.sub(r"^\[Errno \d+\] ", "", str(event["error"]))
        name, directory = event["log_iostream"], self.story.directory
        if event["path"] is not None:
            self._console.note(f"{name}: {why}")
        elif not has_no_reader(event):
            rest = f"; the logs are in {directory}" if directory else ""
            self._console.note(f"{name} is no longer shown: {why}{rest}")
        elif not self._options.output.halt_on_broken_pipe:
            self._console.note(f"the reader of {name} is gone; the run continues, its output goes to {directory}")

    def _restarts(self, event: dict[str, Any]) -> None:
        rank, how = event["root_cause_rank"], shortened(event["error_type"], 60)
        if rank in self.story.unlaunched:
            how = shortened(str(self.story.unlaunched[rank]), _WHY_CHARS)
        left = event["max_restarts"] - event["attempt"]
        count = f"restart {event['attempt']} of {event['max_restarts']}" if left >= 0 else f"restart {event['attempt']}"
        wait = f"in {seconds(event['backoff_s'])}" if event["backoff_s"] else "now"
        self._console.note(f"rank {rank} {failed_or_ended(how)} ({how}); {count} {wait}")
        self.story.restarts, self.story.waiting = event["attempt"] - 1, count
        if self.story.user_signal is None:  # no stop is in progress: the next attempt is pending
            self.reason, self._announced = None, False

    def _hangs(self, rank: int, event: dict[str, Any]) -> None:
        seen = [f"step {event['step']}"] if event["step"] is not None else []
        seen += [f'"{event["status"]}"'] if event["status"] else []
        details = f" ({', '.join(seen)})" if seen else ""
        self._console.note(f"rank {rank} hangs: no {event['tier']} for {seconds(event['age_s'])}{details}")

    def _shows_stacks(self, event: dict[str, Any]) -> None:
        for place in event["places"]:
            self._console.note(place)
        if event["path"]:
            self.story.stacks = event["path"]
            whose = f"the ranks of host {event['host']}" if "host" in event else "all ranks"
            self._console.note(f"stacks of {whose}: {event['path']}")

    def _rank_restarts(self, rank: int, event: dict[str, Any]) -> None:
        """Process the restart of a rank; show a message if the rank itself is the cause."""
        self._ended.discard(rank)
        self.story.sent.pop(rank, None)
        unlaunched = self.story.unlaunched.pop(rank, None)
        if event["role"] != "root_cause":
            return
        how = event["exit_signal"] or f"exit code {event['exit_code']}"
        if unlaunched is not None:
            how = shortened(str(unlaunched), _WHY_CHARS)
        wait = f"in {seconds(event['backoff_s'])}" if event["backoff_s"] else "now"
        self._console.note(f"rank {rank} ended ({how}); restart {event['attempt']} of this rank {wait}")
        if self._first_failure is not None and self._first_failure[0] == rank:
            self._first_failure = None

    def _begin_anew(self) -> None:
        """Reset the state for a new attempt, except for the user's signals."""
        self._ended.clear()
        self.story.sent.clear()
        self.story.passed_on.clear()
        self.story.unlaunched.clear()
        if self.story.waiting is not None:
            self.story.restarts, self.story.waiting = self.story.restarts + 1, None
        self._first_failure = None
        if self.story.user_signal is None:
            self.reason, self._announced = None, False

    def _leaked(self, event: dict[str, Any]) -> None:
        who = "a rank" if event["local_rank"] is None else f"rank {event['local_rank']}"
        found = event["descendants"]
        pids = ", ".join(map(str, found[:_PIDS]))
        if len(found) > _PIDS:
            pids += f" and {len(found) - _PIDS} more"
        then = "ended" if event["ended"] else "still alive; --containment sweep ends such processes"
        self._console.note(f"{who} left processes outside of its group (pid {pids}): {then}")

    def user_stops(self, sig: Signals) -> None:
        """Record the first signal of the user; at a terminal, announce the stop at once."""
        self.story.user_signal = sig
        self._stops("user")
        watched = self._console.terminal and self.story.waiting is None
        self._speak_at_s = time.monotonic() + (0.0 if watched else _QUIET_S)
        self._announced = False

    def command_stops(self, sig: Signals | None) -> None:
        """Record the stop by a command, such as ``supervise stop``, unless the user has stopped the run before."""
        if self.story.user_signal is None and not self.story.halted:
            self.story.by_command = True
            self.user_stops(sig or SIGTERM)

    def user_kills(self, sig: Signals) -> None:
        """Record the second signal of the user, which may differ from the first."""
        self.story.killed = True
        first = self.story.user_signal
        how = "again" if first is None or first == sig else f"after {first.name}"
        self._console.note(f"{sig.name} {how}: killing {self._running()} now")

    def all_ended(self) -> None:
        """Record that all ranks have ended. The processes that they left behind are being stopped."""
        self._over = True
        self._ended.update(range(self._options.nproc))
        self._stops("left behind")

    def _stops(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            now_s = time.monotonic()
            self._speak_at_s, self._kill_at_s = now_s + _QUIET_S, now_s + self._options.grace_s

    # Messages

    def wait_s(self) -> float | None:
        """Return the seconds until `announce` has a message; None if no message is pending."""
        if self.reason is None or self.story.killed or (self._announced and not self._changes()):
            return None
        return max(self._speak_at_s - time.monotonic(), 0.0) if not self._announced else _TICK_S

    def announce(self) -> None:
        """Show the state of a stop: on a terminal in the status line, otherwise once."""
        now_s = time.monotonic()
        if self.reason is None or self.story.killed or now_s < self._speak_at_s:
            return
        if self.unstarted_rank is not None and self._none_left():
            return  # the start has failed, and no rank had an output or a process to stop
        if self._changes():
            self._console.status(self._text(now_s))
        elif not self._announced:
            self._console.note(self._text(now_s))
        self._announced = True

    def _changes(self) -> bool:
        """Return whether the status line is usable. The prefix of each line of a rank must erase the status line."""
        return self._console.live and self._options.prefix and not self._options.straight_through

    def _text(self, now_s: float) -> str:
        if self._none_left():
            what = "looking for remaining processes" if self._over else "showing the rest of the output"
            return f"{self._why()}{what}{self._what_then()}"
        left_s = math.ceil(self._kill_at_s - now_s)
        when = f"SIGKILL in {left_s} s" if left_s > 0 else "SIGKILL sent"
        return f"{self._why()}stopping {self._running()}, {when}{self._what_then()}"

    def _none_left(self) -> bool:
        return len(self._ended) == self._options.nproc and not self._left_behind()

    def _why(self) -> str:
        if self.story.user_signal is not None:
            return "supervise stop: " if self.story.by_command else f"{self.story.user_signal.name}: "
        if self.story.halted:
            return "no program reads the output: "
        if self.reason == "timeout":
            return f"--timeout of {seconds(self._options.timeout_s or 0)} exceeded: "
        if self._first_failure is not None:
            return f"rank {self._first_failure[0]} failed ({self._first_failure[1]}): "
        return ""

    def _what_then(self) -> str:
        if self.story.user_signal is None:
            return ""
        again = "Ctrl-C again" if self.story.user_signal == SIGINT and self._console.terminal else "a second signal"
        return f"; {again} kills now"

    def _running(self) -> str:
        count = self._options.nproc - len(self._ended)
        if not count:
            return "processes that the ranks left behind"
        return "1 rank" if count == 1 else f"{count} ranks"
