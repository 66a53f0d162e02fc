"""The rank that has the terminal: prompts, a debugger, Ctrl-C, and the modes of the terminal."""

import os
import re
import signal
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.command import Command, plain
from tests.cli.shell import PROMPT, RUN, shell

HELLO = "print('hello', input('Name? '), flush=True)"
DEBUGGED = """\
import time
breakpoint()
try:
    print("continues", flush=True)
    while True:
        time.sleep(0.01)
finally:
    print("cleaned up", flush=True)
"""
SERVICES = [{}, {"SUPERVISE_WITHOUT": "pidfd,group,inotify,glibc"}]


@pytest.mark.parametrize("env", SERVICES, ids=["", "fallbacks"])
def test_a_prompt_is_shown_before_the_answer_is_typed(supervise: Command, env: dict[str, str]):
    """It has no newline, and the log has it, too."""
    with supervise.on_terminal(sys.executable, "-c", HELLO, **env) as terminal:
        assert terminal.until("Name? ").endswith("[default0]:\x1b[0mName? ")
        terminal.type(b"Ada\n")
        code, shown = terminal.end()
    assert code == 0
    assert plain(shown).splitlines()[1:] == ["[default0]:Name? Ada", "hello Ada"]
    assert (supervise.directory() / "attempt_0" / "0" / "stdout.log").read_text() == "Name? hello Ada\n"


