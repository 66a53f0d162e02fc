"""The variables that give a rank's place in the gang, with torchrun's names; and a master port for rank 0."""

from __future__ import annotations

import _socket  # a tool of tests may replace `socket.socket`, to forbid connections
import contextlib
import errno
import fcntl
import os
import weakref
from typing import TYPE_CHECKING

from supervise._files import closing
from supervise._record import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from supervise._gang.rank_spec import RankSpec

_LOOPBACK = "127.0.0.1"


@record(kw_only=False, frozen=False, eq=False)
class Master:
    """The address at which rank 0 listens."""

    address: str
    port: str
    claim: _Claim | None = None
    """Prevents other gangs from choosing the same port, until `release`. None: nothing is claimed."""
    chosen: bool = False
    """Whether supervise has chosen the port."""

    def hold(self) -> None:
        """Claim a chosen port again for another attempt, if possible. Idempotent."""
        if self.chosen and self.claim is None:
            with contextlib.suppress(OSError):
                self.claim = _Claim(self.port)

    def release(self) -> None:
        """Let other gangs choose the port. Idempotent."""
        claim, self.claim = self.claim, None
        if claim is not None:
            claim.close()


def choose_master(address: str | None, port: str | None) -> Master:
    """Return this address and this port.

    The default address is 127.0.0.1. The default port is a free one, which is claimed for this gang if possible.

    Raises:
        OSError: No descriptor is left.
    """
    address, claim = address or _LOOPBACK, None
    if port:
        return Master(address, port)
    for _ in range(100):
        try:
            with contextlib.closing(_socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)) as probe:
                probe.bind(("", 0))
                free: int = probe.getsockname()[1]
        except OSError:  # a sandbox refuses IPv4, also to rank 0; if no descriptor is left, the claim fails
            free = 49152 + int.from_bytes(os.urandom(2), "big") % 16384
        try:
            claim = _Claim(str(free))
        except (BlockingIOError, FileNotFoundError):  # the last one that had a claim removes the folder
            continue
        except OSError as error:  # without a private folder, nothing is claimed
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
        break
    return Master(address, str(free), claim, chosen=True)


class _Claim:
    """A locked file in a private folder, which tells the other gangs of this user that the port is chosen.

    The claim is needed because a port looks free until rank 0 listens. A bound port would make a rank fail that binds
    it without SO_REUSEADDR. The name of a socket would tell each user of the machine the port, who could bind it first.
    """

    def __init__(self, port: str) -> None:
        """Claim the port.

        Raises:
            BlockingIOError: Another gang of this user has claimed it.
            FileNotFoundError: Another gang removed the file or the folder just now.
            OSError: There is no private folder, or no descriptor is left.
        """
        folder = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - made private
        folder = f"{folder}/.supervise-{os.geteuid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with _private(folder) as at:
            file = os.open(port, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=at)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _check_linked(file)
        except BaseException:
            os.close(file)
            raise
        self.close: Callable[[], object] = weakref.finalize(self, _remove, folder, port, file, os.getpid())
        """Remove the file, and the folder if it is empty. Idempotent; also called without a reference, and at exit."""


@contextlib.contextmanager
def _private(folder: str) -> Iterator[int]:
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)) as at:
        found = os.fstat(at)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "the folder is not private", folder)
        yield at


def _check_linked(file: int) -> None:
    if not os.fstat(file).st_nlink:
        raise FileNotFoundError(errno.ENOENT, "the file was removed")


def _remove(folder: str, port: str, file: int, pid: int) -> None:
    if os.getpid() != pid:  # a forked child, to which the claim does not belong
        return
    with contextlib.suppress(OSError), _private(folder) as at:
        _check_linked(file)
        os.unlink(port, dir_fd=at)
    os.close(file)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def of_all(
    nprocs: int, master: Master, *, run_id: str, max_restarts: int, host: int = 0, hosts: int = 1
) -> dict[str, str]:
    """Return the variables that are equal in all ranks of a host.

    Args:
        nprocs: Number of ranks on each host.
        master: The address at which rank 0 listens.
        run_id: Name of the run.
        max_restarts: The limit of restarts; 0 without a policy.
        host: Number of this host.
        hosts: Number of hosts.
    """
    return {
        "WORLD_SIZE": str(nprocs * hosts),
        "LOCAL_WORLD_SIZE": str(nprocs),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(hosts),
        "MASTER_ADDR": master.address,
        "MASTER_PORT": master.port,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
    }


def of_rank(local_rank: int, role_rank: int, *, first: int = 0, first_of_role: int = 0) -> dict[str, str]:
    """Return the variables that differ between the ranks of a role.

    Args:
        local_rank: The rank on this host.
        role_rank: The number of the rank among the ranks of its role on this host.
        first: The global rank of this host's first rank.
        first_of_role: The role rank of this host's first rank with the same role.
    """
    return {
        "RANK": str(first + local_rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(first_of_role + role_rank),
    }


def master_of_environment(environ: Mapping[str, str]) -> Master:
    """Return the master of the host's environment. By default, the address is 127.0.0.1, and the port is a free one.

    Raises:
        OSError: No port is free.
    """
    given = without_outer(environ)
    return choose_master(given.get("MASTER_ADDR"), given.get("MASTER_PORT"))


def without_outer(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment in which to look for a master: none if this process is a rank itself.

    There, the master is that of the rank's own gang, and the ranks of another gang must not use its port.
    """
    return {} if "RANK" in environ or "TORCHELASTIC_RUN_ID" in environ else environ


def with_variables(
    parts: Sequence[RankSpec], envs: Mapping[int, Mapping[str, str]], master: Master, *, name: str, max_restarts: int
) -> dict[int, dict[str, str]]:
    """Return local rank to variables.

    They are those that all ranks share, those of the rank, and `envs`, which take precedence.
    """
    run_id = envs[0].get("TORCHELASTIC_RUN_ID") or f"{name}-{os.urandom(4).hex()}"
    common = of_all(len(envs), master, run_id=run_id, max_restarts=max_restarts)
    found: dict[int, dict[str, str]] = {}
    for part in parts:
        role = {"ROLE_NAME": part.name or name, "ROLE_WORLD_SIZE": str(len(part.ranks))}
        for rank in part.ranks:
            found[rank] = {**common, **role, **of_rank(rank, part.role_rank(rank)), **envs[rank]}
    return found
