"""Destinations, on real pipes, terminals, sockets and files, and the rows of unfinished lines on a terminal."""

import errno
import gzip
import io
import os
import pty
import select
import socket
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from supervise._gang.tail import DestinationError, ScreenDestination
from supervise._logs import sinks
from supervise._logs.lines import LineStream
from supervise._logs.reader import LogReader
from supervise._logs.screen import ERASE, Screen
from supervise._logs.sinks import Canceled, CancelToken, console, file_sink, same_destination
from supervise._printable import width_of
from tests.logs.conftest import MemorySink
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@pytest.fixture
def stop():
    made = CancelToken()
    yield made
    made.close()


@pytest.fixture
def pipe():
    """A pipe as (read end, text stream on the write end)."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb", buffering=0) as source:
        yield source, stream


def read_all(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        assert select.select([fd], [], [], TIMEOUT_S)[0]
        data += os.read(fd, 65536)
    return data


def test_a_pipe_gets_what_was_buffered_before_then_every_byte(pipe, stop):
    source, stream = pipe
    stream.write("first ")
    sink = console(stream)
    sink.write(b"\xff\x00\n", stop)
    assert os.read(source.fileno(), 100) == b"first \xff\x00\n"
    sink.close()
    sink.close()
    assert not stream.closed


def test_the_flags_of_the_callers_pipe_stay_as_they_are(pipe, stop):
    _, stream = pipe
    sink = console(stream)
    assert os.get_blocking(stream.fileno())
    assert not os.get_blocking(sink.fd)
    sink.close()


def stuck_write(sink, stop) -> Canceled:
    """Write more than fits, in a thread, and abandon it once the destination is full."""
    gave_up = []

    def write():
        try:
            sink.write(b"x" * (1 << 20), stop)
        except Canceled as error:
            gave_up.append(error)

    writer = threading.Thread(target=write)
    full = threading.Event()
    waits = sink._wait_writable

    def wait_writable(*args, **kwargs):
        full.set()
        return waits(*args, **kwargs)

    sink._wait_writable = wait_writable
    writer.start()
    assert full.wait(TIMEOUT_S)
    assert writer.is_alive()
    stop.set()
    writer.join(TIMEOUT_S)
    del sink._wait_writable
    [error] = gave_up
    return error


@pytest.mark.parametrize("reopen", [True, False])
def test_a_reader_that_does_not_read_can_be_abandoned(pipe, stop, reopen, system_call):
    source, stream = pipe
    if not reopen:
        system_call("open", lambda real, path, *a: real("/nowhere" if "/proc" in path else path, *a))
    sink = console(stream)
    assert isinstance(sink, sinks.PolledSink) != reopen
    error = stuck_write(sink, stop)
    sink.close()
    stream.close()
    assert 0 < error.written_bytes < 1 << 20
    assert len(source.read()) == error.written_bytes


def test_a_slow_reader_gets_everything(pipe, stop):
    source, stream = pipe
    sink = console(stream)
    data = os.urandom(1 << 20)
    writer = threading.Thread(target=sink.write, args=(data, stop))
    writer.start()
    assert read_all(source.fileno(), len(data)) == data
    writer.join(TIMEOUT_S)
    sink.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pipe_whose_reader_is_gone_is_epipe(pipe, stop, when):
    source, stream = pipe
    if when == "before":
        source.close()
    sink = console(stream)
    source.close()
    with pytest.raises(BrokenPipeError):
        sink.write(b"x", stop)
    sink.close()


def test_a_terminal_that_takes_nothing_can_be_abandoned(stop):
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, os.fdopen(master, "rb", buffering=0):
        sink = console(stream)
        assert not os.get_blocking(sink.fd)
        assert os.get_blocking(stream.fileno())
        sink.write(b"hello\n", stop)
        assert read_all(master, 7) == b"hello\r\n"
        assert stuck_write(sink, stop).written_bytes > 0
        sink.close()


def test_the_master_of_a_terminal_is_never_opened_anew(stop):
    master, slave = pty.openpty()
    with os.fdopen(master, "w") as stream, os.fdopen(slave, "rb", buffering=0):
        sink = console(stream)
        sink.write(b"typed\n", stop)
        assert os.read(slave, 100) == b"typed\n"
        sink.close()


def test_a_socket_is_written_without_blocking_and_without_touching_its_flags(stop):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(ours.fileno(), "w", closefd=False) as stream:
        sink = console(stream)
        sink.write(b"hello", stop)
        assert theirs.recv(100) == b"hello"
        error = stuck_write(sink, stop)
        assert ours.getblocking()
        assert len(read_all(theirs.fileno(), error.written_bytes)) == error.written_bytes
        sink.close()


def test_a_socket_under_a_default_timeout_is_polled(stop):
    ours, theirs = socket.socketpair()
    socket.setdefaulttimeout(3)
    try:
        with ours, theirs, open(ours.fileno(), "w", closefd=False) as stream:
            sink = console(stream)
            assert os.get_blocking(ours.fileno())
            sink.write(b"hello", stop)
            assert theirs.recv(100) == b"hello"
            sink.close()
    finally:
        socket.setdefaulttimeout(None)


def test_a_console_that_is_a_file_is_written_where_the_caller_stands(tmp_path, stop):
    path = tmp_path / "out"
    with path.open("w") as stream:
        stream.write("ours\n")
        sink = console(stream)
        sink.write(b"theirs\n", stop)
        print("ours again", file=stream)
        sink.close()
    assert path.read_bytes() == b"ours\ntheirs\nours again\n"


def test_a_full_disk_is_an_oserror(stop):
    with Path("/dev/full").open("w") as stream:
        sink = console(stream)
        with pytest.raises(OSError, match="No space") as caught:
            sink.write(b"x", stop)
        assert caught.value.errno == errno.ENOSPC
        sink.close()


def test_a_stream_without_a_descriptor_gets_text(stop):
    stream = io.StringIO()
    sink = console(stream)
    snowman = "\N{SNOWMAN}".encode()
    sink.write(b"\xff" + snowman[:1], stop)
    sink.write(snowman[1:] + b"\n" + snowman[:2], stop)
    sink.close()
    assert stream.getvalue() == "\N{REPLACEMENT CHARACTER}\N{SNOWMAN}\n\N{REPLACEMENT CHARACTER}"
    assert not stream.closed


def test_a_mock_gets_text(stop):
    """A mock has every attribute, those of a sink too."""
    stream = Mock(closed=False)
    sink = console(stream)
    assert sink is not None
    sink.write(b"text\n", stop)
    stream.write.assert_called_with("text\n")


def test_a_stream_that_only_passes_fileno_on_gets_text(pipe, stop):
    source, stream = pipe

    class Tee:
        """The common way to log what is printed."""

        def __init__(self):
            self.log = io.StringIO()

        def write(self, text):
            self.log.write(text)
            return stream.write(text)

        def __getattr__(self, name):
            return getattr(stream, name)

    tee = Tee()
    sink = console(tee)
    sink.write(b"line\n", stop)
    sink.close()
    assert tee.log.getvalue() == "line\n"
    assert os.read(source.fileno(), 100) == b"line\n"


def test_a_compressing_stream_gets_text(tmp_path, stop):
    path = tmp_path / "out.gz"
    with gzip.open(path, "wt") as stream:
        sink = console(stream)
        sink.write(b"line\n", stop)
        sink.close()
    assert gzip.decompress(path.read_bytes()) == b"line\n"


def test_a_stream_that_cannot_encode_a_character_replaces_it(stop):
    raw = io.BytesIO()
    sink = console(io.TextIOWrapper(raw, encoding="ascii"))
    sink.write("caf\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode(), stop)
    assert raw.getvalue() == b"caf?\n"
    sink.close()


def test_pytests_capture_is_a_console(capsys, stop):
    import sys

    sink = console(sys.stdout)
    sink.write(b"line\n", stop)
    sink.close()
    assert capsys.readouterr().out == "line\n"


def test_no_stream_no_console(pipe):
    _, stream = pipe
    stream.close()
    assert console(None) is None
    assert console(stream) is None


def test_a_text_stream_closed_meanwhile_is_an_oserror(stop):
    stream = io.StringIO()
    sink = console(stream)
    stream.close()
    with pytest.raises(OSError, match="closed"):
        sink.write(b"x", stop)
    stop.set()
    with pytest.raises(Canceled):
        sink.write(b"x", stop)
    sink.close()


def test_two_descriptors_of_one_pipe_are_the_same_destination(pipe):
    _, stream = pipe
    with os.fdopen(os.dup(stream.fileno()), "w") as other, Path(os.devnull).open("w") as elsewhere:
        made = [console(stream), console(other), console(elsewhere), console(io.StringIO())]
        assert [same_destination(made[0], sink) for sink in made] == [True, True, False, False]
        for sink in made:
            sink.close()
    text = io.StringIO()
    assert same_destination(console(text), console(text))
    assert not same_destination(console(text), console(io.StringIO()))


def test_a_filtered_file_is_appended_to_and_private(tmp_path: Path, stop):
    path = tmp_path / "filtered.log"
    for line in (b"one\n", b"two\n"):
        sink = file_sink(str(path))
        assert not sink.is_console
        sink.write(line, stop)
        sink.close()
    assert path.read_bytes() == b"one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError):
        file_sink(str(tmp_path / "no" / "where"))


def test_abandon_tells_each_callback_once_and_is_harmless_when_closed():
    flag, calls = CancelToken(), []
    flag.on_set(lambda: calls.append("first"))
    assert not flag.is_set()
    flag.set()
    flag.set()
    flag.on_set(lambda: calls.append("late"))
    assert calls == ["first", "late"]
    assert select.select([flag], [], [], 0)[0]
    flag.close()
    flag.close()
    flag.set()
    assert flag.fileno() == -1


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
    assert streams.write(2, "out", b"line\n") == b"\r \x1b[J\r2:line\n"
    assert streams.draw() == b"0:b\r\n1:one\x1b[1A\r"
    assert streams.write(0, "out", b"later") == b""
    assert streams.draw() == b"\r \x1b[J\r0:later\r\n1:one\x1b[1A\r"
    assert streams.write(0, "out", b"\n") == b"\r \x1b[J\r0:later\n"
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
    assert streams.write(0, "out", b"x" * 30) == b"\r \x1b[J\r0:" + b"x" * 30
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


def test_rows_fit_the_height_of_the_terminal():
    """The bars beyond it are counted. Without a terminal, the size is 80 x 24."""
    screen = Screen()
    assert (screen.erasure(), screen.drawing()) == ("", "")
    screen.rows = tuple((b"[%d]:" % rank, b"\x1b[2Jbar\t\xff") for rank in range(30))
    screen.status = "status"
    drawn = screen.drawing()
    assert drawn.endswith("\x1b[22A\r")
    *bars, rest, status = drawn.removesuffix("\x1b[22A\r").split("\r\n")
    assert bars == [f"[{rank}]:bar     \ufffd" for rank in range(21)]
    assert (rest, status) == ("... 9 more unfinished lines", "status")
    assert (screen.erasure(), screen.erasure()) == (ERASE, "")


@pytest.fixture
def narrow() -> Iterator[int]:
    """Yield a terminal of 40 columns."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 40))
    yield slave
    os.close(master)
    os.close(slave)


