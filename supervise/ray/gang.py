"""`RayGang` and `RaySupervisor`: a gang on a Ray cluster, as an object and as an actor."""

from __future__ import annotations

import signal
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, cast

import pykka

from supervise import messages as say
from supervise._api import signals
from supervise._api.context import dispose
from supervise._api.signals import protected
from supervise._hosts.plan import make_plan
from supervise._hosts.supervisor import HostsSupervisor, StreamsShown
from supervise._settings import check_seconds
from supervise.errors import SignalException, SpecError, SuperviseError
from supervise.ray import calls, resources
from supervise.recording import repr_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from signal import Signals
    from types import TracebackType

    from supervise._runtime.future import Reply
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy
    from supervise.result import RunProcsResult

_ANSWER_S = 60.0
"""Time for an answer that the actor gives at once. Its loop runs no user code and does not block."""
_LEAVE_S = 10.0
_MISSING = "a gang on Ray needs the packages ray and cloudpickle; run: pip install 'supervise-gang[ray]'"


class RaySupervisor(HostsSupervisor):
    """The actor of one gang on a Ray cluster.

    It accepts `Start`, `Wait`, `Poll`, `Pids`, `Status`, `Signal`, `Close`, `Subscribe` and `Unsubscribe`. The actor
    runs in the driver. Every mapping is keyed by global rank: host number times `nproc_per_node`, plus local rank.
    """

    def __init__(
        self,
        *,
        name: str,
        entrypoint: Callable[..., Any] | str,
        nnodes: int,
        nproc_per_node: int,
        args: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = (),
        envs: Mapping[int, Mapping[str, str]] | None = None,
        logs_specs: LogsSpecs | None = None,
        resources_per_node: Mapping[str, float] | None = None,
        placement_strategy: str = "STRICT_SPREAD",
        placement_timeout_s: float = 120,
        lease_s: float = 10,
        restart_policy: RestartPolicy | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        timeout: float | None = None,
        event_sink: Sink | None = None,
        shown: StreamsShown | None = None,
        **settings: Any,
    ) -> None:
        """Check and prepare a gang. `Start` places and launches it.

        Args:
            name: Name of the gang, for the prefix of shown lines and for events.
            entrypoint: A function that every rank calls, or the name or path of a program on the hosts. cloudpickle
                transfers the function, so it may be a lambda or a closure.
            nnodes: Number of hosts.
            nproc_per_node: Number of ranks on each host.
            args: Arguments of all ranks, or a mapping of rank to the arguments of that rank.
            envs: Rank to variables that are added to its environment. Each rank also gets the variables of torchrun,
                and Ray sets ``OMP_NUM_THREADS`` on its hosts. The variables in `envs` take precedence over both.
            logs_specs: Where output goes on each host. The maps in it are keyed by local rank. None: output goes to
                files in a temporary folder of each host, and to the streams of this process.
            resources_per_node: Name of a resource of Ray to the amount that each host takes; None: one CPU for each
                rank.
            placement_strategy: Placement strategy of Ray: ``STRICT_SPREAD`` (each host on another node), ``SPREAD``,
                ``PACK`` or ``STRICT_PACK``.
            placement_timeout_s: Seconds within which the cluster must have room for all hosts.
            lease_s: If the driver cannot reach a host for this many seconds, the ranks of the host are killed there. At
                least 1.
            restart_policy: When and how often the whole gang is restarted, with ``restart="transient"``; None for
                never. Ray chooses the hosts again at each restart. Restarts are counted for the whole gang, also when a
                node joins the cluster.
            log_line_prefixes: Rank to the prefix of its shown lines; ``[<name><rank>]:`` by default.
            timeout: Seconds from the start after which the gang is stopped, with the outcome ``timed_out``.
            event_sink: Function that is called on the gang's thread with every event as a dictionary, also with those
                of the hosts.
            shown: Where shown output goes instead of the streams of this process.
            **settings: Further settings of each host's `Supervisor`: ``start_method, grace, cwd, containment,
                kill_mode, success_exit_codes, ready, ready_timeout_s, alive, watchdog, log_max_bytes`` and the filters
                of lines.

        Raises:
            SpecError: A setting is not valid; the text names it, the value and the remedy.
            ImportError: Ray or cloudpickle is not installed.
            ConnectionError: There is no Ray cluster at the address in ``RAY_ADDRESS``.
        """
        bundle = resources.bundle_of(resources_per_node, nproc_per_node if isinstance(nproc_per_node, int) else 1)
        if placement_strategy not in resources.STRATEGIES:
            accepted = ", ".join(resources.STRATEGIES)
            raise SpecError(f"placement_strategy is {placement_strategy!r}; it is one of {accepted}")
        check_seconds("placement_timeout_s", placement_timeout_s, above_zero=True)
        plan = make_plan(
            name=name,
            entrypoint=entrypoint,
            nnodes=nnodes,
            nproc_per_node=nproc_per_node,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            lease_s=lease_s,
            restart_policy=restart_policy,
            timeout=timeout,
            event_sink=event_sink,
            settings=settings,
        )
        try:
            import cloudpickle  # noqa: F401 - `calls` and the ranks need it
            import ray

            from supervise.ray.engine import RayEngine
        except ImportError as error:
            raise ImportError(_MISSING) from error
        travels: Any = None
        if not isinstance(entrypoint, str):
            travels, plan = _packed(plan)
        _connect(ray)
        engine = RayEngine(bundle, placement_strategy, placement_timeout_s)
        super().__init__(
            plan, engine, travels=travels, load=calls.load, shown=shown or StreamsShown(), engine_name="Ray"
        )


