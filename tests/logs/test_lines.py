"""Lines, pure: any way to cut a stream into chunks shows the same, and nothing is lost or mixed; prompts and bars."""

import io
import re
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from supervise._logs.lines import LIMIT_BYTES, PROMPT_NS, SETTLE_NS, UPDATE_INTERVAL_NS, LineStream, source_bytes
from supervise._logs.sinks import TextSink, lines_to

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
    chunk, took_s = (piece * LIMIT_BYTES)[:LIMIT_BYTES], []
    for _ in range(3):  # the kernel may count the time that a hypervisor took
        stream, begun_s = LineStream(b"[r0]:", console=True), time.thread_time()
        for number in range(128):
            stream.feed(chunk, number)
        took_s.append(time.thread_time() - begun_s)
    assert min(took_s) < 0.4


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
        (b"working\r\x1b[2Kdone\n", b"pdone\n"),  # erases the row, but not the prefix
        (b"working\x1b[2K\rdone\n", b"pdone\n"),
        (b"\x1b[2Kdone\n", b"pdone\n"),
    ],
)
def test_what_a_console_shows_of_carriage_returns(data, shown):
    assert show(LineStream(b"p", console=True), [data]) == shown


UP = b"\x1b[A"


def nested(steps: int, *, leave: bool) -> bytes:
    """What two bars of tqdm write, of which the lower one has these steps and begins anew with each of the upper."""
    pieces = [b"\rupper 0"]
    for upper in range(1, 4):
        pieces += [b"\n\rlower %d/%d%b\rupper %d" % (upper, step, UP, upper) for step in range(steps)]
        pieces.append(b"\n" + UP if leave else b"\n\r          \r" + UP)
    return b"".join([*pieces, b"\rupper 3\n", b"\n" if leave and steps else b""])


def in_pipe(limit: int = LIMIT_BYTES) -> LineStream:
    return LineStream(b"p", console=True, updates=False, limit_bytes=limit)


@given(steps=st.integers(0, 3), leave=st.booleans(), at=st.lists(st.integers(0, 400)))
def test_l4_nested_bars_are_one_line_each_however_the_stream_is_cut(steps, leave, at):
    """Their last states, or only that of the upper bar if the lower one was cleared; ordinary lines stay."""
    data = b"before\n\n" + nested(steps, leave=leave) + b"after\nlast\n"
    bars = b"pupper 3\n" + (b"plower 3/%d\n" % (steps - 1) if leave and steps else b"")
    assert show(in_pipe(), cut(data, at)) == b"pbefore\np\n" + bars + b"pafter\nplast\n"


@given(bars=st.integers(2, 6), steps=st.integers(1, 3), at=st.lists(st.integers(0, 400)))
def test_l4_any_number_of_bars_is_one_line_each(bars, steps, at):
    """tqdm with a position for each bar: each update moves down from the row of the first bar, and up again."""
    turns = [(step, bar) for step in range(1, steps + 1) for bar in range(bars)]
    data = b"".join(b"\n" * bar + b"\rbar %d: %d" % (bar, step) + UP * bar for step, bar in turns)
    shown = b"".join(b"pbar %d: %d\n" % (bar, steps) for bar in range(bars))
    assert show(in_pipe(), cut(data + b"\n" * bars + b"after\n", at)) == shown + b"pafter\n"


@given(heights=st.lists(st.integers(2, 6), min_size=1, max_size=4), at=st.lists(st.integers(0, 400)))
def test_l4_frames_that_grow_below_a_message_are_shown_as_the_last_frame(heights, at):
    """rich: each frame clears the rows of the one before, upwards, and may have further rows; a message is above it."""
    heights, data = sorted(heights), b"\x1b[?25l"
    for number, height in enumerate(heights):
        message = b"message %d\n" % number if number else b""
        data += message + b"\n".join(b"row %d: %d" % (row, number) for row in range(height))
        data += b"\r\x1b[2K" + (UP + b"\x1b[2K") * (height - 1) if number < len(heights) - 1 else b"\n\x1b[?25h"
    shown = b"".join(b"pmessage %d\n" % number for number in range(1, len(heights)))
    shown += b"".join(b"prow %d: %d\n" % (row, len(heights) - 1) for row in range(heights[-1]))
    assert show(in_pipe(), cut(data, at)) == shown


