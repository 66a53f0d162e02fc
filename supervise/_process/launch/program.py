"""Start of one program, as leader of a process group, with default signals and an empty mask.

A program that needs a change before its exec, such as another folder or a gate, starts through a shell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from supervise import _platform as platform
from supervise._files import accessible, open_to_append, tell_reader
from supervise._process import lifeline
from supervise._process.exits.leader import Process, exit_notice
from supervise._process.launch import dispositions, posix_spawn
from supervise._record import NamedTuple, field, record, replace
from supervise._runtime.descriptors import clear_of_stdio, close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from supervise._process.launch.fork_server import ServerStatus
    from supervise._process.launch.return_value import OutcomeFile


# Settings of one launch: environment, folder, streams and lifeline of a rank, for a program or a function


class Streams(NamedTuple):
    """Destinations of a worker's output.

    A destination is the path of a file to which the worker appends, or "" for the stream of the host.

    If both paths are equal, the file is opened once, and its content is in the order of the writes.
    """

    stdout: str = ""
    stderr: str = ""

    def open(self) -> tuple[int | None, int | None]:
        """Return descriptors for stdout and stderr, which the caller closes. None stands for the host's own stream.

        If the host's stream is closed, the worker gets the null device.
        """
        out = _open(self.stdout, sys.__stdout__, 1)
        try:
            if out is not None and self.stderr == self.stdout:
                return out, clear_of_stdio(os.dup(out))
            return out, _open(self.stderr, sys.__stderr__, 2)
        except BaseException:
            close(out)
            raise


def _open(path: str, stream: object, number: int) -> int | None:
    """Open `path`, or the null device for "" if descriptor `number` is not the host's stream; otherwise return None.

    If the host's stream is closed, another file may have its number.
    """
    if not path:
        path = os.devnull
        try:
            os.fstat(number)
        except OSError:
            stream = None
        if stream is not None:
            return None
    fd = clear_of_stdio(open_to_append(path))
    tell_reader(path, fd)
    return fd


class Stdin(NamedTuple):
    """The stdin of a program, instead of the null device."""

    fd: int
    """A descriptor of the host, which every life of the rank inherits."""
    foreground: bool = False
    """Whether `fd` is the terminal that controls the host.

    If so, the program stays in the host's session, in a process group of its own, to which the host can give the
    foreground.
    """


@record(eq=False)
class LaunchSpec:
    """Settings of one launch. An attempt makes them for each rank, and passes them to the launcher as one object."""

    env: Mapping[Any, Any]
    """The whole environment. Names and values are text for a function, bytes for a program."""
    cwd: str | None = None
    """The working directory; None for that of the host."""
    streams: Streams = field(default_factory=Streams)
    stdin: Stdin | None = None
    """The stdin of a program; None for the null device."""
    listen: tuple[int, ...] = ()
    """Listening sockets, which the process gets as its descriptors from 3 on. None has a number below `least`."""
    line: lifeline.Lifeline
    enter: str | None = None
    """The ``cgroup.procs`` file of the control group that the process enters before it runs.

    None: the process stays in the control group of the host.
    """
    holds: bool = False
    """Whether the process of a function stays alive after its return, until the host releases it."""
    gate: bool = False
    """Whether a program waits until its lifeline is armed."""
    found: posix_spawn.FoundPrograms | None = None
    """The programs that were found for other ranks of the gang; None: search for the program."""

    @property
    def least(self) -> int:
        """The lowest number of a descriptor that the process inherits under its own number."""
        return posix_spawn.CLEAR_OF_SOCKETS if self.listen else 3


# Gate: a program starts only after its lifeline is armed, so the program never outlives the host
#
# The gate is a pipe. A shell waits for a line on it and then becomes the program. If the host dies first, the shell
# reads EOF and exits.


@contextlib.contextmanager
def closed_gate() -> Iterator[int]:
    """Yield the read end of a gate, which the end of the block opens. If the block fails, the waiter reads EOF.

    Raises:
        OSError: There is no descriptor left.
    """
    read, write = lifeline.private_pipe()
    try:
        read_end = clear_of_stdio(read)
        try:
            yield read_end
            os.write(write, b"\n")
        finally:
            os.close(read_end)
    finally:
        lifeline.close_private(write)


# Steps in a rank's process before its program runs. A shell executes the steps, then becomes the program


_SHELL = "/bin/sh"
_ENV = "/usr/bin/env"
_NICE = "/usr/bin/nice"
_FORMATS = "/proc/sys/fs/binfmt_misc"
_ODD = (
    rb"(?![A-Za-z_][A-Za-z0-9_]*\Z)|BASH|COMP_|EPOCH"
    rb"|(?:E?UID|HISTCMD|IFS|LINENO|OPT(?:ARG|ERR|IND)|POSIXLY_CORRECT|PPID|PS[124]|S?RANDOM|SECONDS|SHELLOPTS|TMOUT"
    rb"|SUPERVISE_GATE)\Z"
)
"""Variables that some shells drop, set or obey.

