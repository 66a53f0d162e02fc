"""The cases that every engine runs, each a gang of four ranks, and what is observed of a run."""

import io
import itertools
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervise import Close, DefaultLogsSpecs, RestartPolicy, Signal, Std, Watchdog
from tests.conformance import work

RANKS = 4
PATIENCE_S = 60.0
FOLDER = "<folder>"
"""As an argument: the path of a folder that all ranks of the gang share."""
SLOW_START_S = "<slow start>"
"""As a value of a setting: 8 s, and on an engine whose start takes seconds, 10 s."""


@dataclass(frozen=True)
class Case:
    """One gang, what is done to it while it runs, and what the result must be on each engine."""

    entrypoint: Any
    expected: Mapping[str, Any]
    """Parts of the observation."""
    args: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[["Seen", Any], None] | None = None
    """Called with the actor when the lines `until` were shown."""
    until: tuple[str, ...] = ()
    redirects: Std = Std.NONE
    tee: Std = Std.ALL

    def args_in(self, folder: str) -> tuple[Any, ...]:
        """Return the arguments with the name of the shared folder."""
        return tuple(folder if arg == FOLDER else arg for arg in self.args)

    def settings_for(self, start_s: float) -> dict[str, Any]:
        """Return the settings; `start_s` is the least time limit for a gang on this engine."""
        return {name: start_s if value == SLOW_START_S else value for name, value in self.settings.items()}

    def specs(self, folder: str) -> DefaultLogsSpecs:
        return DefaultLogsSpecs(log_dir=folder, redirects=self.redirects, tee=self.tee)


def each(text: str) -> tuple[str, ...]:
    return tuple(f"[g{rank}]:{text} {rank}" for rank in range(RANKS))


def close(_seen: "Seen", ref: Any) -> None:
    ref.ask(Close(), timeout=PATIENCE_S)


def send(seen: "Seen", ref: Any) -> None:
    ref.ask(Signal(sig=signal.SIGUSR1, ranks=frozenset({1, 2})), timeout=PATIENCE_S)
    seen.await_lines(("[g1]:heard 1", "[g2]:heard 2"))
    close(seen, ref)


def by_rank(*values: Any) -> dict[str, Any]:
    return {str(rank): value for rank, value in enumerate(values)}


TERM, KILL = -signal.SIGTERM, -signal.SIGKILL
SUCCESS = {"outcome": "succeeded", "root cause": None, "codes": by_rank(0, 0, 0, 0), "failures": []}
STOPPED = {"outcome": "stopped", "root cause": None}


def failure(rank: int, code: int) -> dict[str, Any]:
    """The result of a gang in which one rank failed, and SIGTERM stopped the others."""
    codes = [TERM] * RANKS
    codes[rank] = code
    roles = ["bystander"] * RANKS
    roles[rank] = "root_cause"
    return {
        "outcome": "failed",
        "root cause": rank,
        "failures": [rank],
        "codes": by_rank(*codes),
        "roles": by_rank(*roles),
        "values": {},
    }


