"""The Tail actor, on real files: nothing lost, nothing mixed, nothing that holds it up."""

import ctypes
import errno
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pykka
import pytest

from supervise._api.tail_log import PatientTail
from supervise._core.steps import TailEnded
from supervise._gang.asks import MemberStopRequested
from supervise._gang.tail import Drain, Tail
from supervise._logs import reader as feed, watch as watching
from supervise._logs.sinks import CancelToken, console, file_sink
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


def append(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def test_l1_100_000_lines_are_shown_byte_for_byte(bench, sink, logs):
    paths = logs(1)
    ref = bench.tail(sink, paths)
    data = b"".join(b"line %d\n" % i for i in range(100_000))
    program = f"import os; os.write(os.open({str(paths[0])!r}, os.O_WRONLY | os.O_APPEND), {data!r}); os._exit(0)"
    subprocess.run([sys.executable, "-S", "-"], input=program.encode(), check=True, timeout=TIMEOUT_S)
    ended = bench.drain(ref, paths)
    assert bytes(sink.data) == b"".join(b"[r0]:" + line for line in data.splitlines(keepends=True))
    assert ended == TailEnded(name="stdout", remaining_bytes=0, error=None)
    assert sink.closed


def test_without_a_prefix_the_console_is_identical_to_the_file(bench, sink, logs):
    paths = logs(1)
    data = b"\xff\x00" + "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode() + os.urandom(3_000_000).replace(b"\r", b"")
    append(paths[0], data + b"\n")
    bench.drain(bench.tail(sink, paths, prefix=lambda _: b""), paths)
    assert bytes(sink.data) == data + b"\n"


def test_what_was_there_before_the_start_is_shown_at_once(bench, sink, logs):
    paths = logs(2)
    append(paths[1], b"early\n")
    bench.tail(sink, paths)
    sink.wait_for(b"[r1]:early\n")


def test_l2_a_line_in_three_pieces_gets_one_prefix(way, bench, sink, logs):
    paths = logs(2)
    ref = bench.tail(sink, paths)
    for number, piece in enumerate((b"one ", b"two ", b"three\n")):
        append(paths[0], piece)
        append(paths[1], b"beat %d\n" % number)
        sink.wait_for(b"[r1]:beat %d\n" % number)
    sink.wait_for(b"[r0]:one two three\n")
    bench.drain(ref, paths)
    assert sink.data.count(b"[r0]:") == 1


def test_l2_lines_of_many_writers_never_mix(bench, sink, logs):
    paths = logs(8)
    ref = bench.tail(sink, paths)

    def write(rank):
        for i in range(300):
            line = b"%d:%s:%d\n" % (rank, b"x" * (i * 7 % 200), i)
            for start in range(0, len(line), 50):
                append(paths[rank], line[start : start + 50])

    writers = [threading.Thread(target=write, args=(rank,)) for rank in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(TIMEOUT_S)
    bench.drain(ref, paths)
    shown = bytes(sink.data).splitlines(keepends=True)
    for rank, path in enumerate(paths):
        own = [line.removeprefix(b"[r%d]:" % rank) for line in shown if line.startswith(b"[r%d]:" % rank)]
        assert b"".join(own) == path.read_bytes()
    assert len(shown) == 8 * 300


def test_l3_a_10_mib_line_goes_through_in_pieces_and_keeps_the_console_to_itself(bench, sink, logs):
    paths = logs(2)
    ref = bench.tail(sink, paths)
    long = b"y" * (10 << 20)
    append(paths[0], long)
    sink.wait_for(b"[r0]:y")
    append(paths[1], b"patience\n")
    append(paths[0], b"\n")
    sink.wait_for(b"[r1]:patience\n")
    bench.drain(ref, paths)
    assert bytes(sink.data) == b"[r0]:" + long + b"\n[r1]:patience\n"


def test_a_long_line_that_never_ends_gives_way_at_the_end(bench, sink, logs):
    paths = logs(2)
    ref = bench.tail(sink, paths)
    append(paths[0], b"y" * 200_000)
    sink.wait_for(b"[r0]:y")
    append(paths[1], b"patience\n")
    assert bench.drain(ref, paths).remaining_bytes == 0
    assert bytes(sink.data) == b"[r0]:" + b"y" * 200_000 + b"\n[r1]:patience\n"


def test_l4_a_progress_bar_is_shown_as_whole_lines_and_its_last_state_always(bench, sink, logs):
    paths = logs(2)
    ref = bench.tail(sink, paths)
    append(paths[0], b"\r 1%")
    sink.wait_for(b"[r0]: 1%\n")  # at once
    append(paths[0], b"\r 2%\r 3%")
    sink.wait_for(b"[r0]: 3%\n")  # by the moment the Tail has set itself: nothing else happens
    append(paths[0], b"\r100%\n")
    append(paths[1], b"other\n")
    sink.wait_for(b"[r0]:100%\n")
    bench.drain(ref, paths)
    assert b"\r" not in sink.data
    assert b" 2%" not in sink.data


def test_l4_a_file_gets_every_byte_of_a_progress_bar(bench, file_like_sink, logs):
    paths = logs(1)
    append(paths[0], b"\r 1%\r 2%\r100%\n")
    bench.drain(bench.tail(file_like_sink, paths), paths)
    assert file_like_sink.data == b"[r0]:\r 1%\r 2%\r100%\n"


def test_a_last_line_without_newline_gets_one_on_a_console_only(bench, sink, file_like_sink, logs):
    paths = logs(2)
    for path in paths:
        append(path, b"half")
    bench.drain(bench.tail(sink, paths), paths)
    bench.drain(bench.tail(file_like_sink, paths), paths)
    assert sink.data == b"[r0]:half\n[r1]:half\n"
    assert file_like_sink.data == b"[r0]:half\n[r1]:half"  # lines of two ranks never mix


def test_a_filtered_file_gets_the_lines_that_pass(bench, logs, tmp_path):
    paths = logs(2)
    append(paths[0], b"keep 1\ndrop\nkeep 2\n")
    append(paths[1], b"drop\nkeep 3\n")
    filtered = tmp_path / "filtered.log"
    ref = bench.tail(file_sink(str(filtered)), paths, line_filter=lambda line: b"keep" in line)
    assert bench.drain(ref, paths).remaining_bytes == 0
    assert filtered.read_bytes() == b"[r0]:keep 1\n[r0]:keep 2\n[r1]:keep 3\n"


def test_l10_a_grandchild_that_keeps_writing_is_not_waited_for(bench, sink, logs):
    paths = logs(1)
    with paths[0].open("ab") as stream:
        yes = subprocess.Popen(["yes", "y" * 70], stdout=stream)
    try:
        ref = bench.tail(sink, paths)
        sink.wait_for(b"[r0]:yyy")
        size = paths[0].stat().st_size
        ref.tell(Drain(sizes={str(paths[0]): size}))
        assert bench.ended().remaining_bytes == 0
        assert yes.poll() is None
    finally:
        yes.kill()
        yes.wait()
    shown = bytes(sink.data).replace(b"[r0]:", b"")
    assert len(shown) >= size - 71
    with paths[0].open("rb") as file:  # which has gigabytes by now if this process stood still
        assert file.read(len(shown)).startswith(shown.removesuffix(b"\n"))


def test_l5_memory_stays_bounded_while_the_console_is_slow(bench, sink, logs):
    """The file is the buffer: what is held is a line, not the backlog."""
    import tracemalloc

    paths = logs(4)
    sink.gate.clear()
    ref = bench.tail(sink, paths)
    for path in paths:
        append(path, b"x" * 99 + b"\n" + b"y" * 8_000_000)
    assert sink.writing.wait(TIMEOUT_S)
    tracemalloc.start()
    try:
        sink.data = Counting()
        sink.gate.set()
        bench.drain(ref, paths)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


class Counting:
    """Takes everything and keeps nothing."""

    def __iadd__(self, data):
        return self

    def __contains__(self, data):
        return False


def test_l5_no_source_starves_in_a_flood(bench, sink, logs):
    paths = logs(2)
    append(paths[0], b"flood\n" * 2_000_000)
    append(paths[1], b"small voice\n")
    ref = bench.tail(sink, paths)
    sink.wait_for(b"[r1]:small voice\n")
    bench.drain(ref, paths)
    assert sink.data.index(b"[r1]:") < 1_000_000


def test_l7_a_truncated_log_is_read_from_its_beginning_and_told_once(way, bench, sink, logs):
    paths = logs(1)
    ref = bench.tail(sink, paths)
    for number in range(3):
        append(paths[0], b"long line before %d\nrest" % number)
        sink.wait_for(b"[r0]:long line before %d\n" % number)
        os.truncate(paths[0], 0)
        sink.wait_for(b"[r0]:rest\n")  # the unfinished line came to its end
        sink.data.clear()
    append(paths[0], b"after\n")
    sink.wait_for(b"[r0]:after\n")
    assert bench.drain(ref, paths).error is None
    where, error = bench.errors.get_nowait()
    assert (where, error.errno) == (str(paths[0]), errno.ESTALE)
    assert bench.errors.empty()


def test_l7_a_log_truncated_just_before_the_drain_is_shown_whole(bench, sink, logs):
    paths = logs(1)
    sink.gate.clear()
    ref = bench.tail(sink, paths)
    append(paths[0], b"before\n" * 100)
    assert sink.writing.wait(TIMEOUT_S)
    os.truncate(paths[0], 0)
    append(paths[0], b"after\n")
    ref.tell(Drain(sizes={str(paths[0]): paths[0].stat().st_size}))
    sink.gate.set()
    assert bench.ended().remaining_bytes == 0
    assert sink.data.endswith(b"[r0]:after\n")


@pytest.mark.parametrize("how", ["rename", "unlink"])
def test_l7_a_renamed_or_unlinked_log_is_read_on(bench, sink, logs, how):
    paths = logs(1)
    with paths[0].open("ab", buffering=0) as stream:
        ref = bench.tail(sink, paths)
        stream.write(b"before\n")
        sink.wait_for(b"[r0]:before\n")
        paths[0].unlink() if how == "unlink" else paths[0].rename(paths[0].with_suffix(".old"))
        stream.write(b"after\n")
        sink.wait_for(b"[r0]:after\n")
        ref.tell(Drain(sizes={}))
        assert bench.ended().remaining_bytes == 0
    assert bench.errors.empty()


def test_l7_a_log_renamed_between_open_and_watch_is_followed(way, bench, sink, logs, monkeypatch):
    paths = logs(1)
    watched = threading.Event()

    def rename_and_watch(path, changed):
        paths[0].rename(paths[0].with_suffix(".1"))
        made = watching.watch(path, changed)
        watched.set()
        return made

    monkeypatch.setattr(feed, "watch", rename_and_watch)
    with paths[0].open("ab", buffering=0) as writer:
        ref = bench.tail(sink, paths)
        assert watched.wait(TIMEOUT_S)
        writer.write(b"line\n")
        sink.wait_for(b"[r0]:line\n")
    assert bench.errors.empty()
    bench.drain(ref, [])


@pytest.mark.parametrize(
    "fault", [BrokenPipeError(errno.EPIPE, "gone"), OSError(errno.ENOSPC, "full"), KeyError("odd")]
)
def test_l7_a_destination_that_fails_ends_the_tail_at_once(bench, sink, logs, fault):
    paths = logs(2)
    for path in paths * 3:
        append(path, b"line\n")
    sink.fault = fault
    ref = bench.tail(sink, paths)
    ended = bench.ended()
    assert (fault.args[-1] in ended.error, ended.remaining_bytes) == (True, 30)
    assert not ref.is_alive()
    assert sink.closed
    assert bench.errors.empty()


def test_l7_a_real_pipe_whose_reader_is_gone(bench, logs):
    paths = logs(1)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        bench.tail(console(stream), paths)
        os.close(reader)
        append(paths[0], b"line\n")
        assert "Broken pipe" in bench.ended().error


def test_a_file_that_cannot_be_opened_is_told_and_the_others_are_shown(bench, sink, logs):
    paths = logs(2)
    append(paths[1], b"here\n")
    paths[0].unlink()
    ref = bench.tail(sink, paths)
    where, error = bench.errors.get(timeout=TIMEOUT_S)
    assert (where, error.errno) == (str(paths[0]), errno.ENOENT)
    ref.tell(Drain(sizes={str(paths[0]): 7, str(paths[1]): 5}))
    assert bench.ended().remaining_bytes == 7
    assert sink.data == b"[r1]:here\n"


def test_a_file_that_cannot_be_read_is_told_once(bench, sink, logs, tmp_path):
    directory = tmp_path / "directory"
    directory.mkdir()
    paths = [*logs(1), directory]
    ref = bench.tail(sink, paths)
    where, error = bench.errors.get(timeout=TIMEOUT_S)
    assert (where, error.errno) == (str(directory), errno.EISDIR)
    append(paths[0], b"here\n")
    ref.tell(Drain(sizes={str(paths[0]): 5}))
    bench.ended()
    assert sink.data == b"[r0]:here\n"


def stuck_tail(bench, paths, abandon):
    """A Tail in the middle of a write to a pipe that nobody reads; also its two ends."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    sink = console(stream)
    full = threading.Event()
    waits = sink._wait_writable

    def wait_writable(*args, **kwargs):
        full.set()
        return waits(*args, **kwargs)

    sink._wait_writable = wait_writable
    ref = bench.tail(sink, paths, abandon=abandon)
    assert full.wait(TIMEOUT_S)
    return ref, reader, stream


@pytest.mark.parametrize("drained", [True, False])
def test_abandoned_in_a_write_it_says_how_many_bytes_were_not_shown(bench, logs, drained):
    paths = logs(2)
    for path in paths:
        append(path, b"a line of some length\n" * 20_000)
    abandon = CancelToken()
    ref, reader, stream = stuck_tail(bench, paths, abandon)
    if drained:
        ref.tell(Drain(sizes={str(path): path.stat().st_size for path in paths}))
    abandon.set()
    ended = bench.ended()
    ref.actor_stopped.wait(TIMEOUT_S)
    del ref
    stream.close()
    with os.fdopen(reader, "rb") as source:
        shown = source.read()
    sources = re.sub(rb"\[(r([01](\]:?)?)?)?$", b"", re.sub(rb"\[r[01]\]:", b"", shown))
    assert ended.remaining_bytes == sum(path.stat().st_size for path in paths) - len(sources)
    assert ended.remaining_bytes > 0
    assert ended.error is None


def test_abandoned_in_a_write_that_nothing_can_interrupt_it_ends_all_the_same(bench, sink, logs):
    """A notebook's stream that hangs keeps the thread, and nothing else."""
    paths = logs(1)
    append(paths[0], b"line\n" * 100)
    sink.interruptible = False
    sink.gate.clear()
    abandon = CancelToken()
    before = set(threading.enumerate())
    ref = bench.tail(sink, paths, abandon=abandon)
    assert sink.writing.wait(TIMEOUT_S)
    stopping = ref.stop(block=False)
    abandon.set()
    assert bench.ended() == TailEnded(name="stdout", remaining_bytes=500)
    assert ref not in pykka.ActorRegistry.get_all()
    assert not sink.closed
    sink.gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)
    assert sink.closed
    assert stopping.get(timeout=TIMEOUT_S)
    assert bench.told.empty()


def test_abandoned_while_idle_it_ends_too(bench, sink, logs):
    paths = logs(1)
    abandon = CancelToken()
    bench.tail(sink, paths, abandon=abandon)
    append(paths[0], b"half")
    abandon.set()
    assert bench.ended().remaining_bytes in {0, 4}
    abandon.set()


def test_abandoned_before_it_started_it_ends_too(bench, sink, logs):
    abandon = CancelToken()
    abandon.set()
    bench.tail(sink, logs(1), abandon=abandon)
    assert bench.ended().error is None


def test_stop_all_does_not_stop_it_and_its_answer_comes_at_the_end(bench, sink, logs):
    paths = logs(1)
    ref = bench.tail(sink, paths)
    futures = [ref.stop(block=False), ref.stop(block=False)]
    late = ref.ask("who are you", block=False)  # pykka warns, and answers None
    assert bench.told.get(timeout=TIMEOUT_S) == MemberStopRequested()
    assert late.get(timeout=TIMEOUT_S) is None
    with pytest.raises(pykka.Timeout):
        futures[0].get(timeout=0.01)
    append(paths[0], b"still here\n")
    sink.wait_for(b"[r0]:still here\n")
    bench.drain(ref, paths)
    assert [future.get(timeout=TIMEOUT_S) for future in futures] == [True, True]
    assert bench.told.empty()


def test_without_an_owner_a_stop_is_a_drain(bench, sink, logs):
    paths = logs(1)
    append(paths[0], b"last words\n")
    ref = bench.tail(sink, paths)
    bench.owner.stop(timeout=TIMEOUT_S)
    assert ref.stop(timeout=TIMEOUT_S)
    assert sink.data == b"[r0]:last words\n"


def test_the_end_is_told_last_when_all_is_given_back(bench, sink, logs):
    paths = logs(1)
    ref = bench.tail(sink, paths)
    bench.drain(ref, paths)
    assert not ref.is_alive()
    assert ref not in pykka.ActorRegistry.get_all()
    assert sink.closed
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("late", timeout=TIMEOUT_S)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_crash_inside_ends_this_tail_alone_and_is_told(bench, sink, logs, kind):
    paths = logs(1)

    def filters(_line):
        raise kind("filter")

    bystander = bench.tail(type(sink)(), logs(1))
    bench.tail(sink, paths, line_filter=filters)
    append(paths[0], b"line\n")
    ended = bench.ended()
    assert kind.__name__ in ended.error
    assert ended.remaining_bytes == 5
    assert bystander.is_alive()


def test_a_strangers_wrong_call_harms_nobody(bench, sink, logs):
    ref = bench.tail(sink, logs(1))
    with pytest.raises(AttributeError):
        ref.ask(pykka.messages.ProxyCall(attr_path=("nothing",), args=(), kwargs={}), timeout=TIMEOUT_S)
    ref.tell(pykka.messages.ProxyCall(attr_path=("nothing",), args=(), kwargs={}))
    assert ref.ask("still there", timeout=TIMEOUT_S) is None


def test_idle_nothing_wakes(bench, sink, logs, inotify):
    """After a burst the Tail waits without a timeout, and so does the hub."""
    paths = logs(3)
    ref = bench.tail(sink, paths)
    append(paths[0], b"line\n")
    sink.wait_for(b"line")
    assert ref.ask("flush", timeout=TIMEOUT_S) is None
    tail = ref._actor_weakref()
    pause, calm, deadline_s = threading.Event(), 0, time.monotonic() + TIMEOUT_S
    while calm < 10:  # the last look of the burst may still be due; in the middle of a step, nothing is
        assert time.monotonic() < deadline_s
        calm = calm + 1 if tail.actor_inbox.due_ns is None else 0
        pause.wait(0.01)
    assert not watching._hub._polled


def test_a_tail_is_a_daemon_and_takes_one_thread(bench, sink, logs):
    before = set(threading.enumerate())
    bench.tail(sink, logs(50))
    bench.tail(type(sink)(), logs(50))
    new = [t for t in set(threading.enumerate()) - before if t.name != "supervise-inotify"]
    assert len(new) == 2
    assert all(t.daemon for t in new)
    assert Tail.use_daemon_thread


def test_a_write_is_noticed_without_a_poll(bench, sink, logs, inotify, polls_are_rare):
    paths = logs(1)
    bench.tail(sink, paths)
    for i in range(20):
        append(paths[0], b"line %d\n" % i)
        sink.wait_for(b"line %d\n" % i)


_CLOEXEC_CONTENT = 0x1 | 0x4
_MARK_ADD = 0x1
_OPEN_PERM = 0x10000
_AT_FDCWD = -100
_ALLOW = 0x1
_EVENT = struct.Struct("IBBHQii")


class HeldOpens:
    """Holds the first open of a file up until `release`, and no later one."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.fanotify_init(_CLOEXEC_CONTENT, os.O_RDONLY)
        if self._fd < 0:
            pytest.skip(f"fanotify: {os.strerror(ctypes.get_errno())}")
        marked = libc.fanotify_mark(self._fd, _MARK_ADD, ctypes.c_uint64(_OPEN_PERM), _AT_FDCWD, os.fsencode(path))
        if marked < 0:
            os.close(self._fd)
            pytest.skip(f"fanotify without permission events: {os.strerror(ctypes.get_errno())}")
        self.held = threading.Event()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self):
        if select.select([self._fd], [], [], TIMEOUT_S)[0]:
            opened = _EVENT.unpack(os.read(self._fd, _EVENT.size))[5]
            self.held.set()
            self._released.wait(6 * TIMEOUT_S)
            os.write(self._fd, struct.pack("iI", opened, _ALLOW))
            os.close(opened)
        os.close(self._fd)  # allows every later open

    def release(self):
        self._released.set()
        self._thread.join(TIMEOUT_S)


@pytest.mark.parametrize("kind", [Tail, PatientTail])
def test_abandoned_in_an_open_that_does_not_return_it_ends_all_the_same(bench, sink, logs, kind):
    """A dead file server keeps the thread, and nothing else; what the open returns at last is closed."""
    paths = logs(2)
    paths[1].write_bytes(b"line\n" * 100)
    held = HeldOpens(paths[1])
    before = set(threading.enumerate())
    abandon = CancelToken()
    try:
        ref = bench.tail(sink, paths, kind=kind, abandon=abandon)
        assert held.held.wait(TIMEOUT_S)
        ref.tell(Drain(sizes={str(paths[0]): 0, str(paths[1]): 500}))
        abandon.set()
        assert bench.ended() == TailEnded(name="stdout", remaining_bytes=500)
        assert ref not in pykka.ActorRegistry.get_all()
    finally:
        held.release()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)
    assert sink.closed
    assert not sink.data
    assert not set(paths) & {fd.resolve() for fd in Path("/proc/self/fd").iterdir()}
    assert bench.told.empty()
