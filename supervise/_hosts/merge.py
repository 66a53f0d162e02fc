"""The result of a gang, merged from the results of its hosts and keyed by global rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from supervise.recording import text_of
from supervise.result import ProcessFailure, RankEnd, RunProcsResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervise._hosts.model import Host, HostsGang
    from supervise._hosts.orders import HostAddress
    from supervise._hosts.plan import HostsPlan
    from supervise.result import Outcome, Role

LOST_CODE = 255
"""`ProcessFailure.exitcode` of a rank whose exit status is unknown, as for a gang on one host."""


@dataclass(slots=True)
class Merger:
    """Builder of the result of one attempt."""

    plan: HostsPlan
    gang: HostsGang
    addresses: Sequence[HostAddress]
    load: Callable[[Any], Any]
    """Converts the data that a host has sent into a return value."""

    def result(self) -> RunProcsResult:
        """Return the result of the attempt. All hosts of the attempt have ended.

        The root cause is on the host of which the driver first learned a failure. It is the first failure in that
        host's own order. Clocks of different hosts are not compared.
        """
        merged = RunProcsResult(outcome=self._outcome(), cause_order="receipt")
        causes = self.gang.causes
        numbers = range(len(self.gang.hosts))  # there are none before the first attempt
        order = [*causes, *(number for number in numbers if number not in causes)]
        for number in order:
            self._add(merged, number, self.gang.hosts[number])
        merged.ends = dict(sorted(merged.ends.items()))
        if merged.outcome == "succeeded":
            self._add_values(merged)
        return merged

    def _outcome(self) -> Outcome:
        if self.gang.causes:
            return "failed"
        outcomes: dict[str | None, Outcome] = {"close": "stopped", "timeout": "timed_out"}
        return outcomes.get(self.gang.stopping, "succeeded")

    def _add(self, merged: RunProcsResult, number: int, host: Host) -> None:
        result = host.result
        if result is None:
            if host.lost or number in self.gang.causes:
                self._add_lost(merged, number, host)
            return  # otherwise the host was stopped before its ranks ran
        is_cause = number in self.gang.causes
        first = bool(self.gang.causes) and number == self.gang.causes[0]
        for local, path in result.stdouts.items():
            merged.stdouts[self.plan.rank(number, local)] = path
        for local, path in result.stderrs.items():
            merged.stderrs[self.plan.rank(number, local)] = path
        for local, failure in result.failures.items():
            if is_cause or merged.outcome in ("stopped", "timed_out"):
                merged.failures[self.plan.rank(number, local)] = failure
        for local, end in result.ends.items():
            merged.ends[self.plan.rank(number, local)] = replace(
                end, host=self.addresses[number].host_name, role=_role(end.role, is_cause=is_cause, first=first)
            )

    def _add_lost(self, merged: RunProcsResult, number: int, host: Host) -> None:
        """Add the ranks of a host that was lost, or that could not start its ranks."""
        why = f"host {self._where(number)}: {host.lost or host.error}"
        root = bool(self.gang.causes) and number == self.gang.causes[0]
        for local in range(self.plan.nproc_per_node):
            rank, pid, now_ns = self.plan.rank(number, local), host.pids.get(local), time.monotonic_ns()
            merged.failures[rank] = ProcessFailure.of(local, pid or 0, LOST_CODE, "", message=why)
            role: Role = "root_cause" if root and local == 0 else "lost"
            merged.ends[rank] = RankEnd(
                local_rank=local,
                pid=pid,
                exitcode=None,
                role=role,
                started_ns=now_ns,
                ended_ns=now_ns,
                host=self.addresses[number].host_name if self.addresses else "",
            )

    def _where(self, number: int) -> str:
        if not self.addresses:
            return str(number)
        address = self.addresses[number]
        return f"{number} ({address.host_name}, {address.ip}, node {address.node_id[:8]})"

    def _add_values(self, merged: RunProcsResult) -> None:
        for number, host in enumerate(self.gang.hosts):
            values = host.result.return_values if host.result is not None else {}
            for local, value in values.items():
                rank = self.plan.rank(number, local)
                try:
                    merged.return_values[rank] = self.load(value)
                except Exception as error:
                    text = f"the return value cannot be loaded on the driver: {type(error).__name__}: {text_of(error)}"
                    end = merged.ends[rank]
                    merged.failures[rank] = ProcessFailure.of(local, end.pid or 0, 0, "", message=text)
                    first = merged.outcome == "succeeded"
                    merged.outcome = "failed"
                    merged.ends[rank] = replace(end, role="root_cause" if first else "concurrent_failure")
        if merged.outcome == "failed":
            merged.return_values = {}


def _role(role: Role, *, is_cause: bool, first: bool) -> Role:
    """Return the role of a rank in the whole gang. `role` is its role on its host."""
    if role == "root_cause" and not first:
        return "concurrent_failure" if is_cause else "bystander"
    if role == "concurrent_failure" and not is_cause:
        return "bystander"
    return role