The command `env` sets them for the program; the shell gets none of them.
"""
_PLACES = ("PWD", "OLDPWD")
"""Variables that a shell changes, so the shell sets them to their old values again.

The command `env` is not used for them, because almost every environment has these variables. SHLVL is treated in the
same way, except with bash: bash decrements it at the exec, so its value is correct if SHLVL was set before. If it was
not set, `env` removes it.
"""
_MAGIC_BYTES = 256


def becoming(
    argv: Sequence[str], how: LaunchSpec, *, gated: bool = False
) -> tuple[list[str], dict[bytes, bytes], str | None]:
    """Return command line, environment and folder of a shell that prepares the process and then becomes `argv`.

    Until the exec, the list of processes shows other users the variables that the command `env` sets.

    Args:
        argv: The program and its arguments.
        how: Its environment and folder, and the control group that the shell enters. For a process with sockets, the
            shell sets ``LISTEN_PID``, which is the pid of the process. If `posix_spawn` cannot change the
            folder, the shell does, and the returned folder is None.
        gated: Whether the shell waits for a line on its stdin. After the line, stdin becomes the null device. At EOF,
            the shell exits.

    Raises:
        OSError: The program does not exist or cannot be executed, or the folder does not exist; ``filename`` names it.
    """
    env, cwd = how.env, how.cwd
    if cwd is not None:
        posix_spawn.check_folder(cwd)
    program = posix_spawn.find(argv[0], env, cwd)
    _check_format(argv[0], os.path.join(cwd or "", program), cwd)
    whole = {os.fsencode(name): os.fsencode(value) for name, value in env.items()}
    odd = {name: value for name, value in whole.items() if _is_odd(name)}
    kept = {name: value for name, value in whole.items() if name not in odd}
    steps, given = [], []
    if cwd is not None and not posix_spawn.CHANGES_FOLDER:
        steps.append('cd -P -- "$1" && shift')
        given.append(os.path.join(os.getcwd(), cwd))  # not normalized: ".." after a symbolic link is elsewhere
    if how.enter is not None:
        steps.append('echo 0 > "$1" && shift')
        given.append(how.enter)
    if how.listen:
        steps.append("export LISTEN_PID=$$")
    if gated:
        steps.append("read -r SUPERVISE_GATE")
    for name in _PLACES if _is("bash", _SHELL) else (*_PLACES, "SHLVL"):
        if (value := kept.get(name.encode())) is None:
            steps.append(f"unset {name}")
        else:
            steps.append(f'export {name}="$1" && shift')
            given.append(os.fsdecode(value))
    steps.append('exec "$@"' + (" < /dev/null" if gated else ""))
    if program.startswith("-"):  # otherwise the shell takes the name for an option
        program = f"./{program}"
    command = [*_env(program, odd, kept), program, *argv[1:]]
    shell = [_SHELL, *_as_it_is(), "-c", " && ".join(steps), "sh", *given, *command]
    return shell, kept, cwd if posix_spawn.CHANGES_FOLDER else None


def _is_odd(name: bytes) -> bool:
    of_bash = name in {b"_", b"LC_ALL"} and _is("bash", _SHELL)  # bash sets `_`, and warns about an unknown locale
    return of_bash or re.match(_ODD, name) is not None


def _env(program: str, odd: Mapping[bytes, bytes], kept: Mapping[bytes, bytes]) -> list[str]:
    """Return the `env` command that sets the variables in `odd`.

    The command removes SHLVL if only bash has added it.
    """
    unwanted = ["-u", "SHLVL"] if b"SHLVL" not in kept and _is("bash", _SHELL) else []
    if not odd and not unwanted:
        return []
    pairs = [os.fsdecode(name + b"=" + value) for name, value in odd.items()]
    last = [_NICE, "-n", "0", "--"] if "=" in program else []  # otherwise `env` takes the name for a variable
    return [_ENV, *unwanted, "--", *pairs, *last]


@cache
def _is(name: str, shell: str) -> bool:
    """Return whether the name of the shell is `name` after the resolution of symbolic links."""
    return os.path.basename(os.path.realpath(shell)) == name


def _as_it_is() -> list[str]:
    """Return the option with which a shell keeps an effective user or group that differs from the real one."""
    same = (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
    return [] if same or _is("busybox", _SHELL) else ["-p"]


def _check_format(named: str, path: str, cwd: str | None) -> None:
    """Refuse a file that the kernel cannot execute.

    The shell would run such a file as a script, or would exit with a code and no other sign.

    Raises:
        OSError: The file is not a program, or its interpreter does not exist or cannot be executed.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(_MAGIC_BYTES)
    except PermissionError:  # executable, but not readable
        return
    if magic.startswith(b"#!"):
        words = re.split(rb"[ \t]+", magic[2:].partition(b"\n")[0].strip(b" \t"), maxsplit=1)
        if not words[0]:
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), named)
        interpreter = os.path.join(cwd or "", os.fsdecode(words[0]))
        if not os.path.exists(interpreter):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), named)
        if not (os.path.isfile(interpreter) and accessible(interpreter, os.X_OK)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), named)
    elif not magic.startswith(b"\x7fELF") and not _other_formats():
        raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), named)


