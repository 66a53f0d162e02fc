"""The corpus of hangs: each way to hang, in gangs of 2 to 16 ranks, seen by heartbeats or by output."""

import random
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from supervise import Close, DefaultLogsSpecs, Start, Std, Supervisor, Wait, Watchdog
from tests.health.hangs import SEEN, UNSEEN
from tests.patience import PATIENCE_S

ROOT = str(Path(__file__).parents[2])
PERIOD_S = 2.0
LONG_PERIODS = 3.0
"""How many periods without a report prove that a hang is not seen."""


@dataclass(frozen=True)
class Case:
    """One gang in which one rank hangs."""

    how: str
    """A function of `tests.health.hangs`."""
    tier: Literal["heartbeat", "output"]
    """The only kind of sign that the watchdog looks for."""
    pattern: Literal["alone", "barrier", "chain"]
    """For whom a rank waits."""
    ranks: int
    culprit: int
    at: int
    """The step in whose work the culprit hangs."""

    def __str__(self) -> str:
        return f"{self.how}, {self.tier}, {self.pattern}, {self.ranks} ranks, rank {self.culprit} at step {self.at}"


@dataclass(frozen=True)
class Found:
    """What the watchdog made of a case; times in seconds."""

    named: int | None
    """The rank that it reported; None if there was no report."""
    late_s: float = 0.0
    """From the end of the timeout to the report."""
    stacks_s: float = 0.0
    """From the report to the first signal: the stacks are collected in between."""
    ended_s: float = 0.0
    """From the first signal until the whole gang was gone."""


def cases(seed: int = 0) -> list[Case]:
    """Return the corpus: 63 cases that a tier can see, and some that none can see."""
    source = random.Random(seed)
    ways = (("heartbeat", "barrier"), ("heartbeat", "chain"), ("output", "barrier"))
    seen = [_case(source, how, *way) for how in SEEN for way in ways]
    return seen + [_case(source, how, tier, "alone") for how in UNSEEN for tier in ("heartbeat", "output")]


def _case(source: random.Random, how: str, tier: Any, pattern: Any) -> Case:
    ranks = source.choice((2, 3, 4, 8, 16))
    return Case(how, tier, pattern, ranks, source.randrange(ranks), source.randrange(3, 10))


def run(case: Case, folder: Path, period_s: float = PERIOD_S) -> Found:
    """Run a case with ``action="fail"``; return what the watchdog made of it. `folder` is empty.

    A rank that stands still for a period, with its machine, is reported as well.
    """
    events: SimpleQueue[dict[str, Any]] = SimpleQueue()
    words = (case.how, str(case.culprit), str(case.at), case.pattern, str(folder))
    env = {"WORLD_SIZE": str(case.ranks), "PYTHONPATH": ROOT, "PYTHONSAFEPATH": "1"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "meet"))
        listener.listen(case.ranks)
        meeting = threading.Thread(target=_meet, args=(listener, case.ranks), name="meeting")
        meeting.start()
        supervisor = Supervisor.start(
            name="hang",
            entrypoint=sys.executable,
            args=dict.fromkeys(range(case.ranks), ("-m", "tests.health.rank", *words)),
            envs={rank: env | {"RANK": str(rank)} for rank in range(case.ranks)},
            logs_specs=DefaultLogsSpecs(str(folder / "logs"), redirects=Std.ALL),
            strategy="one_for_one" if case.pattern == "alone" else "one_for_all",
            watchdog=Watchdog(**{f"{case.tier}_timeout_s": period_s}, action="fail"),
            event_sink=events.put,
        )
        try:
            supervisor.ask(Start(), timeout=PATIENCE_S)
            longest_s = PATIENCE_S if case.how in SEEN else (1 + LONG_PERIODS) * period_s
            return _found(supervisor, events, period_s, longest_s, together=case.pattern != "alone")
        finally:
            supervisor.ask(Close(timeout=1.0), timeout=PATIENCE_S)
            supervisor.stop(timeout=PATIENCE_S)
            meeting.join(PATIENCE_S)


def _found(
    supervisor: Any, events: "SimpleQueue[dict[str, Any]]", period_s: float, longest_s: float, *, together: bool
) -> Found:
    try:
        hung = _await(events, "supervise.process.hung", longest_s)
    except Empty:
        return Found(None)
    if not together:  # the others go on
        return Found(hung["local_rank"])
    supervisor.ask(Wait(), timeout=PATIENCE_S)
    signaled = _await(events, "supervise.process.signaled", PATIENCE_S)
    finished = _await(events, "supervise.gang.finished", PATIENCE_S)
    at_s = [event["monotonic_ns"] / 1e9 for event in (hung, signaled, finished)]
    return Found(hung["local_rank"], hung["age_s"] - period_s, at_s[1] - at_s[0], at_s[2] - at_s[1])


def _await(events: "SimpleQueue[dict[str, Any]]", name: str, timeout_s: float) -> dict[str, Any]:
    while (event := events.get(timeout=timeout_s))["event"] != name:
        pass
    return event


def _meet(listener: socket.socket, ranks: int) -> None:
    """Answer all ranks when each has come, until they are gone."""
    listener.settimeout(PATIENCE_S)
    with suppress(OSError):
        ends = [listener.accept()[0] for _ in range(ranks)]
        try:
            while all([end.recv(1) for end in ends]):  # noqa: C419 - the first that is gone does not end the round
                for end in ends:
                    end.sendall(b".")
        finally:
            for end in ends:
                end.close()
