"""Bugs of the kinds that chaos is for, put into `supervise` for a while: the machine must find each."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from supervise import Supervisor, WorkerExited
from supervise._core import batches, decide, strategy
from supervise._gang import attempt
from supervise._process.exits.leader import Exit, Process
from supervise._runtime.future import Reply
from supervise._runtime.shell import Subscribers

_leaked: list[int] = []
"""Descriptors that a planted bug has leaked."""


def _around(owner: Any, name: str, new: Callable[..., Any]) -> Any:
    """Replace `owner.name` by `new`, which is given the old one first."""
    old = getattr(owner, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        return new(old, *args, **kwargs)

    return patch.object(owner, name, planted)


def a_wait_asked_while_stopping_is_forgotten() -> Any:
    def wait(old: Any, self: Supervisor, timeout: float | None = None) -> Any:
        return Reply() if self._runner.gang.phase == "stopping" else old(self, timeout)

    return _around(Supervisor, "wait", wait)


def sigkill_reaches_the_leader_only() -> Any:
    def signal_group(old: Any, self: Process, sig: signal.Signals, **more: Any) -> Any:
        return self._send(sig, 0) if sig == signal.SIGKILL and self.fileno() >= 0 else old(self, sig, **more)

    return _around(Process, "signal_group", signal_group)


def an_exit_is_told_twice() -> Any:
    def tell(old: Any, self: Subscribers, message: object) -> None:
        old(self, message)
        if isinstance(message, WorkerExited):
            old(self, message)

    return _around(Subscribers, "tell", tell)


def a_failed_launch_leaks_a_descriptor() -> Any:
    def launch(old: Any, *args: Any) -> Any:
        try:
            return old(*args)
        except OSError:
            _leaked.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            raise

    return _around(attempt, "launch_program", launch)


def a_close_during_the_start_loses_a_rank() -> Any:
    def started(old: Any, gang: Any, event: Any, decision: Any) -> None:
        if gang.phase == "stopping":
            gang.move(event.local_rank, "unkillable")
        else:
            old(gang, event, decision)

    return _around(decide, "_started", started)


def a_stolen_status_is_taken_for_success() -> Any:
    def reaped(old: Any, self: Process, *found: Any) -> Exit:
        self._mark(0)
        return Exit(code=0)

    return _around(Process, "_reaped_by_other", reaped)


def a_restart_is_not_counted() -> Any:
    def restart(old: Any, gang: Any, *rest: Any) -> None:
        old(gang, *rest)
        gang.backoff = gang.backoff._replace(counted_ns=())

    return _around(strategy, "_restart", restart)


def a_life_begins_beside_the_one_before() -> Any:
    def at_once(old: Any, batch: Any, decision: Any) -> None:
        batch.pending = set()
        old(batch, decision)

    return _around(batches, "_sweep_if_empty", at_once)


def a_bystander_is_blamed() -> Any:
    return patch.object(decide, "by_itself", return_value=True)


PLANTS: dict[str, Callable[[], Any]] = {
    plant.__name__: plant
    for plant in (
        a_wait_asked_while_stopping_is_forgotten,
        sigkill_reaches_the_leader_only,
        an_exit_is_told_twice,
        a_failed_launch_leaks_a_descriptor,
        a_close_during_the_start_loses_a_rank,
        a_stolen_status_is_taken_for_success,
        a_bystander_is_blamed,
    )
}
FINDS = {
    "a_wait_asked_while_stopping_is_forgotten": "never answered|not answered",
    "sigkill_reaches_the_leader_only": "lives on|pid ",
    "an_exit_is_told_twice": "told an exit more than once",
    "a_failed_launch_leaks_a_descriptor": "descriptor: ",
    "a_close_during_the_start_loses_a_rank": "lives on|process.exited|not answered",
    "a_stolen_status_is_taken_for_success": "is said to have ended with 0|succeeded",
    "a_bystander_is_blamed": "is blamed",
}
"""What the machine must say of each (a pattern)."""


IN_LIVES = {
    "a_restart_is_not_counted": (a_restart_is_not_counted, "restarts, where 1 are allowed"),
    "a_life_begins_beside_the_one_before": (a_life_begins_beside_the_one_before, "two lives of a rank"),
}
"""Bugs in the restarts of single ranks, and what is said of each (a pattern)."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have this bug for a block."""
    try:
        with IN_LIVES[name][0]() if name in IN_LIVES else PLANTS[name]():
            yield
    finally:
        while _leaked:
            os.close(_leaked.pop())