def test_the_status_fits_the_terminal_of_the_moment(narrow: int):
    """A row that wraps could not be erased. The same status is drawn again after a resize, and a cut is marked."""
    screen = Screen(narrow)
    screen.status = "x" * 100
    assert screen.drawing() == f"{'x' * 38}\u2026\r"
    termios.tcsetwinsize(narrow, (24, 20))
    assert screen.drawing() == f"{'x' * 18}\u2026\r"
    screen.status, screen.status_style = "\u6f22" * 9, "2"
    assert screen.drawing() == "\x1b[2m" + "\u6f22" * 9 + "\x1b[0m\r"
    screen.status += "\u6f22"
    assert screen.drawing() == "\x1b[2m" + "\u6f22" * 9 + "\u2026\x1b[0m\r"


def test_a_prefix_that_is_wider_than_the_terminal_leaves_room_for_the_bar(narrow: int):
    """A role may have a long name. A row that wraps would leave a copy of itself at each update."""
    screen = Screen(narrow)
    screen.rows = ((b"\x1b[K\x1b[36m[" + b"role" * 10 + b"0]:\x1b[0m", b"50%" + b"#" * 40),)
    assert screen.drawing() == "[rolerolerolerolero50%" + "#" * 17 + "\r"


def test_rows_are_erased_from_the_second_column_on():
    """With the cursor in the first column of the first row, tmux keeps what is erased in its history."""
    assert ERASE.index(" ") < ERASE.index("\x1b[J")


def test_wide_characters_take_two_columns():
    """As terminals show them; combining characters and control sequences take none."""
    assert [width_of(text) for text in ("abc", "\u6f22\u5b57", "e\u0301", "\x1b[31mred\x1b[0m")] == [3, 4, 1, 3]
    screen = Screen()
    screen.rows = ((b"", "\u6f22".encode() * 50),)
    assert screen.drawing() == "\u6f22" * 39 + "\r"
