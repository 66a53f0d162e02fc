"""The hub of watches: one instance and one thread while there are watches, nothing after; and the pace of looks."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervise._logs import watch as watching
from supervise._logs.watch import BURST, PAUSE_NS, InotifyWatch, Pace, PollingWatch, watch
from tests.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "0.log"
    path.touch()
    return path


def hub_threads():
    return [t for t in threading.enumerate() if t.name == "supervise-inotify"]


def hub_is_gone():
    """Whether the hub ends: it closes by itself, since a cancel does not wait for the kernel."""
    for thread in hub_threads():
        thread.join(TIMEOUT_S)
    return not hub_threads()


def fds():
    return {fd.name for fd in Path("/proc/self/fd").iterdir()}


def targets():
    """What each descriptor leads to."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            found.append(str(fd.readlink()))
    return found


def append(path, data=b"x"):
    with path.open("ab") as stream:
        stream.write(data)


def test_a_write_and_a_truncation_are_told(way, log):
    changed = threading.Event()
    made = watch(str(log), changed.set)
    assert isinstance(made, {"inotify": InotifyWatch, "polling": PollingWatch}[way])
    append(log)
    assert changed.wait(TIMEOUT_S)
    changed.clear()
    os.truncate(log, 0)
    assert changed.wait(TIMEOUT_S)
    made.cancel()


def test_nothing_is_left_after_the_last_cancel(way, log):
    before = fds()
    first, second = watch(str(log), lambda: None), watch(str(log), lambda: None)
    assert len(hub_threads()) == 1
    first.cancel()
    first.cancel()
    second.cancel()
    assert hub_is_gone()
    assert fds() <= before
    second.cancel()


def test_a_hub_that_closes_keeps_nobody_from_watching(log, inotify):
    """The kernel takes up to 20 ms for it."""
    made = watch(str(log), lambda: None)
    hub = watching._hub
    real, begun, may_end = hub._inotify, threading.Event(), threading.Event()

    def close() -> None:
        begun.set()
        may_end.wait(TIMEOUT_S)
        real.close()

    hub._inotify = SimpleNamespace(close=close)
    made.cancel()
    assert begun.wait(TIMEOUT_S)
    next_one = threading.Thread(target=lambda: watch(str(log), lambda: None).cancel())
    next_one.start()
    next_one.join(TIMEOUT_S / 2)
    is_kept = next_one.is_alive()
    may_end.set()
    next_one.join(TIMEOUT_S)
    assert not is_kept
    assert hub_is_gone()


def test_two_watches_on_one_path_are_both_told_and_one_outlives_the_other(way, log):
    one, other = threading.Event(), threading.Event()
    first, second = watch(str(log), one.set), watch(str(log), other.set)
    append(log)
    assert one.wait(TIMEOUT_S)
    assert other.wait(TIMEOUT_S)
    first.cancel()
    one.clear()
    other.clear()
    append(log)
    assert other.wait(TIMEOUT_S)
    assert not one.is_set()
    second.cancel()


def test_a_renamed_and_an_unlinked_file_are_watched_on(way, log):
    changed = threading.Event()
    with log.open("ab", buffering=0) as stream:
        made = watch(str(log), changed.set)
        for step in (lambda: log.rename(log.with_suffix(".old")), lambda: log.with_suffix(".old").unlink()):
            step()
            changed.clear()
            stream.write(b"x")
            assert changed.wait(TIMEOUT_S)
        made.cancel()


def test_a_watch_on_a_file_that_has_ceased_to_exist_can_be_cancelled(log):
    made = watch(str(log), lambda: None)
    log.unlink()
    made.cancel()
    assert hub_is_gone()


def test_a_missing_file_is_an_error_and_leaves_nothing(way, tmp_path):
    before = fds()
    with pytest.raises(FileNotFoundError):
        watch(str(tmp_path / "nowhere"), lambda: None)
    assert hub_is_gone()
    assert fds() <= before


