"""The Supervisor actor, as it is started by an actor system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervise._gang.gang_actor import GangActor
from supervise._seconds import GRACE_S

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from supervise._process.containment.escapees import Containment
    from supervise.events import Sink
    from supervise.logs import LogsSpecs
    from supervise.restarts import RestartPolicy


class Supervisor(GangActor):
    """Owns one gang: a Worker actor a rank, a Tail actor a destination of logs.

    Ask it `Start`, `Wait`, `Poll`, `Pids`, `Status`, `Close`, `Signal`, `Subscribe` and `Unsubscribe`;
    with a proxy, the methods `launch`, `wait`, `poll`, `pids`, `status`, `close` and `send_signal`.
    Stopping it is closing the gang: the stop is answered when every process is reaped, every wait is
    answered and none of its actors is in pykka's registry.
    """

    def __init__(
        self,
        *,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, Any],
        envs: Mapping[int, dict[str, Any]] | None = None,
        logs_specs: LogsSpecs | None = None,
        log_line_prefixes: Mapping[int, str] | None = None,
        start_method: str = "spawn",
        duplicate_stdout_filters: Sequence[str] | None = None,
        duplicate_stderr_filters: Sequence[str] | None = None,
        grace: float = GRACE_S,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        event_sink: Sink | None = None,
        restart_policy: RestartPolicy | None = None,
        containment: Containment = "group",
        gate: bool = False,
    ) -> None:
        """Check and prepare a gang; `Start` launches it. Every mapping is keyed by local rank, ``0 .. n-1``.

        Args:
            name: Of the gang: in the prefix of shown lines, and in events.
            entrypoint: A function that every rank calls, or the name or path of a program.
            args: Rank to its arguments. A program's become strings; a bare string is one argument.
            envs: Rank to what is added to this process's environment. ``TORCHELASTIC_ERROR_FILE`` is set in it.
            logs_specs: Where output goes; None is `DefaultLogsSpecs`, which redirects nothing.
            log_line_prefixes: Rank to what stands before its shown lines; ``[<name><rank>]:`` by default.
            start_method: ``spawn``, ``fork`` or ``forkserver``, for functions.
            duplicate_stdout_filters: Shown stdout lines that hold one of these also go to one file.
            duplicate_stderr_filters: The same for stderr.
            grace: Seconds from the polite signal to SIGKILL, on every path.
            cwd: Working directory of the ranks; None is this process's.
            timeout: Seconds from the start after which the gang is stopped, with the outcome ``timed_out``.
            event_sink: Called on the gang's thread with every event as a dictionary.
            restart_policy: When a gang that failed is started anew, as a whole; None is never.
            containment: What is done about processes that leave the groups of their ranks: ``group`` reports
                them at the close, ``sweep`` finds them by what they have inherited and ends them, ``cgroup``
                keeps each rank in a control group (Linux, where a cgroup v2 tree can be written).
            gate: Whether each program waits, in a shell, until it cannot outlive this process any more, however that
                ends. Otherwise one that is just being started may. A function never does.

        Raises:
            SpecError: Something makes no sense, or cannot be pickled; names it, the rank and what to do.
            OSError: The log folder cannot be used.
        """
        from supervise._gang.attempt import first_attempt  # a spawned worker imports us unused

        attempt = first_attempt(
            name=name,
            entrypoint=entrypoint,
            args=args,
            envs=envs,
            logs_specs=logs_specs,
            log_line_prefixes=log_line_prefixes,
            start_method=start_method,
            duplicate_stdout_filters=duplicate_stdout_filters,
            duplicate_stderr_filters=duplicate_stderr_filters,
            grace=grace,
            cwd=cwd,
            timeout=timeout,
            event_sink=event_sink,
            restart_policy=restart_policy,
            containment=containment,
            gate=gate,
        )
        try:
            super().__init__(attempt)
        except BaseException:
            attempt.close()
            raise
