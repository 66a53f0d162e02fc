"""The driver: the actor that owns a gang over several hosts."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from supervise import _platform as platform, messages as say
from supervise._core.batches import MIN_DRAIN_S
from supervise._gang import shutdown
from supervise._gang.asks import GangShell, as_signal, checked_ranks
from supervise._gang.describe import RestartHistory, failed_line, finished, not_unpickled, restarting
from supervise._hosts import decide as steps
from supervise._hosts.decide import Host, HostsGang, decide
from supervise._hosts.link import Engine, EngineHost, HostLink
from supervise._logs.sinks import CancelToken, console
from supervise._printable import LOST_CODE
from supervise._runtime.future import Reply
from supervise._runtime.loop import NO_TIMER
from supervise._runtime.shell import with_jitter
from supervise._settings import GRACE_S, conditions
from supervise.errors import SpawnError, SpecError, SuperviseError, SupervisorCrashed
from supervise.events import Event, EventLog, log
from supervise.messages import GangFinished, GangRestarting, GangStatus, Phase, RankState, RankStatus, WorkerExited
from supervise.recording import repr_of, text_of
from supervise.result import LOST_SINCE, Causes, Outcome, ProcessFailure, RankEnd, Role, RunProcsResult

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence, Set as AbstractSet

    from supervise._hosts.plan import HostAddress, HostEnd, HostsPlan, LogPaths, News


# The output of the ranks of all hosts on the driver's streams, as whole lines in the order of their arrival


class StreamsShown:
    """Writer of the output to the streams of this process. Unfinished lines wait, so that lines of hosts never mix."""

    def __init__(self, write: Callable[[str, bytes, CancelToken], object] | None = None) -> None:
        """Write to `sys.stdout` and `sys.stderr`.

        With `write`, call it with the name of the stream, whole lines, and the token that ends a write instead.
        """
        self._write = write or _to_stream
        self._rest: dict[tuple[int, str], bytes] = {}

    def write(self, host: int, stream: str, data: bytes, stop: CancelToken) -> None:
        """Write the lines that `data` completes. `stop` ends the write."""
        whole, newline, rest = (self._rest.pop((host, stream), b"") + data).rpartition(b"\n")
        if rest:
            self._rest[host, stream] = rest
        if newline:
            self._write(stream, whole + newline, stop)

    def finish(self, host: int, stop: CancelToken) -> None:
        """Write the unfinished lines of a host. `stop` ends the write."""
        for stream in ("stdout", "stderr"):
            if rest := self._rest.pop((host, stream), b""):
                self._write(stream, rest + b"\n", stop)


def _to_stream(name: str, data: bytes, stop: CancelToken) -> None:
    with contextlib.suppress(Exception):  # closed, no reader, or an odd stream of the application: the logs have it
        if (sink := console(getattr(sys, name))) is not None:
            with contextlib.closing(sink):
                sink.write(data, stop)


class OutputThread:
    """The thread that shows the output. The loop must not, because the reader of a stream may stop reading."""

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        """Prepare. If an exception ends the thread, the thread calls `failed` with it."""
        self._failed = failed
        self._orders: SimpleQueue[tuple[Callable[[CancelToken], object], Callable[[], object]]] = SimpleQueue()
        self._stop: CancelToken | None = None

    def start(self, name: str) -> None:
        """Start the thread for the gang `name`.

        Raises:
            OSError: No thread or no descriptor is available.
        """
        self._stop = stop = CancelToken()
        thread = threading.Thread(target=self._run, args=(stop,), name=f"supervise-output-{name}", daemon=True)
        try:
            platform.start_thread(thread, "the output of the ranks")
        except OSError:
            stop.close()
            raise

    def put(self, show: Callable[[CancelToken], object], then: Callable[[], object]) -> None:
        """Call `show`, which may block, and then `then`, on the thread, after all earlier orders."""
        self._orders.put((show, then))

    def end(self) -> None:
        """End the thread, even during a write. Idempotent."""
        if self._stop is not None:
            self._stop.set()
            self.put(CancelToken.is_set, lambda: None)  # wakes the thread

    def _run(self, stop: CancelToken) -> None:
        try:
            while not stop.is_set():
                show, then = self._orders.get()
                show(stop)
                then()
        except BaseException as error:
            self._failed(error)
        finally:
            stop.close()


# The error for a failed start of a host, as the caller of the whole gang gets it


def start_error(error: BaseException, where: str, first: int) -> BaseException:
    """Return the error of a host, with the global rank and the name of the host added.

    An `OSError` keeps its errno and its file name.

    Args:
        error: The exception of the host's Supervisor.
        where: The name of the host in the message.
        first: Global rank of the host's local rank 0.
    """
    found = error
    if isinstance(error, SpawnError):
        why = str(error).partition(f" {error.what}: ")[2]
        text = f"{why} (local rank {error.local_rank} of {where})"
        rank = first + error.local_rank
        found = SpawnError(text, local_rank=rank, exitcode=error.exitcode, what=error.what, role=error.role)
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
    elif isinstance(error, SpecError):
        found = SpecError(f"{where}: {error}")
    elif isinstance(error, OSError) and error.errno is not None:
        text = re.sub(r"^rank (\d+) ", lambda local: f"rank {first + int(local[1])} ", str(error.strerror))
        found = OSError(error.errno, f"{where}: {text}", error.filename)
    if found is not error:
        found.__cause__ = error
    return found


# The events: the driver's own, and those of the hosts with the name of the host's node


_OF_GANG = "supervise.gang."
_STACKS = "supervise.gang.stacks"


class HostEvents:
    """Emitter of the events. Used on the driver's loop."""

    def __init__(self, plan: HostsPlan, run_id: str) -> None:
        """Take the common fields from the settings."""
        self._plan = plan
        self._log = EventLog({"gang": plan.name, "run_id": run_id, "role": plan.name}, sink=plan.event_sink)
        self._begun_ns = self._attempt_ns = time.monotonic_ns()
        self._stopping: str | None = None

    def listens(self) -> bool:
        """Return whether events have a listener."""
        return self._log.listens("info")

    def begin(self, epoch: int) -> None:
        """Begin an attempt."""
        self._attempt_ns, self._stopping = time.monotonic_ns(), None
        if epoch == 0:
            self._begun_ns = self._attempt_ns
        self._log.renew(attempt=epoch)
        size = {"world_size": self._plan.world_size, "nnodes": self._plan.nnodes}
        self._report("starting", "info", **size, start_method=None, log_dir=None)

    def placed(self, addresses: Sequence[HostAddress]) -> None:
        """Report the nodes on which the hosts are."""
        for number, address in enumerate(addresses):
            fields = {"host": number, "pid": address.pid, "node_id": address.node_id}
            self._emit(Event("supervise.host.started", "info", fields), address)

    def lost(self, number: int, why: str, addresses: Sequence[HostAddress]) -> None:
        """Report that a host is dead or does not answer."""
        fields = {"host": number, "node_id": addresses[number].node_id, "reason": why}
        self._emit(Event("supervise.host.lost", "error", fields), addresses[number])

    def _report(self, what: str, level: str, **fields: Any) -> None:
        """Emit an event of the whole gang. It has the same name and fields as for a gang on one host."""
        self._log.emit(f"{_OF_GANG}{what}", level, **fields)

    def _emit(self, event: Event, address: HostAddress) -> None:
        self._log.emit(event.name, event.level, **event.fields, host_name=address.host_name)

    def forward(self, number: int, event: dict[str, Any], address: HostAddress) -> None:
        """Emit an event of a host, unless it is about the host's part of the gang.

        The driver itself reports on the whole gang.
        """
        if event["event"].startswith(_OF_GANG) and event["event"] != _STACKS:
            return
        fields = {key: value for key, value in event.items() if key not in ("event", "level", "seq")}
        self._log.emit(event["event"], event["level"], **fields, node_id=address.node_id, host=number)

    def started(self) -> None:
        """Report that all ranks of all hosts are ready."""
        self._report("started", "info", duration_s=(time.monotonic_ns() - self._attempt_ns) / 1e9)

    def stopping(self, gang: HostsGang) -> None:
        """Report, only once, why the hosts are stopped."""
        reason = "peer_failed" if gang.stopping == "failure" else gang.stopping
        if reason is not None and self._stopping is None:
            self._stopping = reason
            self._report("stopping", "info", reason=reason)

    def restarting(self, message: GangRestarting) -> None:
        """Report that another attempt follows."""
        event = restarting(message)
        self._log.emit(event.name, event.level, **event.fields)

    def finish(self, message: GangFinished) -> None:
        """Report the end of the gang. Without a listener, show a failure in one line."""
        for event in finished(message, (time.monotonic_ns() - self._begun_ns) / 1e9):
            self._log.emit(event.name, event.level, **event.fields)
        result = message.result
        if result is not None and result.outcome == "failed":
            self._log.show_at_last(failed_line(self._plan.name, f"rank {next(iter(result.failures))}", result))


