"""The cases that every engine runs, and what is observed of each. Four ranks; on Ray two hosts with two each."""

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervise import (
    Close,
    DefaultLogsSpecs,
    RestartPolicy,
    Signal,
    Start,
    Std,
    Supervisor,
    Wait,
    Watchdog,
    record,
)
from supervise._hosts.show import StreamsShown

RANKS = 4
PATIENCE_S = 60.0


def pause(seconds: float) -> None:
    """Let time pass: a rank that computes, or a look that is repeated."""
    threading.Event().wait(seconds)


# What ranks run. They read their global rank from the environment.


def rank() -> int:
    return int(os.environ["RANK"])


def say(text: str) -> None:
    print(text, flush=True)


def value(factor: int) -> dict[str, int]:
    say(f"value of {rank()}")
    return {"product": rank() * factor}


def failing(who: tuple[int, ...], code: int) -> None:
    say(f"ready {rank()}")
    if rank() in who:
        pause(3.0)
        sys.exit(code)
    pause(1000)


@record
def raising() -> None:
    if rank() == 1:
        raise ValueError("the 7th shard is empty")
    pause(1000)


def killed() -> None:
    if rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    pause(1000)


def sleeping() -> None:
    say(f"ready {rank()}")
    pause(1000)


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(f"ready {rank()}")
    pause(1000)


def failing_once() -> int:
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    say(f"attempt {attempt} of {rank()}")
    if attempt == 0:
        failing((1,), 9)
    return attempt


def hanging() -> None:
    for _ in range(1000):
        if rank() != 2 or _ == 0:
            say(f"line of {rank()}")
        pause(0.2)


def listening() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: say(f"heard {rank()}"))
    say(f"ready {rank()}")
    while True:
        signal.pause()


# The cases


@dataclass
class Case:
    """One gang, and what is done to it while it runs."""

    entrypoint: Any
    args: tuple[Any, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    act: Callable[["Seen", Any], None] = lambda _seen, _ref: None
    until: tuple[str, ...] = ()
    """The lines that must be shown before `act`."""


def each(text: str) -> tuple[str, ...]:
    return tuple(f"[g{number}]:{text} {number}" for number in range(RANKS))


def close(seen: "Seen", ref: Any) -> None:
    ref.ask(Close(), timeout=PATIENCE_S)


def send(seen: "Seen", ref: Any) -> None:
    ref.ask(Signal(sig=signal.SIGUSR1, ranks=frozenset({1, 2})), timeout=PATIENCE_S)
    seen.await_lines(("[g1]:heard 1", "[g2]:heard 2"))
    close(seen, ref)


CASES = {
    "values": Case(value, (10,)),
    "exit code": Case(failing, ((2,), 3)),
    "exception": Case(raising),
    "kill": Case(killed),
    "simultaneous": Case(failing, ((0, 3), 5)),
    "close": Case(sleeping, act=close, until=each("ready")),
    "deaf": Case(deaf, settings={"grace": 0.5}, act=close, until=each("ready")),
    "timeout": Case(sleeping, settings={"timeout": 12.0}),
    "restart": Case(failing_once, settings={"restart_policy": RestartPolicy(max_restarts=1, backoff=0.1)}),
    "hang": Case(hanging, settings={"watchdog": Watchdog(output_timeout_s=2.0, action="fail", stacks=False)}),
    "signal": Case(listening, act=send, until=each("ready")),
    "program": Case(
        "sh", ("-c", "echo of $RANK; echo err $RANK >&2; exit $RANK"), {"success_exit_codes": {0, 1, 2, 3}}
    ),
    "no program": Case("/nowhere/at/all"),
}


class Seen:
    """What is observed of one run."""

    def __init__(self) -> None:
        self.out = io.BytesIO()
        self.events: list[dict[str, Any]] = []

    def write(self, _stream: str, data: bytes) -> None:
        self.out.write(data)

    def lines(self) -> list[str]:
        return sorted(self.out.getvalue().decode().splitlines())

    def await_lines(self, wanted: tuple[str, ...]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not set(wanted) <= set(self.lines()):
            assert time.monotonic() < deadline_s, f"{wanted} did not come: {self.lines()}"
            pause(0.01)

    def of(self, result: Any) -> dict[str, Any]:
        """The observation: what must be equal on each engine."""
        root = result.root_cause
        ranks = [event["rank"] for event in self.events if event["event"] == "supervise.process.exited"]
        return {
            "outcome": result.outcome,
            "values": {str(number): found for number, found in result.return_values.items()},
            "root cause": root,
            "message": cause(result.failures[root]) if root is not None else None,
            "codes": {str(number): end.exitcode for number, end in result.ends.items()},
            "roles": {str(number): end.role for number, end in result.ends.items()},
            "failures": sorted(result.failures),
            "restarts": [(each.local_rank, each.attempt, each.end.exitcode) for each in result.restarts],
            "shown": self.lines(),
            "logs": {str(n): Path(path).read_text() for n, path in result.stdouts.items() if path},
            "exits": sorted(ranks),
            "gang events": [event["event"] for event in self.events if ".gang." in event["event"]],
        }


def cause(failure: Any) -> str:
    message = failure.message
    text = str(message["message"] if isinstance(message, dict) else message)
    return text.split("PID", maxsplit=1)[0].split(" for ", maxsplit=1)[0]


def run(case: Case, make: Callable[..., Any], seen: Seen) -> dict[str, Any]:
    """Run one case on an engine; return its observation."""
    with tempfile.TemporaryDirectory() as logs:
        specs = DefaultLogsSpecs(log_dir=logs, tee=Std.ALL)
        ref = make(case, specs, seen)
        try:
            ref.ask(Start(), timeout=PATIENCE_S)
            seen.await_lines(case.until)
            case.act(seen, ref)
            return seen.of(ref.ask(Wait(), timeout=PATIENCE_S))
        except (OSError, RuntimeError) as error:
            return {"error": type(error).__name__, "errno": getattr(error, "errno", None)}
        finally:
            ref.stop(timeout=PATIENCE_S)


def make_local(case: Case, specs: DefaultLogsSpecs, seen: Seen) -> Any:
    """Return the actor of a gang on this host. Its ranks get what a gang over several hosts sets."""
    envs = {
        number: {"RANK": str(number), "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "r"}
        for number in range(RANKS)
    }
    console = io.TextIOWrapper(seen.out, write_through=True)
    with contextlib.redirect_stdout(console), contextlib.redirect_stderr(console):
        return Supervisor.start(
            name="g",
            entrypoint=case.entrypoint,
            args=dict.fromkeys(range(RANKS), case.args),
            envs=envs,
            logs_specs=specs,
            event_sink=seen.events.append,
            **case.settings,
        )


def make_ray(case: Case, specs: DefaultLogsSpecs, seen: Seen) -> Any:
    """Return the actor of a gang over two hosts of the Ray cluster."""
    from supervise.ray import RaySupervisor

    return RaySupervisor.start(
        name="g",
        entrypoint=case.entrypoint,
        nnodes=2,
        nproc_per_node=2,
        args=case.args,
        logs_specs=specs,
        lease_s=10,
        shown=StreamsShown(seen.write),
        event_sink=seen.events.append,
        **case.settings,
    )
