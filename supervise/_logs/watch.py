"""File watches: one inotify instance and one thread for the whole process.

The thread starts with the first watch and ends with the last one. It wakes up only for changes, at most at the rate
that `Pace` allows. If inotify is not available, or its limits are reached, `PollingWatch` checks the file every
`POLL_MS` instead, on the same thread.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._runtime import fork_hooks
from supervise._runtime.wakeup import OwnedFd, WakeFd
from supervise.events import log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# The kernel's inotify, by `ctypes`: it reports the watched files and folders that have changed


_EVENT = struct.Struct("iIII")
"""Layout of an event: watch, mask, cookie, and the length of the name that follows."""
_READ_BYTES = 16_384
"""Bytes of one read: a thousand events of files. The next read returns the events that remain.

The longest event, one of a folder, has 272 bytes.
"""

HAVE_INOTIFY = platform.INOTIFY
"""Whether to use inotify. Tests of the fallback set this to False."""

try:
    import ctypes

    _LIBC = ctypes.CDLL(None, use_errno=True)
    _INIT, _ADD, _REMOVE = _LIBC.inotify_init1, _LIBC.inotify_add_watch, _LIBC.inotify_rm_watch
except (ImportError, AttributeError):  # no ctypes, or a C library without inotify
    HAVE_INOTIFY = False


class INotify(OwnedFd):
    """An inotify instance. Its descriptor is readable when there are events; its close also ends all watches."""

    def __init__(self) -> None:
        """Create the instance.

        Raises:
            OSError: The user's limit on instances is reached, or no descriptor is left.
        """
        super().__init__(_checked(_INIT(os.O_CLOEXEC | os.O_NONBLOCK)))

    def add_watch(self, path: str, mask: int) -> int:
        """Watch a file or folder; return the number of the watch. Watches of the same file have the same number.

        Raises:
            OSError: The file does not exist, this process may not read it, or the user's limit on watches is reached.
        """
        return _checked(_ADD(self.fd, os.fsencode(path), mask))

    def rm_watch(self, wd: int) -> None:
        """End a watch.

        Raises:
            OSError: There is no such watch, for instance because the file was deleted.
        """
        _checked(_REMOVE(self.fd, wd))

    def read(self) -> list[int]:
        """Return the watches of all pending events, in the order of the events. Never blocks."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        found, at = [], 0
        while at < len(data):
            wd, _, _, name_bytes = _EVENT.unpack_from(data, at)
            found.append(wd)
            at += _EVENT.size + name_bytes
        return found


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


POLL_MS = 50
"""The polling interval of `PollingWatch`."""

PAUSE_NS = 2_000_000
"""Average interval between two reads during a flood of changes. Each read costs a wake-up."""
BURST = 8
"""Number of reads that may follow each other without a pause after an idle time."""

_IN_MODIFY = 0x2  # includes truncation
_IN_APPEAR = 0x80 | 0x100  # moved to or created in a folder
_OVERFLOWN = -1
"""The watch in an event that reports that the kernel has dropped other events."""


class Pace:
    """A token bucket. A single line is read at once; a flood of lines is read at a limited rate."""

    def __init__(self) -> None:
        """Start with a full burst."""
        self.due_ns = 0
        """The earliest time of the next read, monotonic."""

    def look(self, now_ns: int) -> None:
        """Record a read at `now_ns`."""
        allowance_ns = (BURST - 1) * PAUSE_NS
        self.due_ns = max(self.due_ns, now_ns - allowance_ns) + PAUSE_NS


class Watch:
    """A registration. As such, it keeps the thread running; a subclass also watches a file.

    The constructor registers nothing: `cancel` of such a watch has no effect.
    """

    def cancel(self) -> None:
        """End the watch. Idempotent. A callback that is running at the time still completes."""
        cancel_all([self])


def watch(path: str, changed: Callable[[], None]) -> Watch:
    """Call `changed` after each write to `path` and after each truncation, until the watch is canceled.

    For a folder, call `changed` after an entry appears. The watch follows the file and not its name, so the watch
    survives a rename and an unlink. Changes in quick succession cause only one call. `changed` runs on the watching
    thread and must not block.

    Raises:
        OSError: The file does not exist or is not readable, or no thread is available.
    """
    return _register(lambda hub: hub.add(path, changed))


