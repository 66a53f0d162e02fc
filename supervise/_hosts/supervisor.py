"""The driver: the actor that owns a gang over several hosts."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._gang import shutdown_at_exit
from supervise._gang.ask_checks import as_signal, check_ref, checked_ranks, stray
from supervise._gang.replies import PendingReplies
from supervise._gang.subscribers import Subscribers
from supervise._hosts import steps
from supervise._hosts.decide import decide
from supervise._hosts.describe import HostEvents
from supervise._hosts.inquiry import Inquiry
from supervise._hosts.link import HostLink
from supervise._hosts.merge import Merger
from supervise._hosts.model import HostsGang
from supervise._hosts.plan import random_run_id
from supervise._hosts.rows import RankRows
from supervise._hosts.start_errors import start_error
from supervise._runtime.actor import LoopActor
from supervise._runtime.loop import Loop
from supervise._seconds import check_seconds
from supervise.errors import SpecError, SuperviseError, SupervisorCrashed
from supervise.recording import repr_of
from supervise.result import RankRestart

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from supervise._hosts.engine import Engine, EngineHost
    from supervise._hosts.orders import HostAddress, News
    from supervise._hosts.plan import HostsPlan
    from supervise._hosts.show import Shown
    from supervise._runtime.future import Reply
    from supervise.result import RunProcsResult

log = logging.getLogger("supervise")

_MOST_RESTARTS = 1000
_JITTER = 0.25


class HostsSupervisor(LoopActor):
    """The actor of one gang over several hosts. It accepts those messages of a `Supervisor` that concern a whole gang.

    These are `Start`, `Wait`, `Poll`, `Pids`, `Status`, `Signal`, `Close`, `Subscribe` and `Unsubscribe`. Every mapping
    is keyed by global rank. A stop of the actor closes the gang.
    """

    def __init__(
        self, plan: HostsPlan, engine: Engine, *, travels: Any = None, load: Callable[[Any], Any], shown: Shown
    ) -> None:
        """Prepare a gang. `Start` places and launches it.

        Args:
            plan: The checked settings.
            engine: The engine that makes the hosts. The actor closes it.
            travels: The object to send to the hosts in place of the entrypoint; None: the entrypoint itself.
            load: Converts the data that a host has sent into a return value.
            shown: Shows the output of the ranks.
        """
        super().__init__(Loop(f"supervise-{plan.name}", lost=self._lost_loop))
        self._plan = plan
        self._engine = engine
        self._travels = travels
        self._load = load
        self._shown = shown
        given = (env["TORCHELASTIC_RUN_ID"] for env in plan.envs.values() if "TORCHELASTIC_RUN_ID" in env)
        self._run_id = next(given, "") or random_run_id(plan.name)
        notifies = plan.settings.get("ready") == "notify"
        self._gang = HostsGang(nnodes=plan.nnodes, policy=plan.restart_policy, notifies=notifies)
        self._links: list[HostLink] = []
        self._addresses: list[HostAddress] = []
        self._replies = PendingReplies(self.loop)
        self._subscribers = Subscribers()
        self._events = HostEvents(plan, self._run_id)
        self._rows = RankRows(plan)
        self._inquiry = Inquiry(self.loop, self._status, self._rows.told)
        self._restarts: list[RankRestart] = []
        self._restarts_total = 0
        self._crash: SupervisorCrashed | None = None
        self._leaving = False

    def _start_actor_loop(self) -> None:
        try:
            self.loop.start()
        except BaseException:  # no thread is available, so no ask would be answered
            pykka.ActorRegistry.unregister(self.actor_ref)
            raise
        shutdown_at_exit.remember(self.actor_ref, self._plan.grace_s)
        super()._start_actor_loop()

    # Asks

    def on_receive(self, message: Any) -> Any:  # noqa: PLR0911 - one line a message
        """Answer asks."""
        match message:
            case say.Start():
                return self.launch()
            case say.Wait():
                return self.wait(message.timeout)
            case say.Poll():
                return self.poll()
            case say.Pids():
                return self.pids()
            case say.Status():
                return self.status()
            case say.Close():
                return self.close(message.death_sig, message.timeout)
            case say.Signal():
                return self.send_signal(message.sig, message.ranks)
            case say.Subscribe():
                check_ref(message.ref)
                return self._subscribers.admit(message.ref)
            case say.Unsubscribe():
                check_ref(message.ref)
                return self._subscribers.dismiss(message.ref)
            case _:
                raise stray(message)

    def launch(self) -> Reply[dict[int, int]]:
        """Place the hosts and launch every rank; answer with ``{rank: pid}`` when the ranks of all hosts are ready."""
        self._raise_crash()
        if self._gang.phase != "new":
            name, phase = self._plan.name, self._gang.phase
            raise SpecError(f"{name}: the gang was started already (it is {phase}); make another to run it again")
        reply = self._replies.begin_start()
        if self._plan.timeout_s is not None:
            self.loop.call_later(self._plan.timeout_s, partial(self._step, steps.TimeUp()))
        self._step(steps.StartAsked())
        return reply

    def wait(self, timeout: float | None = None) -> Reply[RunProcsResult | None]:
        """Answer with the result once there is one, or with None after `timeout` seconds."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        return self._replies.wait(timeout)

    def poll(self) -> RunProcsResult | None:
        """Answer at once: with the result, or with None."""
        if self._replies.error is not None:
            raise self._replies.error
        return self._replies.result

    def pids(self) -> dict[int, int]:
        """Answer with ``{rank: pid}`` of all started ranks. A pid is valid on the host of its rank."""
        return {
            self._plan.rank(number, local): pid
            for number, host in enumerate(self._gang.hosts)
            for local, pid in host.pids.items()
        }

    def status(self) -> Reply[say.GangStatus]:
        """Answer with the present state once each host has reported it, at the latest after a second."""
        running = (n for n, host in enumerate(self._gang.hosts) if host.state in ("launching", "running"))
        return self._inquiry.begin({number: self._links[number] for number in running})

    def _status(self) -> say.GangStatus:
        return self._rows.status(self._gang, self.pids(), self._replies.waiting)

    def send_signal(self, sig: signal.Signals, ranks: frozenset[int] | None = None) -> frozenset[int]:
        """Signal those ranks in `ranks` (None: all) that run; answer with the ranks whose hosts were asked."""
        sig = as_signal("sig", sig)
        wanted = checked_ranks(ranks, self._plan.world_size)
        self._raise_crash()
        reached = wanted & self._status().running
        for number, link in enumerate(self._links):
            own = range(number * self._plan.nproc_per_node, (number + 1) * self._plan.nproc_per_node)
            if local := frozenset(rank - own.start for rank in reached if rank in own):
                link.tell("signal", int(sig), local)
        return reached

    def close(
        self, death_sig: signal.Signals | None = None, timeout: float | None = None
    ) -> Reply[RunProcsResult | None]:
        """Stop the gang; answer with the result when no rank runs on any host."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        sig = None if death_sig is None else as_signal("death_sig", death_sig)
        reply = self._replies.close()
        if self._gang.phase == "finished" or self._crash is not None:
            self._replies.closed(self._crash)
        else:
            self._step(steps.CloseAsked(sig, timeout))
        return reply

    # The core

    def _step(self, event: steps.Event) -> None:
        try:
            for action in decide(self._gang, event, time.monotonic_ns()):
                self._act(action)
        except BaseException as error:
            self.on_crash(error)

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
                self._shown.finish(action.host)
                then = partial(self._step, steps.LeaseOver(action.epoch, action.host))
                self._links[action.host].await_lease(then)
            case steps.AnswerStart():
                self._answer_start()
            case steps.Restart():
                self._restart(action)
            case steps.Release():
                self._release(action.epoch)
            case steps.Finish():
                self._finish(action.error)

    def _place(self, epoch: int) -> None:
        self._events.begin(epoch)
        self._rows.begin(epoch)
        self._links, self._addresses = [], []
        sends_events = self._events.listens()
        orders = self._plan.orders(epoch, entrypoint=self._travels, sends_events=sends_events)
        self._engine.place(orders, lambda hosts, error: self.loop.post(self._placed, epoch, hosts, error))

    def _placed(self, epoch: int, hosts: list[EngineHost] | None, error: BaseException | None) -> None:
        if epoch != self._gang.epoch or self._gang.phase != "placing":
            self._engine.release(epoch)  # because the gang was closed meanwhile
            return
        if hosts is None:
            self._step(steps.NotPlaced(epoch, error or SuperviseError("the engine gave no hosts")))
            return
        self._addresses = [host.address for host in hosts]
        self._links = [
            HostLink(
                self.loop,
                host,
                epoch=epoch,
                number=number,
                lease_s=self._plan.lease_s,
                step=self._host_step,
                receive=self._receive,
            )
            for number, host in enumerate(hosts)
        ]
        self._events.placed(self._addresses)
        for link in self._links:
            link.begin()
        self._step(steps.Placed(epoch))

    def _receive(self, epoch: int, host: int, news: News) -> None:
        if epoch != self._gang.epoch:
            return
        match news.kind:
            case "stdout" | "stderr":
                self._shown.write(host, news.kind, news.what)
            case "event":
                self._events.forward(host, news.what, self._addresses[host])
            case "exited":
                rank = self._plan.rank(host, news.what.local_rank)
                self._rows.exited(rank, news.what)
                self._subscribers.tell(replace(news.what, local_rank=rank, attempt=epoch))
            case "failed":
                self._step(steps.RankFailed(epoch, host, news.what))
            case "ended":
                self._shown.finish(host)
                self._host_ended(epoch, host, news)

    def _host_ended(self, epoch: int, host: int, news: News) -> None:
        end = news.what
        if end.status is not None:
            self._rows.told(host, end.status)
        if end.result is not None:
            self._step(steps.HostEnded(epoch, host, end.result))
        else:
            self._host_step(steps.HostNotStarted(epoch, host, end.error))

    def _host_step(self, event: steps.Event) -> None:
        """Decide on an event of a host.

        If the event is a failed start, add the global rank and the name of the host to the error.
        """
        if isinstance(event, steps.HostNotStarted):
            where = f"host {event.host} ({self._addresses[event.host].host_name})"
            event = replace(event, error=start_error(event.error, where, self._plan.rank(event.host, 0)))
        self._step(event)

    def _answer_start(self) -> None:
        pids = self.pids()
        self._rows.ready()
        self._events.started()
        self._subscribers.tell(say.GangStarted(pids=pids))
        self._replies.started(pids)

    def _restart(self, action: steps.Restart) -> None:
        result = self._result()
        self._remember(result, action.epoch - 1)
        delay_s = action.delay_s * (1 + random.uniform(-_JITTER, _JITTER))  # noqa: S311 - no secret
        limit = self._plan.restart_policy.max_restarts if self._plan.restart_policy is not None else 0
        message = say.GangRestarting(attempt=action.epoch, max_restarts=limit, delay_s=delay_s, result=result)
        self._events.restarting(message)
        self._subscribers.tell(message)
        self._subscribers.begin_anew()
        self.loop.call_later(delay_s, partial(self._step, steps.BackoffOver(action.epoch)))

    def _remember(self, result: RunProcsResult, attempt: int) -> None:
        now_ns, root = time.monotonic_ns(), result.root_cause
        self._restarts += [
            RankRestart(rank, attempt, end, now_ns, counted=rank == root) for rank, end in result.ends.items()
        ]
        del self._restarts[:-_MOST_RESTARTS]
        self._restarts_total += len(result.ends)

    def _result(self) -> RunProcsResult:
        return Merger(self._plan, self._gang, self._addresses, self._load).result()

    def _release(self, epoch: int) -> None:
        for link in self._links:
            link.tell("leave")
            link.end()
        self._engine.release(epoch)

    def _finish(self, error: BaseException | None) -> None:
        result: RunProcsResult | None = None
        if error is None:
            result = self._replies.result = self._result()
            result.restarts, result.restarts_total = list(self._restarts), self._restarts_total
        else:
            self._replies.error = error
        message = say.GangFinished(result=result, error=error)
        self._events.finish(message)
        why = "exceeded its time limit" if self._gang.stopping == "timeout" else "was closed"
        self._replies.publish(error or SuperviseError(f"{self._plan.name}: the gang {why} before its start had ended"))
        self._subscribers.finish(message)
        self._replies.closed(error if not isinstance(error, SuperviseError) else None)
        if self._replies.stopping:
            self._leave()

    # The end

    def on_stop_request(self) -> Reply[None]:
        """Close the gang, then leave the registry."""
        reply = self._replies.stop()
        if self._gang.phase == "finished" or self._crash is not None:
            self._leave()
        else:
            self._step(steps.CloseAsked())
        return reply

    def _leave(self) -> None:
        self._inquiry.settle()
        for link in self._links:
            link.end()
        if not self._leaving:
            self._leaving = True
            self._engine.close(lambda: self.loop.post(self._left))

    def _left(self) -> None:
        shutdown_at_exit.forget(self.actor_ref)
        self.leave()
        self.loop.ended.add_done_callback(self._replies.stopped)
        self.loop.end()

    def is_fatal(self, error: BaseException, *, asked: bool) -> bool:
        """Return whether an exception of a handler ends this actor; False if the arguments of an ask have caused it."""
        return not asked or not isinstance(error, (SuperviseError, OSError, TypeError, ValueError, AttributeError))

    def on_crash(self, error: BaseException) -> None:
        """Give up after a fault of this actor: kill the hosts, and answer every ask."""
        if self._crash is not None:
            return
        log.error("%s: the driver has failed", self._plan.name, exc_info=error)
        self._crash = SupervisorCrashed(
            f"{self._plan.name}: the driver raised {repr_of(error)}; its hosts were released"
        )
        self._crash.__cause__ = error
        self._replies.error = self._replies.error or self._crash
        self._replies.publish(self._crash)
        self._subscribers.finish(say.GangFinished(result=None, error=self._crash))
        self._replies.closed(self._crash)
        self._leave()

    def _lost_loop(self, error: BaseException) -> None:
        self.on_crash(error)

    def _raise_crash(self) -> None:
        if self._crash is not None:
            raise self._crash
