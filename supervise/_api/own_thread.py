"""The start of a gang's actor on the gang's own thread.

Python runs signal handlers on the main thread only, so a handler that raises cannot leave a lock of pykka or
threading held.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from supervise import _threads
from supervise._runtime.actor import Inbox

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
        attempt: Closed if the actor cannot be started.
        make: Starts the actor. The actor must not start a thread.
        box: Receives the actor or the error.
    """
    return threading.Thread(
        target=_begin, args=(attempt, make, box), name=f"supervise-{attempt.spec.name}", daemon=True
    )


def start(thread: threading.Thread, attempt: Attempt, box: Reply[pykka.ActorRef[Supervisor]]) -> None:
    """Start `thread` from another thread. In the caller, a handler that raises could leave a lock of threading held."""
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
    """Stop the actor as soon as it has started. The caller does not wait, because a signal handler has raised in it."""
    box.add_done_callback(partial(_stop, box))


def run_gang(supervisor: pykka.ActorRef[Supervisor]) -> None:
    """Run a gang to its end on the thread that started it. The gang has no thread of its own."""
    inbox = supervisor.actor_inbox
    assert isinstance(inbox, Inbox)  # noqa: S101 - made by us
    inbox.loop.run()


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
    with contextlib.suppress(BaseException):  # the actor was not started
        box.get(timeout=0).stop(block=False)
