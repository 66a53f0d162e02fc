"""Rows of unfinished lines: when they are drawn, and what becomes of them."""

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervise._gang.screen_destination import ScreenDestination
from supervise._gang.tail_destination import DestinationError
from supervise._logs.lines import LineStream
from supervise._logs.reader import LogReader
from supervise._logs.screen import Screen
from supervise._logs.sinks import Canceled, CancelToken
from tests.logs.conftest import MemorySink

SECOND_NS = 1_000_000_000


class Streams:
    """Both streams of some ranks on one destination."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.sink = MemorySink()
        self.stop = CancelToken()
        self.screen = screen
        self.destination = ScreenDestination(self.sink, self.stop, screen)
        self.now_ns = 0
        self._readers: dict[tuple[int, str], LogReader] = {}
        self._folder = folder

    def write(self, rank: int, stream: str, data: bytes) -> bytes:
        """Append to a log, show it, and return what was written."""
        path = self._folder / f"{rank}{stream}"
        with path.open("ab") as log:
            log.write(data)
        if (rank, stream) not in self._readers:
            lines = LineStream(b"%d:" % rank, console=True, updates=False, limit_bytes=20)
            self._readers[rank, stream] = made = LogReader(str(path), lines, rank)
            made.open(lambda: None)
        reader = self._readers[rank, stream]
        del self.sink.data[:]
        self.destination.show(reader, reader.read(), self.now_ns)
        return bytes(self.sink.data)

    def draw(self) -> bytes:
        """Return what is drawn after a second."""
        self.now_ns = max(self.now_ns, self.destination.next_update_ns() or 0) + SECOND_NS
        del self.sink.data[:]
        self.destination.show_updates(self.now_ns)
        return bytes(self.sink.data)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self.stop.close()


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    made = Streams(tmp_path, Screen())
    yield made
    made.close()


def test_lines_erase_the_rows_which_are_drawn_again_below(streams: Streams):
    """One row a rank, in the order of ranks, with the state that has changed last."""
    assert streams.write(1, "out", b"one") == b""
    assert streams.write(0, "err", b"a\rb") == b""
    assert streams.draw() == b"0:b\r\n1:one\x1b[1A\r"
    assert streams.destination.next_update_ns() is None
    assert streams.write(2, "out", b"line\n") == b"\r\x1b[J2:line\n"
    assert streams.draw() == b"0:b\r\n1:one\x1b[1A\r"
    assert streams.write(0, "out", b"later") == b""
    assert streams.draw() == b"\r\x1b[J0:later\r\n1:one\x1b[1A\r"
    assert streams.write(0, "out", b"\n") == b"\r\x1b[J0:later\n"
    assert streams.draw() == b"0:b\r\n1:one\x1b[1A\r"
    assert streams.draw() == b""


def test_a_prompt_ends_where_the_other_stream_goes_on(streams: Streams):
    """But not a bar, and not a line that has grown meanwhile."""
    streams.write(0, "out", b"name? ")
    assert streams.write(1, "err", b"other\n") == b"1:other\n"
    assert streams.write(0, "err", b"Traceback\n") == b"0:name? \n0:Traceback\n"
    assert streams.write(0, "out", b"rest\n") == b"0:rest\n"
    streams.write(0, "err", b"\r50%")
    assert streams.write(0, "out", b"line\n") == b"0:line\n"


def test_a_long_line_in_pieces_has_no_row(streams: Streams):
    """The rows wait for its newline, since the cursor is inside of it."""
    streams.write(1, "out", b"bar")
    assert streams.draw() == b"1:bar\r"
    assert streams.write(0, "out", b"x" * 30) == b"\r\x1b[J0:" + b"x" * 30
    assert streams.draw() == b""
    assert streams.write(0, "out", b"\n") == b"\n"
    assert streams.draw() == b"1:bar\r"


def test_failures_of_the_terminal_are_those_of_any_destination(streams: Streams):
    """An error ends the Tail; canceled writes count only what is of the lines."""
    streams.write(0, "out", b"bar")
    streams.sink.fault = OSError(5, "gone")
    with pytest.raises(DestinationError):
        streams.draw()
    streams.sink.fault = None
    streams.write(0, "out", b"more")
    streams.draw()
    streams.sink.fault = Canceled(2)  # in the middle of what erases the rows
    with pytest.raises(Canceled) as canceled:
        streams.write(1, "out", b"line\n")
    assert canceled.value.written_bytes == 0
    streams.destination.close()
    assert streams.screen.rows == ()


def test_a_screen_knows_its_terminal():
    """By the device, since the writer has another descriptor of it."""
    master, slave = pty.openpty()
    other_master, other = pty.openpty()
    again = os.open(os.ttyname(slave), os.O_WRONLY | os.O_NOCTTY)
    try:
        screen = Screen(slave)
        assert [screen.is_on(fd) for fd in (slave, again, other, -1)] == [True, True, False, False]
        assert not Screen().is_on(slave)
    finally:
        for fd in (master, slave, other_master, other, again):
            os.close(fd)
