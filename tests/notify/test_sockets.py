"""The host's sockets, beside ranks that are real processes: who is heard, who is not, and what it costs the others."""

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from supervise._gang.health import RankHealth
from supervise._gang.notify_protocol import Message, new_address, parse, variables, without_host_variables
from supervise._process.containment.procfs import is_of_rank
from tests.notify.host import RAW, ROOT
from tests.patience import PATIENCE_S


def address(host, rank):
    return "\0" + host.call(host.sockets._sockets[rank].end.getsockname)[1:].decode()


def test_a_life_from_ready_to_stopping(host):
    """Status and step are in the table before READY is told; STOPPING is told once, a further READY as a reload."""
    rank = host.python(
        3,
        """
import os, sys, supervise
assert os.environ["WATCHDOG_USEC"] == "1500000" and "WATCHDOG_PID" not in os.environ
supervise.notify(status="loading")
supervise.notify(ready=True, status="up", step=4)
supervise.notify(ready=True)
sys.stdin.read()
supervise.notify(step=2)
supervise.notify(stopping=True)
supervise.notify(stopping=True, status="bye")
""",
    )
    assert host.next() == (3, "ready", 0)
    notes = host.state(3)
    assert (notes.status, notes.step, notes.ready, notes.stopping, notes.dropped) == ("up", 4, True, False, 0)
    beat_ns = notes.beat_ns
    assert 0 < beat_ns <= time.monotonic_ns()
    rank.stdin.close()
    notes = host.after_exit(rank, 3)
    assert [host.next(), host.next()] == [(3, "reloaded", 0), (3, "stopping", 0)]
    assert host.told.empty()
    assert (notes.status, notes.step, notes.stopping) == ("bye", 2, True)
    assert notes.beat_ns == beat_ns, "a lower step is not a heartbeat"


def test_a_heartbeat_and_a_higher_step_are_beats(host):
    rank = host.python(
        0, "import supervise\nsupervise.notify(step=1)\ninput()\nsupervise.notify(heartbeat=True)\ninput()"
    )
    beats = []
    for _ in range(2):
        while (beat_ns := host.state(0).beat_ns) in (None, *beats):
            select.select([host.call(host.sockets._sockets[0].end.fileno)], [], [], 0.01)
        beats.append(beat_ns)
        rank.stdin.write("\n")
        rank.stdin.flush()
    assert beats == sorted(beats)
    assert host.after_exit(rank, 0).step == 1


def test_an_equal_step_is_no_heartbeat(host):
    """A rank that reports where it is, again and again, does not get on."""
    rank = host.python(
        0, "import supervise, sys\nsupervise.notify(ready=True, step=4)\nsys.stdin.read()\nsupervise.notify(step=4)"
    )
    assert host.next() == (0, "ready", 0)
    beat_ns = host.state(0).beat_ns
    assert beat_ns > 0
    rank.stdin.close()
    assert host.after_exit(rank, 0).beat_ns == beat_ns


def test_extensions_and_triggers_are_told_each_time(host):
    rank = host.python(0, RAW + "say('EXTEND_TIMEOUT_USEC=5000000')\nsay('WATCHDOG=trigger')\nsay('WATCHDOG=trigger')")
    host.after_exit(rank, 0)
    assert [host.next() for _ in range(3)] == [(0, "extended", 5_000_000), (0, "trigger", 0), (0, "trigger", 0)]


def test_what_was_sent_before_the_launch_is_known_is_read_then(host):
    """Also if the sender is no more: then its user counts."""
    source = """
import subprocess, sys
ready = "import supervise; supervise.notify(ready=True)"
subprocess.run([sys.executable, "-c", ready], start_new_session=True, check=True)
print("reaped", flush=True)
input()
"""
    rank = host.start(0, [sys.executable, "-c", source])
    assert rank.stdout.readline() == "reaped\n"
    host.call(host.sockets.read_now, 0)
    assert not host.state(0).ready
    host.call(host.sockets.launched, 0, rank.pid)
    assert host.next() == (0, "ready", 0)


def test_a_sender_that_has_exited_must_have_been_of_our_user():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(PATIENCE_S)
    assert is_of_rank(gone.pid, os.getuid(), leader=1)
    assert not is_of_rank(gone.pid, os.getuid() + 1, leader=1)
    assert not is_of_rank(0, os.getuid(), leader=os.getsid(0)), "a sender in another pid namespace has the number 0"


