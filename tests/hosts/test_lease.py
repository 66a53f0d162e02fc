"""The lease of a host, and its keeper, on real processes: a host is a small program, its ranks are shells."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from supervise._hosts import keeper
from supervise._hosts.keeper import start_time
from tests.hosts.gangs import Watched, keeper_of
from tests.patience import PATIENCE_S

HOST = """
import subprocess, sys, threading, time
from supervise._hosts.host import Lease

lease = Lease(float(sys.argv[1]), first_s=0)
ranks = []

def launch():
    rank = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $$ $!; wait"], stdout=subprocess.PIPE, text=True,
                            start_new_session=True)
    ranks.append(rank)
    print(rank.stdout.readline().strip(), flush=True)
    lease.add(rank.pid)

launch()
launch()
print(lease.port, flush=True)
token = lease.renew(0)
for line in sys.stdin:
    if line == "rank\\n":
        launch()
        continue
    if line == "renew\\n":
        token = lease.renew(token)
    elif line == "renew old\\n":
        lease.renew(token - 10**12)
    elif line == "bye\\n":
        lease.end()
    print("done", flush=True)
    if line == "bye\\n":
        time.sleep(1000)
"""
LEFT = """
import os, subprocess, sys
from supervise._hosts.host import Host
from supervise._hosts.plan import make_plan
from supervise.messages import WorkerExited, WorkerStarted

host = Host(make_plan(name="g", entrypoint="true", nnodes=1, nproc_per_node=1).orders(0)[0])
script = "sleep 1000 & echo $! $$; read line"
rank = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True)
host.told(WorkerStarted(local_rank=0, pid=rank.pid, started_ns=1))
rank.stdin.close()
os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
host.told(WorkerExited(local_rank=0, pid=rank.pid, exitcode=0, ended_ns=1, group_left=True))
sys.stdin.readline()
"""
SHORT_S, LONG_S = "4.0", "1000"
"""The short one is longer than a machine stands still between two steps of a test."""


class Host:
    """A host with two ranks of two processes each."""

    def __init__(self, lease_s: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOST, lease_s],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.pids: list[int] = []
        self.pidfds: list[int] = []
        for _ in range(2):
            self.watch(self.hear())
        self.driver = socket.create_connection(("127.0.0.1", int(self.hear())))

    def watch(self, pids: str) -> None:
        """Remember the processes of a rank."""
        for pid in map(int, pids.split()):
            self.pids.append(pid)
            self.pidfds.append(os.pidfd_open(pid))

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.hear()

    def report(self) -> str:
        """What the keeper says to the driver."""
        self.driver.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):  # the keeper has ended before it accepted the connection
            return self.driver.makefile().readline().strip()
        return ""

    def alive(self) -> list[int]:
        """The processes of ranks that have not ended."""
        return [pid for pid in self.pids if start_time(pid) and state(pid) != "Z"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pidfd in self.pidfds:
            with suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self.driver.close()


def state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


@pytest.fixture
def short() -> Iterator[Host]:
    host = Host(SHORT_S)
    yield host
    host.close()


@pytest.fixture
def long() -> Iterator[Host]:
    host = Host(LONG_S)
    yield host
    host.close()


def test_the_end_of_the_lease_kills_the_ranks_and_the_host(short: Host):
    assert short.report() == "gone its lease was over"
    assert short.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert short.alive() == []


def test_a_late_token_does_not_extend_the_lease(short: Host):
    short.say("renew old")
    assert short.report() == "gone its lease was over"


def test_a_stopped_host_loses_its_ranks_with_the_lease(short: Host):
    short.process.send_signal(signal.SIGSTOP)
    assert short.report() == "gone its lease was over"
    assert short.alive() == []
    assert short.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_thaw_behind_the_lease_ends_ranks_and_host(short: Host):
    """The host, its ranks and the keeper are all stopped; a renewal that was sent in time waits in the pipe.

    So does a rank, of which the keeper has not read yet.
    """
    keeper = keeper_of(short.process.pid)
    os.kill(keeper, signal.SIGSTOP)
    short.watch(short.say("rank"))
    for pid in short.pids:
        os.kill(pid, signal.SIGSTOP)
    assert short.say("renew") == "done"
    short.process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        short.process.wait(5.5)  # longer than the lease: it is the time that the test is about
    for pid in (short.process.pid, *short.pids, keeper):
        os.kill(pid, signal.SIGCONT)
    assert short.report() == "gone its lease was over"
    assert short.alive() == []


def await_known(keeper: int, rank: int) -> None:
    """Wait until the keeper holds a pidfd of a rank."""
    infos, deadline_s = Path(f"/proc/{keeper}/fdinfo"), time.monotonic() + PATIENCE_S
    while f"\nPid:\t{rank}\n" not in "".join(map(_read, infos.iterdir())):
        assert time.monotonic() < deadline_s


def test_the_death_of_the_host_is_reported(long: Host):
    long.process.kill()
    assert long.report() == "gone its process has ended"
    assert long.alive() == []


def test_the_keeper_kills_what_a_rank_that_has_ended_has_left_in_its_group():
    command = [sys.executable, "-c", LEFT]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as host:
        assert host.stdout is not None
        assert host.stdin is not None
        child, leader = map(int, host.stdout.readline().split())
        left = os.pidfd_open(child)
        await_known(keeper_of(host.pid), leader)
        host.stdin.write(b"\n")  # it ends after it has reported the end of the rank
        host.stdin.close()
        ended = bool(select.select([left], [], [], PATIENCE_S)[0])
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(left, signal.SIGKILL)
        os.close(left)
    assert ended


def test_a_keeper_ignores_polite_signals(long: Host):
    keeper = keeper_of(long.process.pid)
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(keeper, sig)
    long.process.kill()
    assert long.report() == "gone its process has ended"


def test_a_bye_kills_nothing(long: Host):
    assert long.say("bye") == "done"
    assert long.report() == "", "the connection ends without a report"
    assert len(long.alive()) == 4


def test_a_renewal_without_a_keeper_is_an_error(long: Host):
    """The host ends its ranks then; see `Host.renew`."""
    os.kill(keeper_of(long.process.pid), signal.SIGKILL)
    assert long.report() == ""
    while long.say("renew") == "done":  # the kernel closes the keeper's stdin behind its connections
        pass
    assert long.process.wait(PATIENCE_S) == 1, "LeaseLost has ended it"


NS = 1_000_000_000
GROUP = "sleep 1000 & echo $!; wait"
ORPHANS = "sleep 1000 & echo $!; read end"
WRITES = "date +%s%N > $0; echo $$; while :; do date +%s%N > $0.new; mv $0.new $0; done"


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _read(path: Path) -> str:
    """Return the content of a file in /proc; "" if the descriptor is closed by now."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


