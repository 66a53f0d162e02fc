"""Starts the actor of a gang in the thread that is to be its own.

No signal handler runs there, so a handler that raises hits none of the locks of pykka and of threading.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from supervise import _threads
from supervise._gang.supervisor import run_gang

if TYPE_CHECKING:
    from collections.abc import Callable

    import pykka

    from supervise._gang.attempt import Attempt
    from supervise._gang.supervisor import Supervisor
    from supervise._runtime.future import Reply


def prepare(
    attempt: Attempt, make: Callable[[], pykka.ActorRef[Supervisor]], box: Reply[pykka.ActorRef[Supervisor]]
) -> threading.Thread:
    """Return the gang's thread, not started yet.

    Args:
        attempt: Closed if there is no actor in the end.
        make: Starts the actor, which must not start a thread of its own.
        box: Gets the actor, or why there is none.
    """
    return threading.Thread(
        target=_begin, args=(attempt, make, box), name=f"supervise-{attempt.spec.name}", daemon=True
    )


def start(thread: threading.Thread, attempt: Attempt, box: Reply[pykka.ActorRef[Supervisor]]) -> None:
    """Have `thread` started by another one: a handler that raises may leave the locks of threading held."""
    what = f"the supervisor of {attempt.spec.name!r}"

    def start() -> None:
        try:
            _threads.start(thread, what)
        except BaseException as error:
            attempt.close()
            box.fail(error)

    try:
        _thread.start_new_thread(start, ())
    except RuntimeError as error:
        attempt.close()
        box.fail(_threads.none_left(what, error))


def give_up(box: Reply[pykka.ActorRef[Supervisor]]) -> None:
    """Have the actor stopped as soon as it is there: a handler of signals has raised, and nobody waits for it."""
    box.add_done_callback(partial(_stop, box))


def _begin(
    attempt: Attempt, make: Callable[[], pykka.ActorRef[Supervisor]], box: Reply[pykka.ActorRef[Supervisor]]
) -> None:
    try:
        supervisor = make()
    except BaseException as error:
        attempt.close()
        box.fail(error)
        return
    box.set(supervisor)
    run_gang(supervisor)


def _stop(box: Reply[pykka.ActorRef[Supervisor]]) -> None:
    with contextlib.suppress(BaseException):  # it was never there
        box.get(timeout=0).stop(block=False)
