"""The option --ranks-pdb, at a real terminal."""

import os
import pty
import re
import select
import time

import pytest

from tests.patience import PATIENCE_S
from tests.pytest_plugin.running import QUIET, command, environment, run, write

TESTS = """
    import pytest

    @pytest.mark.ranks(3)
    def test_it(rank, rank_gather):
        value = rank * 11
        if rank == 2:
            {line}
        assert rank_gather(value) == [0, 11, 22]
"""


class Terminal:
    """pytest at a pseudo-terminal of its own."""

    def __init__(self, folder, *args):
        words = command(folder, *QUIET, *args)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, environment(TERM="dumb"))
        self.seen = ""

    def expect(self, text):
        """Read until `text` appears; forget what came before."""
        until_s = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, until_s - time.monotonic()))
            assert ready, f"no {text!r} in\n{self.seen}"
            self.seen += self._read()
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, line):
        """Type a line."""
        os.write(self.fd, line.encode() + b"\n")

    def end(self):
        """Read the rest; return it and the exit code."""
        while more := self._read():
            self.seen += more
        os.close(self.fd)
        return self.seen, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self):
        try:
            return os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the last process has closed the terminal
            return ""


@pytest.fixture
def terminal(tmp_path):
    """Start pytest at a terminal; a failed test ends it."""
    started = []

    def start(line, *args):
        write(tmp_path, test_it=TESTS.format(line=line))
        started.append(Terminal(tmp_path, *args))
        return started[-1]

    return start


@pytest.mark.parametrize("line", ["breakpoint()", "pass\n        breakpoint()"], ids=["its own", "of all ranks"])
def test_a_breakpoint_in_the_chosen_rank_has_the_terminal(terminal, line):
    """The other ranks pass it, and wait at the gather meanwhile; the test then goes on, and passes."""
    session = terminal(line, "--ranks-pdb", "2", "-o", "ranks_timeout=0.1")
    session.expect("(Pdb) ")
    session.type("p value + 1000")
    assert re.search(r"\b1022\b", session.expect("(Pdb) "))
    session.type("c")
    rest, code = session.end()
    assert "1 passed" in rest
    assert code == 0


def test_the_debugger_opens_where_the_chosen_rank_fails(terminal):
    """And the report has the failure."""
    session = terminal("value = 'wrong'; 1 / 0", "--ranks-pdb", "2")
    session.expect("(Pdb) ")
    session.type("p value")
    assert "'wrong'" in session.expect("(Pdb) ")
    session.type("q")
    rest, code = session.end()
    assert "ZeroDivisionError" in rest
    assert "1 failed" in rest
    assert code == 1


def test_without_a_terminal_the_option_is_an_error(tmp_path):
    """The text says what to do; a test with fewer ranks is not concerned."""
    write(
        tmp_path,
        test_it="import pytest\n@pytest.mark.ranks([2, 3])\ndef test_it():\n    pass\n",
    )
    done = run(tmp_path, "--ranks-pdb", "2", *QUIET)
    assert done.of("test_it[ranks2]")["outcome"] == "passed"
    assert "--ranks-pdb 2 needs a terminal" in done.of("test_it[ranks3]")["text"]


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_the_debugger_of_pytest_stays_closed_and_the_report_names_the_option(terminal, option):
    """The frames of a failure are in a rank. The debugger opens for a failure of pytest itself, as ever."""
    session = terminal("1 / 0", option)
    rest, code = session.end()
    assert "(Pdb)" not in rest
    assert re.search(rf"{option} does not open a debugger in ranks; use --ranks-pdb \d", rest)
    assert "1 failed" in rest
    assert code == 1
