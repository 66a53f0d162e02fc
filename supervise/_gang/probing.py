"""The tries of the probes of a gang, and the time between them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._core.hangs import LATE_NS
from supervise._files import closing, data_begin, open_regular
from supervise._printable import REWRITES, STYLES, ending, one_line
from supervise._probes import Probe, parse
from supervise._process.launch.program import LaunchSpec, Streams, UnreapedError, run_program
from supervise._process.lifeline import Lifeline
from supervise._runtime.descriptors import anonymous_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervise._gang.attempt import Attempt
    from supervise._logs.trim import LogTrimmer
    from supervise._runtime.loop import Loop, Timer


# One try of a probe. Each try has a thread, because a lookup of a name, a server or a file system may block


_WORDS_CHARS, _LAST_BYTES = 200, 4096
_OF_THE_RANK = ("TORCHELASTIC_ERROR_FILE", "SUPERVISE_RECORD")  # a command that fails records no error of the rank


_PIECE_BYTES = 1 << 18
"""Bytes of a log that are searched at once. Of a longer line, only the beginning is searched."""
_REPEAT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|([*+?{])", re.DOTALL)
"""What a pattern consists of; as group 1, an operator because of which a search may take time without limit."""
_SEARCH = """\
import os, re, sys
path, begin, size, pattern, rewrites, styles = sys.argv[1:]
text = os.pread(os.open(path, os.O_RDONLY | os.O_NONBLOCK), int(size), int(begin)).decode(errors="replace")
text = re.sub(styles, "", re.sub(rewrites, "\\n", text))
print(any(map(re.compile(pattern).search, text.split("\\n"))))
"""
"""The program that searches with such a pattern: in this process, the search would hold the GIL, and stop all."""


class Place:
    """How far a log was searched."""

    def __init__(self) -> None:
        """Begin at the beginning of the log."""
        self.shown_bytes = 0
        """The number of bytes before the first that was not searched. `LogTrimmer` removes none from there on."""
        self.is_in_line = False
        """Whether these bytes end in the middle of a line that is too long."""


class Try:
    """One try of a probe. Other threads may cancel it."""

    def __init__(
        self, probe: Probe, cwd: str, variables: Mapping[str, str], logs: Mapping[str, Place], timeout_s: float
    ) -> None:
        """Prepare.

        Args:
            probe: The probe.
            cwd: The working directory of the rank; "" for that of this process.
            variables: The environment of the rank.
            logs: The path of each log of the rank to its place, which a try changes.
            timeout_s: Seconds after which the caller cancels the try. A connection gives up a second later.
        """
        self._probe, self._cwd, self._variables, self._logs = probe, cwd, variables, logs
        self._timeout_s = timeout_s + 1.0
        self._socket: socket.socket | None = None
        self._line: Lifeline | None = None
        self._canceled = False
        self.excused = False  # whether it has failed for a reason that is in this process, so that the rank may be well

    def run(self) -> str:
        """Try; return "" if the probe succeeds, else the reason. Blocks."""
        try:
            return str(getattr(self, f"_{self._probe.kind}")())
        except OSError as error:
            self.excused = self.excused or error.errno in (errno.EMFILE, errno.ENFILE)
            why = error.strerror or str(error)
            return f"{why[:1].lower()}{why[1:]}"
        except Exception as error:  # such as an HTTPException
            return one_line(f"{type(error).__name__}: {error}")[:_WORDS_CHARS]
        finally:
            self.cancel()
            if self._socket is not None:
                self._socket.close()

    def cancel(self) -> None:
        """End the try soon, and kill the process of a command. Idempotent."""
        self._canceled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # not by a close: a child that was forked meanwhile may hold a copy
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._line is not None:
            self._line.cut()

    def _path(self) -> str:
        return os.path.join(self._cwd, self._probe.target)

    def _tcp(self) -> str:
        self._socket = end = socket.create_connection(self._probe.target, self._timeout_s)
        # Without a server, the kernel may choose the same port for this end, which is then connected to itself
        return "" if end.getsockname() != end.getpeername() else "connection refused"

    def _unix(self) -> str:
        target = self._probe.target
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(self._timeout_s)
        self._socket.connect(f"\0{target[1:]}" if target.startswith("@") else self._path())
        return ""

    def _http(self) -> str:
        import http.client  # loaded before the start of the gang

        url = self._probe.target
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=self._timeout_s)
        if self._probe.kind == "https":
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # few are made for a local address
            kind = http.client.HTTPSConnection
            connection = kind(url.hostname, url.port, timeout=self._timeout_s, context=context)
        connection.connect()
        self._socket = connection.sock
        query = f"?{url.query}" if url.query else ""
        connection.request("GET", f"{url.path or '/'}{query}", headers={"User-Agent": "supervise"})
        status = connection.getresponse().status
        return "" if 200 <= status < 400 else f"HTTP status {status}"

    _https = _http

    def _file(self) -> str:
        os.stat(self._path())
        return ""

    def _log(self) -> str:
        for path, place in self._logs.items():
            with closing(open_regular(path, follow=True)) as fd:
                while piece := self._piece(fd, place):
                    begin, data = piece
                    if self._matches(path, begin, data):
                        return ""
                    if self._canceled:
                        return "canceled"
                    place.shown_bytes, place.is_in_line = begin + len(data), not data.endswith(b"\n")
        return "no line matches"

    def _piece(self, fd: int, place: Place) -> tuple[int, bytes] | None:
        """Return the next lines of a log and their offset; of a line that is too long, only the beginning."""
        if place.shown_bytes > os.fstat(fd).st_size:  # truncated by the rank
            place.shown_bytes, place.is_in_line = 0, False
        while not self._canceled:
            begin = data_begin(fd, place.shown_bytes)
            if begin is None:
                return None
            if begin > place.shown_bytes:  # behind a hole, a line may begin anywhere
                place.is_in_line = False
            data = os.pread(fd, _PIECE_BYTES, begin)
            end = data.find(b"\n") + 1 if place.is_in_line else data.rfind(b"\n") + 1
            if not end and len(data) < _PIECE_BYTES and not place.is_in_line:  # the line is not complete
                break
            if not place.is_in_line:
                return begin, data[: end or len(data)]
            if not data:
                break
            place.shown_bytes, place.is_in_line = begin + (end or len(data)), not end
        return None

    def _matches(self, path: str, begin: int, data: bytes) -> bool:
        """Return whether a line matches, without its escape sequences.

        A process searches for a pattern that may take time without limit.
        """
        pattern: re.Pattern[str] = self._probe.target
        data = data.removesuffix(b"\n")  # no line begins behind it
        repeats = any(found[1] for found in _REPEAT.finditer(pattern.pattern))
        if repeats and sys.executable and not getattr(sys, "frozen", False):
            words = ("-I", "-S", "-c", _SEARCH, path, str(begin), str(len(data)), pattern.pattern)
            code, said = self._run_program((sys.executable, *words, REWRITES, STYLES))
            if said not in ("True", "False") and not self._canceled:
                raise OSError(f"the search has failed: {said.rpartition(chr(10))[2] or code}")
            return said == "True"
        text = re.sub(STYLES, "", re.sub(REWRITES, "\n", data.decode(errors="replace")))
        return any(map(pattern.search, text.split("\n")))

    def _exec(self) -> str:
        code, said = self._run_program(self._probe.target)
        self.excused = code is None
        if code is None:
            lost = "exit status lost: another part of this program reaped the process"
            return "canceled" if self._canceled else lost
        how_ended = f"exit code {code}" if code >= 0 else f"killed by {ending(code)}"
        last = f": {one_line(said.splitlines()[-1])[:_WORDS_CHARS]}" if said else ""
        return f"{how_ended}{last}" if code else ""

    def _run_program(self, words: Sequence[str]) -> tuple[int | None, str]:
        """Run a program until it ends or the try is canceled; return its exit code and the end of its output.

        The exit code is None if it is not known, or if the try was canceled before.
        """
        with contextlib.ExitStack() as stack:
            out = anonymous_file("supervise-probe")
            stack.callback(os.close, out)
            self._line = line = Lifeline()
            stack.callback(line.cut)
            if self._canceled:
                return None, ""
            read_end = line.read_end()
            stack.callback(os.close, read_end)
            streams = Streams(*[f"/proc/self/fd/{out}"] * 2)
            how = LaunchSpec(
                env={name: value for name, value in self._variables.items() if name not in _OF_THE_RANK},
                cwd=self._cwd or None,
                streams=streams,
                line=line,
                gate=True,  # so that it does not survive this process, even if that is killed now
            )
            try:
                child = run_program(words, how, read_end)
            except UnreapedError as unreaped:  # it is killed
                os.waitpid(unreaped.pid, 0)
                raise unreaped.error from None
            stack.callback(child.close)
            stack.callback(line.cut)  # the kernel kills what is left of its process group
            try:
                code: int | None = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
            except ChildProcessError:  # other code of this program has reaped it, or the kernel: SIGCHLD is ignored
                ended = child.reap()
                code = None if ended is None else ended.code
            begin = max(0, os.fstat(out).st_size - _LAST_BYTES)
            said = os.pread(out, _LAST_BYTES, begin).decode(errors="replace").strip()
        return code, said


# The times of the tries, on the gang's loop


_FIRST_S, _GROWTH, _LONGEST_S = 0.1, 1.2, 1.0


def delay_s(tries: int) -> float:
    """Return the time to the next try of a probe of readiness.

    Args:
        tries: Number of tries so far, at least 1.
    """
    return min(_FIRST_S * _GROWTH ** min(tries - 1, 99), _LONGEST_S)  # a high power would overflow after an hour


class Probing:
    """The tries of a probe during one life of a rank. Used on the gang's loop."""

    def __init__(
        self,
        attempt: Attempt,
        rank: int,
        text: str,
        loop: Loop,
        then: Callable[[Probing], object],
        *,
        trimmer_of: Callable[[str], LogTrimmer | None],
    ) -> None:
        """Prepare. `begin` begins the first try.

        Args:
            attempt: The present attempt of the gang.
            rank: The rank.
            text: The probe, as the settings have it.
            loop: The gang's loop.
            then: Function that is called after each try.
            trimmer_of: Returns the bound of a log, which keeps what was not searched.
        """
        part, dest = attempt.spec.of(rank), attempt.dest
        variables = attempt.spec.variables_of(rank, attempt.envs[rank])
        self.rank, self.text, self.probe = rank, text, parse(text, variables)
        paths = (dest.stdouts[rank], dest.stderrs[rank]) if self.probe.kind == "log" else ()
        logs = {path: Place() for path in paths if path and path != os.devnull}
        trimmers = [(trimmer, place) for path, place in logs.items() if (trimmer := trimmer_of(path)) is not None]
        for trimmer, place in trimmers:
            trimmer.add(place)
        self._trimmers = trimmers
        self._new_try = partial(Try, self.probe, attempt.spec.cwd_of(part) or "", variables, logs, part.alive_timeout_s)
        self._timeout_s = part.alive_timeout_s
        self._loop, self._then = loop, then
        self.tries = self.failures = 0
        self.answer = "none yet"
        """Why the last try has failed; "" if it has succeeded."""
        self.excused = False  # whether the last try has failed for a reason that is in this process
        self.good_ns = time.monotonic_ns()
        """Time of the last success, at first that of the readiness of the rank."""
        self._present: Try | None = None
        self.thread: threading.Thread | None = (
            None  # until its answer; a file system or the lookup of a name may block it
        )
        self._timer: Timer | None = None

    def begin(self, delay_s: float = 0.0) -> None:
        """Begin a try after a delay."""
        self._timer = self._loop.call_later(delay_s, self._try)

    def end(self) -> None:
        """Cancel the tries. No function is called any more."""
        trimmers, self._trimmers = self._trimmers, []
        for trimmer, place in trimmers:
            trimmer.remove(place)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._present is not None:
            self._present.cancel()

    def _try(self) -> None:
        self.tries += 1
        self._present = present = self._new_try()
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, args=(present,), name="supervise-probe", daemon=True)
            try:
                platform.start_thread(self.thread, "a probe")
            except OSError as error:
                present.excused = True
                self._loop.post(self._ended, present, str(error.strerror))
        late = partial(self._answered, present, f"none within {self._timeout_s:g} s")
        self._timer = self._loop.call_later(self._timeout_s, late)

    def _run(self, present: Try) -> None:
        self._loop.post(self._ended, present, present.run())

    def _ended(self, ended: Try, answer: str) -> None:
        self.thread = None  # by this answer, not by `is_alive`: on a busy machine, the thread runs on for a while
        if self._present not in (ended, None) and self._timer is not None:  # a try was due before that of `ended` ended
            self._timer.cancel()
            self.tries -= 1
            self._try()
        else:
            self._answered(ended, answer)

    def _answered(self, present: Try, answer: str) -> None:
        """Handle an answer, unless it comes too late."""
        if present is not self._present or self._timer is None:
            return
        # If the deadline passed long ago, this process got no processor time, for example because it was suspended
        is_late = time.monotonic() > self._timer.due_s + LATE_NS / 1e9
        self._timer.cancel()
        self._present = None
        present.cancel()
        self.answer, self.excused = answer, is_late or present.excused
        self._then(self)
