"""What a datagram says: every input has a result, and nothing that a terminal would obey is left in a status."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervise._gang.notify_protocol import Message, parse, variables, without_host_variables

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
