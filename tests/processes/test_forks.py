"""The ranks of a launch window are forked in a row, and each is as if it was forked alone."""

import contextlib
import errno
import itertools
import os

import pytest

from supervise import Start, Supervisor, Wait
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def held(rank: int) -> tuple[int, int, str]:
    """Return the rank, the number of its descriptors of pipes, and the variable that it alone has."""
    links = []
    for fd in range(3, 256):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
    pipes = sum(link.startswith("pipe:") for link in links)  # the lifeline of its gang, and what the host has inherited
    return rank, pipes, os.environ["MINE"]


def forked(nprocs: int):
    envs = {rank: {"MINE": str(rank)} for rank in range(nprocs)}
    args = {rank: (rank,) for rank in range(nprocs)}
    return Supervisor.start(name="row", entrypoint=held, args=args, envs=envs, start_method="fork")


def test_no_message_is_handled_between_the_forks_of_a_window(breaking, system_call):
    """Ten ranks and a window of eight: eight forks, then what follows from them; two forks, and what follows."""
    seen = []
    system_call("fork", lambda fork: seen.append("fork") or fork())
    breaking.instead("step of a worker", lambda run, *args: seen.append("run") or run(*args))
    ref = forked(10)
    try:
        ref.ask(Start())
        result = ref.ask(Wait(), timeout=PATIENCE_S)
    finally:
        ref.stop()
    assert [(what, len(list(each))) for what, each in itertools.groupby(seen)] == [
        ("fork", 8),
        ("run", 8),
        ("fork", 2),
        ("run", 2),
    ]
    assert [result.return_values[rank][0::2] for rank in range(10)] == [(rank, str(rank)) for rank in range(10)]


def test_a_rank_in_a_row_holds_no_lifeline_of_another():
    """Each rank has as many descriptors of pipes as a rank that is forked alone."""
    counts = []
    for nprocs in (1, 8):
        ref = forked(nprocs)
        try:
            ref.ask(Start())
            counts += [value[1] for value in ref.ask(Wait(), timeout=PATIENCE_S).return_values.values()]
        finally:
            ref.stop()
    assert set(counts) == {counts[0]}


@pytest.mark.parametrize("bad", [0, 2, 3])
def test_s9_one_fork_of_a_row_fails(system_call, bad):
    """The start fails with the error of that rank, and the ranks that were forked with it are reaped."""
    numbers = itertools.count()

    def scarce(fork):
        if next(numbers) == bad:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    system_call("fork", scarce)
    ref = forked(4)
    try:
        with pytest.raises(match=f"rank {bad}"):
            ref.ask(Start())
    finally:
        ref.stop()
