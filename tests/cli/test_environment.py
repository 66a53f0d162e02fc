"""What the ranks find in their environment."""

import json
import os
import signal
import sys
from contextlib import ExitStack

from tests.cli.command import HANG, Command

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
WANTED = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "OMP_NUM_THREADS": "1",
}


def environments(supervise: Command, *words: str, **env: str) -> list[dict[str, str]]:
    done = supervise.run("--run_id", "job", "--no-prefix", *words, sys.executable, "-c", SHOW, **env)
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda found: int(found["RANK"]))


def test_torchruns_variables(supervise: Command):
    """Each rank gets all of them."""
    found = environments(supervise, "-n", "2")
    for rank, env in enumerate(found):
        own = {name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")}
        assert env.items() >= (WANTED | own).items()
        assert env["TORCHELASTIC_ERROR_FILE"] == str(supervise.directory() / f"attempt_0/{rank}/error.json")
        assert 0 < int(env["MASTER_PORT"]) < 65536
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"]


def test_the_users_own_settings_win(supervise: Command):
    """An address, a port or a number of threads that is set stays."""
    given = {"MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "4711", "OMP_NUM_THREADS": "8"}
    assert environments(supervise, "-n", "2", **given)[1].items() >= given.items()


def test_one_rank_may_use_every_cpu(supervise: Command):
    """OMP_NUM_THREADS is limited, and that is said, only where several ranks share the machine."""
    assert "OMP_NUM_THREADS" not in environments(supervise)[0]
    assert "OMP_NUM_THREADS" not in supervise.run("true").stderr
    assert supervise.run("-n", "2", "true").stderr.count("OMP_NUM_THREADS=1") == 1


def test_as_many_ranks_as_cpus(supervise: Command):
    """cpu, and auto where there is no GPU."""
    count = len(os.sched_getaffinity(0))
    for word in ("cpu", "auto"):
        done = supervise.run("--nproc_per_node", word, "--", "sh", "-c", "echo $WORLD_SIZE", CUDA_VISIBLE_DEVICES="")
        assert len(done.stdout.splitlines()) == count
        assert done.stdout.splitlines()[0].endswith(f"]:{count}")


def test_two_runs_at_once_have_two_ports(supervise: Command):
    """Also where no rank listens yet."""
    ports = []
    show = ("--no-prefix", "--", "sh", "-c", f"echo $MASTER_PORT; {HANG}")
    with ExitStack() as stack:
        runs = [stack.enter_context(supervise.started(*show)) for _ in range(3)]
        for run in runs:
            ports += run.hear()
        for run in runs:  # killed at its rank's first word, one might not have its lifeline yet
            run.signal(signal.SIGTERM)
            run.end()
    assert len(set(ports)) == 3
