"""The Supervisor: the actor that owns a gang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pykka

from supervise import messages as say
from supervise._core import steps
from supervise._core.verdict import judge
from supervise._gang import orders, shutdown_at_exit
from supervise._gang.ask_checks import as_signal, check_ref, check_timeout, checked_ranks, requested_ranks, stray
from supervise._gang.control import opened
from supervise._gang.ref import SupervisorRef
from supervise._gang.replies import PendingReplies
from supervise._gang.subscribers import Subscribers
from supervise._runtime.actor import LoopActor
from supervise._runtime.loop import Loop
from supervise._seconds import GRACE_S
from supervise.errors import SpecError, SuperviseError

if TYPE_CHECKING:
    import os
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from supervise._gang.attempt import Attempt
    from supervise._gang.runner import Listener
    from supervise._gang.spec import GangSettings, SupervisorSettings
    from supervise._gang.stack_requests import StackRequests
    from supervise._process.containment.escapees import Containment
    from supervise._runtime.future import Reply
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy, Strategy
    from supervise.result import RunProcsResult
    from supervise.roles import Role
    from supervise.stacks import RankStacks
    from supervise.watchdog import Watchdog

_REPORTS: tuple[type, ...] = (say.WorkerStarted, say.WorkerExited, steps.WorkerFailedToStart, steps.WorkerUnkillable)
_REPORTS += (steps.GroupEmptied, steps.TailEnded)  # reports of Workers and Tails that are events of the core


class Supervisor(LoopActor):
    """The actor of one gang, which has one Worker actor for each rank and one Tail actor for each destination of logs.

    Ask the actor the messages of `supervise.messages`. With a proxy, call its methods. A stop of the actor closes the
    gang. The stop is answered when three conditions hold: every process is reaped, every wait is answered, and none of
    the gang's actors is in pykka's registry.
    """

    def __init__(
        self,
        *,
        name: str,
        entrypoint: Callable[..., Any] | str | None = None,
        args: Mapping[int, Any] | None = None,
        envs: Mapping[int, dict[str, Any]] | None = None,
        logs_specs: LogsSpecs | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        start_method: str = "spawn",
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        log_max_bytes: int | None = None,
        grace: float = GRACE_S,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        event_sink: Sink | None = None,
        restart_policy: RestartPolicy | None = None,
        containment: Containment = "group",
        gate: bool = False,
        strategy: Strategy = "one_for_all",
        success_exit_codes: frozenset[int] = frozenset({0}),
        ready: str = "exec",
        ready_timeout_s: float = 60.0,
        watchdog: Watchdog | None = None,
        roles: Sequence[Role] | None = None,
        control: str | os.PathLike[str] | None = None,
        rank_variables: bool = False,
    ) -> None:
        """Check and prepare a gang. `Start` launches it. Every mapping is keyed by local rank, ``0 .. n-1``.

        Args:
            name: Name of the gang, for the prefix of shown lines and for events.
            entrypoint: A function that every rank calls, or the name or path of a program.
            args: Rank to its arguments. The arguments of a program become strings. A bare string is one argument.
            envs: Rank to variables added to this process's environment. ``TORCHELASTIC_ERROR_FILE`` is set in each.
            logs_specs: Where output goes; None for `DefaultLogsSpecs`, which redirects nothing.
            log_line_prefixes: Rank to the prefix of its shown lines; ``[<name><rank>]:`` by default.
            start_method: ``spawn``, ``fork`` or ``forkserver``, for functions.
            duplicate_stdout_filters: Texts. Shown stdout lines with one of them are also written to one file.
            duplicate_stderr_filters: The same for stderr.
            log_max_bytes: Number of bytes that stay on the disk: the newest of each log. At least 65536; None for all.
            grace: Seconds from the first signal to SIGKILL, in every stop.
            cwd: Working directory of the ranks; None for that of this process.
            timeout: Seconds from the start after which the gang is stopped, with the outcome ``timed_out``.
            event_sink: Function that is called on the gang's thread with every event as a dictionary.
            restart_policy: When and how often ranks are restarted; None for never.
            containment: Treatment of processes that leave the groups of their ranks: ``group`` reports them,
                ``sweep`` finds and ends them, ``cgroup`` keeps ranks in control groups (a writable cgroup v2 tree).
            gate: Whether each program waits in a shell until its lifeline is armed. So the program never outlives this
                process. A function needs no gate for that.
            strategy: Which ranks a failure stops or, with a policy, restarts: all (``one_for_all``), the failed rank
                (``one_for_one``), or the failed rank and the ranks above it (``rest_for_one``).
            success_exit_codes: Exit codes that are a success. Functions need 0 among them.
            ready: When a rank is ready: ``exec``, when its process runs, or ``notify``, when it sends READY=1.
            ready_timeout_s: Seconds from the launch of a rank until it must be ready, with ``ready="notify"``.
            watchdog: When a rank counts as hung, and the consequence; None: no rank ever counts as hung.
            roles: The roles of the ranks, instead of `entrypoint` and `args`, if not all ranks run the same.
            control: Path of a socket file that accepts commands of other processes of this user; None for no socket.
            rank_variables: Whether each rank gets torchrun's variables, such as RANK. `envs` take precedence.

        Raises:
            SpecError: A setting is not valid or cannot be pickled. The text names the setting, the rank and the remedy.
            OSError: The log folder cannot be used.
        """
        settings = cast("GangSettings", {name: value for name, value in locals().items() if name != "self"})
        from supervise._gang.attempt import first_attempt  # lazy, see `_own`

        attempt = first_attempt(**settings)
        try:
            self._own(attempt)
        except BaseException:
            attempt.close()
            raise

    @classmethod
    def start(cls, **settings: Unpack[SupervisorSettings]) -> SupervisorRef:
        """Start the actor with the arguments of `Supervisor`, and raise its errors. `Start` launches the ranks."""
        return cast("SupervisorRef", super().start(**settings))

    @classmethod
    def start_attempt(
        cls, attempt: Attempt, *, own_thread: bool = True, listener: Listener | None = None
    ) -> SupervisorRef:
        """Start the Supervisor of a gang whose settings are already checked and pickled.

        Args:
            attempt: The first attempt. The Supervisor owns it from now on.
            own_thread: Whether to start a thread for the gang. Otherwise `run_gang` uses the caller's thread.
            listener: An internal observer, or None.
        """
        supervisor = cls.__new__(cls)  # `start` takes settings instead of an attempt
        supervisor._own(attempt, own_thread=own_thread, listener=listener)  # noqa: SLF001 - a method of this class
        pykka.ActorRegistry.register(supervisor.actor_ref)
        supervisor._start_actor_loop()  # noqa: SLF001 - pykka starts an actor with this call
        return cast("SupervisorRef", supervisor.actor_ref)

    def _own(self, attempt: Attempt, *, own_thread: bool = True, listener: Listener | None = None) -> None:
        from supervise._gang.runner import GangRunner  # lazy: a spawned rank imports this module without using it
        from supervise._gang.shutdown import Shutdown

        super().__init__(Loop(f"supervise-{attempt.spec.name}", lost=self._loop_lost, own_thread=own_thread))
        self._actor_ref = SupervisorRef(self)
        self._replies = PendingReplies(self.loop)
        self._subscribers = Subscribers()
        self._stack_requests: StackRequests | None = None
        self._close_control: Callable[[], object] = lambda: None
        self._runner = GangRunner(
            attempt,
            self.loop,
            self.actor_ref,
            replies=self._replies,
            subscribers=self._subscribers,
            listener=listener,
            closed=self._closed,
            crashed=self.on_crash,
            stacks=self.stacks,
        )
        self._shutdown = Shutdown(
            self._runner,
            self.loop,
            replies=self._replies,
            subscribers=self._subscribers,
            listener=listener,
            leave=self._leave,
        )

    def _start_actor_loop(self) -> None:
        try:
            self.loop.start()
        except BaseException:  # no thread is available, so no ask would be answered
            self._abandon()
            raise
        try:
            self._close_control = opened(self._runner.attempt.spec, self.actor_ref)
            shutdown_at_exit.remember(self.actor_ref, self._runner.gang.grace_s)
            super()._start_actor_loop()
        except BaseException:  # no control socket, or a signal handler has raised, so the caller has no ref
            self.loop.abandon()
            self._abandon()
            raise

    def _abandon(self) -> None:
        shutdown_at_exit.forget(self.actor_ref)
        self._close_control()
        self._unbind()
        pykka.ActorRegistry.unregister(self.actor_ref)
        self._runner.attempt.close()

    # Asks

    def launch(self) -> Reply[dict[int, int]]:
        """Launch every rank; see `Start`. A second call is an error."""
        self._raise_crash()
        if self._runner.gang.phase != "new":
            name, phase = self._runner.attempt.spec.name, self._runner.gang.phase
            raise SpecError(
                f"{name}: the gang was started already (it is {phase}); start another Supervisor to run it again"
            )
        return self._runner.start()

    def wait(self, timeout: float | None = None) -> Reply[RunProcsResult | None]:
        """Answer with the result once there is one, or with None after `timeout` seconds; see `Wait`.

        Raises:
            SpecError: `timeout` is not a number of seconds.
        """
        check_timeout(timeout)
        return self._replies.wait(timeout)

    def poll(self) -> RunProcsResult | None:
        """Answer at once: with the result, or with None; see `Poll`."""
        if self._replies.error is not None:
            raise self._replies.error
        return self._replies.result

    def so_far(self, *, stop_on_failure: bool) -> RunProcsResult | None:
        """Answer with the failures of a gang that has failures but continues; see `SoFar`."""
        self._runner.step(steps.StopOnFailure(on=stop_on_failure))
        gang = self._runner.gang
        return self._runner.result() if gang.phase == "running" and judge(gang).outcome == "failed" else None

    def pids(self) -> dict[int, int]:
        """Answer with ``{rank: pid}`` of all started ranks; see `Pids`."""
        return self._runner.gang.pids

    def status(self) -> say.GangStatus:
        """Answer with the present state, and start a check for suspended ranks; see `Status`."""
        runner = self._runner
        runner.suspend_poll.look()
        return runner.states.status(runner.gang, runner.ranks.slots.processes, runner.notes, self._replies.waiting)

    def restart_ranks(self, ranks: frozenset[int]) -> Reply[dict[int, int]]:
        """Restart exactly these ranks; answer with ``{rank: pid}`` when all run. See `RestartRanks`.

        Raises:
            SpecError: A rank is not in this gang, or the gang does not run. Nothing was done.
            SuperviseError: In the reply: the gang has ended before, or a rank did not start.
        """
        return self._request(steps.RestartAsked, ranks)

    def terminate_ranks(self, ranks: frozenset[int]) -> Reply[dict[int, int]]:
        """Stop exactly these ranks; answer with ``{rank: pid}`` when nothing of them is left. See `TerminateRanks`.

        Raises:
            SpecError: A rank is not in this gang, or the gang does not run. Nothing was done.
            SuperviseError: In the reply: the gang has ended before.
        """
        return self._request(steps.TerminateAsked, ranks)

    def _request(self, kind: type[steps.RestartAsked | steps.TerminateAsked], ranks: Any) -> Reply[dict[int, int]]:
        self._raise_crash()
        return self._runner.request(kind, requested_ranks(ranks, self._runner.gang, self._runner.attempt.spec.name))

    def close(
        self, death_sig: signal.Signals | None = None, timeout: float | None = None
    ) -> Reply[RunProcsResult | None]:
        """Stop the gang; answer with the result when no process of the gang remains; see `Close`.

        Raises:
            SpecError: `death_sig` is not a signal, or `timeout` is not a number of seconds. Nothing was done.
            UnkillableError: In the reply: a process survived SIGKILL. All others are reaped.
        """
        check_timeout(timeout)
        sig = None if death_sig is None else as_signal("death_sig", death_sig)
        reply = self._replies.close()
        self._runner.close(sig, timeout)
        return reply

    def send_signal(self, sig: signal.Signals, ranks: frozenset[int] | None = None) -> frozenset[int]:
        """Signal those ranks in `ranks` (None: all) that run; answer with the ranks reached. See `Signal`.

        Raises:
            SpecError: A rank is not in this gang, or `sig` is not a signal. No rank was signaled.
        """
        sig = as_signal("sig", sig)
        wanted = checked_ranks(ranks, self._runner.gang.nprocs)
        self._raise_crash()  # because the Workers may have left
        reached = wanted & self._runner.gang.running
        self._runner.signal(reached, sig, "user")
        return reached

    def stacks(self, ranks: frozenset[int] | None = None) -> Reply[dict[int, RankStacks]]:
        """Answer with the stacks of those ranks in `ranks` (None: all) that run, within 2 s; see `Stacks`.

        Raises:
            SpecError: A rank is not in this gang.
            OSError: No thread is available to collect the stacks.
        """
        wanted = checked_ranks(ranks, self._runner.gang.nprocs)
        self._raise_crash()
        if self._stack_requests is None:
            from supervise._gang.stack_requests import StackRequests  # lazy: most gangs are never asked

            self._stack_requests = StackRequests(self._runner, self.loop)
        return self._stack_requests.add(wanted)

    def on_receive(self, message: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - one line a message
        """Answer asks and process reports of Workers and Tails."""
        if type(message) in _REPORTS:  # the first check, because most messages are reports
            return self._told(message)
        match message:
            case say.Start():
                return self.launch()
            case say.Wait():
                return self.wait(message.timeout)
            case say.Poll():
                return self.poll()
            case say.SoFar():
                return self.so_far(stop_on_failure=message.stop_on_failure)
            case say.Pids():
                return self.pids()
            case say.Status():
                return self.status()
            case say.Close():
                return self.close(message.death_sig, message.timeout)
            case say.Signal():
                return self.send_signal(message.sig, message.ranks)
            case say.RestartRanks():
                return self.restart_ranks(message.ranks)
            case say.TerminateRanks():
                return self.terminate_ranks(message.ranks)
            case say.Stacks():
                return self.stacks(message.ranks)
            case say.Subscribe():
                check_ref(message.ref)
                return self._subscribers.admit(message.ref)
            case say.Unsubscribe():
                check_ref(message.ref)
                return self._subscribers.dismiss(message.ref)
            case _:
                return self._told(message)

    def _told(self, message: Any) -> None:
        if self._shutdown.crash is not None:
            return
        match message:
            case _ if type(message) in _REPORTS:
                self._runner.report(message)
            case say.WorkerStopped():
                self._runner.states.suspended(message.local_rank)
                self._runner.events.emit(message)
                self._subscribers.tell(message)
            case steps.PeersStopped():
                self._runner.excuse(message.ranks)
            case orders.MemberStopRequested():
                self._shutdown.member_asked = True
                self._runner.close()
            case orders.ActorDown():
                self._shutdown.after_crash(message.error, message.who)
            case _:
                raise stray(message)

    # The end

    def on_stop_request(self) -> Reply[None]:
        """Close the gang, then leave the registry."""
        reply = self._replies.stop()
        self._runner.close()
        return reply

    def _closed(self) -> None:
        self._shutdown.closed()

    def _leave(self) -> None:
        if self._stack_requests is not None:
            self._stack_requests.end(self._shutdown.crash)
        self._close_control()
        shutdown_at_exit.forget(self.actor_ref)
        self.leave()

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """Return whether an exception of a handler ends this actor; False if the arguments of an ask have caused it."""
        harmless = (SuperviseError, OSError, TypeError, ValueError, AttributeError)
        return not isinstance(error, SpecError) and not (asked and isinstance(error, harmless))

    def on_crash(self, error: BaseException) -> None:
        """Kill the ranks and answer every ask, because a handler of this actor has raised."""
        self._shutdown.after_crash(error, "the supervisor")

    def _loop_lost(self, error: BaseException) -> None:
        self._shutdown.without_loop(error)

    def _raise_crash(self) -> None:
        if self._shutdown.crash is not None:
            raise self._shutdown.crash
