"""The Supervisor: the actor that owns a gang."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

import pykka

from supervise import messages as say
from supervise._core import steps
from supervise._core.verdict import judge
from supervise._gang import later_modules, shutdown
from supervise._gang.asks import ActorDown, GangShell, MemberStopRequested, as_signal, checked_ranks, requested_ranks
from supervise._gang.worker import SuspendedAsAsked
from supervise._runtime.actor import LoopRef
from supervise._runtime.future import Reply
from supervise._settings import GRACE_S, Containment, KillMode, Strategy, shown
from supervise.errors import SpecError

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet

    from supervise._control.server import ControlServer
    from supervise._gang.attempt import Attempt
    from supervise._gang.runner import Listener
    from supervise._gang.spec import GangSpec, SupervisorSettings
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult
    from supervise.roles import Role
    from supervise.stacks import RankStacks
    from supervise.watchdog import Watchdog

    _Reply = TypeVar("_Reply")


# `SupervisorRef`: a reference to a Supervisor that has typed replies and is a context manager


_PROMPT_S = 5.0


class SupervisorRef(LoopRef):
    """The reference to a Supervisor that `Supervisor.start` returns: a `pykka.ActorRef` whose replies have types.

    As a context manager, the reference stops the Supervisor at the end of the block, which closes the gang. The
    reference does not launch the ranks: ask `Start` for that.
    """

    @overload
    def ask(
        self, message: say.Ask[_Reply], *, block: Literal[False], timeout: float | None = None
    ) -> pykka.Future[_Reply]: ...
    @overload
    def ask(self, message: say.Ask[_Reply], *, block: Literal[True] = True, timeout: float | None = None) -> _Reply: ...
    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        """Send a message of `supervise.messages`; return the reply, or a future of it if `block` is False.

        Args:
            message: The message.
            block: Whether to wait for the reply.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            pykka.Timeout: There is no reply within `timeout`.
            pykka.ActorDeadError: The Supervisor has ended.
            Exception: The reply is an error. Each message lists its errors.
        """
        if type(message) is say.Stacks or getattr(message, "attr_path", None) == ("stacks",):  # the call of a proxy
            later_modules.load_stacks()
        return super().ask(message, block=block, timeout=timeout)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: the result as a picture, or the state of each rank."""
        from supervise._story import small_timeline

        try:
            result = self.ask(say.Poll(), timeout=_PROMPT_S)
            if result is not None:
                return result._repr_html_()
            return small_timeline.of_gang("gang", self.ask(say.Status(), timeout=_PROMPT_S))
        except Exception:  # the gang has ended, or its start has failed
            return small_timeline.of_gang("gang", None)


_REPORTS: tuple[type, ...] = (
    *(say.WorkerStarted, say.WorkerExited, steps.WorkerFailedToStart, steps.WorkerUnkillable),
    *(steps.RankReturned, steps.GroupEmptied, steps.TailDrained, steps.TailEnded),
)
"""The reports of Workers and Tails that are events of the core."""