def test_a_callback_that_raises_does_not_silence_the_others(log):
    changed = threading.Event()
    bad, good = watch(str(log), lambda: 1 / 0), watch(str(log), changed.set)
    append(log)
    assert changed.wait(TIMEOUT_S)
    bad.cancel()
    good.cancel()


def test_a_callback_may_cancel_its_own_watch(way, log):
    done = threading.Event()
    [thread] = [None]

    def last():
        made.cancel()
        done.set()

    made = watch(str(log), last)
    [thread] = hub_threads()
    append(log)
    assert done.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_a_flood_does_not_wake_the_hub_for_each_write(log):
    """20 000 writes make far fewer calls: changes gather for 2 ms."""
    calls = []
    last = threading.Event()

    def changed():
        calls.append(None)
        if log.stat().st_size == 20_000:
            last.set()

    made = watch(str(log), changed)
    with log.open("ab", buffering=0) as stream:
        for _ in range(20_000):
            stream.write(b"x")
    assert last.wait(TIMEOUT_S)
    made.cancel()
    assert len(calls) < 5_000


@pytest.mark.parametrize(("fault", "where"), [(errno.ENOSPC, "INotify.add_watch"), (errno.EMFILE, "INotify")])
def test_where_a_limit_is_reached_files_are_polled(fault, where, log, monkeypatch):
    def fail(*_args, **_kwargs):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(f"supervise._logs.watch.{where}", fail)
    changed = threading.Event()
    made = watch(str(log), changed.set)
    assert isinstance(made, PollingWatch)
    append(log)
    assert changed.wait(TIMEOUT_S)
    made.cancel()


def test_an_overflown_queue_tells_everybody(log, tmp_path, inotify, monkeypatch):
    other = tmp_path / "1.log"
    other.touch()

    def read_overflow(self):
        os.read(self.fileno(), 4096)
        return [watching._OVERFLOWN]

    monkeypatch.setattr(watching.INotify, "read", read_overflow)
    one, two = threading.Event(), threading.Event()
    watches = watch(str(log), one.set), watch(str(other), two.set)
    append(log)
    assert one.wait(TIMEOUT_S)
    assert two.wait(TIMEOUT_S)
    for made in watches:
        made.cancel()


def test_a_forked_child_drops_the_hub_and_the_parent_goes_on(log):
    changed = threading.Event()
    made = watch(str(log), changed.set)
    pid = os.fork()
    if pid == 0:
        clean = False
        try:
            made.cancel()
            clean = not any("inotify" in target for target in targets())
            inner = threading.Event()
            again = watch(str(log), inner.set)  # a hub of its own
            append(log)
            clean = clean and inner.wait(TIMEOUT_S)
            again.cancel()
        finally:
            os._exit(0 if clean else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert changed.wait(TIMEOUT_S)
    changed.clear()
    append(log)
    assert changed.wait(TIMEOUT_S)
    made.cancel()


def looks(pace: Pace, wanted_ns: list[int]) -> list[int]:
    """Return when looks are made that are wanted at these moments."""
    made = []
    for now_ns in wanted_ns:
        at_ns = max(now_ns, pace.due_ns)
        pace.look(at_ns)
        made.append(at_ns - now_ns)
    return made


def test_a_few_looks_do_not_wait():
    """As many as a burst has, whenever they come."""
    assert looks(Pace(), [10**9] * BURST) == [0] * BURST


def test_under_a_flood_looks_are_a_pause_apart():
    """Once the burst is used up."""
    late = looks(Pace(), [10**9] * (BURST + 3))
    assert late[BURST:] == [PAUSE_NS, 2 * PAUSE_NS, 3 * PAUSE_NS]


def test_looks_that_are_a_pause_apart_never_wait():
    """For however long."""
    assert set(looks(Pace(), [n * PAUSE_NS for n in range(1000)])) == {0}


def test_after_a_rest_there_is_a_burst_again():
    """But not a larger one, however long the rest was."""
    pace = Pace()
    looks(pace, [0] * (BURST + 1))
    assert looks(pace, [10**12] * (BURST + 1)) == [0] * BURST + [PAUSE_NS]