def hold() -> Watch:
    """Keep the watching thread running until the result is canceled. Later watches then need no new thread.

    Raises:
        OSError: No thread or descriptor is available.
    """
    return _register(lambda _hub: Watch())


def _register(make: Callable[[_Hub], Watch]) -> Watch:
    """Add a registration to the hub; create the hub if there is none."""
    global _hub  # noqa: PLW0603 - the process has one hub
    with _lock:
        hub = _hub or _Hub()
        try:
            made = make(hub)
            hub.watches.add(made)
            if _hub is None:
                platform.start_thread(hub.thread, "the watch of log files")
        except BaseException:
            if _hub is None:
                hub.close()
            raise
        _hub = hub
        return made


class InotifyWatch(Watch):
    """A watch by inotify. Watches of the same file share one watch descriptor."""

    def __init__(self, wd: int, changed: Callable[[], None]) -> None:
        """Store the arguments; only the hub calls this."""
        self.wd = wd
        self.changed = changed


class PollingWatch(OwnedFd, Watch):
    """A watch without inotify. It compares the size and the modification time of the file every `POLL_MS`."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """Open the file; only the hub calls this."""
        # O_NONBLOCK: the file may be a pipe now
        super().__init__(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self.changed = changed
        self._seen = self._look()

    def _look(self) -> tuple[int, int]:
        info = os.fstat(self.fd)
        return info.st_size, info.st_mtime_ns

    def has_changed(self) -> bool:
        """Return whether the file has changed since the last call."""
        before, self._seen = self._seen, self._look()
        return before != self._seen


class _Hub:
    """The watching thread and its watches. All methods except `_run` are called under the module's lock."""

    def __init__(self) -> None:
        self.ended = False
        self._by_wd: dict[int, list[InotifyWatch]] = {}
        self._polled: list[PollingWatch] = []
        self.watches: set[Watch] = set()
        """All registrations. Without one, the thread ends."""
        self._wake_fd = WakeFd()
        self._inotify = _new_inotify()  # last: the call does not raise, so the descriptor cannot leak
        self.thread = threading.Thread(target=self._run, name="supervise-inotify", daemon=True)

    def add(self, path: str, changed: Callable[[], None]) -> Watch:
        if self._inotify is not None:
            try:
                wd = self._inotify.add_watch(path, _IN_APPEAR if os.path.isdir(path) else _IN_MODIFY)
            except (FileNotFoundError, NotADirectoryError):
                raise
            except OSError as error:  # the user's limit of watches, or a sandbox; polling needs the permission as well
                log.debug("no inotify watch for %s; polling it: %s", path, error)
            else:
                kept = InotifyWatch(wd, changed)
                self._by_wd.setdefault(wd, []).append(kept)
                return kept
        polled = PollingWatch(path, changed)
        self._polled.append(polled)
        self._wake_fd.set()
        return polled

    def remove(self, gone: Collection[Watch]) -> None:
        """Remove those registrations that are present; end the thread if there are no others."""
        found = self.watches.intersection(gone)
        self.watches -= found
        for each in found:
            if isinstance(each, PollingWatch):
                self._polled.remove(each)
                each.close()
            elif isinstance(each, InotifyWatch):
                self._by_wd[each.wd].remove(each)
                if not self._by_wd[each.wd]:
                    self._unwatch(each.wd)
        if not self.watches:
            self.ended = True
            self._wake_fd.set()

    def _unwatch(self, wd: int) -> None:
        del self._by_wd[wd]
        if self._inotify is not None and self.watches:  # otherwise the thread closes the inotify instance itself
            try:
                self._inotify.rm_watch(wd)
            except OSError as error:  # the file was deleted, and its watch with it
                log.debug("inotify watch %d is gone: %s", wd, error)

    def close(self) -> None:
        """Close every descriptor. After a fork, the parent continues to use its copies."""
        self.ended = True
        for polled in self._polled:
            polled.close()
        self._polled.clear()
        if self._inotify is not None:
            self._inotify.close()
        self._wake_fd.close()

    def _run(self) -> None:
        woken, paused = select.poll(), select.poll()
        for poll in (woken, paused):
            poll.register(self._wake_fd, select.POLLIN)
        if self._inotify is not None:
            woken.register(self._inotify, select.POLLIN)
        pace = Pace()
        while True:
            woken.poll(POLL_MS if self._polled else None)
            with _lock:
                ended = self.ended
                changed = [] if ended else self._changes()
            if ended:  # without the lock, because the kernel takes up to 20 ms, and another gang may begin to watch
                self.close()
                return
            for watched in changed:
                try:
                    watched.changed()
                except Exception:  # the other callbacks still run
                    log.exception("the callback of a watch raised")
            if changed:
                now_ns = time.monotonic_ns()
                pace.look(now_ns)
                if pace.due_ns > now_ns:  # collect further changes
                    paused.poll((pace.due_ns - now_ns) / 1e6)

    def _changes(self) -> list[InotifyWatch | PollingWatch]:
        self._wake_fd.clear()
        changed: list[InotifyWatch | PollingWatch] = [w for w in self._polled if w.has_changed()]
        if self._inotify is not None:
            wds = dict.fromkeys(self._inotify.read())  # in the order of the writes
            if _OVERFLOWN in wds:
                wds = dict.fromkeys(self._by_wd)
            for wd in wds:
                changed += self._by_wd.get(wd, ())
        return changed