def _other_formats() -> bool:
    """Return whether further formats of programs are registered with the kernel (binfmt_misc)."""
    try:
        return bool(set(os.listdir(_FORMATS)) - {"register", "status"})
    except OSError:
        return False


# The result of a launch, and the type of the launchers


@record(frozen=False, eq=False)
class Launched:
    """Result of a launch: a process, or a pending request to the fork server."""

    process: Process | None = None
    status: ServerStatus | None = None
    outcome: OutcomeFile | None = None
    line: lifeline.Lifeline | None = None
    """Lifeline of the process."""
    read_end: int = -1
    """Read end of the lifeline, which the host keeps until `lifeline.release`; -1 if the host keeps none."""

    def arrived(self) -> Launched | None:
        """Return a copy with the process; None if the server has not forked yet.

        Call this only once `status` is readable.

        Raises:
            ChildProcessError: The server died before it forked.
            OSError: No descriptor is left for the process.
        """
        from supervise._process.launch.fork_server import DIED, ForkServerChild  # loaded by the launcher

        assert self.status is not None  # noqa: S101
        try:
            pid = self.status.read()
        except EOFError:
            raise ChildProcessError(DIED) from None
        if pid is None:
            return None
        try:
            process = ForkServerChild(pid, self.status)
        except OSError:  # without a descriptor, the host could not stop the process later
            if self.status.read() is None:  # the server has not reaped the process, so the pid was not reused
                os.kill(pid, signal.SIGKILL)
            raise
        return replace(self, process=process)


Launcher: TypeAlias = "Callable[[], Launched]"
"""Function that starts the process of one rank, on the loop, without waiting for it.

It raises `UnreapedError` if the process was started and killed, but is not reaped, and any other exception if there is
no process.
"""


