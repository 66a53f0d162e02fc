"""The programs of a run, one for all ranks or one for each role of a file; and the hosts of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervise.restarts import RestartKind
    from supervise.roles import Readiness


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Part:
    """The ranks that run the same program."""

    role: str
    count: int
    program: str
    """Path or name of a program, or name of a module."""
    args: tuple[str, ...] = ()
    module: bool = False
    python: bool = True
    """Whether a ``.py`` file runs under this Python; otherwise it is executed directly."""
    run_path: bool = False
    """Whether to run a file under this Python, even if its name does not end in ``.py``."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of each rank: name to value."""
    cwd: str | None = None
    """Working directory of the ranks."""
    ready: Readiness = "exec"
    ready_timeout_s: float = 60.0
    restart: RestartKind | None = None
    """None: the restart kind of the gang."""
    service: bool = False

    @property
    def runs_python(self) -> bool:
        """Whether PROGRAM runs under this Python."""
        return self.module or self.run_path or (self.python and self.program.endswith(".py"))

    @property
    def words(self) -> tuple[str, ...]:
        """PROGRAM and its arguments, for messages."""
        return (*(("-m",) if self.module else ()), self.program, *self.args)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Hosts:
    """The hosts of a run, which all have the same number of ranks."""

    count: int = 1
    number: int = 0
    """Number of this host, from 0: ``GROUP_RANK``."""
    address: str | None = None
    """``MASTER_ADDR``; None: that of the environment, or the loopback address."""
    port: str | None = None
    """``MASTER_PORT``; None: that of the environment, or a free port."""