FORKS = """
import os, sys, supervise
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {sender}
        os.write(write, b"x")
        sys.stdin.read()
        os._exit(0)
    {middle}
    os._exit(0)
{first}
os.read(read, 1)
supervise.notify(stopping=True)
sys.stdin.read()
"""


def test_a_sender_in_another_session_is_known_by_its_parents(host):
    rank = host.python(0, FORKS.format(sender="supervise.notify(ready=True)", middle="os.wait()", first=""))
    assert {host.next()[1], host.next()[1]} == {"ready", "stopping"}
    assert host.state(0).dropped == 0
    rank.stdin.close()
    host.after_exit(rank, 0)


def test_an_orphan_in_another_session_is_dropped(host):
    """A daemon has left the rank, and its parents do not lead back; the page of the protocol says so."""
    orphan = "os.read(gone_read, 1); supervise.notify(ready=True)"
    source = FORKS.format(sender=orphan, middle="", first="os.wait(); os.write(gone_write, b'x')")
    rank = host.python(0, source.replace("read, write", "gone_read, gone_write = os.pipe()\nread, write", 1))
    assert host.next() == (0, "stopping", 0)
    assert (host.state(0).dropped, host.state(0).ready) == (1, False)
    rank.stdin.close()
    host.after_exit(rank, 0)


def test_a_stranger_is_dropped_and_counted(host):
    rank = host.python(0, RAW + "sys.stdin.read(); say('STATUS=mine')")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for text in (b"READY=1", b"STATUS=yours", b"WATCHDOG=trigger"):
            stranger.sendto(text, address(host, 0))
    rank.stdin.close()
    notes = host.after_exit(rank, 0)
    assert (notes.dropped, notes.ready, notes.status) == (3, False, "mine")
    assert host.told.empty()


def test_what_is_too_long_is_dropped(host):
    """A status that just fits arrives."""
    rank = host.python(0, RAW + "say('STATUS=' + 'a' * 4089); say('READY=1\\nSTATUS=' + 'b' * 4090)")
    notes = host.after_exit(rank, 0)
    assert (notes.status, notes.ready, notes.dropped) == ("a" * 4089, False, 1)


def test_every_descriptor_is_closed_and_the_barrier_falls_behind_what_came_before(host):
    """The rank sees the end of a pipe, whose write end only the datagrams hold, when they have been handled."""
    source = """
import array
read, write = os.pipe()
def send(text, number):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write] * number))], 0, ADDRESS)
send(b"STATUS=with 253", 253)
send(b"STATUS=before", 2)
send(b"BARRIER=1", 1)
os.close(write)
assert os.read(read, 1) == b""
say("STOPPING=1")
sys.stdin.read()
"""
    rank = host.python(0, RAW + source)
    assert host.next() == (0, "stopping", 0)
    assert (host.state(0).status, host.state(0).dropped) == ("before", 0)
    rank.stdin.close()
    host.after_exit(rank, 0)


FLOOD = (
    RAW
    + """
{first}
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    sender.connect(ADDRESS)
    while True:
        sender.send(b"STATUS=flood\\nEXTEND_TIMEOUT_USEC=x")
"""
)
BEATS = (
    RAW
    + """
say("READY=1")
sys.stdin.readline()
for _ in range(10):  # as many as a queue of its own holds, so that a host that gets no processor loses none
    pause(0.1)
    say("WATCHDOG=trigger", socket.MSG_DONTWAIT)  # raises if there is no room
"""
)


@pytest.mark.parametrize("first", ["", 'say("READY=1")'], ids=["before_ready", "after_ready"])
def test_beside_a_rank_that_floods_no_beat_of_others_is_lost(host, first):
    """Each of seven others sends 10, which are told one by one; with one common socket nearly all were lost."""
    host.python(0, FLOOD.format(first=first))
    others = [host.python(rank, BEATS) for rank in range(1, 8)]
    ready = {host.next()[:2] for _ in range(7 + bool(first))}
    assert ready >= {(rank, "ready") for rank in range(1, 8)}
    for other in others:
        other.stdin.write("\n")
        other.stdin.close()
    for rank, other in enumerate(others, 1):
        host.after_exit(other, rank)
    heard = [host.next() for _ in range(7 * 10)]
    assert all(heard.count((rank, "trigger", 0)) == 10 for rank in range(1, 8))
    assert host.state(0).status == "flood"


