"""The context of a gang: PyTorch's blocking calls over a Supervisor."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import pykka

from supervise import _platform as platform, messages as ask
from supervise._api import signals
from supervise._api.base import LogOfGang, PContext
from supervise._api.signals import protected
from supervise._files import open_to_append
from supervise._gang.asks import as_signal
from supervise._gang.attempt import Attempt, first_attempt
from supervise._gang.supervisor import Supervisor, SupervisorRef
from supervise._runtime.future import Reply
from supervise._runtime.wakeup import remaining
from supervise._settings import LONGEST_S, check_seconds, usual_grace_s
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._gang.spec import GangSettings
    from supervise.messages import GangStatus
    from supervise.result import RunProcsResult


# The start of a gang's actor on the gang's own thread
#
# Python runs signal handlers on the main thread only, so a handler that raises cannot leave a lock of pykka or
# threading held.


def begin(attempt: Attempt, make: Callable[[], SupervisorRef], box: Reply[SupervisorRef]) -> threading.Thread:
    """Start the actor on the gang's own new thread, and return that thread.

    Another thread starts it: in the caller, a handler that raises could leave a lock of threading held.

    Args:
        attempt: Closed if the actor cannot be started.
        make: Starts the actor. The actor must not start a thread.
        box: Receives the actor or the error.
    """
    what = f"the supervisor of {attempt.spec.name!r}"

    def fail(error: BaseException) -> None:
        attempt.close()
        box.fail(error)

    def run() -> None:
        try:
            supervisor = make()
        except BaseException as error:
            fail(error)
            return
        box.set(supervisor)
        run_gang(supervisor)

    def start() -> None:
        try:
            platform.start_thread(thread, what)
        except BaseException as error:
            fail(error)

    thread = threading.Thread(target=run, name=f"supervise-{attempt.spec.name}", daemon=True)
    try:
        _thread.start_new_thread(start, ())
    except RuntimeError as error:
        fail(platform.no_thread(what, error))
    return thread


def give_up(box: Reply[SupervisorRef]) -> None:
    """Stop the actor as soon as it has started. The caller does not wait, because a signal handler has raised in it."""
    box.add_done_callback(partial(_stop, box))


def run_gang(supervisor: SupervisorRef) -> None:
    """Run a gang to its end on the thread that started it. The gang has no thread of its own."""
    supervisor.actor_inbox.loop.run()


def _stop(box: Reply[SupervisorRef]) -> None:
    with contextlib.suppress(BaseException):  # the actor was not started
        box.get(timeout=0).stop(block=False)


class _Grace(int):
    """The type of the default timeout of `close`. It equals the default of PyTorch, and is not an `int` of a caller."""


_GRACE = _Grace(30)


class _OwnGrace(float):
    """The grace of the gang as the timeout of a close to which the caller gives none.

    Then each role has its own grace, or that of the gang.
    """


PROMPT_S = 5.0
"""Deadline for asks that a Supervisor answers at once. If it expires, the Supervisor is dead."""


class GangContext(PContext):
    """A gang that a Supervisor runs. The garbage collection of the context closes the gang.

    A subclass may replace `_start`, `_poll` or `_close`, as with PyTorch's contexts.
    """

    def __init__(self, **settings: Unpack[GangSettings]) -> None:
        """Check and prepare a gang, without starting anything.

        Args:
            **settings: The arguments of `start_processes`.

        Raises:
            SpecError: A setting is not valid, or a call cannot be pickled; the text names the rank.
            OSError: The log folder cannot be used.
        """
        if settings.get("grace") is None:
            settings["grace"] = usual_grace_s()
        self._attempt = attempt = first_attempt(**settings)
        self._spec = spec = attempt.spec
        self._unused = weakref.finalize(self, attempt.close)
        args, envs = settings.get("args") or spec.args, settings.get("envs") or attempt.envs
        self._describe(spec.name, cast("Any", spec.entrypoint), args, envs, attempt.dest)
        self._filters = (spec.duplicate_stdout_filters, spec.duplicate_stderr_filters)
        self._tail_logs = [LogOfGang() for _ in range(2 + sum(map(bool, self._filters)))]
        self._supervisor: SupervisorRef | None = None
        self._outcome: Reply[RunProcsResult] | None = None
        self._result: RunProcsResult | None = None
        self._came: signals.Recorded | None = None
        self._pids: dict[int, int] = {}
        self._begun = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._left: Reply[bool] | None = None
        """The reply to the actor's stop, until a caller has waited for it."""

    # Start

    def start(self) -> None:
        """Start every rank; return when all ranks run.

        On the main thread, install handlers for termination signals; they raise `SignalException` in the
        caller's own code. If a signal arrives during the start, the gang is closed before the exception is raised.

        Raises:
            ValueError: The context was started before.
            OSError: A rank could not be started; all started ranks are reaped.
            SpawnError: The same, for a reason other than an `OSError`.
            SignalException: A signal arrived; no rank is left running.
        """
        self._check_new()
        if self._replaced("_start"):
            self._hold_signals()
            signals.deliver()
        self._start()
        if self._supervisor is None:  # a subclass's `_start` started the ranks: `_tail_logs` shows the logs
            self._begun = True
            self._follow(self._attempt.dest, self._spec.log_line_prefixes, *self._filters)
            for tail in self._tail_logs:
                tail.start()
            return
        for name in {tail.name for tail in self._attempt.tails} & {"filtered_stdout", "filtered_stderr"}:
            path = getattr(self._attempt.dest, name)
            file = open(path, "a", encoding="utf-8", opener=lambda given, _: open_to_append(given))  # noqa: SIM115
            setattr(self, name, file)

    def _check_new(self) -> None:
        if self._begun:
            raise ValueError(
                f"The process context already initialized: {self.name} was started before."
                " Make another context to run it again."
            )

    def _start(self) -> None:
        """Start every rank. The name is PyTorch's; `start` calls this method."""
        self._check_new()
        came = self._launch() or signals.recorded()
        if came is not None:
            self._end(came.sig, self._own_grace)
            signals.raise_signal(came)

    @protected
    def _launch(self) -> signals.Recorded | None:
        """Start the gang on a thread of its own; return the signal that arrived during the start, or None.

        Signal handlers run on the main thread, so one that raises cannot leave a lock of pykka or threading held.
        """
        self._begun = True
        self._hold_signals()
        self._unused.detach()
        box: Reply[SupervisorRef] = Reply()
        make = partial(Supervisor.start_attempt, self._attempt, own_thread=False)
        try:
            self._thread = begin(self._attempt, make, box)
            signals.wait_for(box, heed=False)
            self._supervisor = box.get(timeout=0)
            weakref.finalize(self, dispose, self._supervisor)
            begun = _reply(self._supervisor.ask(ask.Start(), block=False))
            while not signals.wait_for(begun):
                if (came := signals.recorded()) is not None:
                    self._stop(came.sig, self._own_grace)
                    return came
            self._pids = begun.get(timeout=0)
            self._outcome = _reply(self._supervisor.ask(ask.Wait(), block=False))
        except BaseException:
            if self._supervisor is None:  # a signal handler of the application has raised before the Supervisor existed
                give_up(box)
            self._came = self._stop(signal.SIGTERM, self._own_grace)
            raise
        return None

    # Result

    def _wait_for_result(self, timeout: float, period: float) -> RunProcsResult | None:
        if self._replaced("_poll"):
            return super()._wait_for_result(timeout, period)
        return self._await(timeout)

    def _await(self, timeout: float) -> RunProcsResult | None:
        try:
            return self._wait(timeout)
        finally:
            signals.deliver()

    @protected
    def _wait(self, timeout: float) -> RunProcsResult | None:
        if self._outcome is None:
            if timeout < 0 and not self._begun:
                raise RuntimeError(f"{self.name} was not started, so wait() would not return: call start() first")
            return None
        self._outcome.check_process()
        if timeout and not self._outcome.done():
            self._check_thread("wait")
        signals.wait_for(self._outcome, None if timeout < 0 else timeout)
        if not self._outcome.done():
            return None
        self._result = result = self._outcome.get(timeout=0)
        if self._spec.restart_policy is not None:  # the result has the paths of the last attempt
            self.stdouts: dict[int, str] = result.stdouts
            self.stderrs: dict[int, str] = result.stderrs
            self._pids = {rank: end.pid for rank, end in result.ends.items() if end.pid is not None}
        self._retire()
        return result

    def _poll(self) -> RunProcsResult | None:
        """Return the result, or None if there is none yet (PyTorch's name for ``wait(0)``)."""
        return self._await(0)

    def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}``, also after the end; empty before the start. A restart changes the pids."""
        if self._spec.restart_policy is not None:
            self._pids = self._ask_now(ask.Pids()) or self._pids
        return dict(self._pids)

    def status(self) -> GangStatus | None:
        """Return the phase of the gang and the state of each rank; None before the start and after the end."""
        found: GangStatus | None = self._ask_now(ask.Status())
        return found

    @protected
    def _ask_now(self, message: object) -> Any:
        """Return the Supervisor's answer; None if it has ended or the caller is on its thread."""
        if self._supervisor is None or self._closed or self._in_own_thread:
            return None
        try:
            asked = _reply(self._supervisor.ask(message, block=False))
            signals.wait_for(asked, PROMPT_S, heed=False)
            return asked.get(timeout=0)
        except (pykka.ActorDeadError, pykka.Timeout):
            return None

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the result as a picture, or the state of each rank."""
        from supervise._story import small_timeline

        if self._result is not None:
            return self._result._repr_html_()
        return small_timeline.of_gang(self.name, self.status())

    # End

    def close(self, death_sig: signal.Signals | None = None, timeout: float = _GRACE) -> None:
        """Stop every rank; return when each process is reaped and the logs are shown. Idempotent.

        After a `wait` that has returned a result, end the leftovers of the ranks, with the same timeout. A signal
        that arrives during the close does not interrupt it; a second one sends SIGKILL at once. SIGHUP, a different
        signal within a second, and the same signal within 50 ms do not count as the second one.

        Args:
            death_sig: The first signal, sent to all process groups at once, or to one role after another; None for
                SIGTERM.
            timeout: Seconds until SIGKILL: one deadline for all ranks. By default, each role has its own grace, or else
                that of the gang.

        Raises:
            UnkillableError: A process survived SIGKILL; all others are reaped.
            SpecError: `timeout` is not a number. Nothing was done.
            RuntimeError: The caller is on the gang's own thread (a listener of its events). Nothing was done.
        """
        first = death_sig or signal.SIGTERM
        timeout = self._own_grace if timeout is _GRACE else timeout
        try:
            self._close(death_sig=first, timeout=timeout)
        finally:
            if not self._closed:  # a subclass's `_close` does not end the Supervisor
                self._end(first, timeout)
        came, self._came = self._came or signals.recorded(), None
        if came is not None and came.kills is None:
            signals.hand_over(came)

    def _close(self, death_sig: signal.Signals, timeout: float = 30) -> None:
        """End every rank; keep a signal that arrives meanwhile for `close`. PyTorch's name, for subclasses."""
        self._came = self._end(death_sig, timeout) or self._came

    @property
    def _own_grace(self) -> _OwnGrace:
        """The grace of the gang."""
        return _OwnGrace(self._spec.grace_s)

    @protected
    def _end(self, death_sig: signal.Signals, timeout: float) -> signals.Recorded | None:
        """Stop the gang; return the signal that arrived meanwhile; None if none arrived, or if it was not the first."""
        self._check_thread("close")
        timeout = min(max(timeout, 0.0), LONGEST_S)
        check_seconds("timeout", timeout)
        if self._supervisor is None:  # nothing was started, or a subclass started it
            self._begun = True
            self._unused()
        if self._left is not None and threading.current_thread() is threading.main_thread():
            self._handlers_held = None  # `_retire` released the handlers; hold them again while leftovers end
            self._hold_signals()
        try:
            return self._stop(as_signal("death_sig", death_sig), timeout)
        finally:
            self._end_logs()

    @property
    def _in_own_thread(self) -> bool:
        """Whether the caller is on the gang's thread, where listeners receive events."""
        alive = self._supervisor is not None and self._supervisor.is_alive()  # False in a forked rank
        return alive and threading.current_thread() is self._thread

    def _check_thread(self, call: str) -> None:
        if self._in_own_thread:
            raise RuntimeError(
                f"{call}() on the gang's own thread, which delivers events, would deadlock; call it on another thread"
            )

    def _stop(self, death_sig: signal.Signals, timeout: float) -> signals.Recorded | None:
        supervisor, first = self._supervisor, None
        if supervisor is None or (self._closed and self._left is None):
            self._closed = True
            self._release()
            return None
        try:
            bound_s = None if isinstance(timeout, _OwnGrace) else timeout
            closed = _reply(supervisor.ask(ask.Close(death_sig=death_sig, timeout=bound_s), block=False))
            while not signals.wait_for(closed):
                came = signals.recorded()
                if came is not None and came.kills is None:
                    first = came
                elif came is not None and came.kills:
                    supervisor.ask(ask.Close(death_sig=signal.SIGKILL, timeout=0.0), block=False)
            self._await_leave(self._left or _leaving(supervisor))
            self._left = None
            self._result = closed.get(timeout=0)
        except pykka.ActorDeadError:  # the actor has ended: after a wait, at the interpreter's exit, by stop_all
            return first
        except BaseException:  # the application's handler has raised: the next close waits for this stop
            self._left = self._left or (_leaving(supervisor) if supervisor.is_alive() else None)
            raise
        finally:
            self._closed = True
            self._release()
        return first

    def _retire(self) -> None:
        """Stop the Supervisor of a gang that has ended, and do not wait.

        The gang's thread then ends the leftovers and releases the resources. A later `close` shortens that stop and
        waits for it.
        """
        supervisor = self._supervisor
        if supervisor is None or self._closed:
            return
        self._closed = True
        self._left = _leaving(supervisor)
        self._release()
        self._end_logs()

    def _await_leave(self, left: Reply[bool]) -> None:
        """Wait for the end of the actor and of its thread."""
        deadline_s = time.monotonic() + PROMPT_S
        if (
            self._supervisor is not None and self._supervisor.is_alive()
        ):  # not in a forked child, where the actor does not answer
            try:
                left.get(timeout=PROMPT_S)
            except (pykka.ActorDeadError, pykka.Timeout):
                log.debug("the Supervisor of %s did not confirm its end", self.name)
        if self._thread is not None:
            self._thread.join(remaining(deadline_s))


def _leaving(supervisor: SupervisorRef) -> Reply[bool]:
    """Stop the actor; return a reply that is set when the actor has ended."""
    left: Reply[bool] = Reply()
    left.set(_reply(supervisor.stop(block=False)))
    return left


def dispose(supervisor: pykka.ActorRef[Any]) -> None:
    """Close the gang of a context, or of another object, that was garbage-collected."""
    if supervisor.is_alive():
        supervisor.stop(block=False)


def _reply(future: Any) -> Reply[Any]:
    assert isinstance(future, Reply)  # noqa: S101 - actors of supervise reply with it
    return future