def test_l4_a_line_that_was_shown_and_is_written_again_and_again_is_not_shown_each_time():
    lines = in_pipe()
    assert lines.feed(b"status 0\n") == b"pstatus 0\n"
    assert [lines.feed(UP + b"\x1b[2Kstatus %d\n" % number) for number in range(1, 4)] == [b"", b"", b""]
    assert lines.feed(b"done\n") == b"pstatus 3\npdone\n"


def test_l4_the_updates_of_an_upper_bar_without_prompts_are_lines():
    """Nothing is rewritten in place, because the destination may have other streams."""
    lines = LineStream(b"p", console=True)
    lines.feed(b"\rupper 0\n\rlower 0" + UP, 0)
    lines.feed(b"\rupper 1\n\rlower 1" + UP, UPDATE_INTERVAL_NS // 2)
    assert lines.update(UPDATE_INTERVAL_NS) == b"pupper 1\n"


def test_a_row_above_those_that_the_cursor_reaches_waits_only_shortly():
    lines = in_pipe()
    assert lines.feed(b"\ra\n\rb" + UP + b"\ra\n\rb\n\rc", 5) == b""
    assert lines.due_ns == 5 + SETTLE_NS[False]
    assert lines.update(5 + SETTLE_NS[False]) == b"pa\n"
    assert lines.due_ns is None


@given(data=STREAMS, at=st.lists(st.integers(0, 200)), limit=st.integers(0, 12))
@example(data=b"\ra\nbc\r\n", at=[5], limit=12)
def test_lines_that_wait_for_a_movement_of_the_cursor_stay_the_same(data, at, limit):
    """Without such a movement, a stream whose newlines may wait shows what one without a wait shows."""
    assert show(in_pipe(limit), cut(data, at)) == show(LineStream(b"p", console=True, limit_bytes=limit), [data])


def test_the_last_line_of_a_bar_waits_only_shortly_for_a_movement():
    lines = in_pipe()
    assert lines.feed(b"\r100%\n", 5) == b""
    assert lines.due_ns == 5 + SETTLE_NS[False]
    assert lines.update(5 + SETTLE_NS[False]) == b"p100%\n"
    assert lines.due_ns is None
    assert lines.feed(b"\r100%\ntext\n", 6) == b"p100%\nptext\n"


@pytest.mark.parametrize("rows", [b"\x1b[?25l", b"\x1b[?25l\ra\n\rb" + UP + b"\ra 2\n\rb 2\n"])
def test_lines_below_a_hidden_cursor_wait_no_longer_than_a_second_in_all(rows):
    """However short the time between them is: a program may leave the cursor hidden for good."""
    lines, second_ns, shown = in_pipe(), SETTLE_NS[True], b""
    lines.feed(rows, 0)
    lines.update(second_ns)
    for half in range(2, 12):
        now_ns = half * second_ns // 2
        shown += lines.feed(b"%d\n" % half, now_ns)
        while lines.due_ns is not None and lines.due_ns < now_ns + second_ns // 2:
            shown += lines.update(lines.due_ns)
        assert b"p%d\n" % (half - 3) in b"p-1\np0\np1\n" + shown


def test_a_bar_below_a_message_is_live_at_its_second_update():
    """It is no row of nested bars, whose cursor moves up after each update."""
    lines = in_pipe()
    assert lines.feed(b"\x1b[?25l\rbar 1", 0) == b""
    assert lines.feed(b"\rmessage\n\rbar 2", 1) == b""
    assert lines.feed(b"\rbar 3", 2) == b"pmessage\n"
    assert lines.unfinished_rows == [b"bar 3"]


def test_unfinished_rows_are_those_of_all_bars():
    lines = in_pipe()
    lines.feed(b"\ra 1\n\rb 1\n\rc 1" + UP * 2 + b"\ra 2" + b"\x1b[1B\x1b[2K\x1b[1A")
    assert lines.unfinished_rows == [b"a 2", b"c 1"]
    assert lines.finish() == b"pa 2\npc 1\n"


@pytest.mark.parametrize(
    "piece",
    [
        *(b"\x1b[1000000A", b"\x1b[999999999B", b"\n" + UP, b"x\n" * 40 + b"\x1b[40A", b"x" * 999 + UP, b"\x1b[2K"),
        *(b"\x1b[" + b"9" * 5000 + b"A", b"\rx\n", b"\x1b[?25l\n", b"\x1b", b"\rx\n" + UP + b"\x1b[?25h"),
    ],
)
def test_l4_hostile_movements_of_the_cursor_take_bounded_memory_and_time(piece):
    """In large chunks and byte by byte; each byte costs about the same, whatever came before."""
    begun_s = time.thread_time()
    for size in (LIMIT_BYTES, 1):
        lines, data = in_pipe(), (piece * LIMIT_BYTES)[: 1 << 18 if size > 1 else 1 << 14]
        for at in range(0, len(data), size):
            lines.feed(data[at : at + size], at)
            assert lines.held_bytes < 32 * LIMIT_BYTES
    assert time.thread_time() - begun_s < 10


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


ERASE = b"\r\x1b[K"


def stream(*, updates: bool = True) -> LineStream:
    return LineStream(b"p:", console=True, updates=updates, prompts=True)


def test_a_prompt_is_shown_after_a_silence_and_its_line_goes_on():
    """The prefix is written once."""
    lines = stream()
    assert lines.feed(b"Name: ", 0) == b""
    assert lines.due_ns == PROMPT_NS
    assert lines.update(PROMPT_NS) == b"p:Name: "
    assert lines.continues
    assert lines.feed(b"there\nnext\n", PROMPT_NS + 1) == b"there\np:next\n"
    assert not lines.continues


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"Loading ... ", b"\n\rbar 10%", b"\rbar 90%\n"], b"p:Loading ... \np:bar 90%\n"),
        ([b"Name? ", b"Bob\n\rbar 10%\n"], b"p:Name? Bob\np:bar 10%\n"),
        ([b"10%", b"\r20%\n"], b"p:20%\n"),
        ([b"Name? ", b"\r"], b"p:Name? \n"),
    ],
)
def test_a_prompt_stays_when_a_later_line_of_the_same_chunk_is_rewritten(pieces, shown):
    lines = stream()
    assert on_screen(slowly(lines, pieces) + lines.finish()) == shown


