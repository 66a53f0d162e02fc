"""What a run consists of: the parts with their programs, and the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._record import field, record
from supervise._settings import WORDS, Setting, conditions, of_roles

if TYPE_CHECKING:
    from collections.abc import Mapping


COMMAND = ("command", "count", "module", "python", "run-path", "env", "env-file", "cwd")
"""The keys of a role that say what its ranks run. The others are settings."""


@record(frozen=False, eq=False)
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
    env_files: tuple[str, ...] = ()
    """Paths of the files of variables of a role, as its file gives them. `env` has the variables."""
    cwd: str | None = None
    """Working directory of the ranks."""
    port: int | None = None
    """``PORT`` of the first rank of a process of a Procfile; the next rank has the next number."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of the role: name to value. A missing one has its default, or the value of the gang."""

    @property
    def runs_python(self) -> bool:
        """Whether PROGRAM runs under this Python."""
        return self.module or self.run_path or (self.python and self.program.endswith(".py"))

    @property
    def words(self) -> tuple[str, ...]:
        """PROGRAM and its arguments, for messages."""
        return (*(("-m",) if self.module else ()), self.program, *self.args)


@record(frozen=False, eq=False)
class Hosts:
    """The hosts of a run, which all have the same number of ranks."""

    count: int = 1
    number: int = 0
    """Number of this host, from 0: ``GROUP_RANK``."""
    address: str | None = None
    """``MASTER_ADDR``; None: that of the environment, or the loopback address."""
    port: str | None = None
    """``MASTER_PORT``; None: that of the environment, or a free port."""


def role_settings() -> dict[str, Setting]:
    """Return the settings of roles whose ranks are programs: key to row."""
    return {row.key: row for row in of_roles() if row.key not in (*COMMAND, "start-method")}


def of_each_role(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a gang that each role has for itself."""
    return {row.name: settings[row.name] for row in role_settings().values() if row.role == "own"}


def lacks(key: str, settings: Mapping[str, Any]) -> str:
    """Return the setting, with a value, without which another one has no effect; "" if it has an effect."""
    waits = conditions(settings["ready"])
    if key == "ready-timeout" and not waits:
        return "ready, such as notify; a rank is otherwise ready when its process runs"
    if key == "alive" and waits == ("exit",):
        return "ready other than exit, with which a rank that is ready has ended"
    probed = key == "alive-timeout" and not {*WORDS}.issuperset(waits)
    is_of_alive = key in ("alive-interval", "alive-timeout", "alive-failures") and not probed
    return "alive, such as tcp:8000" if is_of_alive and not settings["alive"] else ""
