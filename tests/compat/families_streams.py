"""`redirect_stdout`, `redirect_stderr`, `TailLog` and `tail_logfile`."""
# ruff: noqa: PTH123 - paths are strings in the libraries, too

import ctypes
import io
import os
import sys
import threading

from tests.compat.tell import family, outcome

NL = "\n"


def _write_all(tag):
    print(f"{tag} python", flush=True)
    print(f"{tag} python err", file=sys.stderr, flush=True)
    os.write(1, f"{tag} raw\n".encode())
    os.write(2, f"{tag} raw err\n".encode())
    libc = ctypes.CDLL(None)
    libc.puts(f"{tag} c".encode())
    libc.fflush(None)
    os.system(f"echo {tag} child; echo {tag} child err >&2")


def _read(path):
    return path.read_text() if path.exists() else None


@family
def redirected(lib, folder):
    out, err = folder / "out", folder / "err"
    _write_all("before")
    with lib.redirects.redirect_stdout(str(out)), lib.redirects.redirect_stderr(str(err)):
        _write_all("inside")
    _write_all("after")
    return [_read(out), _read(err), _read(folder / "host.stdout"), _read(folder / "host.stderr")]


@family
def redirected_nested(lib, folder):
    stdout = lib.redirects.redirect_stdout
    with stdout(str(folder / "a")):
        print("one")
        with stdout(str(folder / "b")):
            print("two")
        print("three")
        with stdout(str(folder / "b")):
            print("four")
    print("five", flush=True)
    return [_read(folder / name) for name in ("a", "b", "host.stdout")]


@family
def redirected_and_raised(lib, folder):
    def main():
        with lib.redirects.redirect_stderr(str(folder / "a")):
            print("inside", file=sys.stderr)
            raise ValueError("x")

    first = outcome(main)
    print("after", file=sys.stderr, flush=True)
    return [first, _read(folder / "a"), _read(folder / "host.stderr")]


@family
def redirected_c_buffer(lib, folder):
    libc = ctypes.CDLL(None)
    with lib.redirects.redirect_stdout(str(folder / "a")):
        libc.puts(b"inside")
    libc.puts(b"after")
    libc.fflush(None)
    return [_read(folder / "a"), _read(folder / "host.stdout")]


@family
def redirected_many_lines(lib, folder):
    with lib.redirects.redirect_stdout(str(folder / "a")):
        for number in range(100_000):
            print("line", number)
    text = (folder / "a").read_text()
    return [text.count(NL), text[-30:], text[:30]]


@family
def redirected_wrongly(lib, folder):
    def use(std, path):
        with lib.redirects.redirect(std, path):
            pass

    return [
        outcome(use, "nope", str(folder / "a")),
        outcome(use, "stdout", str(folder / "missing" / "a"))[:2],
        outcome(use, "stderr", str(folder))[:2],
        lib.redirects.get_libc() is not None,
    ]


@family
def redirected_appends(lib, folder):
    (folder / "a").write_text("a longer text that was there before\n")
    with lib.redirects.redirect_stdout(str(folder / "a")):
        print("new")
    return _read(folder / "a")


@family
def std_context(lib, folder):
    get = lib.api.get_std_cm
    with get("", lib.redirects.redirect_stdout):
        print("shown", flush=True)
    with get(str(folder / "a"), lib.redirects.redirect_stdout):
        print("hidden")
    return [_read(folder / "a"), _read(folder / "host.stdout")]


def _tail(lib, folder, contents, **options):
    files = {}
    for rank, text in contents.items():
        files[rank] = str(folder / f"{rank}.log")
        if text is not None:
            (folder / f"{rank}.log").write_bytes(text)
    shown = io.StringIO()
    tail = lib.tail_log.TailLog("job", files, shown, interval_sec=0.01, **options)
    started = tail.start() is tail
    before = tail.stopped()
    tail.stop()
    tail.stop()
    return [sorted(shown.getvalue().splitlines(keepends=True)), started, before, tail.stopped()]


