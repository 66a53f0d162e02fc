"""Runs host programs whose console, the real stdout and stderr, a test reads and compares byte for byte.

`hosted` starts one in a process of its own: this very file, which starts a gang and runs the Python source that the
test gives as `body`. The console is two pipes, two files, two terminals, or one pipe for both streams (``2>&1``).
Workers speak with the test as those of `gangs` do.
"""

import json
import logging
import os
import pty
import select
import subprocess
import sys
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import supervise
from tests.patience import PATIENCE_S
from tests.processes import work

CONSOLES = ("pipe", "file", "pty", "merged")
WAIT = "result = start().wait(); mark('over')"
ROOT = Path(supervise.__file__).parents[1]


class Stream:
    """What one end of the console shows."""

    def __init__(self, source: int | Path) -> None:
        """Read a descriptor, which is taken over, or a file when the host has ended."""
        self.source = source
        self.data = b""

    def until(self, needle: bytes) -> bytes:
        """Read until `needle` has come; return all that has come so far."""
        while needle not in self.data:
            assert isinstance(self.source, int)
            assert select.select([self.source], [], [], PATIENCE_S)[0], f"no {needle!r} after {self.data[-300:]!r}"
            assert self.more(), f"the console ended without {needle!r}, after {self.data[-300:]!r}"
        return self.data

    def more(self) -> bool:
        """Read what there is; False: this was the end."""
        if self.source == -1:
            return False
        if isinstance(self.source, Path):
            self.data = self.source.read_bytes()
            return False
        try:
            chunk = os.read(self.source, 1 << 20)
        except OSError:  # how a terminal says that nobody has it open any more
            chunk = b""
        self.data += chunk
        return bool(chunk)

    def close(self) -> None:
        if isinstance(self.source, int) and self.source >= 0:
            os.close(self.source)
            self.source = -1


class Host:
    """A running host program."""

    def __init__(self, process: subprocess.Popen[bytes], out: Stream, err: Stream, folder: Path, pipes: Any) -> None:
        self.process = process
        self.out = out
        self.err = err
        self._folder = folder
        self._pipes = pipes

    def hear(self) -> str:
        """Return the next line that a worker says."""
        return self._pipes["ear"].hear()

    def tell(self, rank: int | None = None) -> None:
        """Let a worker go on, or the host's body."""
        self._pipes["host" if rank is None else f"gate{rank}"].tell()

    def finish(self) -> "Host":
        """Read the console to its end and wait for the host, which must not have failed."""
        open_ones = {s.source: s for s in (self.out, self.err) if isinstance(s.source, int) and s.source >= 0}
        until = time.monotonic() + PATIENCE_S
        while open_ones:
            ready = select.select(list(open_ones), [], [], max(0.0, until - time.monotonic()))[0]
            assert ready, f"the host does not end; stdout: {self.out.data[-300:]!r}, stderr: {self.err.data[-300:]!r}"
            for fd in ready:
                if not open_ones[fd].more():
                    del open_ones[fd]
        code = self.process.wait(PATIENCE_S)
        self.out.more()
        self.err.more()
        assert code == 0, (code, self.out.data[-300:], self.err.data[-3000:])
        return self

    def rss_peak_kib(self) -> int:
        """How much memory the host has ever used."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    @property
    def report(self) -> dict[str, Any]:
        """What the host's body put into `report`, and under ``events`` the warnings and errors of the gang."""
        return json.loads((self._folder / "report.json").read_text())

    @property
    def complaints(self) -> list[Any]:
        """The events ``supervise.log.failed``, and what was logged that is no event."""
        events = self.report["events"]
        return [e for e in events if not isinstance(e, dict) or e["event"] == "supervise.log.failed"]


