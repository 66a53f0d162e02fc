"""PyTorch's torchrun and agent, unmodified, on our process layer: what their users see is as they know it."""

import os
import re
import shutil
import signal
import time

import pytest

from tests.clients.torchrun import HERE, PATIENCE_S
from tests.ports import free_port
from tests.processes.hosts import pids_of, watched

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)

READY = "say(f'ready {os.getpid()}'); "
WAIT = "[signal.sigtimedwait([], 0.05) for _ in iter(int, 1)]"
"""A signal that came right before a pause() would be handled behind it."""
FIRST = "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'"
RANK_1 = "os.environ['RANK'] == '1'"
TRAINED = re.compile(r"trained rank=(\d) of (\d) attempt=(\d) same=(\w+)")


def logs_of(folder):
    """What is in the files of the last attempt, by local rank and name of the stream."""
    *_, attempt = sorted(folder.glob("*/attempt_*"))
    return {(int(p.parent.name), p.stem): p.read_text() for p in attempt.glob("*/std*.log")}


def test_ddp_of_two_ranks_restarts_after_one_has_failed(clients):
    """Gloo between the ranks, output both in files and, with prefixes, on the console; a second attempt succeeds."""
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=ddp")
    logs = ("-t", "3", f"--log-dir={clients.folder / 'logs'}")
    client = clients.torchrun(*rendezvous, "--nproc-per-node=2", "--max-restarts=1", *logs, str(HERE / "ddp.py"), "1")
    assert client.end() == 0, client.told()
    ends = TRAINED.findall(client.stdout)
    assert sorted(ends) == [("0", "2", "1", "True"), ("1", "2", "1", "True")]
    assert "[default1]:[rank1]: ArithmeticError: rank 1 fails once" in client.stderr, client.told()
    written = logs_of(clients.folder / "logs")
    assert [TRAINED.search(written[rank, "stdout"])[1] for rank in (0, 1)] == ["0", "1"]
    assert "[default0]:trained rank=0" in client.stdout


def test_ddp_on_two_agents(clients):
    """Two torchruns meet through c10d's rendezvous; each starts one rank of the same group."""
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    words = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint, "--rdzv-id=two", str(HERE / "ddp.py"))
    agents = [clients.torchrun(*words) for _ in range(2)]
    assert [agent.end() for agent in agents] == [0, 0], "\n".join(agent.told() for agent in agents)
    ends = sorted(end for agent in agents for end in TRAINED.findall(agent.stdout))
    assert ends == [("0", "2", "0", "True"), ("1", "2", "0", "True")]


def test_a_rank_that_is_killed_once(clients):
    """The agent starts both ranks again, and the job succeeds. The survivor of the first attempt is gone."""
    client = clients.fault(f"{READY}\nif {FIRST}: signal.pause()", "--max-restarts=1")
    pids = pids_of(clients.hear(2))
    with watched(pids) as first:
        os.kill(pids[1], signal.SIGKILL)
        clients.hear(2)
        assert not first.survivors(0), "the second attempt began before the first had ended"
        assert client.end() == 0, client.told()
    assert not client.error_file.exists()


def test_a_rank_that_is_always_killed(clients):
    """Torchrun exits with 1 and prints PyTorch's report. As with PyTorch, nobody has written an error file."""
    client = clients.fault(f"{READY} signal.pause()", "--max-restarts=1")
    for attempt in range(2):
        pids = pids_of(clients.hear(2))
        os.kill(pids[attempt], signal.SIGKILL)
    assert client.end() == 1, client.told()
    report = re.search(r"={20,}\n(\S*fault.py) FAILED\n.*?={20,}\n", client.stderr, re.DOTALL)
    assert report, client.told()
    assert re.search(rf"exitcode\s*: -9 \(pid: {pids[1]}\) +\(SIGKILL\)\n\s*error_file: <N/A>", report[0]), report[0]
    assert f"Signal 9 (SIGKILL) received by PID {pids[1]}" in report[0]
    assert "<NO_OTHER_FAILURES>" in report[0]  # the other rank was stopped, which is no failure
    assert not client.error_file.exists()


def test_a_rank_that_always_raises(clients):
    """What PyTorch's `record` wrote in the worker comes up through the agent: in the report and in the error file."""
    record = "from torch.distributed.elastic.multiprocessing.errors import record"
    fail = "raise LookupError(f'no luck in attempt {os.environ[\"TORCHELASTIC_RESTART_COUNT\"]}')"
    client = clients.fault(
        f"{record}\n@record\ndef main():\n    if {RANK_1}: {fail}\n    signal.pause()\nmain()", "--max-restarts=1"
    )
    assert client.end() == 1, client.told()
    assert "LookupError: no luck in attempt 1" in client.stderr
    report = client.stderr.rpartition("FAILED")[2]
    assert re.search(r"rank\s*: 1 \(local_rank: 1\)\n\s*exitcode\s*: 1 \(pid: \d+\) *\n\s*error_file: /", report), (
        report
    )
    assert "no luck in attempt 1" in report
    error = client.error()
    assert error["message"] == "LookupError: no luck in attempt 1"
    assert "in main" in error["extraInfo"]["py_callstack"]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_agent_is_passed_on(clients, sig):
    """Each worker gets the same signal and may tidy up; torchrun says which signal it was, and exits with 1."""
    obey = f"signal.signal({int(sig)}, lambda *_: (say('bye'), os._exit(0))); {READY} {WAIT}"
    client = clients.fault(obey)
    with watched(pids_of(clients.hear(2))) as workers:
        os.kill(client.process.pid, sig)
        assert clients.hear(2) == ["bye", "bye"]
        assert client.end() == 1, client.told()
        assert not workers.survivors(0)
    assert f"SignalException: Process {client.process.pid} got signal: {int(sig)}" in client.stderr, client.told()


def test_workers_that_ignore_sigterm_are_killed_after_torchruns_timeout(clients):
    """And so is what they have started: it shares their group, and the signal."""
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); child = os.fork(); {READY} signal.pause()"
    client = clients.fault(deaf, "--shutdown-timeout=2")
    with watched(pids_of(clients.hear(4))) as everybody:
        begun_s = time.monotonic()
        os.kill(client.process.pid, signal.SIGTERM)
        assert client.end() == 1, client.told()
        assert not everybody.survivors()
        assert 2 <= time.monotonic() - begun_s < 20


def test_programs_with_redirected_output_and_one_rank_on_the_console(clients):
    """Of two programs that are not Python, all goes to files; only rank 1 is shown, and without a word of rank 0."""
    logs = clients.folder / "logs"
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=programs")
    options = ("--nproc-per-node=2", "--no-python", "-r", "3", "-t", "3", "--local-ranks-filter=1")
    script = 'echo "out $RANK of $WORLD_SIZE $1"; echo "err $RANK" >&2; printf "unfinished $RANK"'
    shell = (shutil.which("sh"), "-c", script, "sh", "argument")
    client = clients.torchrun(*rendezvous, *options, f"--log-dir={logs}", *shell)
    assert client.end() == 0, client.told()
    expected = {}
    for rank in (0, 1):
        expected[rank, "stdout"] = f"out {rank} of 2 argument\nunfinished {rank}"
        expected[rank, "stderr"] = f"err {rank}\n"
    assert logs_of(logs) == expected
    shown = client.stdout + client.stderr
    assert "[default1]:out 1 of 2 argument\n" in client.stdout
    assert "[default1]:unfinished 1" in client.stdout
    assert "[default1]:err 1" in client.stderr
    assert "[default0]" not in shown
    assert "out 0" not in shown
