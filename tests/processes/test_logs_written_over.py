"""A log that a rank truncates or writes over is never silent; and what is no log does not hold anything up."""

import pytest

from tests.cli.command import Command
from tests.processes.console import hosted
from tests.processes.test_logs import OVER, each_kind, log_of

ELEVEN = "for n in range(1, 12): os.write(2, b'line %d\\n' % n)\n"
TRUNCATING = {
    "echo": "os.system('echo ERROR > /dev/stderr')",
    "echo, and grown past": "os.system('seq 1000 > /dev/stderr')",
    "tee": "os.system('echo ERROR | tee /dev/stderr')",
}
SHELL = """
say("ready")
wait_for_word()
{what}
os.write(2, b"the last\\n")
say("done")
wait_for_word()
"""


def shown_lines(data: bytes) -> list[str]:
    return [line.removeprefix("[w0]:") for line in data.decode().splitlines()]


@each_kind
@pytest.mark.parametrize("how", TRUNCATING)
def test_l11_a_rank_that_truncates_its_log_is_one_event_and_shown_on(tmp_path, kind, how):
    """Also where the file has grown past the place up to which it was read before anyone looks."""
    source = ELEVEN + SHELL.format(what=TRUNCATING[how])
    with hosted(tmp_path, kind, [source], tee=3) as host:
        assert host.hear() == "ready"
        host.err.until(b"line 11\n")
        host.tell(0)
        assert host.hear() == "done"
        host.err.until(b"the last\n")
        host.tell(0)
        host.finish()
    shown = shown_lines(host.err.data)
    assert shown[:11] == [f"line {n}" for n in range(1, 12)]
    assert shown[-len(came(how)) :] == came(how)
    [event] = host.complaints
    assert (event["log_iostream"], event["path"]) == ("stderr", str(log_of(tmp_path, stream="stderr")))
    assert "truncated or written over" in event["error"]
    assert ">> /dev/stderr" in event["error"]


def came(how: str) -> list[str]:
    lines = [str(n) for n in range(1, 1001)] if "past" in how else ["ERROR"]
    return [*lines, "the last"]


@each_kind
def test_l11_a_rank_that_writes_over_the_beginning_of_its_log_is_one_event(tmp_path, kind):
    """Without truncation the size does not tell: `dd conv=notrunc`, or a descriptor that does not append."""
    body = "fd = os.open('/dev/stderr', os.O_WRONLY); os.write(fd, b'LINE 1')"
    with hosted(tmp_path, kind, [ELEVEN + SHELL.format(what=body)], tee=3) as host:
        assert host.hear() == "ready"
        host.err.until(b"line 11\n")
        host.tell(0)
        assert host.hear() == "done"
        host.err.until(b"LINE 1\n")
        host.tell(0)
        host.finish()
    assert shown_lines(host.err.data)[-1] == "the last"
    assert "truncated or written over" in host.complaints[0]["error"]
    assert len(host.complaints) == 1


def test_l11_the_same_length_again_at_the_very_end_is_seen(tmp_path):
    """Nothing is written after it, and the file has its old size: the drain compares, too."""
    source = "os.write(2, b'first\\n'); say('ready'); wait_for_word()\nos.system('echo ERROR > /dev/stderr')"
    with hosted(tmp_path, "binary", [source], tee=3) as host:
        assert host.hear() == "ready"
        host.err.until(b"first\n")
        host.tell(0)
        host.finish()
    assert shown_lines(host.err.data) == ["first", "ERROR"]
    assert len(host.complaints) == 1


def test_l11_without_a_listener_one_line_on_stderr_names_the_idiom(tmp_path):
    """In a program that has not configured logging."""
    body = "import logging; logging.getLogger('supervise').handlers.clear()\nstart().wait(); mark('over')"
    source = (ELEVEN + SHELL.format(what=TRUNCATING["echo"])).replace("os.write(2", "os.write(1")
    with hosted(tmp_path, "binary", [source.replace("stderr", "stdout")], tee=1, body=body) as host:
        assert host.hear() == "ready"
        host.out.until(b"line 11\n")
        host.tell(0)
        assert host.hear() == "done"
        host.out.until(b"the last\n")
        host.tell(0)
        host.finish()
    assert shown_lines(host.out.data)[-3:] == ["ERROR", "the last", OVER.decode().strip()]
    [line] = host.err.data.decode().splitlines()
    assert line.startswith(str(log_of(tmp_path)))
    assert "tee -a" in line


BURST = "for n in $(seq 11); do echo line $n >&2; done; echo ERROR > /dev/stderr"


def test_l11_the_command_says_it_in_one_line(tmp_path):
    """Whether or not anything was read before it was lost: the rank has written behind the end of its log."""
    done = Command(tmp_path).run("--log-dir", str(tmp_path / "logs"), "sh", "-c", BURST)
    assert done.returncode == 0
    shown = done.stderr.splitlines()
    notes = [line for line in shown if line.startswith("supervise: stderr: ")]
    assert len(notes) == 1
    assert ">> /dev/stderr" in notes[0]
    assert str(log_of(tmp_path, stream="stderr")) in notes[0]
    assert [line for line in shown if line.endswith("ERROR")]


def test_l11_too_few_descriptors_to_know_more_are_no_obstacle(tmp_path):
    """The limit leaves room for the logs that are read, and not for what is held beside."""
    body = """
import os, resource
from supervise._process.launch import limits
real, seen = limits.check_open_files, []
def check(nprocs, *, each, shown, later=0):
    if shown:
        seen.append(shown)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        needed = nprocs * each + min(seen) // 2 * 2 + len(os.listdir("/proc/self/fd")) + limits._SPARE
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed - len(seen) % 2, hard))
    return real(nprocs, each=each, shown=shown, later=later)
limits.check_open_files = check
report["outcome"] = start().wait().outcome
report["seen"] = seen
"""
    with hosted(tmp_path, "binary", ["os.write(2, b'said\\n')"], tee=3, body=body) as host:
        host.finish()
    assert (host.report["outcome"], host.report["seen"]) == ("succeeded", [4, 2])
    assert shown_lines(host.err.data) == ["said"]
