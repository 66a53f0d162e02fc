"""What a task asks of a contender, and how a contender is driven."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAME = "bench"
"""Of every gang: shown lines begin with ``[bench<rank>]:``."""

Figures = dict[str, float]
"""What one run of a task measured: name of the metric to number."""


class Unsupported(Exception):  # noqa: N818 - an answer, not a mistake
    """The contender has nothing of the kind, or the machine does not allow it; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a gang is to run."""

    entrypoint: Callable[..., Any] | str
    """A function, or a program's path."""
    args: Mapping[int, tuple[Any, ...]]
    """Rank to arguments; a program's are strings."""
    method: str = "fork"
    """How functions are started."""
    tee: bool = False
    """Whether stdout and stderr of every rank go to a file and are shown on ours."""
    values: bool = False
    """Whether the return values are wanted."""
    feature: Mapping[str, Any] = field(default_factory=dict)
    """More settings of a `Supervisor`, for tasks that only `supervise` does."""

    @property
    def nprocs(self) -> int:
        """How many ranks."""
        return len(self.args)

    @property
    def program(self) -> str:
        """The program.

        Raises:
            Unsupported: It is a function.
        """
        if not isinstance(self.entrypoint, str):
            raise Unsupported("starts programs only")
        return self.entrypoint

    @property
    def function(self) -> Callable[..., Any]:
        """The function.

        Raises:
            Unsupported: It is a program.
        """
        if isinstance(self.entrypoint, str):
            raise Unsupported("starts functions only")
        return self.entrypoint

    def without_tee(self) -> None:
        """Say that the contender cannot tee.

        Raises:
            Unsupported: It would have to.
        """
        if self.tee:
            raise Unsupported("does not tee")


class Gang(Protocol):
    """All or nothing: the first failure ends the others."""

    def start(self) -> list[int]:
        """Start every rank; return their pids, as far as they are known already."""

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        """Return rank to value (of a program: anything) once all are reaped; None after `timeout_s`."""

    def close(self, grace_s: float = 30.0) -> None:
        """Stop every rank: SIGTERM, and SIGKILL after `grace_s`; return when all are reaped and all is shown."""

    def discard(self) -> None:
        """Give back what is left, after the clock was stopped."""


class Contender(Protocol):
    """A way to run a gang."""

    imports: str
    """The statement with which a user's program begins."""
    needs: tuple[str, ...]
    """The modules that must be importable."""

    def gang(self, job: Job) -> Gang:
        """Return a gang that is not started.

        Raises:
            Unsupported: It cannot run such a job.
        """