@contextmanager
def hosted(
    folder: Path,
    kind: str,
    sources: list[str],
    *,
    console: str = "pipe",
    body: str = WAIT,
    **settings: Any,
) -> Iterator[Host]:
    """Yield a running host; afterwards, end it.

    Args:
        folder: For logs (``logs``), files of the console and the report.
        kind: ``binary``, or the start method of functions.
        sources: Python source, one a rank, as for `gangs.faulty`.
        console: One of `CONSOLES`.
        body: Source for the host's main thread. It has `start`, which starts the gang; `mark`, which prints a line;
            `wait_for_word`; `supervise`, `spec` and `report`.
        settings: Of the logs (``redirects`` and ``tee`` as for `Std.from_str`, ``local_ranks_filter``) and of
            `start_processes`.
    """
    from tests.processes.gangs import Fifo  # here, since workers import this file

    spec = {"folder": str(folder), "kind": kind, "sources": sources, "body": body, **settings}
    (folder / "spec.json").write_text(json.dumps(spec))
    with ExitStack() as stack:
        pipes = {name: Fifo(folder / name) for name in ("ear", "host", *(f"gate{r}" for r in range(len(sources))))}
        for pipe in pipes.values():
            stack.callback(pipe.close)
        ours, theirs = zip(*(_end(folder / name, console, stack) for name in ("stdout", "stderr")), strict=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.console", str(folder / "spec.json")],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=theirs[0],
            stderr=subprocess.STDOUT if console == "merged" else theirs[1],
        )
        stack.callback(process.wait, PATIENCE_S)
        stack.callback(process.kill)
        for fd in theirs:
            os.close(fd)
        yield Host(process, *ours, folder, pipes)


def _end(path: Path, console: str, stack: ExitStack) -> tuple[Stream, int]:
    if console == "file":
        return Stream(path), os.open(path, os.O_WRONLY | os.O_CREAT)
    ours, theirs = pty.openpty() if console == "pty" else os.pipe()
    if console == "pty":
        tty.setraw(theirs)  # a newline stays one
    stream = Stream(ours)
    stack.callback(stream.close)
    return stream, theirs


def show(folder: Path, kind: str, sources: list[str], **more: Any) -> Host:
    """Run a host to its end."""
    with hosted(folder, kind, sources, **more) as host:
        return host.finish()


# The host's side


class _Notes(logging.Handler):
    """Collects events; what else is logged is a mistake of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(getattr(record, "supervise", record.getMessage()))


def start(spec: dict[str, Any], by: Any = supervise.start_processes, **more: Any) -> Any:
    """Start the gang that `spec` describes, as `supervise.start_processes` or as `Supervisor.start` does."""
    spec = spec | more
    ranks = range(len(spec["sources"]))
    flags = ("-X", "utf8", "-S", "-c")
    function = spec["kind"] != "binary"
    args = {r: (s,) if function else (*flags, work.PREAMBLE + s) for r, s in enumerate(spec["sources"])}
    streams: Any = {name: supervise.Std.from_str(str(spec.get(name, 0))) for name in ("redirects", "tee")}
    shown = spec.get("local_ranks_filter")
    settings: dict[str, Any] = {
        "logs_specs": supervise.DefaultLogsSpecs(
            spec.get("log_dir", f"{spec['folder']}/logs"),
            local_ranks_filter=None if shown is None else set(shown),
            **streams,
        )
    }
    for name in ("logs_specs", "duplicate_stdout_filters", "duplicate_stderr_filters"):
        if name in spec:
            settings[name] = spec[name]
    if "log_line_prefixes" in spec:
        settings["log_line_prefixes"] = {int(rank): text for rank, text in spec["log_line_prefixes"].items()}
    if function:
        settings["start_method"] = spec["kind"]
    entrypoint = work.run_source if function else sys.executable
    here = spec["folder"]
    envs = {rank: {"LOCAL_RANK": rank, "EAR": f"{here}/ear", "GATE": f"{here}/gate{rank}"} for rank in ranks}
    return by(name="w", entrypoint=entrypoint, args=args, envs=envs, **settings)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    notes = _Notes()
    logging.getLogger("supervise").addHandler(notes)
    report: dict[str, Any] = {}
    names = {
        "start": partial(start, spec),
        "mark": _mark,
        "wait_for_word": partial(_wait_for_word, Path(spec["folder"], "host")),
        "report": report,
        "supervise": supervise,
        "spec": spec,
    }
    try:
        exec(spec["body"], names)
    finally:
        Path(spec["folder"], "report.json").write_text(json.dumps(report | {"events": notes.events}))


def _wait_for_word(pipe: Path) -> None:
    with pipe.open() as file:
        file.readline()


def _mark(text: str) -> None:
    os.write(1, f"<{text}>\n".encode())


if __name__ == "__main__":
    main()