class Kept:
    """A host, its keeper, and ranks."""

    def __init__(self, first_s: float = 1000) -> None:
        self.host = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        words = [sys.executable, "-I", "-S", keeper.__file__, str(self.host.pid), str(first_s), "127.0.0.1"]
        starter = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert starter.stdin is not None
        assert starter.stdout is not None
        self.stdin, self.stdout = starter.stdin, starter.stdout
        self.port = int(self.stdout.readline())
        starter.wait()
        self.ranks: list[subprocess.Popen[str]] = []

    def say(self, *words: object) -> None:
        self.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def lease(self, seconds: float) -> None:
        self.say("lease", now_ns() + int(seconds * NS))

    def rank(self, script: str, *args: str, started: str | None = None) -> tuple[int, int]:
        """Start a rank and tell the keeper; return its pid and that which it writes first."""
        rank = subprocess.Popen(
            ["sh", "-c", script, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.ranks.append(rank)
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        self.say("rank", rank.pid, started or keeper.start_time(rank.pid))
        return rank.pid, child

    @property
    def pid(self) -> int:
        """The pid of the keeper."""
        return keeper_of(self.host.pid)

    def await_known(self, rank: int) -> None:
        await_known(self.pid, rank)

    def has_ended(self) -> bool:
        """Wait for the end of the keeper, which closes its stdout."""
        return self.stdout.read() == b""

    def close(self) -> None:
        self.stdin.close()
        for process in (self.host, *self.ranks):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for rank in self.ranks:
            for stream in (rank.stdin, rank.stdout):
                assert stream is not None
                stream.close()
        self.stdout.close()


@pytest.fixture
def kept() -> Iterator[Kept]:
    found = Kept()
    yield found
    found.close()


@pytest.fixture
def watch() -> Iterator[type[Watched]]:
    """Return a maker of `Watched`."""
    made: list[Watched] = []

    class Remembered(Watched):
        def __init__(self, *pids: int) -> None:
            super().__init__(pids)
            made.append(self)

    yield Remembered
    for each in made:
        each.close()


def passes(seconds: float) -> None:
    """Let time pass: the test is about it."""
    threading.Event().wait(seconds)


def test_the_first_lease_ends_by_itself(watch):
    kept = Kept(first_s=4.0)
    try:
        processes = watch(*kept.rank(GROUP), kept.host.pid)
        assert processes.gone_within(PATIENCE_S)
        assert kept.has_ended()
    finally:
        kept.close()


def test_the_first_renewal_replaces_the_first_lease(kept: Kept, watch):
    processes = watch(*kept.rank(GROUP), kept.host.pid)
    kept.lease(0.3)
    assert processes.gone_within(PATIENCE_S)


def test_a_renewal_extends_the_lease_and_an_earlier_one_does_not_shorten_it(kept: Kept, watch):
    processes = watch(*kept.rank(GROUP), kept.host.pid)
    kept.lease(4.0)
    kept.lease(1000)
    kept.lease(0.1)
    passes(5.0)
    assert len(processes.alive()) == 3
    kept.stdin.close()
    assert processes.gone_within(PATIENCE_S)


def test_renewals_in_time_keep_all_alive(kept: Kept, watch):
    """Four seconds, renewed each third of a second: for more than two leases nothing ends."""
    processes = watch(*kept.rank(GROUP), kept.host.pid)
    for _ in range(30):
        kept.lease(4.0)
        passes(0.3)
    assert len(processes.alive()) == 3
    assert processes.gone_within(PATIENCE_S)


def test_an_end_of_stdin_without_bye_kills_all_groups_and_the_host(kept: Kept, watch):
    processes = watch(*kept.rank(GROUP), *kept.rank(GROUP), kept.host.pid)
    kept.stdin.close()
    assert processes.gone_within(PATIENCE_S)
    assert kept.has_ended()


def test_bye_kills_nothing(kept: Kept, watch):
    processes = watch(*kept.rank(GROUP), kept.host.pid)
    kept.say("bye")
    assert kept.has_ended()
    assert len(processes.alive()) == 3


def test_the_death_of_the_host_kills_the_groups(kept: Kept, watch):
    processes = watch(*kept.rank(GROUP))
    kept.host.kill()
    assert processes.gone_within(PATIENCE_S)


def test_a_driver_that_connects_while_the_host_ends_gets_the_report(kept: Kept):
    """The keeper finds the connection and the death at once."""
    keepers = kept.pid
    os.kill(keepers, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", kept.port)) as driver:
        kept.host.kill()
        kept.host.wait()
        os.kill(keepers, signal.SIGCONT)
        driver.settimeout(PATIENCE_S)
        with driver.makefile() as lines:
            assert lines.readline() == "gone its process has ended\n"


def test_connections_of_strangers_are_closed_beyond_a_limit_and_the_driver_gets_its_report(kept: Kept):
    with ExitStack() as stack:
        driver, *others = [stack.enter_context(connected(kept.port)) for _ in range(12)]
        while len(select.select(others, [], [], PATIENCE_S)[0]) < 4:
            pass
        assert [each.recv(1) for each in others[-4:]] == [b""] * 4
        kept.host.kill()
        kept.host.wait()
        with driver.makefile() as lines:
            assert lines.readline() == "gone its process has ended\n"


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def test_a_group_that_is_gone_is_not_killed(kept: Kept, watch):
    """Its pid may belong to another process by then."""
    leader, child = kept.rank(GROUP)
    processes, host = watch(leader, child), watch(kept.host.pid)
    kept.say("gone", leader)
    kept.stdin.close()
    assert host.gone_within(PATIENCE_S)
    assert kept.has_ended()
    assert len(processes.alive()) == 2


def test_a_process_with_another_start_time_is_not_killed(kept: Kept, watch):
    """The rank had ended, and its pid was used again, before the keeper heard of it."""
    leader, child = kept.rank(GROUP, started="1")
    processes, host = watch(leader, child), watch(kept.host.pid)
    kept.stdin.close()
    assert host.gone_within(PATIENCE_S)
    assert kept.has_ended()
    assert len(processes.alive()) == 2


def test_a_group_whose_leader_was_reaped_is_killed(kept: Kept, watch):
    leader, child = kept.rank(ORPHANS)
    processes = watch(child)
    kept.await_known(leader)
    assert kept.ranks[0].stdin is not None
    kept.ranks[0].stdin.close()
    kept.ranks[0].wait()
    assert not keeper.start_time(leader)
    kept.stdin.close()
    assert processes.gone_within(PATIENCE_S)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_the_keeper_ignores_what_a_terminal_or_a_user_sends(kept: Kept, watch, sig: signal.Signals):
    processes, keepers = watch(*kept.rank(GROUP)), watch(kept.pid)
    os.kill(kept.pid, sig)
    passes(0.1)
    assert keepers.alive()
    kept.stdin.close()
    assert processes.gone_within(PATIENCE_S)


def test_after_a_thaw_behind_the_lease_ranks_do_not_go_on(kept: Kept, watch, tmp_path: Path):
    """The renewal that waits in the pipe was sent in time, and the ranks are continued before the keeper."""
    files = [tmp_path / str(number) for number in range(2)]
    leaders = [kept.rank(WRITES, str(file))[0] for file in files]
    pid, processes = kept.pid, watch(*leaders, kept.host.pid)
    kept.lease(4.0)
    os.kill(pid, signal.SIGSTOP)
    for stopped in (*leaders, kept.host.pid):
        os.killpg(stopped, signal.SIGSTOP)
    kept.lease(4.1)
    passes(5.0)
    thaw_ns = time.time_ns()
    for continued in (*leaders, kept.host.pid):
        os.killpg(continued, signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)
    assert processes.gone_within(PATIENCE_S)
    late_ms = [(int(file.read_text() or 0) - thaw_ns) / 1e6 for file in files]
    print(f"last write {max(late_ms):.1f} ms after the thaw")
    assert max(late_ms) < 10_000
