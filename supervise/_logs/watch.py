"""Callbacks for files that change: one inotify instance and one thread for the whole process.

The thread starts with the first watch and ends with the last. It wakes for changes only, and under a
flood of them only as often as `Pace` lets it. Where inotify is missing or used up, `PollingWatch` looks
at the file each `POLL_MS` instead, in the same thread.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from supervise import _threads
from supervise._process import platform
from supervise._runtime import fork_hooks
from supervise._runtime.wakeup import WakeFd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

log = logging.getLogger("supervise")

HAVE_INOTIFY = platform.INOTIFY
"""Whether to try inotify; tests of the fallback set it to False."""

POLL_MS = 50
"""How often `PollingWatch` looks."""

PAUSE_NS = 2_000_000
"""The average pause between two looks: under a flood of changes, each look costs a wake-up."""
BURST = 8
"""How many looks may follow each other without a pause after a rest."""

_IN_MODIFY = 0x2  # a truncation is one, too
_IN_APPEAR = 0x80 | 0x100  # moved to or created in a folder
_OVERFLOWN = -1


class Pace:
    """The rate limit of looks at files that change: a single line is not held up."""

    def __init__(self) -> None:
        """Allow the first looks at once."""
        self.due_ns = 0
        """When the next look may be, monotonic."""

    def look(self, now_ns: int) -> None:
        """Note that there is a look now."""
        allowance_ns = (BURST - 1) * PAUSE_NS
        self.due_ns = max(self.due_ns, now_ns - allowance_ns) + PAUSE_NS


class Watch(Protocol):
    """What `watch` returns."""

    def cancel(self) -> None:
        """End the watch; again is harmless. A call that is being made meanwhile still comes."""


def watch(path: str, changed: Callable[[], None]) -> Watch:
    """Call `changed` after `path` was written to or truncated, until the watch is cancelled.

    Of a folder: after something appeared in it. The file is meant, not its name: renamed or unlinked,
    it is watched on. Changes that come close together make one call. `changed` runs on the watching
    thread and must not block.

    Raises:
        OSError: There is no such file, or it may not be read; or there is no thread to be had.
    """
    return _with_hub(lambda hub: hub.add(path, changed))


def hold() -> Watch:
    """Have the watching thread run until this is cancelled, so that who watches meanwhile needs no thread.

    Raises:
        OSError: There is no thread to be had, or no descriptor.
    """
    return _with_hub(lambda hub: hub.hold())


def _with_hub(add: Callable[[_Hub], Watch]) -> Watch:
    """Add to the hub, which is made if there is none."""
    global _hub  # noqa: PLW0603 - one for the process
    with _lock:
        hub = _hub or _Hub()
        try:
            made = add(hub)
            if _hub is None:
                _threads.start(hub.thread, "the watch of log files")
        except BaseException:
            if _hub is None:
                hub.close()
            raise
        _hub = hub
        return made


class InotifyWatch:
    """A watch that the kernel keeps. Several on one file share one watch descriptor."""

    def __init__(self, hub: _Hub, wd: int, changed: Callable[[], None]) -> None:
        """Made by the hub."""
        self.wd = wd
        self.changed = changed
        self.hub = hub

    def cancel(self) -> None:
        """End the watch."""
        _cancel(self.hub, [self])


class PollingWatch:
    """A watch without inotify: a look at the file's size and time each `POLL_MS`."""

    def __init__(self, hub: _Hub, path: str, changed: Callable[[], None]) -> None:
        """Made by the hub."""
        self.changed = changed
        self.hub = hub
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # by now it may be a pipe
        self._seen = self._look()

    def _look(self) -> tuple[int, int]:
        info = os.fstat(self._fd)
        return info.st_size, info.st_mtime_ns

    def has_changed(self) -> bool:
        """Whether the file has changed since the last look."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def cancel(self) -> None:
        """End the watch."""
        _cancel(self.hub, [self])


class Hold:
    """What `hold` returns: it watches nothing."""

    def __init__(self, hub: _Hub) -> None:
        """Made by the hub."""
        self.hub = hub

    def cancel(self) -> None:
        """Let the thread end."""
        _cancel(self.hub, [self])


class _Hub:
    """The thread and what it waits for. All but `_run` is called under the lock of this module."""

    def __init__(self) -> None:
        self.ended = False
        self._by_wd: dict[int, list[InotifyWatch]] = {}
        self._polled: list[PollingWatch] = []
        self._holds: list[Hold] = []
        self._wake_fd = WakeFd()
        self._inotify = _new_inotify()  # last, since it may be None, and never fails
        self.thread = threading.Thread(target=self._run, name="supervise-inotify", daemon=True)

    def add(self, path: str, changed: Callable[[], None]) -> Watch:
        if self._inotify is not None:
            try:
                wd = self._inotify.add_watch(path, _IN_APPEAR if os.path.isdir(path) else _IN_MODIFY)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                raise
            except OSError as error:  # the user's watches are used up
                log.debug("no inotify watch for %s, it is polled: %s", path, error)
            else:
                kept = InotifyWatch(self, wd, changed)
                self._by_wd.setdefault(wd, []).append(kept)
                return kept
        polled = PollingWatch(self, path, changed)
        self._polled.append(polled)
        self._wake_fd.set()
        return polled

    def hold(self) -> Hold:
        held = Hold(self)
        self._holds.append(held)
        return held

    @property
    def _used(self) -> bool:
        return bool(self._by_wd or self._polled or self._holds)

    def remove(self, gone: Sequence[InotifyWatch | PollingWatch | Hold]) -> bool:
        """Forget watches; False: none of them was there any more."""
        found = False
        unwatched = []
        for each in gone:
            if isinstance(each, Hold):
                if each in self._holds:
                    self._holds.remove(each)
                    found = True
                continue
            if isinstance(each, PollingWatch):
                if each in self._polled:
                    self._polled.remove(each)
                    each.close()
                    found = True
                continue
            sharing = self._by_wd.get(each.wd, [])
            if each in sharing:
                found = True
                sharing.remove(each)
                if not sharing:
                    del self._by_wd[each.wd]
                    unwatched.append(each.wd)
        if self._used:  # otherwise all of it is closed, at once
            self._unwatch(unwatched)
        return found

    def _unwatch(self, wds: list[int]) -> None:
        for wd in wds:
            try:
                self._inotify.rm_watch(wd)
            except OSError as error:  # the file has ceased to exist, and its watch with it
                log.debug("inotify watch %d is gone: %s", wd, error)

    def end_if_unused(self) -> bool:
        """Have the thread end, unless there are watches."""
        if self._used:
            return False
        self.ended = True
        self._wake_fd.set()
        return True

    def close(self) -> None:
        """Close every descriptor, and nothing else: after a fork the parent uses them on."""
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
                if self.ended:
                    self.close()
                    return
                changed = self._changes()
            for watched in changed:
                try:
                    watched.changed()
                except Exception:  # the others are to be told all the same
                    log.exception("the callback of a watch raised")
            if changed:
                now_ns = time.monotonic_ns()
                pace.look(now_ns)
                if pace.due_ns > now_ns:  # let changes gather
                    paused.poll((pace.due_ns - now_ns) / 1e6)

    def _changes(self) -> list[InotifyWatch | PollingWatch]:
        self._wake_fd.clear()
        changed: list[InotifyWatch | PollingWatch] = [w for w in self._polled if w.has_changed()]
        if self._inotify is not None:
            wds = {event.wd for event in self._inotify.read(timeout=0)}
            if _OVERFLOWN in wds:
                wds = set(self._by_wd)
            for wd in wds:
                changed += self._by_wd.get(wd, ())
        return changed


def _new_inotify() -> Any:
    """Return an `inotify_simple.INotify`; None where there is none to be had."""
    if not HAVE_INOTIFY:
        return None
    try:
        import ctypes

        import inotify_simple

        module: Any = inotify_simple
        if module._libc is None:  # noqa: SLF001 - left alone, it starts a process (ldconfig) to find libc
            module._libc = ctypes.CDLL(None, use_errno=True)  # noqa: SLF001
        return module.INotify(nonblocking=True)
    except (ImportError, AttributeError, OSError) as error:
        log.debug("no inotify, files are polled: %s", error)
        return None


def cancel_all(watches: Iterable[Watch]) -> None:
    """End several watches at once, which is cheaper than one by one: a watch that ends wakes the thread."""
    gone = [found for found in watches if isinstance(found, (InotifyWatch, PollingWatch))]
    for hub in {found.hub for found in gone}:
        _cancel(hub, [found for found in gone if found.hub is hub])


def _cancel(hub: _Hub, gone: Sequence[InotifyWatch | PollingWatch | Hold]) -> None:
    global _hub  # noqa: PLW0603
    with _lock:
        if hub.ended or not hub.remove(gone) or not hub.end_if_unused():
            return
        _hub = None  # its thread closes it and ends; the kernel takes up to 20 ms for that, so nobody waits


def _forget() -> None:
    """Drop the hub in a forked child: its thread is not here, and its watches are the parent's."""
    global _hub, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    hub, _hub = _hub, None
    if hub is not None:
        hub.close()


_lock = threading.Lock()
_hub: _Hub | None = None
fork_hooks.register("watch", in_child=_forget)