@pytest.mark.parametrize("pause", ["", "time.sleep(0.001)"], ids=["at_once", "1000_a_second"])
@pytest.mark.parametrize(
    ("report", "last"),
    [
        ('step=step, status=f"batch {step}"', (299, "batch 299")),
        ("step=step", (299, None)),
        ('status=f"batch {step}"', (None, "batch 299")),
    ],
    ids=["both", "step", "status"],
)
def test_a_rank_that_is_killed_after_many_reports_has_the_last_one(host, report, last, pause):
    """Its queue holds 11 datagrams."""
    source = f"""
import os, time
from supervise import notify, notifying
notifying._REPORT_PATIENCE_S = 900.0  # a host may stand still on a busy machine
notify(ready=True)
for step in range(300):
    notify({report})
    {pause}
os.kill(os.getpid(), 9)
"""
    process = host.python(0, source)
    assert process.wait(PATIENCE_S) == -9
    host.call(host.sockets.read_now, 0)
    assert (host.state(0).step, host.state(0).status) == last


def test_after_ready_the_sockets_are_read_ten_times_a_second(host):
    """Two ranks that send 40 times a second in all cost one wake-up every 0.1 s, and none when they have ended.

    If a wake-up is so late that it finds 8 datagrams of a rank, the next comes sooner; it is then 0.3 s late.
    """
    ticks, tick = [], host.sockets._tick

    def counted():
        at_s = time.monotonic()
        tick()
        if host.sockets._next is not None:  # it has found datagrams
            ticks.append(at_s)

    host.sockets._tick = counted
    source = RAW + "for _ in range(25):\n    say('WATCHDOG=1')\n    pause(0.05)"
    ranks = [host.python(rank, source, awaits_ready=False) for rank in range(2)]
    for rank, process in enumerate(ranks):
        host.after_exit(process, rank)
    while not host.call(lambda: host.sockets._next is None):
        select.select([], [], [], 0.01)
    assert len(ticks) <= (ticks[-1] - ticks[0]) / 0.1 + 1.5
    assert all(host.state(rank).beat_ns for rank in range(2))