def test_a_bar_is_rewritten_in_place():
    """Each state replaces the one before it; the end of the line replaces the last one."""
    lines = stream()
    now_ns = UPDATE_INTERVAL_NS
    assert lines.feed(b"\r10%", now_ns) == b"p:10%"
    assert lines.feed(b"\r20%", now_ns + 1) == b""  # too soon
    now_ns += UPDATE_INTERVAL_NS
    assert lines.update(now_ns) == ERASE + b"p:20%"
    assert lines.feed(b"\r100%\nafter\n", now_ns + 1) == ERASE + b"p:100%\np:after\n"
    assert not lines.continues


def test_an_equal_end_of_a_bar_is_shown_in_its_place():
    """It was shown without a newline."""
    lines = stream()
    assert lines.feed(b"\r100%", UPDATE_INTERVAL_NS) == b"p:100%"
    assert lines.feed(b"\n", UPDATE_INTERVAL_NS + 1) == ERASE + b"p:100%\n"


def test_a_bar_that_another_stream_has_interrupted_begins_on_a_line_of_its_own():
    """What is shown there is no longer the last line."""
    lines = stream()
    lines.feed(b"\r10%", UPDATE_INTERVAL_NS)
    lines.interrupt()
    assert lines.feed(b"\r20%", 2 * UPDATE_INTERVAL_NS) == b"p:20%"


def test_a_bar_at_the_end_of_the_stream():
    """It gets a newline, and its last state."""
    lines = stream()
    lines.feed(b"\r10%", UPDATE_INTERVAL_NS)
    lines.feed(b"\r20%", UPDATE_INTERVAL_NS + 1)
    assert lines.finish() == ERASE + b"p:20%\n"


def on_screen(shown: bytes) -> bytes:
    """What a terminal shows after this output."""
    first, *others = shown.split(ERASE)
    for other in others:
        first = first[: first.rfind(b"\n") + 1] + other
    return first


