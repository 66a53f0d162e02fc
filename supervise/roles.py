"""The roles of a gang whose ranks run different programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._record import record
from supervise._settings import (
    FOLDER,
    Containment as Containment,
    KillMode as KillMode,
    Readiness as Readiness,
    RestartKind,
    StdinOfRole,
    of_roles,
)
from supervise.errors import SpecError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from signal import Signals


@record
class Role:
    """The ranks of a gang that run the same program or function. A rank's number within its role is its role rank.

    The gang numbers its local ranks consecutively, in the order of its roles. It launches a role when all ranks of the
    roles that it needs are ready, and stops it when no process of the roles that need it is left. Each rank gets
    ``ROLE_NAME``, ``ROLE_RANK`` and ``ROLE_WORLD_SIZE``, unless `envs` sets them.

    Raises:
        SpecError: A value is not valid; the text names the role and the field.
    """

    name: str
    """Name of the role; unique in the gang."""
    entrypoint: Callable[..., Any] | str
    """A function that every rank of the role calls, or the name or path of a program."""
    args: Mapping[int, Any]
    """Role rank to its arguments; empty: the role is switched off. Those of a program become strings; a bare string is
    one argument."""
    envs: Mapping[int, dict[str, Any]] | None = None
    """Role rank to variables added to the rank's environment; they take precedence over the `envs` of the gang."""
    start_method: str = "spawn"
    """``spawn``, ``fork`` or ``forkserver``, for a function."""
    cwd: str | os.PathLike[str] | None = None
    """Working directory of the ranks; None for this process's."""
    listen: Sequence[str] = ()
    """Addresses of sockets that the ranks share, from descriptor 3 on: ``tcp:[HOST:]PORT`` or ``unix:PATH``.

    The gang binds them before the first start, keeps them across restarts, and closes them at its end. The ranks are
    programs, or functions with ``spawn``. ``LISTEN_FDS`` is the number of the sockets; a path is relative to `cwd`.
    """
    ready: Readiness = "exec"
    """``exec``: a rank is ready when its process runs. ``notify``: after it has reported so through `supervise.notify`.
    ``exit``: when it has succeeded, so that the roles after this one start; a success is final. Or a probe, which
    succeeds: ``tcp:[HOST:]PORT``, ``unix:PATH``, ``http://...``, ``file:PATH``, ``log:REGEX`` or ``exec:COMMAND``. A
    list means all of them. ``${NAME}`` in a probe is the value of a variable of the rank."""
    ready_timeout_s: float = 60.0
    """Seconds from the launch of a rank until it must be ready."""
    alive: str | None = None
    """A probe, other than ``log:``, that a ready rank must answer; otherwise it counts as hung."""
    alive_interval_s: float = 10.0
    """Seconds between two tries of `alive`."""
    alive_timeout_s: float = 5.0
    """Seconds after which a try of a probe, also of `ready`, fails."""
    alive_failures: int = 3
    """Number of failures of `alive` in a row after which a rank counts as hung."""
    restart: RestartKind | None = None
    """Restart kind of the ranks; None for the kind of the gang's `restart_policy`."""
    service: bool = False
    """Whether the ranks serve the other roles: they are stopped when every rank of every other role has ended."""
    stdin: StdinOfRole = "null"
    """Stdin of a program: the null device, a pipe without input or EOF (``open``), or that of this process.

    Only one rank of a gang can have that of this process (``inherit``).
    """
    kill_mode: KillMode | None = None
    """Destination of the first signal of a stop; None for that of the gang."""
    needs: Sequence[str] | None = None
    """Names of the roles that must be ready first, whatever the order of the gang's roles; empty for none.

    None: the role before this one if no role of the gang has `needs`, otherwise none.
    """
    stop_signal: Signals | None = None
    """The first signal of every stop of the ranks, except for SIGKILL; None for that of the stop, usually SIGTERM."""
    grace: float | None = None
    """Seconds from the first signal to SIGKILL, in every stop of the ranks, and at most the timeout of a `Close`.

    None for that of the gang.
    """
    reload_signal: Signals | None = None
    """The signal of `Reload` to the ranks' own processes; None for that of the gang, which has none by default."""
    containment: Containment | None = None
    """Treatment of processes that leave the process groups of the ranks; None for that of the gang."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(f"the name of a role is {self.name!r}; give a text, such as 'trainer'")
        try:
            for row in of_roles():
                value = getattr(self, row.name)
                if row.kind is not FOLDER and not (value is None and row.role == "inherited"):
                    row.checked(value)
        except SpecError as error:
            raise SpecError(f"role {self.name!r}: {error}") from None
