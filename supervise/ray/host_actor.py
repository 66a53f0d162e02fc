"""The Ray actor that holds one host of a gang. Its methods are coroutines, so that no call waits for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

from supervise._hosts.host import Host

if TYPE_CHECKING:
    from supervise._hosts.orders import HostAddress, HostOrder, News
    from supervise.messages import GangStatus


class HostActor:
    """Wraps a `Host`. Does not install a signal handler in Ray's worker."""

    def __init__(self, order: HostOrder) -> None:
        """Begin the lease."""
        self._ip = ray.util.get_node_ip_address()
        self._host = Host(order, self._ip)

    async def address(self) -> HostAddress:
        """Return where this host runs."""
        return self._host.address(node_id=ray.get_runtime_context().get_node_id(), ip=self._ip)

    async def launch(self, envs: dict[int, dict[str, str]]) -> dict[int, int]:
        """Start the ranks."""
        return await self._host.launch(envs)

    async def renew(self, token: int) -> int:
        """Extend the lease."""
        return self._host.renew(token)

    async def news_after(self, number: int) -> list[News]:
        """Return the news after `number`, as soon as there is any."""
        return await self._host.news_after(number)

    async def status(self) -> GangStatus | None:
        """Return the state of the ranks; None before the launch."""
        return await self._host.status()

    async def stop(self, sig: int | None, timeout_s: float | None) -> None:
        """Stop the ranks."""
        self._host.stop(sig, timeout_s)

    async def signal(self, sig: int, ranks: frozenset[int] | None) -> None:
        """Send a signal to ranks."""
        self._host.signal(sig, ranks)

    async def leave(self) -> None:
        """End the lease of a host without ranks."""
        self._host.leave()


def actor_class() -> Any:
    """Return `HostActor` as an actor class of Ray."""
    return ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=64)(HostActor)
