"""The events of a gang over several hosts.

The driver emits its own events, and those of the hosts with the name of the host's node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervise._gang.describe import causes, failed_line
from supervise.events import Event, EventLog
from supervise.recording import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervise._hosts.decide import HostsGang
    from supervise._hosts.plan import HostAddress, HostsPlan
    from supervise.messages import GangFinished, GangRestarting

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
        plan = self._plan
        fields = {"world_size": plan.world_size, "nnodes": plan.nnodes, "start_method": None, "log_dir": None}
        self._report("starting", "info", **fields)

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
        limit = {"restarts": message.restarts, "max_restarts": message.max_restarts}
        fields = {"attempt": message.attempt, **limit, "backoff_s": message.delay_s}
        self._report("restarting", "warning", **fields, left_out=sorted(message.left_out), **causes(message.result))

    def finish(self, message: GangFinished) -> None:
        """Report the end of the gang. Without a listener, show a failure in one line."""
        duration_s, result = (time.monotonic_ns() - self._begun_ns) / 1e9, message.result
        if result is None:
            why = {"exception_type": type(message.error).__name__, "exception_message": text_of(message.error)}
            self._report("finished", "error", outcome="failed", duration_s=duration_s, **why)
            return
        if result.outcome == "failed":
            self._report("failed", "error", **causes(result))
        self._report("finished", "info", outcome=result.outcome, duration_s=duration_s)
        if result.outcome == "failed":
            self._log.show_at_last(failed_line(self._plan.name, f"rank {next(iter(result.failures))}", result))
