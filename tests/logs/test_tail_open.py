"""A Tail whose open of a log does not return, as on a dead file server. The kernel holds the open up (fanotify)."""

import ctypes
import os
import select
import struct
import threading
from pathlib import Path

import pykka
import pytest

from supervise._core.steps import TailEnded
from supervise._gang.orders import Drain
from supervise._gang.patient_tail import PatientTail
from supervise._gang.tail import Tail
from supervise._logs.sinks import CancelToken

TIMEOUT_S = 10.0

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