class Supervisor(GangShell):
    """The actor of one gang, which has one Worker actor for each rank and one Tail actor for each destination of logs.

    Ask the actor the messages of `supervise.messages`. With a proxy, call its methods. A stop of the actor closes the
    gang. The stop is complete when every process is reaped, every wait has its reply, and none of the gang's actors is
    in pykka's registry.
    """

    _ref_class = SupervisorRef
    _more_messages = "RestartRanks(...), TerminateRanks(...), Reload(...), Stacks(...), "

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
        listen: Sequence[str] = (),
        timeout: float | None = None,
        event_sink: Sink | None = None,
        restart_policy: RestartPolicy | None = None,
        containment: Containment = "group",
        kill_mode: KillMode = "group",
        gate: bool = False,
        strategy: Strategy = "one_for_all",
        success_exit_codes: frozenset[int] = frozenset({0}),
        ready: str | Sequence[str] = "exec",
        ready_timeout_s: float = 60.0,
        alive: str | None = None,
        alive_interval_s: float = 10.0,
        alive_timeout_s: float = 5.0,
        alive_failures: int = 3,
        watchdog: Watchdog | None = None,
        roles: Sequence[Role] | None = None,
        control: str | os.PathLike[str] | None = None,
        rank_variables: bool = False,
        hold_returned: bool = False,
    ) -> None:
        """Check and prepare a gang. `Start` launches it. Every mapping is keyed by local rank, ``0 .. n-1``.

        Args:
            name: Name of the gang, for the prefix of shown lines and for events.
            entrypoint: A function that every rank calls, or the name or path of a program.
            args: Rank to its arguments. The arguments of a program become strings. A bare string is one argument.
            envs: Rank to variables added to this process's environment. Each gets ``TORCHELASTIC_ERROR_FILE``.
            logs_specs: Where output goes; None for `DefaultLogsSpecs`, which redirects nothing.
            log_line_prefixes: Rank to the prefix of its shown lines; ``[<name><rank>]:`` by default.
            start_method: ``spawn``, ``fork`` or ``forkserver``, for functions.
            duplicate_stdout_filters: Texts. Shown stdout lines that contain one of them also go to one file.
            duplicate_stderr_filters: The same for stderr.
            log_max_bytes: Number of the newest bytes of each log that stay on the disk, at least 65536; None for all.
            grace: Seconds from the first signal to SIGKILL, in every stop.
            cwd: Working directory of the ranks; None for that of this process at the start of the gang, in every life.
            listen: Addresses (``tcp:[HOST:]PORT``, ``unix:PATH``) of sockets that the ranks share from descriptor 3 on.
                The gang binds them before the first start, keeps them across restarts, and closes them at its end.
            timeout: Seconds from the start after which the gang is stopped, with the outcome ``timed_out``.
            event_sink: Function that is called on the gang's thread with every event as a dictionary.
            restart_policy: When and how often ranks are restarted; None for never.
            containment: Treatment of processes that leave the groups of their ranks: ``group`` reports them,
                ``sweep`` finds and ends them, ``cgroup`` keeps ranks in control groups (a writable cgroup v2 tree).
            kill_mode: Destination of the first signal of a stop: the process group of each rank (``group``), or only
                its own process (``mixed``). SIGKILL always goes to the group.
            gate: Whether each program waits in a shell until its lifeline is armed. So the program never outlives this
                process. A function needs no gate for that.
            strategy: Which ranks a failure stops or, with a policy, restarts: all (``one_for_all``), the failed rank
                (``one_for_one``), or the failed rank and the ranks above it (``rest_for_one``).
            success_exit_codes: Exit codes that are a success. Functions need 0 among them.
            ready: When a rank is ready: ``exec``, when its process runs; ``notify``, when it sends READY=1; ``exit``,
                when it has succeeded; or when a probe such as ``tcp:8000`` succeeds. A list: when all are met.
            ready_timeout_s: Seconds from the launch of a rank until it must be ready, unless `ready` is ``exec``.
            alive: A probe that a ready rank must answer; None for no probe.
            alive_interval_s: Seconds between two tries of `alive`.
            alive_timeout_s: Seconds after which a try of a probe, also of `ready`, fails.
            alive_failures: Number of failures of `alive` in a row after which the rank counts as hung.
            watchdog: When a rank counts as hung, and the consequence; None: only a rank that does not answer `alive`.
            roles: The roles of the ranks, instead of `entrypoint` and `args`, if not all ranks run the same.
            control: Path of a socket file that accepts commands of other processes of this user; None for no socket.
            rank_variables: Whether each rank gets torchrun's variables, such as RANK. `envs` take precedence.
            hold_returned: Whether the process of a function that has returned stays alive until all have returned.

        Raises:
            SpecError: A setting is not valid or cannot be pickled. The text names the setting, the rank and the remedy.
            OSError: The log folder cannot be used.
        """
        from supervise._gang.attempt import first_attempt  # lazy, see `_own`

        attempt = first_attempt(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            start_method=start_method,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            log_max_bytes=log_max_bytes,
            grace=grace,
            cwd=cwd,
            listen=listen,
            timeout=timeout,
            event_sink=event_sink,
            restart_policy=restart_policy,
            containment=containment,
            kill_mode=kill_mode,
            gate=gate,
            strategy=strategy,
            success_exit_codes=success_exit_codes,
            ready=ready,
            ready_timeout_s=ready_timeout_s,
            alive=alive,
            alive_interval_s=alive_interval_s,
            alive_timeout_s=alive_timeout_s,
            alive_failures=alive_failures,
            watchdog=watchdog,
            roles=roles,
            control=control,
            rank_variables=rank_variables,
            hold_returned=hold_returned,
        )
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

        super().__init__(attempt.spec.name, own_thread=own_thread)
        self._control: ControlServer | None = None
        self._runner = GangRunner(attempt, self, self._replies, self._subscribers, listener)

    def _acquire(self) -> None:
        self._control = _control_socket(self._runner.attempt.spec, self.actor_ref)
        shutdown.remember(self.actor_ref, self._runner.gang.grace_s)

    def _release(self) -> None:
        if self._control is not None:
            self._control.close()
        shutdown.forget(self.actor_ref)

    def _abandon(self) -> None:
        super()._abandon()
        self._runner.attempt.close()

    # Asks

    def launch(self) -> Reply[dict[int, int]]:
        """Launch every rank; see `Start`. A second call is an error."""
        self._raise_crash()
        if self._runner.gang.phase != "new":
            name, phase = self._runner.attempt.spec.name, self._runner.gang.phase
            raise SpecError(
                f"{name}: the gang was started or closed before (it is {phase}); start another Supervisor to run it"
            )
        return self._runner.start()

    def so_far(self, *, stop_on_failure: bool) -> RunProcsResult | None:
        """Answer with the failures of a gang that has failures but continues; see `SoFar`."""
        self._runner.step(steps.StopOnFailure(on=stop_on_failure))
        gang = self._runner.gang
        return self._runner.result() if gang.phase == "running" and judge(gang).outcome == "failed" else None

    def pids(self) -> dict[int, int]:
        """Answer with ``{rank: pid}`` of all started ranks; see `Pids`."""
        return self._runner.gang.pids

    def _status_reply(self) -> Reply[say.GangStatus]:
        """Answer with the current state after a check for suspended ranks; see `Status`."""
        reply: Reply[say.GangStatus] = Reply()

        def answer() -> None:
            try:
                self._runner.read_reports()
                reply.set(self.status())
            except BaseException as error:
                reply.fail(error)
                self.on_crash(error)

        self._runner.look_for_suspended(answer)
        return reply

    def status(self) -> say.GangStatus:
        """Return the current state."""
        return self._runner.status()

    def restart_ranks(self, ranks: AbstractSet[int]) -> Reply[dict[int, int]]:
        """Restart exactly these ranks; answer with ``{rank: pid}`` when all are ready. See `RestartRanks`.

        Raises:
            SpecError: A rank is not in this gang, or the gang does not run. Nothing was done.
            SuperviseError: In the reply: the gang has ended before, or a rank did not start.
        """
        return self._request("restart", ranks)

    def terminate_ranks(self, ranks: AbstractSet[int]) -> Reply[dict[int, int]]:
        """Stop exactly these ranks; answer with ``{rank: pid}`` when no process of them is left. See `TerminateRanks`.

        Raises:
            SpecError: A rank is not in this gang, or the gang does not run. Nothing was done.
            SuperviseError: In the reply: the gang has ended before.
        """
        return self._request("terminate", ranks)

    def _request(self, kind: steps.AskKind, ranks: Any) -> Reply[dict[int, int]]:
        self._raise_crash()
        return self._runner.request(kind, requested_ranks(ranks, self._runner.gang, self._runner.attempt.spec.name))

    def _close(self, death_sig: signal.Signals | None, timeout: float | None) -> None:
        self._runner.close(death_sig, timeout)

    def send_signal(
        self, sig: signal.Signals, ranks: AbstractSet[int] | None = None, *, group: bool = False
    ) -> frozenset[int]:
        """Signal those ranks in `ranks` (None: all) that run; answer with the ranks reached. See `Signal`.

        Raises:
            SpecError: A rank is not in this gang, `sig` is not a signal, or `group` is not a bool. No rank got it.
        """
        sig = as_signal("sig", sig)
        if not isinstance(group, bool):
            raise SpecError(f"group is {shown(group)}; give True for the process group of each rank, or False")
        wanted = checked_ranks(ranks, self._runner.gang.nprocs)
        self._raise_crash()  # because the Workers may have left
        reached = wanted & self._runner.gang.running
        self._runner.signal(reached, sig, "user", group=group)
        return reached

    def reload(self, ranks: AbstractSet[int] | None = None) -> Reply[dict[int, bool]]:
        """Send those ranks in `ranks` (None: all) that are ready their reload signals; see `Reload`.

        Raises:
            SpecError: A rank is not in this gang, or the gang does not run. No rank was signaled.
            SuperviseError: In the reply: a rank has ended, or did not become ready in time.
        """
        self._raise_crash()
        gang = self._runner.gang
        wanted = range(gang.nprocs) if ranks is None else ranks
        return self._runner.reload(requested_ranks(wanted, gang, self._runner.attempt.spec.name))

    def stacks(self, ranks: AbstractSet[int] | None = None) -> Reply[dict[int, RankStacks]]:
        """Answer with the stacks of those ranks in `ranks` (None: all) that run, within 2 s; see `Stacks`.

        Raises:
            SpecError: A rank is not in this gang.
            OSError: In the reply: no thread is available to collect the stacks.
        """
        wanted = checked_ranks(ranks, self._runner.gang.nprocs)
        self._raise_crash()
        return self._runner.stacks(wanted)

    def on_receive(self, message: Any) -> Any:  # noqa: C901, PLR0911 - one line a message
        """Answer asks and process reports of Workers and Tails."""
        if type(message) in _REPORTS:  # the first check, because most messages are reports
            return self._runner.report(message)
        match message:
            case say.SoFar():
                return self.so_far(stop_on_failure=message.stop_on_failure)
            case say.RestartRanks():
                return self.restart_ranks(message.ranks)
            case say.TerminateRanks():
                return self.terminate_ranks(message.ranks)
            case say.Reload():
                return self.reload(message.ranks)
            case say.Stacks():
                return self.stacks(message.ranks)
            case say.WorkerStopped() | SuspendedAsAsked():
                return self._runner.suspended(message)
            case steps.PeersStopped():
                return self._runner.excuse(message.ranks)
            case MemberStopRequested():
                return self._runner.close_for_member()
            case ActorDown():
                return self._runner.after_crash(message.error, message.who)
            case _:
                return super().on_receive(message)

    def _refuse(self, message: Any) -> None:
        if self._runner.crash is None:
            super()._refuse(message)

    # The end

    def _stop_supervised(self) -> None:
        self._runner.close()

    def on_crash(self, error: BaseException) -> None:
        """Kill the ranks and answer every ask, because a handler of this actor has raised."""
        self._runner.after_crash(error)

    def _loop_lost(self, error: BaseException) -> None:
        self._runner.without_selector(error)

    def _raise_crash(self) -> None:
        if self._runner.crash is not None:
            raise self._runner.crash


def _control_socket(spec: GangSpec, gang: pykka.ActorRef[Any]) -> ControlServer | None:
    """Start the control socket of a gang; return its server, or None if the caller has not requested a socket.

    Raises:
        SpecError: The socket file cannot be made, for instance because another process listens there.
        OSError: No thread is available.
    """
    if spec.control is None:
        return None
    from supervise._control.server import ControlServer  # lazy: most gangs have none

    server = ControlServer(os.fspath(spec.control), gang, name=spec.name)
    try:
        server.start()
    except OSError as error:
        if error.filename is None:
            raise
        raise SpecError(f"control is {os.fspath(spec.control)!r}; {error.strerror}") from error
    return server
