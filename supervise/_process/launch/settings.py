"""What the host tells a worker about itself. Imported by every worker before the user's code, so it imports nothing."""

from __future__ import annotations

TYPE_CHECKING = False  # typing and dataclasses take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from supervise._process.launch import return_value


class Plain:
    """Marks a gang whose functions give nothing back: only the trace of what one raises goes home.

    Nothing is recorded in a file, and an exit with code 0 is enough. Beside that, how multiprocessing in
    the workers is to call them.
    """

    def __init__(self, *, prefix: str, first: int, daemon: bool) -> None:
        """Make it.

        Args:
            prefix: Of the processes' names.
            first: The number behind the prefix in the name of rank 0.
            daemon: As of `multiprocessing.Process`.
        """
        self.prefix = prefix
        self.first = first
        self.daemon = daemon

    def name(self, local_rank: int) -> str:
        """Return the name of a rank's process."""
        return f"{self.prefix}{self.first + local_rank}"


class Settings:
    """What the host says about one worker. Descriptors are numbers, or indices where a fork server passes them."""

    def __init__(
        self,
        *,
        local_rank: int,
        method: str,
        host_pid: int,
        address: return_value.Address,
        line: int,
        channel: int,
        tracker: int | None = None,
        fds: tuple[int, ...] = (),
        stdio: tuple[int | None, int | None, int | None] | None = None,
        env: dict[str, str | None] | None = None,
        cwd: str | None = None,
        plain: Plain | None = None,
        enter: str | None = None,
        call: Any = None,
    ) -> None:
        """Make them.

        Args:
            local_rank: The worker's rank.
            method: How it is started.
            host_pid: Who starts it.
            address: Of the outcome.
            line: The read end of the lifeline.
            channel: For the outcome.
            tracker: Of multiprocessing's resource tracker, for spawn.
            fds: What the arguments refer to (queues, connections, shared memory), for spawn.
            stdio: For stdin (None: empty), stdout, stderr (None: stays); None where the exec has set them.
            env: What is to be changed in the environment, None for a variable to be removed; None where the exec
                has set it.
            cwd: Where it works; None stays.
            plain: None where the function's return value is wanted.
            enter: The ``cgroup.procs`` in which a forked worker enters itself; None is where its parent is.
            call: Function and tuple of arguments. None until the worker has unpickled them, where they travel.
        """
        self.local_rank = local_rank
        self.method = method
        self.host_pid = host_pid
        self.address = address
        self.line = line
        self.channel = channel
        self.tracker = tracker
        self.fds = fds
        self.stdio = stdio
        self.env = env
        self.cwd = cwd
        self.plain = plain
        self.enter = enter
        self.call = call

    def arrive(self, fds: list[int]) -> None:
        """Turn the indices into the descriptors that have come through the fork server."""
        self.line, self.channel = fds[self.line], fds[self.channel]
        if self.stdio is not None:
            stdin, out, err = (None if index is None else fds[index] for index in self.stdio)
            self.stdio = stdin, out, err
