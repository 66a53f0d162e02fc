"""The agent of supervise beside torchrun: the same words of the command line, the same result for the user."""

import re

import pytest

from tests.clients.torchrun import PATIENCE_S

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

RECORD = "from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main():\n    "
RANK_1 = "os.environ['RANK'] == '1'"
WAIT = "[signal.sigtimedwait([], 0.05) for _ in iter(int, 1)]"
NAMES = "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
NAMES += "MASTER_ADDR TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
NAMES += "TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS CUDA_VISIBLE_DEVICES"
SAYS_ENVIRONMENT = f"print(*[f'{{name}}={{os.environ.get(name)}}' for name in {NAMES!r}.split()], flush=True)"
SAYS_ATTEMPT = (
    "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
    f"if attempt == '1' or {RANK_1}:\n    print(attempt, os.environ['RANK'], flush=True)"
)
"""In the attempt that fails, rank 0 may be stopped before it says anything."""
CASES = {
    "success": (SAYS_ENVIRONMENT,),
    "virtual local ranks": (SAYS_ENVIRONMENT, "--virtual-local-rank"),
    "exit code": (f"sys.exit(3) if {RANK_1} else {WAIT}",),
    "recorded exception": (f"{RECORD}if {RANK_1}: raise LookupError('no luck')\n    {WAIT}\nmain()",),
    "signal": (f"os.kill(os.getpid(), signal.SIGKILL) if {RANK_1} else {WAIT}",),
    "success after a restart": (
        f"{SAYS_ATTEMPT}\nif attempt == '0':\n    sys.exit(4) if {RANK_1} else {WAIT}",
        "--max-restarts=2",
    ),
    "restarts used up": (
        f"if {RANK_1}:\n    print('here', flush=True)\n    sys.exit(5)\n{WAIT}",
        "--max-restarts=1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_user_sees_the_same(agents, case):
    """Exit code, report of the failure, error file, output."""
    source, *options = CASES[case]
    both = [agents.fault(whose, "import sys\n" + source, *options) for whose in ("ours", "theirs")]
    ours, theirs = (agent.seen() for agent in both)
    assert ours == theirs, both[0].told()
    assert ours["code"] == (0 if case.startswith(("success", "virtual")) else 1)
    assert bool(ours["report"]) == bool(ours["code"])


def test_the_logs_are_in_the_same_files(agents):
    """``-r`` and ``-t`` with one rank on the console, in the same folders, with the same prefixes.

    A line is one write: torchrun shows the part of a line that it has read as a line of its own.
    """
    source = "rank = os.environb[b'RANK']; os.write(1, b'out %s\\n' % rank); os.write(2, b'err %s\\n' % rank)"
    options = ("-r", "3", "-t", "0:3,1:3", "--local-ranks-filter=1")
    both = []
    for whose in ("ours", "theirs"):
        folder = agents.folder / whose
        agent = agents.fault(whose, source, *options, f"--log-dir={folder}")
        shown = agent.seen()
        files = {
            re.sub(r"^[^/]+/", "", str(path.relative_to(folder))): path.read_text() for path in folder.rglob("*.log")
        }
        errors = re.findall(r"^\[default.*$", agent.stderr, re.MULTILINE)
        both.append((shown, files, errors))
    assert both[0] == both[1]
    shown, files, errors = both[0]
    assert files["attempt_0/0/stdout.log"] == "out 0\n"
    assert shown["stdout"] == ["[default1]:out 1"]
    assert errors == ["[default1]:err 1"]
