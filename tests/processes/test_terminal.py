"""On a terminal, a worker that wants to talk to the user fails at once and says why; it does not stop in silence."""

import os
import pty
import sys

import pytest

from tests.processes.gangs import each_kind
from tests.processes.hosts import Host

PROGRAM = """
import fcntl, termios
signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
from supervise import DefaultLogsSpecs, Std
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # we lead the session of this terminal
assert os.tcgetpgrp(0) == os.getpgrp()
logs = DefaultLogsSpecs(ear, redirects=Std.ERR)
gang = start_gang(kind, [{source!r}], logs_specs=logs)
result = gang.ask(Wait(), timeout=40)
said = str(result.failures[0].message) + result.ends[0].stderr_tail + open(result.stderrs[0]).read()
line = f"{{result.outcome}} {{result.ends[0].exitcode}} {{{expected!r} in said}}\\n"
os.write(int(os.environ["SAY"]), line.encode())
gang.stop(timeout=40)
"""

WISHES = {
    "input": ("input()", "EOFError"),
    # From Python 3.14 on it ends the process, and says so to stdout
    "pdb": ("import pdb; pdb.set_trace()", "BdbQuit" if sys.version_info < (3, 14) else ""),
    "tcsetattr": ("import termios; termios.tcsetattr(0, termios.TCSANOW, [0, 0, 0, 0, 0, 0, []])", "termios.error"),
    "getpass": ("import getpass; getpass.getpass()", "EOFError"),
    "the terminal itself": ("open('/dev/tty')", "No such device or address"),
}


@each_kind
@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize(  # two ways to exec
    "blocked", ["[]", pytest.param("[signal.SIGUSR1]", marks=pytest.mark.stress)], ids=["plain", "masked"]
)
def test_s11_a_worker_cannot_wait_for_the_user(monkeypatch, tmp_path, kind, wish, blocked):
    """Its stdin is empty and it has no terminal: it fails, although the user has typed a line."""
    source, expected = WISHES[wish]
    user, terminal = pty.openpty()
    says, say = os.pipe()
    os.set_inheritable(say, True)
    monkeypatch.setenv("SAY", str(say))
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    try:
        with Host(
            PROGRAM.format(source=source + "\n", expected=expected, blocked=blocked),
            kind,
            str(tmp_path),
            start_new_session=True,
            pass_fds=(say,),
            **streams,
        ) as host:
            os.write(user, b"typed\n")
            assert host.exit_code() == 0, os.read(user, 65536).decode()
        assert os.read(says, 1000).decode() == "failed 1 True\n"
    finally:
        for fd in (user, terminal, says, say):
            os.close(fd)
