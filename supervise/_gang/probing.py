"""The tries of the probes of a gang, and the time between them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from supervise import _platform as platform
from supervise._core.hangs import LATE_NS
from supervise._printable import ending, one_line
from supervise._probes import Probe, parse
from supervise._process.files import anonymous_file
from supervise._process.launch.program import LaunchSpec, Streams, UnreapedError, run_program
from supervise._process.lifeline import Lifeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervise._gang.attempt import Attempt
    from supervise._runtime.loop import Loop, Timer


# One try of a probe. Each try has a thread, because a lookup of a name, a server or a file system may block


_WORDS_CHARS, _LAST_BYTES = 200, 4096
_OF_THE_RANK = ("TORCHELASTIC_ERROR_FILE", "SUPERVISE_RECORD")  # a command that fails records no error of the rank


class Try:
    """One try of a probe. Other threads may cancel it."""

    def __init__(
        self, probe: Probe, cwd: str, variables: Mapping[str, str], logs: dict[str, int], timeout_s: float
    ) -> None:
        """Prepare.

        Args:
            probe: The probe.
            cwd: The working directory of the rank; "" for that of this process.
            variables: The environment of the rank.
            logs: The path of each log of the rank to the number of bytes that were searched. A try changes it.
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
        logs = self._logs
        for path in logs:
            with open(path, "rb") as file:
                file.seek(logs[path] if logs[path] <= os.fstat(file.fileno()).st_size else 0)
                for line in file:
                    if line.endswith(b"\n"):
                        logs[path] = file.tell()
                        if self._probe.target.search(line.decode(errors="replace").rstrip("\r\n")):
                            return ""
        return "no line matches"

    def _exec(self) -> str:
        with contextlib.ExitStack() as stack:
            out = anonymous_file("supervise-probe")
            stack.callback(os.close, out)
            self._line = line = Lifeline()
            stack.callback(line.cut)
            if self._canceled:
                return "canceled"
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
                child = run_program(self._probe.target, how, read_end)
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
            self.excused = code is None
            begin = max(0, os.fstat(out).st_size - _LAST_BYTES)
            said = os.pread(out, _LAST_BYTES, begin).decode(errors="replace").strip()
        if code is None:
            return "exit status lost: another part of this program reaped the process"
        how_ended = f"exit code {code}" if code >= 0 else f"killed by {ending(code)}"
        last = f": {one_line(said.splitlines()[-1])[:_WORDS_CHARS]}" if said else ""
        return f"{how_ended}{last}" if code else ""


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

    def __init__(self, attempt: Attempt, rank: int, text: str, loop: Loop, then: Callable[[Probing], object]) -> None:
        """Prepare. `begin` begins the first try.

        Args:
            attempt: The present attempt of the gang.
            rank: The rank.
            text: The probe, as the settings have it.
            loop: The gang's loop.
            then: Function that is called after each try.
        """
        part, dest = attempt.spec.of(rank), attempt.dest
        variables = attempt.spec.variables_of(rank, attempt.envs[rank])
        self.rank, self.text, self.probe = rank, text, parse(text, variables)
        logs = {path: 0 for path in (dest.stdouts[rank], dest.stderrs[rank]) if path and path != os.devnull}
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