CASES = {
    "values": Case(
        work.value,
        SUCCESS | {"values": {str(rank): {"product": rank * 10} for rank in range(RANKS)}, "restarts": []},
        (10,),
    ),
    "program": Case(
        "sh",
        {"outcome": "succeeded", "values": by_rank(None, None, None, None), "codes": by_rank(0, 1, 2, 3)},
        ("-c", "echo of $RANK; echo err $RANK >&2; exit $RANK"),
        {"success_exit_codes": {0, 1, 2, 3}},
    ),
    "no program": Case("/nowhere/at/all", {"error": "FileNotFoundError", "errno": 2}),
    "failure at once": Case("sh", failure(3, 7), ("-c", "[ $RANK = 3 ] && exit 7; exec sleep 1000")),
    "exit code": Case(work.failing, failure(2, 3), ((2,), 3, FOLDER)),
    "exception": Case(work.raising, failure(1, 1) | {"message": "ValueError: the 7th shard is empty"}),
    "kill": Case(work.killed, failure(3, KILL)),
    "hang": Case(
        work.hanging,
        failure(2, TERM),
        settings={"watchdog": Watchdog(output_timeout_s=8.0, action="fail", stacks=False)},
    ),
    "simultaneous": Case(work.failing, {"outcome": "failed"}, ((0, 3), 5, FOLDER)),
    "close": Case(work.sleeping, STOPPED | {"codes": by_rank(TERM, TERM, TERM, TERM)}, act=close, until=each("ready")),
    "deaf": Case(
        work.deaf,
        STOPPED | {"codes": by_rank(KILL, KILL, KILL, KILL)},
        settings={"grace": 0.5},
        act=close,
        until=each("ready"),
    ),
    "timeout": Case(
        work.sleeping,
        {"outcome": "timed_out", "root cause": None, "codes": by_rank(TERM, TERM, TERM, TERM)},
        settings={"timeout": SLOW_START_S},
    ),
    "restart": Case(
        work.failing_once,
        SUCCESS
        | {"values": by_rank(1, 1, 1, 1), "restarts": [(rank, 0, 9 if rank == 1 else TERM) for rank in range(4)]},
        (FOLDER,),
        {"restart_policy": RestartPolicy(max_restarts=1, backoff=0.1)},
    ),
    "signal": Case(work.listening, STOPPED, act=send, until=each("ready")),
    "redirect": Case(
        work.speaking,
        SUCCESS | {"shown": [], "stdout logs": by_rank(["out 0"], ["out 1"], ["out 2"], ["out 3"])},
        redirects=Std.ALL,
        tee=Std.NONE,
    ),
    "tee and redirect": Case(
        work.speaking,
        SUCCESS | {"shown": list(each("out")), "stderr logs": by_rank(["err 0"], ["err 1"], ["err 2"], ["err 3"])},
        redirects=Std.ERR,
        tee=Std.OUT,
    ),
    "tee": Case(work.speaking, SUCCESS | {"shown": sorted(each("out") + each("err"))}),
}


class Seen:
    """What is observed of one run."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.events: list[dict[str, Any]] = []

    def write(self, _stream: str, data: bytes, _stop: object) -> None:
        self.out.write(data)

    def lines(self) -> list[str]:
        """The set of shown lines of ranks, sorted."""
        return sorted({line for line in self.out.getvalue().decode().splitlines() if line.startswith("[g")})

    def await_lines(self, wanted: tuple[str, ...]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not set(wanted) <= set(self.lines()):
            assert time.monotonic() < deadline_s, f"{wanted} did not come: {self.lines()}"
            work.pause(0.01)

    def of(self, result: Any) -> dict[str, Any]:
        """The observation: what must be equal on each engine."""
        root = result.root_cause
        events = defaultdict(list)
        for event in self.events:
            if "rank" in event:
                events[str(event["rank"])].append(event["event"])
        return {
            "outcome": result.outcome,
            "values": {str(rank): found for rank, found in result.return_values.items()},
            "root cause": root,
            "message": cause(result.failures[root].message) if root is not None else None,
            "codes": {str(rank): end.exitcode for rank, end in result.ends.items()},
            "roles": {str(rank): end.role for rank, end in result.ends.items()},
            "failures": sorted(result.failures),
            "exit codes of failures": {str(rank): found.exitcode for rank, found in result.failures.items()},
            "restarts": [(each.local_rank, each.attempt, each.end.exitcode) for each in result.restarts],
            "shown": self.lines(),
            "stdout logs": logs(result.stdouts),
            "stderr logs": logs(result.stderrs),
            "rank events": dict(sorted(events.items())),
            "gang events": [event["event"] for event in self.events if ".gang." in event["event"]],
        }


def cause(message: Any) -> str:
    """Return the text of a failure without pids and times."""
    text = str(message["message"] if isinstance(message, dict) else message)
    return re.sub(r"\d+(\.\d+)? s\b", "N s", re.sub(r"PID \d+", "PID N", text))


def logs(paths: Mapping[int, str]) -> dict[str, list[str]]:
    """Return the lines of each file, equal neighbors as one."""
    return {
        str(rank): [line for line, _ in itertools.groupby(Path(path).read_text().splitlines())]
        for rank, path in sorted(paths.items())
        if path
    }