ASKS = """
import getpass, os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(0.3)
    for part in sys.argv[1].split("|"):
        print(part, end="", flush=True)
        time.sleep(0.01)
    print("the key has", len(getpass.getpass("Key: ")))
    sys.exit()
count = 0
while count := count + 1:
    print(f"\\rother {count}", end="", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    "before", ["login as bob ", "|".join(f"\r{part}%" for part in range(80, 101))], ids=["a text", "a bar"]
)
def test_a_prompt_at_the_terminal_itself_follows_what_was_written_before(supervise: Command, before: str, count: int):
    """As of getpass and sudo: it is not in the log, and a line that is shown later would hide it."""
    ranks = ("-n", str(count), "--stdin", "0", "--exit-code-from", "0")
    with supervise.on_terminal(*ranks, "--", sys.executable, "-c", ASKS, before) as terminal:
        shown = terminal.until("Key: ")
        assert re.search(r"(bob |100%)", shown), shown
        terminal.type(b"secret\n")
        terminal.until("the key has 6")
        terminal.type(b"\x03")
    assert count > 1 or re.search(r"(bob |100%)Key: $", shown), shown


def test_a_rank_among_several_has_the_terminal(supervise: Command):
    """The lines of the others are shown meanwhile, on lines of their own."""
    program = "import os, sys; rank = os.environ['RANK']; print('other', input()) if rank == '0' else exec(sys.argv[1])"
    program = program.replace("input()", "repr(sys.stdin.read())")
    with supervise.on_terminal("-n", "2", "--stdin", "1", "--", sys.executable, "-c", program, HELLO) as terminal:
        terminal.until("Name? ")
        terminal.type(b"Ada\n")
        code, shown = terminal.end()
    assert code == 0
    assert "]:\x1b[0mother ''" in shown
    assert "hello Ada" in shown


def test_a_debugger_works(supervise: Command, tmp_path: Path):
    """``breakpoint()``: commands, and Ctrl-C returns to the debugger, whose prompt takes commands again."""
    program = tmp_path / "debugged.py"
    program.write_text(DEBUGGED)
    with supervise.on_terminal(str(program)) as terminal:
        terminal.until("(Pdb) ")
        terminal.type(b"p 6 * 7\n")
        terminal.until("42")
        terminal.type(b"c\n")
        terminal.until("continues")
        terminal.type(b"\x03")
        terminal.until_match(r"Program interrupted(?s:.*)\(Pdb\) ")
        terminal.type(b"import os; os._exit(5)\n")  # what `q` does differs between versions of Python
        assert terminal.end()[0] == 5


@pytest.mark.parametrize("words", [("-n", "1"), ("-n", "2", "--stdin", "0")])
def test_ctrl_c_at_a_rank_that_has_the_terminal_stops_the_run(supervise: Command, words: tuple[str, ...]):
    """The rank dies of SIGINT; supervise reports that the user stopped the run, with 130, and restarts nothing."""
    program = "[ $RANK = 0 ] || exec sleep 1000; read a; echo got $a; exec sleep 1000"
    with supervise.on_terminal(*words, "--max-restarts", "3", "--", "sh", "-c", program) as terminal:
        terminal.type(b"Ada\n")
        terminal.until("got Ada")
        terminal.type(b"\x03")
        code, shown = terminal.end()
    assert code == 130
    assert "stopped by SIGINT (Ctrl-C)" in shown
    assert "rank 0: interrupted at the terminal" in plain(shown)
    assert "got Ada" in shown.split("SIGINT")[0]
    assert len(list(supervise.directory().glob("attempt_*"))) == 1


def test_a_rank_that_has_the_terminal_and_exits_with_130_was_interrupted(supervise: Command):
    """As shells do after Ctrl-C. The run is not restarted."""
    program = "trap 'exit 130' INT; read a; echo got $a; sleep 1000 & wait"
    with supervise.on_terminal("-n", "1", "--max-restarts", "3", "--", "sh", "-c", program) as terminal:
        terminal.type(b"Ada\n")
        terminal.until("got Ada")
        terminal.type(b"\x03")
        code, shown = terminal.end()
    assert code == 130
    assert "stopped by SIGINT (Ctrl-C)" in shown
    assert len(list(supervise.directory().glob("attempt_*"))) == 1


def test_a_rank_that_has_not_read_leaves_ctrl_c_to_supervise(supervise: Command):
    """So the countdown and the second Ctrl-C work as with an empty stdin."""
    program = "import signal; signal.signal(signal.SIGINT, print); print('ready', flush=True)\nwhile 1: signal.pause()"
    with supervise.on_terminal("--shutdown-timeout", "600", sys.executable, "-c", program) as terminal:
        terminal.until("ready")
        terminal.type(b"\x03")
        terminal.until_match(r"SIGKILL in \d+ s; Ctrl-C again kills now")
        terminal.until_match(r"SIGKILL in 5\d\d s")
        terminal.type(b"\x03")
        assert terminal.end()[0] == 130


def test_the_modes_of_the_terminal_are_restored(supervise: Command):
    """A rank that is killed in raw mode leaves a terminal that echoes; its change of the modes needs no read."""
    program = "import tty, os; tty.setraw(0); print('raw', flush=True); os.kill(os.getpid(), 9)"
    with shell(supervise) as bash:
        before = bash.modes()
        bash.type(f'{RUN} {sys.executable} -c "{program}"; stty -a | grep -ow icanon\n')
        bash.until("]:raw", "failed: SIGKILL", "\nicanon", PROMPT)
        assert before & termios.ECHO
        assert before & termios.ICANON


def test_the_shell_has_the_terminal_back(supervise: Command):
    """After a rank that had the foreground, and after one of each that ends by itself."""
    with shell(supervise) as bash:
        bash.type(f"{RUN} sh -c 'read a; echo got $a'; read b; echo b is $b\n")
        bash.until("logs in")
        bash.type("one\n")
        bash.until("]:got one")
        bash.type("two\n")
        bash.until("b is two", PROMPT)


def test_with_a_whole_terminal_the_ranks_output_is_a_terminal(supervise: Command):
    """``-t 0`` leaves both streams to the rank, for line editing and full screen programs."""
    program = "import sys; input('? '); print(sys.stdout.isatty(), sys.stderr.isatty())"
    with supervise.on_terminal("-t", "0", sys.executable, "-c", program) as terminal:
        terminal.until("? ")
        terminal.type(b"\n")
        assert "True True" in terminal.end()[1]


def test_a_terminal_is_not_copied(supervise: Command):
    """Refused, with the way out."""
    with supervise.on_terminal("-n", "2", "--stdin", "all", "true") as terminal:
        code, shown = terminal.end()
    assert code == 2
    assert "--stdin all cannot copy a terminal" in shown


def test_stdin_none_on_a_terminal_is_empty(supervise: Command):
    """The rank reads the end of its input at once."""
    with supervise.on_terminal("--stdin", "none", "--", "wc", "-c") as terminal:
        code, shown = terminal.end()
    assert code == 0
    assert "]:\x1b[0m0" in shown


BAR = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for share in ("10%", "50%", "100%"):
    sys.stderr.write("\\r" + share)
    sys.stderr.flush()
    if share != "100%":
        signal.sigwait([signal.SIGUSR1])
sys.stderr.write("\\n")
"""


def test_a_bar_of_the_rank_with_the_terminal_is_rewritten_in_place(supervise: Command):
    """One line, which ends with the last state."""
    with supervise.on_terminal(sys.executable, "-c", BAR) as terminal:
        for share in ("10%", "50%"):
            terminal.until(share)
            os.kill(terminal.process.pid, signal.SIGUSR1)
        code, shown = terminal.end()
    assert code == 0
    again = r"\r\x1b\[K\S*\]:\x1b\[0m"
    assert re.search(rf"\]:\x1b\[0m10%{again}50%({again}100%)+\r\n", shown), shown