def _new_inotify() -> INotify | None:
    """Return an inotify instance; None if inotify is unavailable."""
    if not HAVE_INOTIFY:
        return None
    try:
        return INotify()
    except OSError as error:  # a limit, or the kernel or a sandbox refuses the call
        log.debug("no inotify; polling files: %s", error)
        return None


def cancel_all(watches: Collection[Watch]) -> None:
    """End several watches with one wake-up of the thread."""
    global _hub  # noqa: PLW0603 - one per process
    with _lock:
        if _hub is None:
            return
        _hub.remove(watches)
        if _hub.ended:
            _hub = None  # do not join the hub's thread, which closes inotify: that takes the kernel up to 20 ms


def _forget() -> None:
    """Drop the hub in a forked child. The thread is not copied, and the watches are those of the parent."""
    global _hub, _lock  # noqa: PLW0603 - one per process
    _lock = threading.Lock()
    hub, _hub = _hub, None
    if hub is not None:
        hub.close()


_lock = threading.Lock()
_hub: _Hub | None = None
fork_hooks.register("watch", in_child=_forget)


# Notice of the creation of a file, by a watch on the nearest existing folder above the file


class FileCreation:
    """File that may be created later. Used by one thread."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        """Prepare; the first call of `is_there` starts the watch.

        Args:
            path: The file. Its folders may be missing, too.
            changed: Function that is called on the watching thread when `is_there` may return another value. The
                function must not block.
        """
        self.path = path
        self._changed = changed
        self._seen: tuple[str, int, int] | None = None  # the watched folder
        self._watch: Watch = Watch()

    def is_there(self) -> bool:
        """Return whether the file exists. If it does not, watch for it and call `changed` later."""
        while not os.path.exists(self.path):
            folder = nearest_folder(self.path)
            try:
                found = os.stat(folder)
                seen = (folder, found.st_dev, found.st_ino)
                if seen == self._seen:
                    return False
                self.cancel()
                self._seen = seen  # then check again, as the file may have been created before the watch
                self._watch = watch(folder, self._changed)
            except FileNotFoundError:  # the folder was removed
                self._seen = None
            except OSError as error:  # the folder is not readable, or no thread is available
                log.debug("the creation of %s cannot be watched: %s", self.path, error)
        return True

    def cancel(self) -> None:
        """End the watch. Idempotent."""
        self._watch.cancel()
        self._seen = None


def nearest_folder(path: str) -> str:
    """Return the nearest existing folder above `path`, with symbolic links resolved."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