# The state of each rank of a gang over several hosts, as the hosts have reported it


_PHASES: dict[str, Phase] = {"placing": "starting", "launching": "starting", "backoff": "restarting"}
_RUNNING = ("starting", "ready", "suspended", "stopping")


class RankRows:
    """The rows of `GangStatus.ranks` in one attempt."""

    def __init__(self, plan: HostsPlan, epoch: int = 0) -> None:
        """Begin before the attempt `epoch`."""
        self._plan = plan
        self.ends: dict[int, WorkerExited] = {}
        """Rank to its end, with the local rank of its host, and the time at which the driver learned it."""
        self._told: dict[int, tuple[RankStatus, float]] = {}
        """Rank to its status in the last report of its host, and the monotonic time (s) at which the report arrived."""
        self._epoch = epoch

    def exited(self, rank: int, end: WorkerExited) -> None:
        """Record the end of a rank."""
        self.ends[rank] = replace(end, ended_ns=time.monotonic_ns())

    def has_failed(self, rank: int) -> bool:
        """Return whether a rank has ended, and not with success."""
        end, codes = self.ends.get(rank), self._plan.settings.get("success_exit_codes", frozenset({0}))
        return end is not None and (end.exitcode not in codes or end.complaint is not None)

    def told(self, number: int, status: GangStatus) -> None:
        """Record the report of a host on its ranks: their steps, status texts, and the ages of their heartbeats."""
        now_s = time.monotonic()
        self._told |= {self._plan.rank(number, local): (row, now_s) for local, row in status.ranks.items()}

    def status(self, gang: HostsGang, pids: dict[int, int], waiters: int) -> GangStatus:
        """Return the present state, as far as the hosts have reported it."""
        rows = {rank: self._row(rank, gang) for rank in range(self._plan.world_size)}
        return GangStatus(
            phase=_PHASES.get(gang.phase, gang.phase),  # type: ignore[arg-type]  # the other phases have the same names
            pids=pids,
            running=frozenset(rank for rank, row in rows.items() if row.state in _RUNNING),
            leftovers=frozenset(),
            waiters=waiters,
            attempt=gang.epoch,
            ranks=rows,
        )

    def _row(self, rank: int, gang: HostsGang) -> RankStatus:
        number, local = divmod(rank, self._plan.nproc_per_node)
        host = gang.hosts[number] if gang.hosts else None
        pid = host.pids.get(local) if host is not None else None
        state: RankState
        if gang.phase == "backoff":
            state = "backoff"
        elif rank in self.ends:
            state = "failed" if self.has_failed(rank) else "finished"
        elif host is None or host.state == "waiting":
            state = "waiting"
        elif host.state in ("lost", "gone", "not_started"):
            state = "failed"
        elif host.told_to_stop:
            state = "stopping"
        else:
            state = "ready" if gang.phase == "running" else "starting"
        name, epoch = self._plan.name, self._epoch
        row = RankStatus(pid=pid, state=state, attempt=epoch, restarts=epoch, role=name, role_rank=rank)
        if rank not in self._told:
            return row
        told, at_s = self._told[rank]
        if told.state == "suspended" and state in ("starting", "ready"):
            row = replace(row, state="suspended")
        # the age by the host's clock, plus the time since then by the driver's clock
        age_s = None if told.beat_age_s is None else told.beat_age_s + time.monotonic() - at_s
        return replace(row, status=told.status, step=told.step, beat_age_s=age_s)


