"""Settings that the host passes to a rank. The rank imports this module before user code.

So this module imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing and dataclasses take longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from supervise._process.launch import return_value


class Plain:
    """Settings of a gang whose functions return no value: a worker sends only the traceback of an exception.

    There is no error file, and an exit code of 0 is a success. The attributes are for multiprocessing's process objects
    in the workers.
    """

    def __init__(self, *, prefix: str, first: int, daemon: bool) -> None:
        """Store the settings.

        Args:
            prefix: Prefix of the names of the processes.
            first: The number after the prefix in the name of rank 0.
            daemon: As for `multiprocessing.Process`.
        """
        self.prefix = prefix
        self.first = first
        self.daemon = daemon

    def name(self, local_rank: int) -> str:
        """Return the name of a rank's process."""
        return f"{self.prefix}{self.first + local_rank}"


class Settings:
    """Settings of one worker.

    Descriptors are given as numbers, or as indices if a fork server passes the descriptors.
    """

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
        hold: int | None = None,
        call: Any = None,
    ) -> None:
        """Store the settings.

        Args:
            local_rank: The worker's rank.
            method: Start method.
            host_pid: Pid of the host.
            address: Identity of the result channel.
            line: Descriptor of the read end of the lifeline.
            channel: Descriptor of the result channel.
            tracker: Descriptor of multiprocessing's resource tracker, for spawn.
            fds: Descriptors to which the arguments refer, for spawn. They belong to queues, connections or shared
                memory.
            stdio: Descriptors for stdin (None: the null device), stdout and stderr (None: the host's). None instead of
                a tuple: the exec has set all three.
            env: Changes of the environment; the value None removes a variable. None instead of a mapping: the exec has
                set the environment.
            cwd: Working directory; None for that of the parent.
            plain: Settings of a function whose return value is ignored; None if the host reads the value.
            enter: The ``cgroup.procs`` file through which a forked worker enters its control group. None: the worker
                stays in the control group of its parent.
            hold: The worker's end of `Hold`. None: the worker exits as soon as its function has returned.
            call: Function and tuple of arguments. In a worker that was not forked, None until the worker has unpickled
                them.
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
        self.hold = hold
        self.call = call

    def arrive(self, fds: list[int]) -> None:
        """Replace the indices by the descriptors that the fork server has passed."""
        self.line, self.channel = fds[self.line], fds[self.channel]
        self.hold = None if self.hold is None else fds[self.hold]
        if self.stdio is not None:
            stdin, out, err = (None if index is None else fds[index] for index in self.stdio)
            self.stdio = stdin, out, err