def _connect(ray: Any) -> None:
    """Connect this process to a running cluster, unless it is connected. Keep the caller's handler of SIGTERM.

    Raises:
        ConnectionError: There is no cluster.
    """
    if ray.is_initialized():
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address="auto", logging_level="warning")
    except ConnectionError as error:
        raise ConnectionError(
            "no Ray cluster was found; start one by `ray start --head`, or set RAY_ADDRESS to HOST:PORT of its head"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _packed(plan: Any) -> tuple[Any, Any]:
    """Return the object to send in place of the function, and the plan with pickled arguments.

    Raises:
        SpecError: The function or an argument cannot be pickled; the text names the rank.
    """
    from dataclasses import replace

    try:
        travels = calls.pack(plan.entrypoint)
    except Exception as error:
        msg = f"the entrypoint {repr_of(plan.entrypoint)} cannot be pickled: {text_of(error)}"
        raise SpecError(f"{msg}; cloudpickle carries most functions") from error
    args, known = {}, {}
    for rank, given in plan.args.items():
        try:
            if id(given) not in known:
                known[id(given)] = calls.pack_args(given)
            args[rank] = known[id(given)]
        except Exception as error:
            raise SpecError(f"rank {rank}: its args cannot be pickled: {text_of(error)}") from error
    return travels, replace(plan, args=args)


class RayGang:
    """A gang on a Ray cluster, for programs that are not actors. `start` it, `wait` for its result, then `close` it.

    ::

        with RayGang(name="train", entrypoint=train, nnodes=2, nproc_per_node=8, args=(config,)) as gang:
            result = gang.wait()

    Mappings are keyed by global rank. The result, its root cause and the messages are those of `start_processes`.
    """

    def __init__(  # noqa: PLR0917 - the order of the arguments is public
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        nnodes: int,
        nproc_per_node: int,
        args: tuple[Any, ...] | Mapping[int, tuple[Any, ...]] = (),
        envs: Mapping[int, Mapping[str, str]] | None = None,
        logs_specs: LogsSpecs | None = None,
        resources_per_node: Mapping[str, float] | None = None,
        placement_strategy: str = "STRICT_SPREAD",
        placement_timeout_s: float = 120,
        lease_s: float = 10,
        restart_policy: RestartPolicy | None = None,
        **settings: Any,
    ) -> None:
        """Check and prepare a gang. The arguments, and the errors, are those of `RaySupervisor`."""
        ref = RaySupervisor.start(
            name=name,
            entrypoint=entrypoint,
            nnodes=nnodes,
            nproc_per_node=nproc_per_node,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            resources_per_node=resources_per_node,
            placement_strategy=placement_strategy,
            placement_timeout_s=placement_timeout_s,
            lease_s=lease_s,
            restart_policy=restart_policy,
            **settings,
        )
        self.ref: pykka.ActorRef[RaySupervisor] = ref
        """The actor, for `ask`, `tell` and subscriptions."""
        self._outcome: Reply[RunProcsResult | None] | None = None
        self._handlers: Any = None
        self._came: signals.Recorded | None = None
        """The first signal, if it arrived during a close."""
        self._over = weakref.finalize(self, dispose, ref)

    def start(self) -> dict[int, int]:
        """Place the hosts and start every rank; return ``{rank: pid}`` when all ranks are ready.

        If the `timeout` of the gang expires before, return an empty mapping: `wait` returns a result with the outcome
        ``timed_out``.

        Raises:
            SpecError: The gang was started before, and continues.
            SuperviseError: The cluster has no room, or a host could not start its ranks. No rank is left running.
            OSError: A rank could not be started. No rank is left running.
            SignalException: A termination signal arrived. No rank is left running.
        """
        if self._handlers is not None:  # the actor refuses a second start, and the gang continues
            return dict(self._answer(self._ask(say.Start()), None))
        self._handlers = weakref.finalize(self, signals.let_go, signals.hold())
        try:
            pids = self._answer(self._ask(say.Start()), None)
        except BaseException as error:
            if not isinstance(error, SuperviseError) or not self._has_timed_out():
                self.close()
                raise
            pids = {}
        self._outcome = self._ask(say.Wait())
        return dict(pids)

    def _has_timed_out(self) -> bool:
        """Return whether the gang has ended because its timeout has expired."""
        try:
            result = self._ask(say.Poll()).get(timeout=_ANSWER_S)
        except (SuperviseError, OSError, pykka.ActorDeadError, pykka.Timeout):  # the error of the start
            return False
        return result is not None and result.outcome == "timed_out"

    def wait(self, timeout: float | None = None) -> RunProcsResult | None:
        """Wait for the result; return it. None if there is no result within `timeout` seconds.

        Raises:
            SignalException: A termination signal arrived. The gang continues; pass its `sigval` to `close`.
            SuperviseError: The gang ended without a result: a later attempt found no room in the cluster.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        if self._outcome is None:
            return None
        return cast("RunProcsResult | None", self._answer(self._outcome, timeout))

    def pids(self) -> dict[int, int]:
        """Return ``{rank: pid}``. Empty before the start and after `close`.

        A pid is valid only on the host of its rank.
        """
        with suppress(pykka.ActorDeadError):
            return dict(cast("dict[int, int]", self._ask(say.Pids()).get(timeout=_ANSWER_S)))
        return {}

    def status(self) -> say.GangStatus:
        """Return the present state, as far as the hosts have reported it.

        Raises:
            pykka.ActorDeadError: The gang is closed.
        """
        return cast("say.GangStatus", self._ask(say.Status()).get(timeout=_ANSWER_S))

    def close(self, death_sig: Signals | None = None, timeout: float | None = None) -> RunProcsResult | None:
        """Stop every rank; return the result when no rank runs on any host. Idempotent.

        A signal that arrives meanwhile is raised afterwards; a second one sends SIGKILL at once, as in
        `supervise.PContext`.

        Args:
            death_sig: The first signal; None for SIGTERM.
            timeout: Seconds until SIGKILL; None for the gang's grace. On a host that the driver cannot reach, the ranks
                end when the lease is over.

        Raises:
            SpecError: An argument is not valid. Nothing was done.
        """
        try:
            result = self._finish(death_sig, timeout)
        except pykka.ActorDeadError:  # it was closed before
            self._over.detach()
            outcome = self._outcome
            result = outcome.get(timeout=0) if outcome is not None and outcome.done() and not outcome.error() else None
        finally:
            if self._handlers is not None and not self._over.alive:
                self._handlers()
        came, self._came = self._came, None
        if came is not None:
            signals.hand_over(came)
        return result

    @protected
    def _finish(self, death_sig: Signals | None, timeout: float | None) -> RunProcsResult | None:
        closed = self._ask(say.Close(death_sig=death_sig, timeout=timeout))
        while not signals.wait_for(closed):
            came = signals.recorded()
            if came is not None and came.kills is None:
                self._came = came
            elif came is not None and came.kills:
                self._ask(say.Close(death_sig=signals.kill_signal(), timeout=0.0))
        if isinstance(error := closed.error(), SpecError):
            raise error
        self._over.detach()
        with suppress(pykka.ActorDeadError, pykka.Timeout):
            self.ref.stop(timeout=_LEAVE_S)
        return cast("RunProcsResult | None", closed.get(timeout=0))

    def _ask(self, message: object) -> Reply[Any]:
        return cast("Reply[Any]", self.ref.ask(message, block=False))

    def _answer(self, reply: Reply[Any], timeout: float | None) -> Any:
        self._await(reply, timeout)
        signals.deliver()
        return reply.get(timeout=0) if reply.done() else None

    @protected
    def _await(self, reply: Reply[Any], timeout: float | None) -> None:
        signals.wait_for(reply, timeout)

    def __enter__(self) -> Self:
        """Start the gang. The end of the block closes it."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Close the gang. If a `SignalException` ends the block, the first signal is that of the exception."""
        self.close(error.sigval if isinstance(error, SignalException) else None)
