"""The messages of `supervise run` about its gang, worded from the state that the events of the gang yield."""

from __future__ import annotations

import errno
import re
import time
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING, Any

from supervise._core.backoff import Backoff
from supervise._story.failure_report import Story, unlaunched
from supervise._story.wording import (
    counted,
    exit_of,
    failed_or_ended,
    hang_of,
    left_outside,
    seconds,
    shortened,
    spans,
    titled,
)
from supervise._views.run_state import Occurrence, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise.cli.options.options import Options
    from supervise.cli.run.console import Console
    from supervise.restarts import RestartPolicy
    from supervise.result import RankEnd, RunProcsResult


_QUIET_S = 1.0
"""A shorter stop is not announced, unless the user requested it at a terminal."""
_TICK_S = 1.0
_WHY_CHARS = 100

OF_INTEREST = frozenset(
    {
        "supervise.gang.restarting",
        "supervise.gang.started",
        "supervise.gang.starting",
        "supervise.gang.stopping",
        "supervise.gang.stacks",
        "supervise.gang.unheard",
        "supervise.process.exited",
        "supervise.process.faulted",
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
        read = console.live or not options.merge  # with --merge, stderr may be in the log of stdout only
        self.story: Story = Story(
            nproc=options.nproc,
            hosts=options.hosts.count,
            host=options.hosts.number,
            titles=tuple(f"{role} {number}" for role, number in options.titles) if options.file is not None else (),
            timeout_s=options.settings["timeout"],
            stderr_shown=frozenset(
                rank for rank in range(options.nproc) if read and options.shows_recorded_stderr(rank)
            ),
        )
        self.reason: str | None = None
        """Why the gang is being stopped: the event's reason, ``user``, or ``left behind`` for remaining processes."""
        self._state = RunState()
        self.begun_s: float = time.monotonic()
        self._over = False
        """Whether the gang has its result."""
        self._speak_at_s = 0.0
        self._kill_at_s = 0.0
        """When SIGKILL follows for ranks that have had no signal yet."""
        self._due_s: dict[int, float] = {}
        """Running rank to the time at which SIGKILL follows the first signal of a stop."""
        self._limit_s: float | None = None
        """Time from the first signal to SIGKILL that a command has given."""
        self._announced = False
        self._untold: dict[int, float] = {}
        """Rank that has failed to the time at which to say so, if the gang goes on and the rank stays down."""

    @property
    def unstarted_rank(self) -> int | None:
        """The first rank that failed to start."""
        failures = self._state.failed.items()
        return next((rank for rank, failure in failures if failure.life.launch_failure is not None), None)

    @property
    def restarts(self) -> int:
        """Number of restarts that took place, of all ranks or of single ranks."""
        return self._state.restarts - (self._state.restart is not None) + self._state.single_restarts

    @property
    def duration_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun_s

    def finish(self, result: RunProcsResult | None) -> None:
        """Complete the story with the facts of the events and of the result, if there is one."""
        story, options, state = self.story, self._options, self._state
        story.restarts = state.restarts
        if state.restart is not None:
            story.restarts, story.waiting = story.restarts - 1, _count(state.restart, state.restarts)
        if state.stacks:
            story.stacks = state.stacks[-1].fields["path"]
        if result is None:
            return
        for rank, end in result.ends.items():
            self._add_signals(rank, end.pid)
        root = result.root_cause
        if root is None or root not in result.ends:
            return
        policy, restarts = options.restarts, False
        if policy is not None:
            restarts = self._may_restart(root, policy)
            end = result.ends[root]
            backoff = Backoff(tuple(restart.end.ended_ns for restart in result.restarts if restart.counted))
            story.used_up = backoff.gives_up(policy, end.ended_ns, [end.exitcode])
            if story.used_up and not story.restarts:  # only single ranks have restarted
                story.restarts = len(policy.counting(backoff.counted_ns, end.ended_ns))
        late = story.timeout_s is not None and self.duration_s >= story.timeout_s
        asked = story.user_signal is not None or story.halted or late
        of_all = options.settings["strategy"] == "one_for_all"
        closed = state.stop is not None and state.stop.fields["reason"] in ("close", "timeout")
        # Under one_for_all, the gang was already being stopped for its restart, or a failure without a policy ended it
        would_go_on = (closed or (of_all and restarts)) and not (story.used_up if policy is not None else of_all)
        if asked and would_go_on and restarts:
            story.waiting = story.waiting or "restart"
        story.cut_short = asked and would_go_on
        if policy is not None and not (of_all or asked or closed or story.restarts):
            story.failures = self._counted_failures(result, policy, result.ends[root])

    def _may_restart(self, rank: int, policy: RestartPolicy) -> bool:
        return (self._options.part_of(rank).settings.get("restart") or policy.restart) != "temporary"

    def _counted_failures(self, result: RunProcsResult, policy: RestartPolicy, last: RankEnd) -> int:
        """Return the number of failures that count at the last one, if it exceeds the limit; otherwise 0."""
        never = policy.uncounted_exit_codes | policy.never_restart_exit_codes
        ends = [
            end.ended_ns
            for rank, end in result.ends.items()
            if rank in result.failures
            and self._may_restart(rank, policy)
            and end.exitcode not in never
            and end.ended_ns <= last.ended_ns
        ]
        if last.ended_ns not in ends:  # no restart follows an end of this kind
            return 0
        ends += [restart.end.ended_ns for restart in result.restarts if restart.counted]
        count = len(policy.counting(tuple(ends), last.ended_ns))
        return count if count > policy.max_restarts > 0 else 0

    def _add_signals(self, rank: int, pid: int | None) -> None:
        """Complete the story with the signals to the last life of a rank, or with the reason why there was none."""
        known = self._state.ranks.get(rank)
        life = None if known is None else known.life
        if life is None or life.pid != (pid or 0):
            return
        if (failed := life.launch_failure) is not None:
            self.story.unlaunched[rank] = failed.fields.get("errno"), failed.fields["exception_message"]
        by_itself = life.facts.get("spontaneous")  # later signals went to what the rank has left in its group
        for it in life.all_of("signaled"):
            sig = Signals[it.fields["signal"]]
            if it.fields["reason"] == "user":
                self.story.passed_on.setdefault(rank, []).append(sig)
            elif not by_itself:
                self.story.sent.setdefault(rank, {}).setdefault(sig, it.fields["monotonic_ns"])

    def take(self, event: dict[str, Any]) -> None:  # noqa: C901 - one case per event
        """Process one event of `OF_INTEREST`."""
        before = self._state.restart
        it = self._state.apply(event, time.time())
        if it is None:
            return
        fields = it.fields
        self._limits(it)
        self._failures(it)
        match it.name:
            case "gang.stopping":
                self._stops(fields["reason"])
            case "gang.restarting":
                self._restarts(it)
            case "process.restarting":
                self._rank_restarts(it)
            case "process.stopped":
                pid = fields["pid"]
                self._console.note(
                    f"{self.who(it.rank)} (pid {pid}) was stopped by {fields['signal']}; kill -CONT {pid} continues it"
                )
            case "process.hung":
                self._console.note(f"{self.who(it.rank)} hangs: {hang_of(fields)}")
            case "gang.stacks":
                self._shows_stacks(it)
            case "gang.unheard":
                self._console.note(
                    "no rank has sent a heartbeat yet, so --heartbeat-timeout has watched none: call"
                    " supervise.notify(step=N) or notify(heartbeat=True) in the program"
                )
            case "process.leaked":
                self._console.note(f"{self.who(it.rank)} {left_outside(fields)}")
            case "log.failed":  # an error of a log file, or of the stream that shows it
                self.story.stderr_shown = frozenset()
                self._not_shown(event)
            case _:
                pass
        if self._state.restart is not before and self.story.user_signal is None:
            self.reason, self._announced = None, False  # no stop is in progress: an attempt is pending, or begins

    def _not_shown(self, event: dict[str, Any]) -> None:
        why = re.sub(r"^\[Errno \d+\] ", "", str(event["error"]))
        name, directory = event["log_iostream"], self.story.directory
        tell = self._console.note if self._options.json_log else self._console.error  # JSON has the event itself
        if event["path"] is not None:
            tell(f"{name}: {why}")
        elif not has_no_reader(event):
            rest = f"; the logs are in {directory}" if directory else ""
            lost = "written" if name.startswith("filtered") else "shown"
            tell(f"{name} is no longer {lost}: {why}{rest}")
        elif not self._options.halt_on_broken_pipe:
            self._console.note(f"the reader of {name} is gone; the run continues, its output goes to {directory}")

    def _restarts(self, it: Occurrence) -> None:
        rank, fields = it.fields["root_cause_rank"], it.fields
        how = self._why_unlaunched(rank) or shortened(fields["error_type"], 60)
        self._console.note(
            f"{self.who(rank)} {failed_or_ended(how)} ({how}); {_count(it, self._state.restarts)} {_wait(it)}"
        )

    def who(self, rank: int | None) -> str:
        """Return a rank as messages name it."""
        story = self.story
        return "a rank" if rank is None else spans([rank], story.titles, local=story.hosts > 1)

    def _why_unlaunched(self, rank: int) -> str:
        """Return why the last life of a rank could not be started; "" if it was."""
        known = self._state.ranks.get(rank)
        failed = known.life.launch_failure if known is not None and known.life is not None else None
        return "" if failed is None else shortened(unlaunched(failed.fields["exception_message"]), _WHY_CHARS)

    def _shows_stacks(self, it: Occurrence) -> None:
        for place in it.fields["places"]:
            self._console.note(titled(place, self.story.titles))
        if it.fields.get("path"):
            whose = f"the ranks of host {it.fields['host']}" if "host" in it.fields else "all ranks"
            self._console.note(f"stacks of {whose}: {it.fields['path']}")

    def _rank_restarts(self, it: Occurrence) -> None:
        """Show the restart of a rank if the rank itself is the cause."""
        if it.rank is not None and it.fields["end_role"] == "root_cause":
            how = self._how(it.rank, it.fields)
            policy = self._options.restarts
            count = _counted(it, it.fields["attempt"], policy.max_restarts if policy is not None else 0)
            again = f"restart {it.fields['attempt']} of this rank{count} {_wait(it)}"
            self._console.note(f"{self.who(it.rank)} ended ({how}); {again}")

    def _how(self, rank: int, end: Mapping[str, Any]) -> str:
        """Return how a life of a rank has ended, of which an event has the exit."""
        return self._why_unlaunched(rank) or self._state.fault(rank) or exit_of(end)

    def _failures(self, it: Occurrence) -> None:
        """Record the failure of a rank that the policy does not start again."""
        if it.rank in self._state.failed and it.name in ("process.exited", "process.start_failed"):
            policy = self._options.restarts
            if policy is None or not self._may_restart(it.rank, policy):
                self._untold[it.rank] = time.monotonic() + _QUIET_S

    def _tell_failures(self) -> None:
        """Show which ranks have failed some time ago, if they stay down and the gang goes on with others."""
        now_s, state = time.monotonic(), self._state
        if self._is_held_up:
            return
        for rank in [rank for rank, at_s in self._untold.items() if at_s <= now_s]:
            self._untold[rank] = now_s + _QUIET_S  # look again: another rank may be about to start
            goes_on = self._count_running() > len(self._due_s.keys() - state.ended)
            stays_down = rank in state.last_failures and rank in state.ended
            if goes_on and stays_down:
                how = self._how(rank, state.last_failures[rank].life.facts)
                self._console.note(f"{self.who(rank)} ended ({how}); the gang continues")
            if goes_on or not stays_down:
                del self._untold[rank]

    @property
    def _is_held_up(self) -> bool:
        """Whether the gang is being stopped, or waits for the restart of all ranks."""
        return self.reason is not None or self._state.restart is not None

    def _limits(self, it: Occurrence) -> None:
        """Record when SIGKILL follows a signal of a stop. What a life has left may get signals after its end."""
        if it.name == "gang.restarting":
            self._due_s.clear()
        elif it.rank is not None and it.name in ("process.exited", "process.restarting"):
            self._due_s.pop(it.rank, None)
        elif it.rank is not None and it.name == "process.signaled" and it.fields["reason"] != "user":
            now_s = time.monotonic()
            self._due_s[it.rank] = now_s if it.fields["signal"] == "SIGKILL" else now_s + self._grace_s(it.rank)

    def _grace_s(self, rank: int) -> float:
        usual_s = self._options.settings["grace"] if self._limit_s is None else self._limit_s
        grace_s: float = self._options.part_of(rank).settings.get("grace", usual_s)
        return grace_s if self._limit_s is None else min(grace_s, self._limit_s)

    def user_stops(self, sig: Signals) -> None:
        """Record the first signal of the user; at a terminal, announce the stop at once."""
        self.story.user_signal = sig
        self._stops("user")
        watched = self._console.terminal and self._state.restart is None
        self._speak_at_s = time.monotonic() + (0.0 if watched else _QUIET_S)
        self._announced = False

    def command_stops(self, sig: Signals | None, timeout_s: float | None) -> None:
        """Record the stop by a command, such as ``supervise stop``, unless the user has stopped the run before."""
        if self.story.user_signal is None and not self.story.halted:
            self.story.by_command, self._limit_s = True, timeout_s
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
        self._stops("left behind")

    def _stops(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            now_s = time.monotonic()
            longest_s = max(map(self._grace_s, range(self._options.nproc)))
            self._speak_at_s, self._kill_at_s = now_s + _QUIET_S, now_s + longest_s

    # Messages

    def wait_s(self) -> float | None:
        """Return the seconds until `announce` may have a message; None if no message is pending."""
        if self._untold and not self._is_held_up:
            return max(min(self._untold.values()) - time.monotonic(), 0.0)
        if self.reason is None or self.story.killed or (self._announced and not self._changes()):
            return None
        return max(self._speak_at_s - time.monotonic(), 0.0) if not self._announced else _TICK_S

    def announce(self) -> None:
        """Show failures after which the gang goes on. Show a stop: on a terminal in the status line, otherwise once."""
        self._tell_failures()
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
        due_s = [*self._due_s.values()] or [self._kill_at_s]
        left_s = min((at_s - now_s for at_s in due_s if at_s > now_s), default=0.0)  # that of the next role
        when = f"SIGKILL in {max(round(left_s), 1)} s{self._what_then()}" if left_s > 0 else "SIGKILL sent"
        return f"{self._why()}stopping {self._running()}, {when}"

    def _none_left(self) -> bool:
        return not self._count_running() and not self._left_behind()

    def _why(self) -> str:
        if self.story.user_signal is not None:
            return "supervise stop: " if self.story.by_command else f"{self.story.user_signal.name}: "
        if self.story.halted:
            return "no program reads the output: "
        if self.reason == "timeout":
            return f"--timeout of {seconds(self.story.timeout_s or 0)} exceeded: "
        for rank, failure in self._state.failed.items():
            end = failure.life.end
            if end is not None and not failure.why and not self._state.ranks[rank].waits:
                return f"{self.who(rank)} failed ({exit_of(end.fields)}): "
        return ""

    def _what_then(self) -> str:
        if self.story.user_signal is None:
            return ""
        again = "Ctrl-C again" if self.story.user_signal == SIGINT and self._console.terminal else "a second signal"
        return f"; {again} kills now"

    def _count_running(self) -> int:
        return 0 if self._over else self._options.nproc - len(self._state.ended)

    def _running(self) -> str:
        count = self._count_running()
        return counted(count, "rank") if count else "processes that the ranks left behind"


def _count(restarting: Occurrence, number: int) -> str:
    """Return which restart of all ranks an event announces: ``restart 1 of 3``."""
    most = restarting.fields["max_restarts"]
    return f"restart {number}{_counted(restarting, number, most) or f' of {most}'}"


def _counted(restarting: Occurrence, number: int, most: int) -> str:
    """Return how many restarts count toward the limit, if others came before, or if some do not count; otherwise ""."""
    restarts = restarting.fields["restarts"]
    return "" if restarts == number else f" ({restarts} of {most} count)"


def _wait(restarting: Occurrence) -> str:
    delay_s = restarting.fields.get("backoff_s")
    return f"in {seconds(delay_s)}" if delay_s else "now"
