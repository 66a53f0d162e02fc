"""The unfinished line of a rank that has the terminal: shown after a short silence, and rewritten in place."""

from supervise._logs.lines import PROMPT_NS, UPDATE_INTERVAL_NS, LineStream

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


def test_a_pipe_gets_a_prompt_but_no_control_sequence():
    """Its reader may be a file."""
    lines = stream(updates=False)
    lines.feed(b"Name: ", 0)
    assert lines.update(PROMPT_NS) == b"p:Name: "
    assert lines.feed(b"\rx\n", PROMPT_NS + 1) == b"\np:x\n"
    assert lines.feed(b"\r10%\r20%\n", PROMPT_NS + 2) == b"p:20%\n"
