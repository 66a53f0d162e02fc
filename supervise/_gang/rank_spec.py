"""The settings for the ranks of each role. A gang without roles has one role, whose name is empty."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from supervise._gang.notify_protocol import HELD_BY_RANK
from supervise._process.launch import limits
from supervise._record import NamedTuple
from supervise._settings import GANG, WORDS, Containment, KillMode, RestartKind, StartMethod, StdinOfRole
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from signal import Signals


class RankSpec(NamedTuple):
    """The settings that the ranks of one role share.

    A gang without roles has one such record, whose name is empty.
    """

    entrypoint: Callable[..., Any] | str
    ranks: range
    """The local ranks of the role."""
    start_method: StartMethod | None = "spawn"
    """The start method; None for programs."""
    cwd: str | None = None
    listen: Sequence[str] = ()
    name: str = ""
    ready: tuple[str, ...] = ()
    """The conditions of readiness, in addition to a running process."""
    ready_timeout_s: float = GANG["ready_timeout_s"].default
    alive: str | None = None
    """The probe that a rank must answer from its readiness on."""
    alive_interval_s: float = GANG["alive_interval_s"].default
    alive_timeout_s: float = GANG["alive_timeout_s"].default
    alive_failures: int = GANG["alive_failures"].default
    restart: RestartKind | None = None
    """The restart kind; None for that of the policy."""
    service: bool = False
    stdin: StdinOfRole = "null"
    containment: Containment = "group"
    kill_mode: KillMode = "group"
    needs: tuple[str, ...] | None = None
    """The names of roles that must be ready first."""
    grace: float = GANG["grace"].default
    stop_signal: Signals = GANG["stop_signal"].default
    reload_signal: Signals | None = None

    @property
    def kind(self) -> Literal["function", "binary"]:
        """Whether the ranks run a function or a program, in PyTorch's terms."""
        return "binary" if isinstance(self.entrypoint, str) else "function"

    @property
    def probes(self) -> tuple[str, ...]:
        """The probes of each rank."""
        return (*(each for each in self.ready if each not in WORDS), *([self.alive] if self.alive is not None else []))

    @property
    def travels(self) -> bool:
        """Whether the call of each rank is pickled."""
        return self.kind == "function" and self.start_method in ("spawn", "forkserver")

    @property
    def what(self) -> str:
        """The program, or the name of the function."""
        entrypoint = self.entrypoint
        return entrypoint if isinstance(entrypoint, str) else getattr(entrypoint, "__qualname__", repr(entrypoint))

    def role_rank(self, local_rank: int) -> int:
        """Return the number of a rank within this role."""
        return local_rank - self.ranks.start


@contextmanager
def naming(role: str) -> Iterator[None]:
    """Add the name of the role to a `SpecError` of the block, in which rank numbers are role ranks.

    "" changes nothing.
    """
    try:
        yield
    except SpecError as error:
        if not role:
            raise
        raise SpecError(f"role {role!r}: {error}") from error.__cause__


def held_by_rank(parts: Sequence[RankSpec], *, sockets: bool, holds: bool) -> int:
    """Return the number of descriptors that the host holds for each running rank.

    It is rounded up if the roles differ.
    """
    held = sum(len(part.ranks) * limits.held_by_rank(part.start_method) for part in parts)
    return HELD_BY_RANK * sockets + holds + -(-held // max(1, sum(len(part.ranks) for part in parts)))