def slowly(lines: LineStream, pieces: list[bytes]) -> bytes:
    """What a stream returns if its updates are due between any two of its pieces."""
    shown = b""
    for number, piece in enumerate(pieces):
        now_ns = 10 * number * SETTLE_NS[True]
        shown += lines.feed(piece, now_ns)
        while lines.due_ns is not None:
            shown += lines.update(lines.due_ns)
    return shown


FRAMES = {
    "tqdm": [b"\rupper 0", *(b"\n\rlower %d%b\rupper %d" % (step, UP, step) for step in range(9)), b"\n\n"],
    "rich": [
        b"upper 0\nlower 0",
        *(b"\r\x1b[2K%b\x1b[2Kupper %d\nlower %d" % (UP, step, step) for step in range(9)),
        b"\n",
    ],
    "no carriage return": [
        b"upper 0\nlower 0",
        *(b"\x1b[1F\x1b[2Kupper %d\nlower %d" % (n, n) for n in range(9)),
        b"\n",
    ],
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("split", [False, True])
def test_l4_slow_nested_bars_beside_prompts_are_one_line_each(name, split):
    """The first state of the upper bar may have become a line before the cursor has moved up for the first time."""
    pieces = FRAMES[name]
    if split:  # tqdm flushes each of these
        pieces = [part for piece in pieces for part in re.split(rb"(?<=\n)|(?=\x1b\[1?[AF])|(?<=[AF])", piece)]
    shown = on_screen(slowly(lines := stream(), [*pieces, b"after\n"]) + lines.finish())
    assert shown.replace(b"p:upper 0\n", b"", 1) == b"p:upper 8\np:lower 8\np:after\n"


MOVES = [b"a", b"bb", b"\n", b"\r", b" ", UP, b"\x1b[2K", b"\x1b[?25l", b"\x1b[?25h"]


@given(st.lists(st.lists(st.sampled_from(MOVES), max_size=8).map(b"".join)), st.sampled_from([3, LIMIT_BYTES]))
def test_whatever_the_cursor_does_beside_prompts_the_last_line_ends(pieces, limit):
    """No row is left over in the place of a prompt."""
    lines = LineStream(b"p:", console=True, prompts=True, limit_bytes=limit)
    shown = on_screen(slowly(lines, pieces) + lines.finish())
    assert shown[-1:] in (b"", b"\n")
    assert not lines.continues


def test_a_prompt_below_nested_bars_is_shown():
    """Its row is one of those that the cursor may still leave upwards; the answer begins a line of its own."""
    for last in (b"\n\r              \r" + UP + b"\rupper 3\n", b"\n\rlower 3" + UP + b"\rupper 3\n\n"):
        lines = stream()
        before = slowly(lines, [*FRAMES["tqdm"][:-1], last, b"Name? "])
        assert on_screen(before).endswith(b"p:Name? ")
        assert lines.continues
        after = on_screen(before + slowly(lines, [b"\rdone\n", b"last\n"]) + lines.finish())
        assert after.endswith(b"p:done\np:last\n")
        assert b"p:upper 3\n" in after


def test_a_pipe_gets_a_prompt_but_no_control_sequence():
    """Its reader may be a file."""
    lines = stream(updates=False)
    lines.feed(b"Name: ", 0)
    assert lines.update(PROMPT_NS) == b"p:Name: "
    assert lines.feed(b"\rx\n", PROMPT_NS + 1) == b""
    assert lines.update(PROMPT_NS + 1 + SETTLE_NS[False]) == b"\np:x\n"
    assert lines.feed(b"\r10%\r20%\ntext\n", PROMPT_NS + 2) == b"p:20%\np:text\n"


@pytest.mark.parametrize(("line_filter", "shown"), [(None, b"p:Name: "), (lambda line: b"Name" in line, b"")])
def test_a_filter_gets_the_whole_line_before_any_of_it_is_shown(line_filter, shown):
    """So a stream with a filter has no prompts."""
    lines = lines_to(TextSink(io.StringIO()), b"p:", line_filter, prompts=True)
    assert lines.feed(b"Name: ", 0) == b""
    assert lines.update(PROMPT_NS) == shown
    assert lines.feed(b"x\n", PROMPT_NS + 1) == (b"x\n" if shown else b"p:Name: x\n")
