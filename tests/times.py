"""Times of ours that a test needs shorter, or longer, than they are: one fixture for each, by its meaning."""

from collections.abc import Callable

import pytest

__all__ = [
    "collecting_takes",
    "console_ends_at_once",
    "heartbeats_are_not_read",
    "idle_clients_go_at_once",
    "impatient_console",
    "impatient_server",
    "patient_console",
    "patient_reports",
    "patient_shutdown",
    "polls_are_rare",
    "reloads_may_begin_late",
    "short_start_limit",
    "slow_clients_go_soon",
    "stacks_may_come_late",
    "stuck_destination_is_given_up_soon",
    "trackers_have_time",
]

STEPS = {"kernel": "_KERNEL_S", "py-spy": "_PY_SPY_S", "one run of py-spy": "_RUN_S", "dumps": "_DUMPS_S"}
"""The steps of a collection of stacks to their deadlines."""


@pytest.fixture
def collecting_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Set the deadline of a step of a collection of stacks, or of ``all`` steps and of the whole."""

    def deadline(step: str, seconds: float) -> None:
        for name in [*STEPS.values(), "LONGEST_S"] if step == "all" else [STEPS[step]]:
            monkeypatch.setattr(f"supervise._process.stacks.gather.{name}", seconds)

    return deadline


@pytest.fixture
def heartbeats_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first heartbeat, only the check of a deadline reads a notify socket."""
    monkeypatch.setattr("supervise._gang.notify_sockets._CALM_S", 1000.0)


@pytest.fixture
def short_start_limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From a call on, an actor of a tree may take a twentieth of a second for its `on_start`."""
    return lambda: monkeypatch.setattr("supervise._tree.lives.Life.start_limit_s", 0.05)


@pytest.fixture
def stuck_destination_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `TailLog` waits a third of a second for a destination that takes nothing."""
    monkeypatch.setattr("supervise._api.tail_log._STUCK_S", 0.3)


@pytest.fixture
def impatient_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits a hundredth of a second for a reader of its stderr."""
    monkeypatch.setattr("supervise.cli.run.console._PATIENCE_S", 0.01)


@pytest.fixture
def patient_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waits a quarter of an hour for a reader of its stderr."""
    monkeypatch.setattr("supervise.cli.run.console._PATIENCE_S", 900.0)


@pytest.fixture
def patient_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """`notify` waits a quarter of an hour for room in the socket of the host."""
    monkeypatch.setattr("supervise.notifying._PATIENCE_S", 900.0)


@pytest.fixture
def patient_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, a gang waits a quarter of an hour for ranks that survive SIGKILL."""
    monkeypatch.setattr("supervise._gang.shutdown._DEADLINE_S", 900.0)


@pytest.fixture
def polls_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that must be polled for what is written to it is looked at once an hour."""
    monkeypatch.setattr("supervise._logs.watch.POLL_MS", 3_600_000)


@pytest.fixture
def console_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end, the command waits a hundredth of a second for a reader of its stderr."""
    monkeypatch.setattr("supervise.cli.run.console._LAST_PATIENCE_S", {False: 0.01, True: 0.01})


@pytest.fixture
def impatient_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control server looks at its clients, and tries to accept others, fifty times a second."""
    for name in ("clients._LOOK_S", "server._RETRY_S"):
        monkeypatch.setattr(f"supervise._control.{name}", 0.02)


@pytest.fixture
def slow_clients_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a control server that does not read is dropped after a second."""
    monkeypatch.setattr("supervise._control.clients.SLOW_S", 1.0)


@pytest.fixture
def idle_clients_go_at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From a call on, a client of a control server without a request is dropped after a tenth of a second."""
    return lambda: monkeypatch.setattr("supervise._control.clients.IDLE_S", 0.1)


@pytest.fixture
def reloads_may_begin_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has eight seconds to report that it reloads: a machine may stand still for the usual two."""
    monkeypatch.setattr("supervise._gang.health._RELOADING_S", 8.0)


@pytest.fixture
def stacks_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks are collected for 9 s, the report of a hang waits 10 s for them, and 5 s for their file.

    A machine may stand still for the usual times.
    """
    for name in [*STEPS.values(), "LONGEST_S"]:
        monkeypatch.setattr(f"supervise._process.stacks.gather.{name}", 9.0)
    monkeypatch.setattr("supervise._gang.health._LONGEST_S", 10.0)
    monkeypatch.setattr("supervise._gang.health._WRITE_S", 5.0)


@pytest.fixture
def trackers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a SIGKILL, resource trackers have half a minute to unlink what the other processes have left."""
    monkeypatch.setattr("supervise._gang.worker._TRACKERS_S", 30.0)
