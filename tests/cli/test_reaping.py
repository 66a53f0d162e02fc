"""As PID 1 of a container, or as a child subreaper, supervise reaps orphans that it has not started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervise.cli.run.reaping import reap_strangers
from tests.cli.command import Command

SET_CHILD_SUBREAPER = 36
AS_SUBREAPER = (
    sys.executable,
    "-c",
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({SET_CHILD_SUBREAPER}, 1); os.execv(sys.argv[1], sys.argv[1:])",
)
AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc")
ORPHANS = """\
import os, signal, subprocess, sys

def orphan():
    '''Leave an orphan that waits for the end of its stdin; return its pid and the pipe.'''
    hold, release = os.pipe()
    code = "import subprocess; print(subprocess.Popen(['cat'], stdout=subprocess.DEVNULL, {session}).pid)"
    done = subprocess.run([sys.executable, "-c", code.format(session=session)], stdin=hold, stdout=subprocess.PIPE)
    os.close(hold)
    return int(done.stdout), release

for session in ("", "start_new_session=True", "process_group=0"):
    for _ in range(3):
        pid, release = orphan()
        pidfd = os.pidfd_open(pid)
        parent = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        assert parent == os.getppid(), (parent, os.getppid())
        os.close(release)
        while True:
            try:
                signal.pidfd_send_signal(pidfd, 0)
            except ProcessLookupError:  # reaped
                break
            signal.sigtimedwait([], 0.01)
        os.close(pidfd)
print("all reaped")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(params=[AS_SUBREAPER, AS_PID_1], ids=["subreaper", "pid 1"])
def before(request: pytest.FixtureRequest) -> tuple[str, ...]:
    apart: tuple[str, ...] = request.param
    if apart is AS_PID_1 and (
        shutil.which("unshare") is None
        or subprocess.run([*apart, "true"], check=False, stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("no pid namespace can be made here")
    return apart


def test_orphans_are_reaped_while_the_run_goes_on(supervise: Command, before: tuple[str, ...], tmp_path: Path):
    """Members of the rank's group, of a group and of a session of their own; the rank keeps its exit code."""
    program = tmp_path / "orphans.py"
    program.write_text(ORPHANS)
    done = supervise.run(str(program), "7", before=before)
    assert done.stdout == "[default0]:all reaped\n", done.stderr
    assert done.returncode == 7


def test_no_exit_code_of_a_rank_is_lost(supervise: Command, before: tuple[str, ...]):
    """Ranks that end at once, beside orphans that end at once, many times."""
    tenth = "[ $TORCHELASTIC_RESTART_COUNT = 10 ] && exit 0; "
    program = f"(setsid true &); (true &); {tenth}exit $((RANK % 2 * 75))"
    words = ("-n", "4", "--strategy", "one_for_one", "--max-restarts", "1", "--backoff", "0")
    done = supervise.run(*words, "--uncounted-exit-codes", "75", "--", "sh", "-c", program, before=before)
    assert done.returncode == 0, done.stderr
    lines = (supervise.directory() / "events.jsonl").read_text().splitlines()
    ends = [found for line in lines if (found := json.loads(line))["event"] == "supervise.process.exited"]
    assert sorted(end["exit_code"] for end in ends) == [0] * 4 + [75] * 20


def test_a_child_from_before_the_exec_is_reaped(supervise: Command, before: tuple[str, ...], tmp_path: Path):
    """A shell has started it, in its own group, and has become supervise."""
    shell = ("/bin/sh", "-c", 'sleep 0.3 & echo $! >child; exec "$@"', "sh")
    program = 'while kill -0 "$(cat child)" 2>/dev/null; do sleep 0.02; done; echo reaped'
    done = supervise.run("--timeout", "60", "--", "sh", "-c", program, before=(*before, *shell))
    assert (done.returncode, done.stdout) == (0, "[default0]:reaped\n"), done.stderr


def test_strangers_only():
    """A rank, and a process in the group of supervise, are left to their owners."""
    rank = subprocess.Popen(["true"], start_new_session=True)
    helper = subprocess.Popen(["true"])
    for process in (rank, helper):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    reap_strangers(lambda: {rank.pid}, set())
    reap_strangers(lambda: None, set())
    assert rank.wait() == 0
    reap_strangers(set, set())
    assert helper.wait() == 0
    stranger = os.posix_spawn("/bin/true", ["true"], {}, setsid=True)
    os.waitid(os.P_PID, stranger, os.WEXITED | os.WNOWAIT)
    reap_strangers(set, set())
    with pytest.raises(ChildProcessError):
        os.waitpid(stranger, os.WNOHANG)