@family
def tails(lib, folder):
    return {
        "one": _tail(lib, folder, {0: b"a\nb\n"}),
        "three": _tail(lib, folder, {0: b"a\n", 1: b"b\n\nc\n", 7: "äöü\n".encode()}),
        "empty": _tail(lib, folder, {0: b""}),
        "unfinished": _tail(lib, folder, {0: b"a\nb"}),
        "never there": _tail(lib, folder / "none", {0: None}),
        "one of two": _tail(lib, folder, {0: b"x\n", 9: None}),
        "nothing": _tail(lib, folder, {}),
        "prefix": _tail(lib, folder, {0: b"a\n", 1: b"b\n"}, log_line_prefixes={1: "<b>", 5: "x"}),
        "empty prefix": _tail(lib, folder, {0: b"a\n"}, log_line_prefixes={0: ""}),
        "filter": _tail(lib, folder, {0: b"keep\nhide\nkeep 2\n"}, log_line_filter=lambda line: "keep" in line),
        "filter sees": _tail(lib, folder, {0: b"a\nb\n"}, log_line_filter=lambda line: line == "a\n"),
        "blank lines": _tail(lib, folder, {0: b"\n\n\n"}),
        "tabs": _tail(lib, folder, {0: b"\ta \n  b\x0b\x0cc\n"}),
        "long": _tail(lib, folder, {0: b"x" * 300_000 + b"\n" + b"y\n" * 5000}),
    }


@family
def tail_of_a_late_file(lib, folder):
    shown = io.StringIO()
    tail = lib.tail_log.TailLog("job", {0: str(folder / "late")}, shown, interval_sec=0.01).start()
    with open(folder / "late", "w") as file:
        for number in range(5000):
            print(number, file=file, flush=number % 100 == 0)
    tail.stop()
    return [shown.getvalue().count(NL), shown.getvalue()[-11:]]


@family
def tail_of_a_folder(lib, folder):
    (folder / "0.log").mkdir()
    return _tail(lib, folder, {0: None, 1: b"other\n"})


@family
def tail_without_destination(lib, folder):
    (folder / "0.log").write_text("a\n")
    tail = lib.tail_log.TailLog("job", {0: str(folder / "0.log")}, None, interval_sec=0.01).start()
    tail.stop()
    return tail.stopped()


@family
def tail_never_started(lib, folder):
    tail = lib.tail_log.TailLog("job", {0: str(folder / "0.log")}, io.StringIO())
    tail.stop()
    return tail.stopped()


@family
def tail_to_a_file(lib, folder):
    (folder / "0.log").write_text("a\nb\n")
    with open(folder / "shown", "w", buffering=1) as shown:
        tail = lib.tail_log.TailLog("job", {0: str(folder / "0.log")}, shown, interval_sec=0.01).start()
        tail.stop()
    return _read(folder / "shown")


@family
def one_file(lib, folder):
    (folder / "a").write_text("a\nb\n")
    seen = {}
    for name, path, keep in (
        ("all", "a", lambda _: True),
        ("some", "a", lambda line: "b" in line),
        ("no", "none", None),
    ):
        shown, finished = io.StringIO(), threading.Event()
        finished.set()
        told = outcome(lib.tail_log.tail_logfile, "[h]", str(folder / path), shown, finished, 0.01, keep)
        seen[name] = [told, shown.getvalue()]
    return seen


@family
def tail_that_fails_says_so(lib, folder):
    import logging

    logging.disable(logging.NOTSET)
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append([record.levelname, record.getMessage()])
    for name in ("torch", "torch.distributed.elastic.multiprocessing.tail_log", "supervise"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([handler] if name != "torch" else []), False
    (folder / "0.log").mkdir()
    _tail(lib, folder, {0: None})
    return [[level, text.partition(":")[0]] for level, text in records[:1]]  # theirs says so at each stop
