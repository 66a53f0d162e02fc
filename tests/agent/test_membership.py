"""Agents that come and go while the others continue, with ``--nnodes 1:2``."""

import pytest

from tests.agent.agents import FAULT
from tests.clients.torchrun import PATIENCE_S
from tests.ports import free_port
from tests.processes.hosts import watched

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

RANK = """
import select
rank, world, restarts = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
with open(f"new-{rank}", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"new-{rank}", f"pid-{rank}-of-{world}")
say(f"{os.getppid()} {os.getpid()} {rank} of {world}, restarts {restarts}")
if world == "2":  # it fails when its peer dies, as a collective does
    peer = f"pid-{1 - int(rank)}-of-2"
    while not os.path.exists(peer):
        signal.sigtimedwait([], 0.05)
    select.select([os.pidfd_open(int(open(peer).read()))], [], [])
    sys.exit(9)
if restarts == "0":
    signal.pause()
"""
SETTINGS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"


def test_an_agent_joins_later_and_its_node_dies(agents):
    """The ranks of the first agent start again, in a world of two, which no limit counts; then in a world of one."""
    endpoint = f"127.0.0.1:{free_port()}"
    words = ("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=m")

    def start(is_host):
        settings = f"--rdzv-conf={SETTINGS},is_host={is_host}"
        return agents.start("ours", *words, settings, "--max-restarts=1", FAULT, RANK)

    first = start(is_host=1)
    agent, *_, told = _parts(agents.hear(1)[0])
    assert (agent, told) == (first.process.pid, "0 of 1, restarts 0")
    second = start(is_host=0)
    both = {agent: (pid, told) for agent, pid, told in map(_parts, agents.hear(2))}
    assert set(both) == {first.process.pid, second.process.pid}
    assert sorted(told for _, told in both.values()) == ["0 of 2, restarts 0", "1 of 2, restarts 0"]
    with watched([both[second.process.pid][0]]) as ranks:
        second.kill()
        assert not ranks.survivors()
    agent, *_, told = _parts(agents.hear(1)[0])
    assert (agent, told) == (first.process.pid, "0 of 1, restarts 1")
    assert first.end() == 0, first.told()


def _parts(line):
    agent, pid, told = line.split(" ", 2)
    return int(agent), int(pid), told
