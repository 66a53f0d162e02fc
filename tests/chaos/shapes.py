"""What a gang under chaos is to be: its ranks, strategy, roles, readiness and watchdog, and the settings for these."""

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from supervise import RestartPolicy, Role, Watchdog
from tests.chaos import places, scripts
from tests.chaos.scripts import Script

KINDS = ("binary",) * 6 + ("fork",) * 3 + ("spawn", "forkserver", "missing")
READY_TIMEOUT_S = 0.7
OUTPUT_TIMEOUT_S = 0.4


@dataclass(frozen=True)
class Spec:
    """What a gang is to be."""

    kind: str
    """``binary``, ``missing`` (a program that does not exist), or the start method of a function."""
    ranks: tuple[Script, ...]
    logs: str
    console: str
    grace: float
    timeout: float | None
    restarts: int = 0
    containment: str = "group"
    gate: bool = False
    strategy: str = "one_for_all"
    restart: str = "transient"
    """The restart kind of all ranks, where there is a policy."""
    roles: int = 0
    """Number of ranks of the first role; 0: there are no roles."""
    service: bool = False
    """Whether the first role is a service."""
    ready: Literal["exec", "notify"] = "exec"
    watchdog: Literal["", "report", "fail"] = ""

    @property
    def function(self) -> bool:
        return self.kind not in ("binary", "missing")

    def title(self, rank: int) -> str:
        """Return the role of a rank and its role rank; "" without roles."""
        if not self.roles:
            return ""
        return f"first{rank}" if rank < self.roles else f"second{rank - self.roles}"

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the Supervisor that this is about."""
        more: dict[str, Any] = {"containment": self.containment, "gate": self.gate, "strategy": self.strategy}
        if self.restarts:
            policy = RestartPolicy(max_restarts=self.restarts, backoff=0.01, restart=self.restart)  # type: ignore[arg-type]
            more["restart_policy"] = policy
        if self.watchdog:
            more["watchdog"] = Watchdog(output_timeout_s=OUTPUT_TIMEOUT_S, action=self.watchdog, stacks=False)
        if not self.roles:
            return more | self._calls(range(len(self.ranks)))
        first, second = range(self.roles), range(self.roles, len(self.ranks))
        more["roles"] = [
            Role(name="first", service=self.service, **self._calls(first)),
            Role(name="second", **self._calls(second)),
        ]
        return more

    def _calls(self, ranks: range) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.ready == "notify":
            found = {"ready": "notify", "ready_timeout_s": READY_TIMEOUT_S}
        notifies = self.ready == "notify"
        if self.function:
            calls = [(self.ranks[rank].name, self.ranks[rank].n, notifies) for rank in ranks]
            found |= {"entrypoint": scripts.run, "start_method": self.kind}
        else:
            calls = [("-c", self.ranks[rank].shell(notifies=notifies)) for rank in ranks]  # type: ignore[misc]
            found["entrypoint"] = "/bin/sh" if self.kind == "binary" else "/proc/nonexistent/program"
        return found | {"args": dict(enumerate(calls))}


@st.composite
def _script(draw: st.DrawFn, names: list[str]) -> Script:
    name = draw(st.sampled_from(names))
    return Script(name, draw(st.sampled_from(scripts.NUMBERS.get(name, (0,)))))


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Draw what a gang is to be. Every other one is all-or-nothing, without roles, readiness and watchdog."""
    kind = draw(st.sampled_from(KINDS))
    containment = draw(st.sampled_from(("group", "group", "sweep")))
    ready = draw(st.sampled_from(("exec", "exec", "exec", "notify")))
    left_out = {"runaway"} if containment == "group" else set()
    left_out |= scripts.UNREADY if ready == "exec" else set()
    new = draw(st.booleans())
    calm = new and draw(st.booleans())  # otherwise a rank fails at once, and requests come too late
    names = [name for name in sorted(scripts.CALM if calm else scripts.SHELL) if name not in left_out]
    most = 2 if kind in ("spawn", "forkserver") else 6
    ranks = tuple(draw(st.lists(_script(names), min_size=1, max_size=most)))
    logs = draw(st.sampled_from(places.LOGS))
    roles = draw(st.integers(0, len(ranks) - 1)) if new else 0
    return Spec(
        kind=kind,
        ranks=ranks,
        logs=logs,
        console=draw(st.sampled_from(places.CONSOLES)),
        grace=draw(st.sampled_from((0.2, 0.4, 0.0))),
        timeout=draw(st.sampled_from((None, None, None, None, 0.3))),
        restarts=draw(st.sampled_from((0, 1, 2, 3) if new else (0, 0, 0, 1, 2))),
        containment=containment,
        gate=draw(st.booleans()),
        strategy=draw(st.sampled_from(("one_for_one", "rest_for_one", "one_for_all"))) if new else "one_for_all",
        restart=draw(st.sampled_from(("transient", "transient", "permanent", "temporary"))) if new else "transient",
        roles=roles,
        service=roles > 0 and draw(st.booleans()),
        ready=ready,
        watchdog=draw(st.sampled_from(("", "fail", "report"))) if new and logs in ("files", "tee") else "",
    )
