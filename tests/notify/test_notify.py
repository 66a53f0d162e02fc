"""`supervise.notify`: one datagram to any host of the protocol, and never a reason for a rank to fail."""

import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import supervise
from tests.notify.host import ROOT
from tests.patience import PATIENCE_S


@pytest.fixture(params=["abstract", "path"])
def host(request, tmp_path, monkeypatch):
    """A socket as a host has, at both kinds of addresses."""
    shown = f"@supervise-test/{os.urandom(8).hex()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(shown.replace("@", "\0", 1))
        end.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", shown)
        yield end


def said(host):
    return host.recv(65536)


def assignments(datagram):
    """Return the variables of a datagram; each line has to be an assignment."""
    return dict(line.split("=", 1) for line in datagram.decode().split("\n"))


def step_of(datagram):
    return int(assignments(datagram)["X_SUPERVISE_STEP"])


def fill(host):
    """Fill the queue of a host; return the number of datagrams in it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(host.getsockname())
        for number in range(100_000):
            try:
                sender.send(b"WATCHDOG=1")
            except BlockingIOError:
                return number
    raise AssertionError("the queue is never full")


def test_every_argument_is_an_assignment_and_no_argument_sends_nothing(host):
    supervise.notify()
    supervise.notify(ready=True)
    assert said(host) == b"READY=1"
    supervise.notify(True, "loading", 7, True, True)
    assert set(said(host).split(b"\n")) == {
        b"READY=1",
        b"STATUS=loading",
        b"X_SUPERVISE_STEP=7",
        b"WATCHDOG=1",
        b"STOPPING=1",
    }
    supervise.notify(step=np.int64(8))
    assert said(host) == b"X_SUPERVISE_STEP=8"


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x7f"])
def test_a_status_cannot_contain_an_assignment(host, character):
    supervise.notify(status=f"a{character}READY=1")
    assert said(host) == b"STATUS=a READY=1"


def test_a_status_is_utf_8_and_short_enough_whatever_it_holds(host):
    """A surrogate, as in a file name that is not UTF-8; and a text that is too long, cut between two characters."""
    supervise.notify(status="a\udcffb")
    assert said(host) == b"STATUS=a?b"
    supervise.notify(status="x" + "\u20ac" * 100_000, step=10**18 - 1, ready=True, heartbeat=True, stopping=True)
    datagram = said(host)
    assert len(datagram) < 4096
    status = assignments(datagram)["STATUS"]
    assert set(status[1:]) == {"\u20ac"}
    assert len(status.encode()) > 3000


def test_a_full_queue_drops_a_heartbeat_at_once(host):
    number = fill(host)
    supervise.notify(heartbeat=True, step=3)
    assert {said(host) for _ in range(number)} == {b"WATCHDOG=1"}
    host.setblocking(False)
    with pytest.raises(BlockingIOError):
        said(host)
    supervise.notify(heartbeat=True, status="on")
    assert assignments(said(host)) == {"X_SUPERVISE_STEP": "3", "WATCHDOG": "1", "STATUS": "on"}
    supervise.notify(heartbeat=True)
    assert said(host) == b"WATCHDOG=1", "the step is sent once"


def test_only_the_first_step_waits_for_a_host_that_is_suspended(host):
    """A thousand steps that wait would take 200 s."""
    number, begun_s = fill(host), time.monotonic()
    for step in range(1000):
        supervise.notify(step=step)
    assert 0.2 <= time.monotonic() - begun_s < 20
    assert {said(host) for _ in range(number)} == {b"WATCHDOG=1"}
    supervise.notify(heartbeat=True)
    assert assignments(said(host)) == {"X_SUPERVISE_STEP": "999", "WATCHDOG": "1"}


def test_the_exit_sends_the_newest_step_and_status(host):
    """The queue is full when the program reports them. Its forked child does not send them."""
    number = fill(host)
    source = """
import os
from supervise import notify, notifying
notifying._PATIENCE_S = 900.0
notify(step=1, status="begun", heartbeat=True)
notify(step=2)
pid = os.fork()
print("full", flush=True)
if pid == 0:
    raise SystemExit
