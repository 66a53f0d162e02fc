"""Our stderr where it is slow, and what the command does to the process around it."""

import logging
import os
import subprocess
import sys

import pytest

from supervise.cli.run.console import Console, library_log
from tests.cli.command import Command, environment


@pytest.fixture
def full_pipe(impatient_console: None):
    """A console whose reader does not read; and the reader's end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        pass
    console = Console("never")
    console._fd = write
    yield console, read
    os.close(read)
    os.close(write)


def drain(fd: int) -> bytes:
    data = b""
    try:
        while chunk := os.read(fd, 65536):
            data += chunk
    except BlockingIOError:
        pass
    return data.lstrip(b"x")


def test_a_reader_that_pauses_gets_everything_later(full_pipe: tuple[Console, int]):
    """As after Ctrl-S and Ctrl-Q."""
    console, read = full_pipe
    console.note("first")
    console.status("passes by")
    console.note("second")
    assert drain(read) == b""
    console.finish()
    assert drain(read) == b"supervise: first\nsupervise: second\n"


def test_a_reader_that_never_comes_back_is_not_waited_for(full_pipe: tuple[Console, int], console_ends_at_once: None):
    """What could not be said is lost, and the run ends."""
    console, _ = full_pipe
    console.note("lost")
    console.finish()


def test_what_the_library_logs_is_shown(capfd: pytest.CaptureFixture[str]):
    """Its own failures, with their traceback; only while the command runs."""
    logger = logging.getLogger("supervise")
    console = Console("never")
    console._fd = 2
    with library_log(console):
        logger.info("a detail")
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            logger.exception("the tail of %s crashed", "stdout")
    logger.error("unheard")
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "supervise: ERROR: the tail of stdout crashed"
    assert shown[-1].startswith("  ZeroDivisionError")


def test_the_command_leaves_its_process_as_it_was(supervise: Command):
    """Called with words of its own: handlers are put back, and no event went through structlog."""
    program = (
        "import signal, sys\n"
        "from supervise.cli import main\n"
        "before = [signal.getsignal(sig) for sig in signal.Signals]\n"
        "code = main(['run', 'false'])\n"
        "same = before == [signal.getsignal(sig) for sig in signal.Signals]\n"
        "print(code, same, signal.set_wakeup_fd(-1), 'structlog' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment(supervise.tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 True -1 False\n"
