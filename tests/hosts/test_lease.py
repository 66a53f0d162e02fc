"""The lease of a host and its keeper, on real processes: a host is a small program, its ranks are shells."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from supervise._hosts.keeper import start_time
from tests.patience import PATIENCE_S

HOST = """
import subprocess, sys, threading, time
from supervise._hosts.lease import Lease

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
token = lease.token()
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
SHORT_S, LONG_S = "1.0", "1000"


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
    keeper = keeper_of(short)
    os.kill(keeper, signal.SIGSTOP)
    short.watch(short.say("rank"))
    for pid in short.pids:
        os.kill(pid, signal.SIGSTOP)
    assert short.say("renew") == "done"
    short.process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        short.process.wait(2.5)  # longer than the lease: it is the time that the test is about
    for pid in (short.process.pid, *short.pids, keeper):
        os.kill(pid, signal.SIGCONT)
    assert short.report() == "gone its lease was over"
    assert short.alive() == []


def keeper_of(host: Host) -> int:
    """The pid of the keeper, which is no child of the host."""
    want = ["keeper.py", str(host.process.pid)]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0") if entry.name.isdigit() else []
            if len(words) > 5 and [Path(words[3]).name, words[4]] == want:
                return int(entry.name)
    raise AssertionError("there is no keeper")


def test_the_death_of_the_host_is_reported(long: Host):
    long.process.kill()
    assert long.report() == "gone its process has ended"
    assert long.alive() == []


def test_a_keeper_ignores_polite_signals(long: Host):
    keeper = keeper_of(long)
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
    os.kill(keeper_of(long), signal.SIGKILL)
    assert long.report() == ""
    while long.say("renew") == "done":  # the kernel closes the keeper's stdin behind its connections
        pass
    assert long.process.wait(PATIENCE_S) == 1, "LeaseLost has ended it"