# The result of a gang, merged from the results of its hosts and keyed by global rank


_NS_PER_S = 1_000_000_000


_LONGEST_S = 1.0
"""Time after which the driver answers a `Status` without the hosts that have not replied."""
_MOST_UNSHOWN_BYTES = 4 << 20
"""Number of bytes that wait for the output thread beyond which the driver asks the hosts for no more output."""


class HostsSupervisor(GangShell):
    """The actor of one gang over several hosts. It accepts those messages of a `Supervisor` that concern a whole gang.

    These are `Start`, `Wait`, `Poll`, `Pids`, `Status`, `Signal`, `Close`, `Subscribe` and `Unsubscribe`. Every mapping
    is keyed by global rank. A stop of the actor closes the gang.
    """

    _title = "a gang of several hosts"

    def __init__(
        self,
        plan: HostsPlan,
        engine: Engine,
        *,
        travels: Any = None,
        load: Callable[[Any], Any],
        shown: StreamsShown,
        engine_name: str = "the engine",
    ) -> None:
        """Prepare a gang. `Start` places and launches it.

        Args:
            plan: The checked settings.
            engine: The engine that makes the hosts. The actor closes it.
            travels: The object to send to the hosts in place of the entrypoint; None: the entrypoint itself.
            load: Converts the data that a host has sent into a return value.
            shown: Shows the output of the ranks.
            engine_name: Name of the engine in messages.
        """
        super().__init__(plan.name)
        self._plan = plan
        self._engine = engine
        self._travels = travels
        self._load = load
        self._shown = shown
        self._output = OutputThread(partial(self.loop.post, self._guarded, self.on_crash))
        self._unshown_bytes = 0
        """Number of bytes that the output thread has not shown yet."""
        self._drain = NO_TIMER
        """Timer whose callback publishes the end of the gang, once all output is shown."""
        self._drain_s = math.inf
        """The most seconds that a close leaves for the output after the end of the ranks."""
        self._engine_name = engine_name
        given = (env["TORCHELASTIC_RUN_ID"] for env in plan.envs.values() if "TORCHELASTIC_RUN_ID" in env)
        self._run_id = next(given, "") or f"{plan.name}-{os.urandom(4).hex()}"
        notifies = bool(conditions(plan.settings.get("ready", "exec")))
        self._gang = HostsGang(nnodes=plan.nnodes, policy=plan.restart_policy, notifies=notifies)
        self._links: list[HostLink] = []
        self._addresses: list[HostAddress] = []
        self._logs: dict[int, LogPaths] = {}
        self._events = HostEvents(plan, self._run_id)
        self._rows = RankRows(plan)
        self._asked: dict[Reply[GangStatus], set[int]] = {}
        """Pending reply to a `Status` to the hosts that have not reported the state of their ranks yet."""
        self._history = RestartHistory()
        self._last: RunProcsResult | None = None
        """The result of the last attempt that failed and was to be followed by another one."""
        self._crash: SupervisorCrashed | None = None
        self._leaving = False

    def _acquire(self) -> None:
        self._output.start(self._plan.name)
        shutdown.remember(self.actor_ref, float(self._plan.settings.get("grace", GRACE_S)))

    def _release(self) -> None:
        self._output.end()
        shutdown.forget(self.actor_ref)

    # Asks

    def launch(self) -> Reply[dict[int, int]]:
        """Place the hosts and launch every rank; answer with ``{rank: pid}`` when the ranks of all hosts are ready."""
        self._raise_crash()
        if self._gang.phase != "new":
            name, phase = self._plan.name, self._gang.phase
            raise SpecError(f"{name}: the gang was started or closed before (it is {phase}); make another to run it")
        reply = self._replies.begin("start")
        if self._plan.timeout_s is not None:
            self.loop.call_later(self._plan.timeout_s, self._time_up)
        self._step(steps.StartAsked())
        return reply

    def pids(self) -> dict[int, int]:
        """Answer with ``{rank: pid}`` of all started ranks. A pid is valid on the host of its rank."""
        return {
            self._plan.rank(number, local): pid
            for number, host in enumerate(self._gang.hosts)
            for local, pid in host.pids.items()
        }

    def status(self) -> Reply[say.GangStatus]:
        """Answer with the present state once each host has reported it, at the latest after a second."""
        reply: Reply[GangStatus] = Reply()
        running = [n for n, host in enumerate(self._gang.hosts) if host.state in ("launching", "running")]
        self._asked[reply] = set(running)
        self.loop.call_later(_LONGEST_S, partial(self._answer_status, reply))
        for number in running:
            self._links[number].call("status", done=partial(self._status_told, reply, number))
        if not running:
            self._answer_status(reply)
        return reply

    def _status_told(
        self, reply: Reply[GangStatus], number: int, status: GangStatus | None, _error: BaseException | None
    ) -> None:
        if status is not None:
            self._rows.told(number, status)
        silent = self._asked.get(reply, set())
        silent.discard(number)
        if not silent:
            self._answer_status(reply)

    def _answer_status(self, reply: Reply[GangStatus]) -> None:
        if self._asked.pop(reply, None) is not None:
            reply.set(self._status())

    def _status_reply(self) -> Reply[say.GangStatus]:
        return self.status()

    def _status(self) -> say.GangStatus:
        return self._rows.status(self._gang, self.pids(), self._replies.waiting)

    def send_signal(
        self, sig: signal.Signals, ranks: AbstractSet[int] | None = None, *, group: bool = False
    ) -> frozenset[int]:
        """Signal those ranks in `ranks` (None: all) that run; answer with the ranks whose hosts were asked."""
        sig = as_signal("sig", sig)
        wanted = checked_ranks(ranks, self._plan.world_size)
        self._raise_crash()
        reached = wanted & self._status().running
        for number, link in enumerate(self._links):
            own = range(number * self._plan.nproc_per_node, (number + 1) * self._plan.nproc_per_node)
            if local := frozenset(rank - own.start for rank in reached if rank in own):
                link.tell("signal", int(sig), local, group)
        return reached

    def _close(self, death_sig: signal.Signals | None, timeout: float | None) -> None:
        if self._replies.over:
            self._replies.closed(self._crash)
            return
        self._bound_drain(timeout)
        self._step(steps.CloseAsked(death_sig, timeout))

    def _bound_drain(self, timeout_s: float | None) -> None:
        """Leave the output at most this time after the end of the ranks (None: the grace), as on one host."""
        grace_s = float(self._plan.settings.get("grace", GRACE_S))
        self._drain_s = min(self._drain_s, max(grace_s if timeout_s is None else timeout_s, MIN_DRAIN_S))
        self.loop.call_later(self._drain_s, self._drain.fire)

    def _time_up(self) -> None:
        self._bound_drain(None)
        self._step(steps.TimeUp())

    # The core

    def _step(self, event: steps.Event) -> None:
        self._guarded(self._advance, event)

    def _advance(self, event: steps.Event) -> None:
        for action in decide(self._gang, event, time.monotonic_ns()):
            self._act(action)

    def _act(self, action: steps.Action) -> None:
        match action:
            case steps.Place():
                self._place(action.epoch)
            case steps.Launch():
                envs = self._plan.environments(action.host, action.epoch, self._addresses[0], self._run_id)
                self._links[action.host].launch(envs)
            case steps.StopHost():
                self._events.stopping(self._gang)
                self._links[action.host].tell("stop", action.sig, action.timeout_s)
            case steps.AwaitLease():
                self._events.lost(action.host, self._gang.hosts[action.host].lost, self._addresses)
                self._show(partial(self._shown.finish, action.host))
                then = partial(self._step, steps.LeaseOver(action.epoch, action.host))
                self._links[action.host].await_lease(then)
            case steps.AnswerStart():
                self._answer_start()
            case steps.Restart():
                self._restart(action)
            case steps.Release():
                for link in self._links:
                    link.tell("leave")
                    link.end()
                self._engine.release(action.epoch)
            case steps.Finish():
                self._finish(action)

    def _place(self, epoch: int) -> None:
        self._events.begin(epoch)
        self._rows = RankRows(self._plan, epoch)
        self._links, self._addresses, self._logs = [], [], {}
        sends_events = self._events.listens()
        orders = self._plan.orders(epoch, entrypoint=self._travels, sends_events=sends_events)
        self._engine.place(
            orders, lambda hosts, error: self.loop.post(self._guarded, self._placed, epoch, hosts, error)
        )

    def _placed(self, epoch: int, hosts: list[EngineHost] | None, error: BaseException | None) -> None:
        if epoch != self._gang.epoch or self._gang.phase != "placing":
            self._engine.release(epoch)  # because the gang was closed meanwhile
            return
        if hosts is None:
            self._step(steps.NotPlaced(epoch, error or SuperviseError("the engine gave no hosts")))
            return
        self._history.replaced(range(self._plan.world_size))
        self._addresses = [host.address for host in hosts]
        self._links = [
            HostLink(
                self.loop,
                host,
                epoch=epoch,
                number=number,
                lease_s=self._plan.lease_s,
                step=self._step,
                receive=partial(self._guarded, self._receive),
                is_full=lambda: self._unshown_bytes > _MOST_UNSHOWN_BYTES,
            )
            for number, host in enumerate(hosts)
        ]
        self._events.placed(self._addresses)
        for link in self._links:
            link.begin()
        self._step(steps.Placed(epoch))

    def _receive(self, host: int, news: News) -> None:
        epoch = self._gang.epoch  # the links of earlier attempts have ended
        match news.kind:
            case "stdout" | "stderr":
                self._show(partial(self._shown.write, host, news.kind, news.what), len(news.what))
            case "logs":
                self._logs[host] = news.what
            case "event":
                self._events.forward(host, news.what, self._addresses[host])
            case "worker":
                rank = self._plan.rank(host, news.what.local_rank)
                if isinstance(news.what, WorkerExited):
                    self._rows.exited(rank, news.what)
                    if self._rows.has_failed(rank):
                        self._step(steps.RankFailed(epoch, host, news.what))
                of_attempt = {} if isinstance(news.what, say.WorkerStopped) else {"attempt": epoch}
                self._subscribers.tell(replace(news.what, local_rank=rank, **of_attempt))
            case "ended":
                self._show(partial(self._shown.finish, host))
                self._host_ended(host, news.what)

    def _show(self, show: Callable[[CancelToken], object], size_bytes: int = 0) -> None:
        """Let the output thread show something, after all earlier output."""
        self._unshown_bytes += size_bytes
        self._output.put(show, partial(self.loop.post, self._was_shown, size_bytes))

    def _was_shown(self, size_bytes: int) -> None:
        self._unshown_bytes -= size_bytes
        if not self._unshown_bytes:
            for link in self._links:
                link.resume()

    def _host_ended(self, host: int, end: HostEnd) -> None:
        if end.status is not None:
            self._rows.told(host, end.status)
        if end.result is not None:
            self._step(steps.HostEnded(self._gang.epoch, host, end.result))
        elif end.error is not None:
            self._step(steps.HostNotStarted(self._gang.epoch, host, end.error))

    def _answer_start(self) -> None:
        pids = self.pids()
        self._events.started()
        self._subscribers.tell(say.GangStarted(pids=pids))
        self._replies.started(pids)

    def _restart(self, action: steps.Restart) -> None:
        result = self._last = self._result()
        for rank, end in result.ends.items():
            counted = self._gang.backoff.counted and rank == result.root_cause
            self._history.announce(rank, action.epoch - 1, end, counted=counted)
        delay_s = with_jitter(action.delay_s)
        limit = self._plan.restart_policy.max_restarts if self._plan.restart_policy is not None else 0
        restarts = len(self._gang.backoff.counted_ns)
        message = say.GangRestarting(
            attempt=action.epoch, max_restarts=limit, delay_s=delay_s, result=result, restarts=restarts
        )
        self._events.restarting(message)
        self._subscribers.tell(message)
        self._subscribers.begin_anew()
        self.loop.call_later(delay_s, partial(self._step, steps.BackoffOver(action.epoch)))

    def _finish(self, end: steps.Finish) -> None:
        result, error = None, end.error
        if error is not None and end.host is not None:
            where = f"host {end.host} ({self._addresses[end.host].host_name})"
            error = start_error(error, where, self._plan.rank(end.host, 0))
        if error is not None and self._last is not None:
            error = self._error_of_restart(error, self._last)
        if error is None:
            result = self._result()
            result.restarts, result.restarts_total = list(self._history.kept), self._history.total
        message = say.GangFinished(result=result, error=error)
        self._drain = self.loop.call_at(math.inf, partial(self._guarded, self._publish, message))
        self._output.put(CancelToken.is_set, partial(self.loop.post, self._drain.fire))
        self.loop.call_later(self._drain_s, self._drain.fire)

    def _publish(self, message: GangFinished) -> None:
        """Publish the end of the gang, whose output is shown or has had its time."""
        self._output.end()
        error = message.error
        self._replies.result, self._replies.error = message.result, error
        self._events.finish(message)
        why = "exceeded its time limit" if self._gang.stopping == "timeout" else "was closed"
        self._replies.publish(error or SuperviseError(f"{self._plan.name}: the gang {why} before its start had ended"))
        self._subscribers.finish(message)
        self._replies.closed(error if not isinstance(error, SuperviseError) else None)
        if self._replies.stopping:
            self._leave()

    def _error_of_restart(self, error: BaseException, last: RunProcsResult) -> SuperviseError:
        """Return the error of an attempt that could not be placed, with the failure that made it necessary."""
        line = failed_line(self._plan.name, f"rank {next(iter(last.failures))}", last).removeprefix("supervise: ")
        found = SuperviseError(f"attempt {self._gang.epoch} could not begin: {text_of(error)}\nbefore it, {line}")
        found.__cause__ = error
        return found

    # The end

    def _stop_supervised(self) -> None:
        if self._replies.over:
            self._leave()
        else:
            self._close(None, None)

    def _leave(self) -> None:
        for reply in list(self._asked):
            self._answer_status(reply)
        for link in self._links:
            link.end()
        if not self._leaving:
            self._leaving = True
            self._engine.close(lambda: self.loop.post(self._left))

    def _left(self) -> None:
        self.leave()
        self._replies.end_loop()

    def on_crash(self, error: BaseException) -> None:
        """Give up after a fault of this actor: kill the hosts, and answer every ask."""
        if self._crash is not None:
            return
        log.error("%s: the driver has failed", self._plan.name, exc_info=error)
        self._crash = SupervisorCrashed(
            f"{self._plan.name}: the driver raised {repr_of(error)}; its hosts were released"
        )
        self._crash.__cause__ = error
        self._drain.cancel()
        self._replies.error = self._replies.error or self._crash
        self._replies.publish(self._crash)
        self._subscribers.finish(say.GangFinished(result=None, error=self._crash))
        self._replies.closed(self._crash)
        self._leave()

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash

    # The result

    def _result(self) -> RunProcsResult:
        """Return the result of the attempt. All hosts of the attempt have ended.

        The root cause is on the host of which the driver first learned a failure. It is the first failure in that
        host's own order. Clocks of different hosts are not compared.
        """
        merged = RunProcsResult(outcome=self._outcome(), cause_order="receipt")
        if merged.outcome == "failed":
            merged.failures = Causes()
        causes = self._gang.causes
        numbers = range(len(self._gang.hosts))  # there are none before the first attempt
        order = [*causes, *(number for number in numbers if number not in causes)]
        for number in order:
            self._add(merged, number, self._gang.hosts[number])
        merged.ends = dict(sorted(merged.ends.items()))
        if merged.outcome != "failed":
            self._add_values(merged)
        return merged

    def _outcome(self) -> Outcome:
        if self._gang.causes:
            return "failed"
        outcomes: dict[str | None, Outcome] = {"close": "stopped", "timeout": "timed_out"}
        return outcomes.get(self._gang.stopping, "succeeded")

    def _add(self, merged: RunProcsResult, number: int, host: Host) -> None:
        result = host.result
        if result is None:
            if host.lost or number in self._gang.causes:
                self._add_lost(merged, number, host)
            return  # otherwise the host was stopped before its ranks ran
        is_cause = number in self._gang.causes
        first = bool(self._gang.causes) and number == self._gang.causes[0]
        rank_of = partial(self._plan.rank, number)
        merged.stdouts |= {rank_of(local): path for local, path in result.stdouts.items()}
        merged.stderrs |= {rank_of(local): path for local, path in result.stderrs.items()}
        if is_cause or merged.outcome in ("stopped", "timed_out"):
            merged.failures |= {rank_of(local): failure for local, failure in result.failures.items()}
        for local, end in result.ends.items():
            role: Role = "concurrent_failure" if end.role == "root_cause" and not first else end.role
            merged.ends[rank_of(local)] = replace(end, host=self._addresses[number].host_name, role=role)

    def _add_lost(self, merged: RunProcsResult, number: int, host: Host) -> None:
        """Add the ranks of a host that was lost, or that could not start its ranks.

        The cause is the rank that failed before. If there is none, it is the first one that had not ended.
        """
        first, locals_ = host.failed_first, range(self._plan.nproc_per_node)
        ends = {local: self._rows.ends.get(self._plan.rank(number, local)) for local in locals_}
        cause = first.local_rank if first is not None else next((local for local in locals_ if ends[local] is None), 0)
        is_root = bool(self._gang.causes) and number == self._gang.causes[0]
        now_ns = time.monotonic_ns()
        lost_ns = host.lost_ns or now_ns
        at_ns = time.time_ns() - (now_ns - lost_ns)
        for local in sorted(locals_, key=lambda local: local != cause):
            rank, end = self._plan.rank(number, local), ends[local]
            pid = host.pids.get(local) or (end.pid if end is not None else None)
            out, err = (paths.get(local, "") for paths in self._logs.get(number, ({}, {})))
            merged.stdouts[rank], merged.stderrs[rank] = out, err
            role: Role = "lost" if host.lost else "bystander"
            if end is not None:
                role = "bystander" if self._rows.has_failed(rank) else "finished"
            if local == cause and (is_root or first is not None):
                role = "root_cause" if is_root else "concurrent_failure"
            code, why = LOST_CODE, f"host {self._where(number)}: {host.error}"
            if end is not None and self._rows.has_failed(rank):
                code, why = LOST_CODE if end.exitcode is None else end.exitcode, end.complaint or ""
            elif host.lost:
                why = self._loss(number, host, at_ns, [path for path in dict.fromkeys((out, err)) if path])
            if end is None or local == cause:
                merged.failures[rank] = ProcessFailure.of(local, pid or 0, code, "", message=why, timestamp_ns=at_ns)
            merged.ends[rank] = RankEnd(
                local_rank=local,
                pid=pid,
                exitcode=None if end is None else end.exitcode,
                role=role,
                started_ns=host.started_ns,
                ended_ns=lost_ns if end is None else end.ended_ns,
                stdout_log=out,
                stderr_log=err,
                host=self._addresses[number].host_name if self._addresses else "",
            )

    def _loss(self, number: int, host: Host, at_ns: int, logs: list[str]) -> str:
        """Return the message of a rank that was lost with its host.

        It names the host, the time, the reason, the engine's report, and the log files.
        """
        at = datetime.fromtimestamp(at_ns // _NS_PER_S)  # noqa: DTZ006 - local time, as in the logs of engines
        said = self._links[number].said if number < len(self._links) else ""
        rows = [f"host {self._where(number)}{LOST_SINCE}{at:%Y-%m-%d %H:%M:%S}: {host.lost}"]
        if host.lost != said:
            rows.append(said or f"{self._engine_name} has not reported the loss")
        rows.append(f"its logs on that host: {', '.join(logs)}" if logs else "its output is not in log files")
        return "\n".join(rows)

    def _where(self, number: int) -> str:
        if not self._addresses:
            return str(number)
        address = self._addresses[number]
        return f"{number} ({address.host_name}, {address.ip}, node {address.node_id[:8]})"

    def _add_values(self, merged: RunProcsResult) -> None:
        """Load the return values. If the end cut ranks short, a value that cannot be loaded causes no failure."""
        cut_short = merged.outcome != "succeeded"
        for number, host in enumerate(self._gang.hosts):
            values = host.result.return_values if host.result is not None else {}
            for local, value in values.items():
                rank = self._plan.rank(number, local)
                try:
                    merged.return_values[rank] = self._load(value)
                except BaseException as error:  # unpickling runs user code
                    if cut_short:
                        continue
                    end = merged.ends[rank]
                    merged.failures[rank] = ProcessFailure.of(local, end.pid or 0, 0, "", message=not_unpickled(error))
                    first = merged.outcome == "succeeded"
                    merged.outcome = "failed"
                    merged.ends[rank] = replace(end, role="root_cause" if first else "concurrent_failure")
        if merged.outcome == "failed":
            merged.return_values = {}