def test_a_new_life_has_a_new_address_and_an_empty_table(host):
    rank = host.python(0, "import supervise\nsupervise.notify(ready=True, status='first')")
    before = address(host, 0)
    assert host.after_exit(rank, 0).status == "first"
    rank = host.python(0, "input()")
    assert address(host, 0) != before
    assert host.state(0).status is None
    rank.stdin.write("\n")
    rank.stdin.flush()
    assert host.after_exit(rank, 0).ready is False
    with suppress(ConnectionRefusedError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as late:
        late.sendto(b"READY=1", before)
        pytest.fail("the address of the first life is still heard")


def test_close_is_idempotent_and_keeps_what_was_said(host):
    rank = host.python(0, "import supervise\nsupervise.notify(ready=True, status='last')")
    host.after_exit(rank, 0)
    for _ in range(2):
        host.call(host.sockets.close, 0)
        host.call(host.sockets.close_all)
        host.call(host.sockets.close, 5)
        host.call(host.sockets.read_now, 0)
        host.call(host.sockets.launched, 0, rank.pid)
    assert host.state(0).status == "last"
    assert host.state(5).status is None


@pytest.mark.parametrize("awaits_ready", [True, False])
def test_the_receiver_may_close_the_socket_while_it_is_read(host, awaits_ready):
    """Nothing of the rank is handled after that."""
    host.hear = lambda *told: (host.told.put(told), host.sockets.close_all())
    host.sockets._told = host.hear
    rank = host.start(0, [sys.executable, "-c", RAW + "say('READY=1\\nSTATUS=a'); say('STATUS=b'); print(flush=True)"])
    rank.stdout.readline()
    host.call(host.sockets.launched, 0, rank.pid, awaits_ready=awaits_ready)
    assert host.next() == (0, "ready", 0)
    assert rank.wait(PATIENCE_S) == 0
    assert host.state(0).status == "a"
    assert host.call(lambda: (host.sockets._sockets, host.sockets._epoll)) == ({}, None)


def test_a_forked_child_of_the_host_keeps_no_address(host):
    """Otherwise senders would fill the queue of a host that has ended, and block."""
    host.call(host.sockets.open, 0, new_address())
    end = host.sockets._sockets[0].end
    pid = os.fork()
    if pid == 0:
        os._exit(end.fileno() != -1 or not host.sockets._epoll.closed)
    assert os.waitpid(pid, 0)[1] == 0
    assert end.fileno() != -1


def test_without_a_descriptor_the_error_names_the_rank_and_nothing_is_left():
    source = """
import errno, os, resource
from supervise._gang.notify_protocol import HELD_BY_RANK, new_address
from supervise._gang.notify_sockets import NotifySockets
from supervise._runtime.loop import Loop
loop = Loop("full", lost=print)
loop._own_thread = False
loop.start()
sockets = NotifySockets(loop, print)
before = set(os.listdir("/proc/self/fd"))
free = 1 + 2 * HELD_BY_RANK
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + free, hard))
try:
    for rank in range(100):
        sockets.open(rank, new_address())
except OSError as error:
    assert error.errno == errno.EMFILE, error
    assert f"local rank {rank} " in str(error), error
    assert 1 <= rank < 20, rank
sockets.close_all()
assert set(os.listdir("/proc/self/fd")) == before
loop.abandon()
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_another_network_namespace_does_not_reach_the_host(host):
    """Abstract addresses belong to one; the sender is not disturbed, and the page of the protocol says so."""
    apart = ["unshare", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False, stderr=-3).returncode:
        pytest.skip("no network namespace can be made here")
    rank = host.launch(0, [*apart, sys.executable, "-c", "import supervise; supervise.notify(ready=True)"])
    notes = host.after_exit(rank, 0)
    assert (notes.ready, notes.dropped) == (False, 0)


NAMES = ["READY", "STATUS", "WATCHDOG", "STOPPING", "EXTEND_TIMEOUT_USEC", "BARRIER", "X_SUPERVISE_STEP", "MAINPID", ""]
ASSIGNMENTS = st.tuples(st.sampled_from(NAMES), st.text() | st.integers().map(str)).map("=".join)
DATAGRAMS = st.binary(max_size=4096) | st.lists(ASSIGNMENTS).map(lambda lines: "\n".join(lines).encode())


@given(DATAGRAMS)
def test_no_input_raises_and_every_number_fits_into_64_bits(datagram):
    found = parse(datagram)
    assert found.step is None or 0 <= found.step < 2**63
    assert found.extend_usec is None or 0 <= found.extend_usec < 2**63
    assert not (found.beat and found.trigger)


@given(st.text(st.characters(codec="utf-8")))
def test_a_status_is_one_line_without_control_characters(text):
    status = parse(b"STATUS=" + text.encode()).status
    assert all(char >= " " and not "\x7f" <= char <= "\x9f" for char in status)
    assert not set(status) & set("\u2028\u2029\u202e")


@given(st.text(st.characters(categories=["L", "N"]), min_size=1), st.integers(0, 10**18 - 1))
def test_what_is_plain_arrives_as_it_was_sent(text, step):
    said = f"STATUS={text}\nX_SUPERVISE_STEP={step}\nREADY=1".encode()
    assert parse(said) == Message(ready=True, status=text, step=step)


@pytest.mark.parametrize(
    ("datagram", "said"),
    [
        (b"READY=1", Message(ready=True)),
        (b"READY=1\0", Message(ready=True)),
        (b"READY=1\r\nSTATUS=up\r\n", Message(ready=True, status="up")),
        (b"READY=0", Message()),
        (b"XREADY=1", Message()),
        (b"STOPPING=1", Message(stopping=True)),
        (b"WATCHDOG=1", Message(beat=True)),
        (b"WATCHDOG=trigger", Message(trigger=True)),
        (b"EXTEND_TIMEOUT_USEC=20000000", Message(extend_usec=20_000_000)),
        (b"EXTEND_TIMEOUT_USEC=-1", Message()),
        (b"EXTEND_TIMEOUT_USEC=" + b"9" * 3000, Message()),
        ("X_SUPERVISE_STEP=\u0661".encode(), Message()),
        (b"STATUS=first\nSTATUS=second", Message(status="first")),
        (b"STATUS=\x1b[31mred\x1b[0m \x1b]0;title\x07x\ty\xff", Message(status="red x y\ufffd")),
        (b"STATUS=", Message(status="")),
        (b"BARRIER=1", Message()),
        (b"", Message()),
    ],
)
def test_examples(datagram, said):
    assert parse(datagram) == said


@pytest.mark.parametrize("worst", ["\x90", "\x9d ", "\x9b0", "\x1b]", "\x1b[ "])
def test_the_time_for_the_worst_status_is_not_quadratic(worst):
    """The pattern for a terminal's sequences alone took 0.1 s for 4 096 bytes."""
    datagram = b"STATUS=" + (worst * 2000).encode()[:4089]
    took_s = []
    for _ in range(10):
        begun_s = time.thread_time()
        parse(datagram)
        took_s.append(time.thread_time() - begun_s)
    assert min(took_s) < 0.02


def test_the_variables_of_a_rank_and_those_of_the_host():
    """A heartbeat may come from any process of the rank, so WATCHDOG_PID is not set; the host's never reach it."""
    assert variables("@a", None) == {"NOTIFY_SOCKET": "@a"}
    assert variables("@a", 1.5) == {"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "1500000"}
    assert variables("@a", 1e-9)["WATCHDOG_USEC"] == "1"
    host = {"NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    assert without_host_variables(host) == {"PATH": "/bin"}


class Timers:
    """A loop that has only timers."""

    def __init__(self):
        self.set = []

    def call_later(self, delay_s, callback):
        self.set.append((delay_s, callback))
        self.last = SimpleNamespace(cancel=lambda: None, pending=False, due_s=time.monotonic() + delay_s)
        return self.last


def begun():
    """Return the health of a rank that must be ready in 60 s, its timers, and what it has told the core."""
    steps, loop = [], Timers()
    part = SimpleNamespace(ready=("notify",), ready_timeout_s=60.0)
    spec = SimpleNamespace(watches=False, of=lambda _: part)
    gang = SimpleNamespace(ranks=[SimpleNamespace(attempt=0)])
    host = SimpleNamespace(gang=gang, attempt=SimpleNamespace(spec=spec), step=steps.append)
    health = RankHealth(host, loop)
    health.started(SimpleNamespace(local_rank=0, pid=1, started_ns=time.monotonic_ns()))
    return health, loop, steps


def test_an_extension_never_shortens_the_time():
    """Neither the time of the role, nor an earlier extension."""
    health, loop, steps = begun()
    health._told(0, "extended", 1_000_000)
    loop.set[-1][1]()
    assert 50.0 < loop.set[-1][0] <= 60.0
    for usec in (600_000_000, 1_000_000):
        health._told(0, "extended", usec)
    loop.set[-1][1]()
    assert 500.0 < loop.set[-1][0] <= 600.0
    assert steps == []
    health.end()


@pytest.mark.parametrize("who", ["supervise", "the rank"])
def test_the_time_in_which_somebody_was_suspended_does_not_count(who):
    """A check that comes late finds that supervise was suspended, once in a life; SIGCONT says that ranks were."""
    health, loop, steps = begun()
    health._due_s[0] = time.monotonic() - 1.0
    if who == "supervise":
        loop.last.due_s = time.monotonic() - 1.0
        loop.set[-1][1]()
    else:
        health.released([0, 7])
    assert 59.0 < loop.set[-1][0] <= 60.0
    assert len(loop.set) == 2
    health._due_s[0] = 0.0
    if who == "supervise":
        loop.last.due_s = 0.0
    loop.set[-1][1]()
    assert [step.why for step in steps] == ["was not ready within 60 s"]
    health.end()


def test_a_rank_that_asks_for_more_time_again_and_again_has_one_timer():
    health, loop, steps = begun()
    for _ in range(1000):
        health._told(0, "extended", 600_000_000)
    ((delay_s, check),) = loop.set
    assert delay_s <= 60.0
    check()
    assert steps == []
    assert 500.0 < loop.set[1][0] <= 600.0
    health._due_s[0] = 0.0
    loop.set[1][1]()
    assert [step.why for step in steps] == ["was not ready within 60 s"]
    assert len(loop.set) == 2
    health.end()