raise LookupError("no luck")
"""
    environ = {**os.environ, "PYTHONPATH": ROOT}
    command, pipe = [sys.executable, "-c", source], subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True) as sender:
        try:
            assert sender.stdout.readline() == "full\n"
            assert {said(host) for _ in range(number)} == {b"WATCHDOG=1"}
            assert assignments(said(host)) == {"X_SUPERVISE_STEP": "2", "STATUS": "begun"}
            assert "no luck" in sender.communicate(timeout=PATIENCE_S)[1]
        finally:
            sender.kill()
    host.setblocking(False)
    with pytest.raises(BlockingIOError):
        said(host)


@pytest.mark.parametrize("what", ["ready", "stopping"])
def test_ready_and_stopping_wait_for_room(host, what, patient_reports):
    number = fill(host)
    waiting = threading.Thread(target=supervise.notify, kwargs={what: True})
    waiting.start()
    assert [said(host) for _ in range(number + 1)][-1] == f"{what.upper()}=1".encode()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_ready_gives_up_after_a_second(host):
    fill(host)
    begun_s, used_s = time.monotonic(), time.thread_time()
    supervise.notify(ready=True)
    assert time.monotonic() - begun_s >= 0.9
    assert time.thread_time() - used_s < 0.5, "it waits for the kernel's word"


def test_a_host_that_is_gone_is_no_error(host):
    host.close()
    supervise.notify(ready=True, status="hello")


@pytest.mark.parametrize("address", ["", "@", "/nowhere/at/all", "@" + "x" * 200, "vsock:2:1", "relative", "/\udcff"])
def test_an_address_without_a_host_is_no_error(monkeypatch, address):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    supervise.notify(ready=True)


def test_without_the_variable_it_does_nothing(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    supervise.notify(ready=True)


@pytest.mark.parametrize(
    "wrong",
    [{"ready": "loading"}, {"heartbeat": 1}, {"stopping": None}, {"status": b"x"}, {"step": 1.5}, {"step": True}],
)
def test_a_wrong_type_is_named_also_without_a_host(monkeypatch, wrong):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    ((name, value),) = wrong.items()
    with pytest.raises(TypeError, match=name) as error:
        supervise.notify(**wrong)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("step", [-1, 10**18])
def test_a_step_out_of_range_is_named(step):
    with pytest.raises(ValueError, match=f"step must be from 0 .* not {step}"):
        supervise.notify(step=step)


def test_threads_and_a_forked_child_send_whole_messages(host):
    """In a program of its own, since a fork beside threads is what is tested."""
    source = """
import os, threading
from supervise import notifying
notifying._PATIENCE_S = 900.0
from supervise import notify  # a first use in a thread at the moment of the fork would leave Python's import lock owned
def send(thread):
    for step in range(20):
        notify(ready=True, step=thread * 100 + step)
threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
[t.start() for t in threads]
pid = os.fork()
if pid == 0:
    notify(ready=True, step=777)
    os._exit(0)
[t.join() for t in threads]
assert os.waitpid(pid, 0)[1] == 0
"""
    environ = {**os.environ, "PYTHONPATH": ROOT, "PYTHONWARNINGS": "ignore"}
    sender = subprocess.Popen([sys.executable, "-c", source], env=environ)
    try:
        steps = sorted(step_of(said(host)) for _ in range(81))
        assert sender.wait(PATIENCE_S) == 0
    finally:
        sender.kill()
        sender.wait()
    assert steps == sorted([*(thread * 100 + step for thread in range(4) for step in range(20)), 777])


def test_it_needs_only_built_in_modules():
    """Every rank may import it."""
    code = "import sys; a = {*sys.modules}; import supervise.notifying; print(*sorted({*sys.modules} - a))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    found = {*done.stdout.split()} - {"_operator", "_socket", "atexit", "supervise", "supervise.notifying"}
    assert found <= {"__future__"}
