"""Ray as an engine: a placement group with one bundle per host, and a host actor in each bundle."""

from __future__ import annotations

import contextlib
import inspect
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from supervise import _platform as platform
from supervise._hosts.host import Host
from supervise._hosts.link import HostDead, HostUnavailable
from supervise.errors import SuperviseError
from supervise.ray import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervise._hosts.link import Done
    from supervise._hosts.plan import HostAddress, HostOrder


# The Ray actor that holds one host of a gang. Its methods are coroutines, so that no call waits for another


class HostActor:
    """Wraps a `Host`. Does not install a signal handler in Ray's worker."""

    def __init__(self, order: HostOrder) -> None:
        """Begin the lease."""
        self._ip = ray.util.get_node_ip_address()
        self._host = Host(order, self._ip)

    async def address(self) -> HostAddress:
        """Return where this host runs."""
        return self._host.address(node_id=ray.get_runtime_context().get_node_id(), ip=self._ip)

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host; return its value, as soon as there is one."""
        value = getattr(self._host, method)(*args)
        return await value if inspect.isawaitable(value) else value


_CREATE_S = 60.0
"""Time that each host actor has to answer once it has its bundle. Ray starts a worker process for it in this time."""


class RayHost:
    """One host actor, as the driver sees it."""

    def __init__(self, actor: Any, address: HostAddress) -> None:
        """Make the link to an actor that has already answered."""
        self.actor = actor
        self.address = address

    def call(self, method: str, *args: Any, done: Done) -> None:
        """Call a method of the actor; see `EngineHost.call`."""
        try:
            _check_connected()
            reference = self.actor.call.remote(method, *args)
            reference.future().add_done_callback(partial(_pass_on, done))
        except Exception as error:  # the connection to the cluster is closed
            done(None, _translated(error))


def _check_connected() -> None:
    """Refuse to call Ray after its shutdown: Ray would connect again.

    Raises:
        HostDead: This process is not connected.
    """
    if not ray.is_initialized():
        raise HostDead("this process has disconnected from Ray")


def _pass_on(done: Done, future: Any) -> None:
    try:
        value = future.result()
    except BaseException as error:
        done(None, _translated(error))
    else:
        done(value, None)


def _translated(error: BaseException) -> BaseException:
    """Return an error of Ray as an error of an engine. If the host has raised an exception, return that exception."""
    if isinstance(error, HostDead):
        return error
    if isinstance(error, ActorUnavailableError):
        return HostUnavailable(f"Ray: {_first_line(error)}")
    if isinstance(error, RayTaskError):
        cause: Any = getattr(error, "cause", None)
        return cause if isinstance(cause, Exception) else error
    text = _first_line(error) if isinstance(error, RayActorError) else f"{type(error).__name__}: {_first_line(error)}"
    return HostDead(f"Ray: {text}")


def _first_line(error: BaseException) -> str:
    """Return the line with the cause of death from Ray's message about a dead actor."""
    rows = [row.strip() for row in str(error).splitlines() if row.strip()]
    causes = [row for row in rows if "cause" in row.lower() or "died because" in row.lower()]
    text = (causes or rows or [type(error).__name__])[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


_LONGEST = 300


class RayEngine:
    """Engine that places the hosts of a gang on the nodes of the cluster to which this process is connected."""

    def __init__(self, bundle: Mapping[str, float], strategy: str, timeout_s: float) -> None:
        """Prepare.

        Args:
            bundle: The resources of each host, by Ray's names.
            strategy: Ray's placement strategy.
            timeout_s: Seconds within which the cluster must have room for the hosts.
        """
        self._bundle = dict(bundle)
        self._strategy = strategy
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._groups: dict[int, PlacementGroup] = {}
        self._actors: dict[int, list[Any]] = {}
        self._closed = False
        self._threads: list[threading.Thread] = []
        """The threads that place hosts and release attempts."""

    def place(self, orders: Sequence[HostOrder], done: Done) -> None:
        """Place the hosts on a thread of its own, because Ray's calls block."""
        thread = threading.Thread(target=self._place, args=(orders, done), name="supervise-ray-place", daemon=True)
        self._threads.append(thread)
        try:
            platform.start_thread(thread, "the placement of hosts")
        except OSError as error:
            self._threads.remove(thread)
            done(None, error)

    def _place(self, orders: Sequence[HostOrder], done: Done) -> None:
        epoch = orders[0].epoch
        try:
            _check_connected()
            hosts = self._hosts(orders, epoch)
        except BaseException as error:
            self.release(epoch)
            done(None, error if isinstance(error, SuperviseError) else _translated_start(error))
        else:
            if self._closed:
                self.release(epoch)
            done(hosts, None)

    def _hosts(self, orders: Sequence[HostOrder], epoch: int) -> list[RayHost]:
        group = placement_group([self._bundle] * len(orders), strategy=self._strategy)
        with self._lock:
            self._groups[epoch], closed = group, self._closed
        if closed:
            raise SuperviseError("the gang was closed while its hosts were placed")
        if not group.wait(self._timeout_s):
            raise SuperviseError(
                resources.missing(len(orders), self._bundle, self._strategy, self._timeout_s, ray.nodes())
            )
        maker: Any = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=64)(HostActor)
        actors = []
        for number, order in enumerate(orders):
            place = PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=number, placement_group_capture_child_tasks=False
            )
            actors.append(maker.options(**resources.options(self._bundle), scheduling_strategy=place).remote(order))
        with self._lock:
            self._actors[epoch] = actors
        addresses = ray.get([actor.address.remote() for actor in actors], timeout=_CREATE_S)
        return [RayHost(actor, address) for actor, address in zip(actors, addresses, strict=True)]

    def release(self, epoch: int) -> None:
        """Kill the actors of an attempt and remove its placement group."""
        with self._lock:
            actors, group = self._actors.pop(epoch, []), self._groups.pop(epoch, None)
        if not actors and group is None:
            return
        thread = threading.Thread(target=_release, args=(actors, group), name="supervise-ray-release", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, done: Callable[[], object]) -> None:
        """Release every attempt, then call `done`.

        Wait for all calls of Ray, because a call after the shutdown of Ray would connect again. A pending placement
        ends at once, because its group is removed.
        """
        with self._lock:
            self._closed, epochs = True, list(self._groups)
        for epoch in epochs:
            self.release(epoch)
        threading.Thread(target=self._finish, args=(done,), name="supervise-ray-close", daemon=True).start()

    def _finish(self, done: Callable[[], object]) -> None:
        for thread in self._threads:  # a placement that fails adds a thread for its release
            thread.join()
        done()


def _translated_start(error: BaseException) -> BaseException:
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return SuperviseError(f"a host actor did not answer within {_CREATE_S:g} s after its placement")
    if isinstance(error, RayTaskError) and isinstance(getattr(error, "cause", None), Exception):
        return error.cause  # type: ignore[no-any-return]  # checked
    found = SuperviseError(f"Ray could not place the hosts: {type(error).__name__}: {_first_line(error)}")
    found.__cause__ = error
    return found


def _release(actors: Sequence[Any], group: PlacementGroup | None) -> None:
    if not ray.is_initialized():
        return
    with contextlib.suppress(Exception):  # the cluster may have ended
        gone = [actor.call.remote("leave") for actor in actors]
        ray.wait(gone, num_returns=len(gone), timeout=_LEAVE_S)
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)
    if group is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(group)


_LEAVE_S = 2.0
