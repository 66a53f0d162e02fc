"""Lines, pure: any way to cut a stream into chunks shows the same, and nothing is ever lost or mixed."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervise._logs.lines import LIMIT_BYTES, UPDATE_INTERVAL_NS, LineStream, source_bytes

PIECES = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"\x00", b"\xff", "\N{SNOWMAN}".encode()]))
STREAMS = PIECES.map(b"".join)
PLAIN = STREAMS.map(lambda data: data.replace(b"\r", b"x"))
PREFIXES = st.sampled_from([b"", b"[r0]:", b"\xff\n"[:1]])


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """The chunks of `data`, cut at each position of `at` that it has."""
    edges = [0, *sorted({i % (len(data) + 1) for i in at}), len(data)]
    return [data[i:j] for i, j in pairwise(edges)]


def show(stream: LineStream, chunks: list[bytes]) -> bytes:
    stream._shown_ns = 1 << 62  # no update is ever due: only what a line ends as is shown
    return b"".join([*(stream.feed(chunk) for chunk in chunks), stream.finish()])


def prefixed(data: bytes, prefix: bytes) -> bytes:
    """The plain rule, a line at a time."""
    return b"".join(prefix + line for line in data.splitlines(keepends=True)) if data else b""


@given(data=PLAIN, at=st.lists(st.integers(0, 200)), prefix=PREFIXES, limit=st.integers(0, 12))
def test_a_file_gets_every_byte_and_one_prefix_a_line(data, at, prefix, limit):
    stream = LineStream(prefix, console=False, limit_bytes=limit)
    lines = data.split(b"\n")
    expected = b"".join(prefix + line + b"\n" for line in lines[:-1]) + (prefix + lines[-1] if lines[-1] else b"")
    assert show(stream, cut(data, at)) == expected


@given(data=STREAMS, at=st.lists(st.integers(0, 200)))
def test_carriage_returns_reach_a_file_unchanged(data, at):
    assert show(LineStream(b"", console=False), cut(data, at)) == data


@given(data=STREAMS, at=st.lists(st.integers(0, 200)), limit=st.integers(0, 12))
@example(data=b"a\r\n", at=[2], limit=12)
@example(data=b"abcdef\rxy\r\n", at=[3, 7, 10], limit=2)
def test_a_console_shows_the_same_however_the_stream_is_cut(data, at, limit):
    whole = show(LineStream(b"[r0]:", console=True, limit_bytes=limit), cut(data, list(range(len(data)))))
    assert show(LineStream(b"[r0]:", console=True, limit_bytes=limit), cut(data, at)) == whole
    assert not whole or whole.endswith(b"\n")


@given(data=STREAMS, at=st.lists(st.integers(0, 200)), limit=st.integers(1, 12), console=st.booleans())
def test_a_filter_decides_the_same_however_the_stream_is_cut(data, at, limit, console):
    def make() -> LineStream:
        return LineStream(b"[r0]:", console=console, line_filter=lambda line: b"a" in line, limit_bytes=limit)

    assert show(make(), cut(data, at)) == show(make(), cut(data, list(range(len(data)))))


@given(data=STREAMS, at=st.lists(st.integers(0, 200)))
def test_a_filter_sees_raw_lines_with_their_newline(data, at):
    seen = []
    show(LineStream(b"p", console=False, line_filter=lambda line: bool(seen.append(line))), cut(data, at))
    assert b"".join(seen) == data
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in seen[:-1])


@pytest.mark.parametrize("piece", [b"\r", b"1%\r", b" 10%\r" * 10 + b"done\n"])
def test_a_flood_of_carriage_returns_is_not_taken_one_by_one(piece):
    """8 MiB of them took seconds of CPU time, and now take hundredths."""
    stream = LineStream(b"[r0]:", console=True)
    chunk = (piece * LIMIT_BYTES)[:LIMIT_BYTES]
    begun_s = time.thread_time()
    for number in range(128):
        stream.feed(chunk, number)
    assert time.thread_time() - begun_s < 0.4


@given(data=PLAIN, at=st.lists(st.integers(0, 200)), limit=st.integers(0, 12))
def test_unless_reserved_what_was_given_out_ends_with_a_newline(data, at, limit):
    stream = LineStream(b"[r0]:", console=True, limit_bytes=limit)
    for chunk in cut(data, at):
        out = stream.feed(chunk)
        assert not out or out.endswith(b"\n") != stream.reserved
        assert stream.held_bytes <= limit


@given(data=PLAIN, at=st.lists(st.integers(0, 200)), limit=st.integers(0, 12), written=st.integers(0, 400))
def test_source_bytes_is_what_is_left_without_prefixes(data, at, limit, written):
    prefix = b"<>"  # in no stream of this test
    stream = LineStream(prefix, console=False, limit_bytes=limit)
    for chunk in cut(data, at):
        continues = stream.reserved
        out = stream.feed(chunk)
        part = out[: written % (len(out) + 1)]
        plain = part.replace(prefix, b"").removesuffix(b"<")
        assert source_bytes(out, len(part), prefix, continues=continues) == len(plain)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" 0%\r 50%\r100%\n", b"p100%\n"),  # each segment replaces the one before
        (b"\r 0%\r 50%\r100%\n", b"p100%\n"),
        (b"50%\r100%\r\n", b"p100%\r\n"),  # an ordinary line end
        (b"text\r\r\n", b"ptext\r\n"),
        (b"\r\n\n", b"p\r\np\n"),
        (b"50%\rdone", b"pdone\n"),  # the end of the stream
        (b"50%\r", b"p50%\n"),
        (b"half", b"phalf\n"),
        (b"\r", b""),
    ],
)
def test_what_a_console_shows_of_carriage_returns(data, shown):
    assert show(LineStream(b"p", console=True), [data]) == shown


def test_updates_are_shown_at_once_then_at_most_one_in_the_interval():
    stream = LineStream(b"p", console=True)
    assert stream.feed(b"\r 1%", 0) == b"p 1%\n"
    assert stream.feed(b"\r 2%", 10) == b""
    assert stream.feed(b"\r 3%", 20) == b""
    assert stream.due_ns == UPDATE_INTERVAL_NS
    assert stream.update(UPDATE_INTERVAL_NS - 1) == b""
    assert stream.update(UPDATE_INTERVAL_NS) == b"p 3%\n"
    assert stream.due_ns is None
    assert stream.feed(b"\r 4%\r\n", UPDATE_INTERVAL_NS + 1) == b"p 4%\r\n"
    assert stream.due_ns is None


def test_the_last_state_is_not_shown_twice():
    stream = LineStream(b"p", console=True)
    assert stream.feed(b"\r100%", 0) == b"p100%\n"
    assert stream.feed(b"\nnext\n", 1) == b"pnext\n"


def test_a_carriage_return_waits_for_the_newline_that_may_follow():
    stream = LineStream(b"p", console=True)
    assert stream.feed(b"line\r", 5) == b""
    assert stream.due_ns == 5 + UPDATE_INTERVAL_NS
    assert stream.feed(b"\n", 6) == b"pline\r\n"
    assert stream.due_ns is None


def test_a_bar_without_newline_keeps_memory_bounded():
    stream = LineStream(b"p", console=True, limit_bytes=100)
    for i in range(1000):
        stream.feed(b"\r%99d" % i)
        assert stream.held_bytes <= 101


def test_a_long_line_reserves_the_destination_until_its_newline():
    stream = LineStream(b"p", console=True, limit_bytes=4)
    assert stream.feed(b"1234") == b""
    assert stream.feed(b"5") == b"p12345"
    assert stream.reserved
    assert stream.feed(b"678") == b"678"
    assert stream.feed(b"9\nnext\n") == b"9\npnext\n"
    assert not stream.reserved