class UnreapedError(Exception):
    """A child was started, but the host has no handle of it. The child got SIGKILL and is not reaped yet."""

    def __init__(self, pid: int, error: OSError) -> None:
        """Describe the child.

        Args:
            pid: Pid of the child.
            error: Cause of the missing handle.
        """
        super().__init__(pid, error)
        self.pid = pid
        self.error = error

    def is_reaped(self) -> bool:
        """Reap the child if it is dead; return whether it is reaped. Never blocks."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:  # reaped by other code of this program, or by the kernel (SIGCHLD is ignored)
            return True


def with_channel(how: LaunchSpec, outcome: OutcomeFile, start: Callable[[OutcomeFile, int], Launched]) -> Launched:
    """Start a function that has a result channel, under its lifeline; return the result of `start`, completed.

    Args:
        how: The settings of the launch.
        outcome: The result channel. If the start fails, this function closes it.
        start: Function that gets the channel and a read end of the lifeline.
    """
    read_end: int | None = None
    try:
        read_end = how.line.read_end(how.least)
        launched = start(outcome, read_end)
    except BaseException:
        outcome.close()
        close(read_end)
        raise
    if outcome.hold is not None:
        outcome.hold.launched()
    launched.outcome, launched.line, launched.read_end = outcome, how.line, how.line.keep(read_end)
    return launched


def run_program(argv: Sequence[str], how: LaunchSpec, read_end: int, pass_fds: Sequence[int] = ()) -> Process:
    """Start `argv`, and arm its lifeline.

    Args:
        argv: The program and its arguments.
        how: The other settings of the launch.
        read_end: A read end of the gang's lifeline, for this process alone. The caller closes it. In the process, the
            descriptor may have another number.
        pass_fds: Further descriptors to leave open. They keep their numbers.

    Raises:
        OSError: The program could not be started; no process is left.
        UnreapedError: The process was started, then killed because the host has no handle of it.
    """
    # If the kernel reaps, only a pidfd that was opened before the exit still gives the exit status
    if how.gate or dispositions.kernel_reaps():
        with closed_gate() as gate:
            return _run(argv, how, read_end, pass_fds, gate)
    return _run(argv, how, read_end, pass_fds, None)


def _run(argv: Sequence[str], how: LaunchSpec, read_end: int, pass_fds: Sequence[int], gate: int | None) -> Process:
    env, cwd = how.env, how.cwd
    by_shell = gate is not None or how.enter is not None or how.listen
    if by_shell or not (cwd is None or posix_spawn.CHANGES_FOLDER):
        argv, env, cwd = becoming(argv, how, gated=gate is not None)
    stdin = None if how.stdin is None else how.stdin.fd
    out, err = how.streams.open()
    try:
        pid, pidfd = posix_spawn.spawn(
            argv,
            env,
            (stdin if gate is None else gate, out, err),
            (*pass_fds, read_end),
            cwd=cwd,
            arm=read_end,
            hold=platform.PIDFD,
            session=how.stdin is None or not how.stdin.foreground,
            found=how.found,
            listen=how.listen,
        )
        if pidfd == posix_spawn.UNARMED:  # until the lifeline is armed, the process would outlive the host
            with contextlib.suppress(ProcessLookupError):  # reaped by other code already
                lifeline.arm(read_end, pid)
        return hold(pid, pidfd=-1 if pidfd < 0 else pidfd)
    finally:
        close(out, err)


def hold(pid: int, keep: object = None, *, execs: bool = True, pidfd: int = -1) -> Process:
    """Return the handle of a child that was just started; kill the child if that fails.

    Args:
        pid: The child.
        keep: As for `Process`.
        execs: As for `Process`.
        pidfd: Pidfd of the child, which the handle takes over; -1 to open one.

    Raises:
        UnreapedError: The host cannot make a handle, for example because no descriptor is left.
    """
    try:
        return Process(pid, exit_notice(pid, pidfd=pidfd), execs=execs, keep=keep)
    except OSError as error:
        with contextlib.suppress(ProcessLookupError):  # reaped by other code of this program already
            os.kill(pid, signal.SIGKILL)
        raise UnreapedError(pid, error) from error


# Launch of one rank's program


def launch_program(argv: Sequence[str], how: LaunchSpec) -> Launched:
    """Start the program of a rank. Runs on the loop.

    Raises:
        OSError: The program could not be started; no process is left.
    """
    read_end = how.line.read_end(how.least)
    try:
        process = run_program(argv, how, read_end)
    except BaseException:
        close(read_end)
        raise
    return Launched(process=process, line=how.line, read_end=how.line.keep(read_end))
