"""What the agent of supervise decides: states that it reports, signals that it leaves alone, devices of ranks."""

import signal

import pytest

from tests.agent.agents import FAULT
from tests.clients.torchrun import PATIENCE_S
from tests.processes.gangs import Fifo

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

OBSERVED = """
import os, signal, sys
from torch.distributed.launcher.api import LaunchConfig
from supervise.agent import launch
from supervise.agent.elastic_agent import SupervisedElasticAgent

states, closes = [], sys.argv[1] == "closed"
monitor = SupervisedElasticAgent._monitor_workers

def observe(self, group):
    if closes:
        for _ in range(2):
            os.read(handled, 1)
        self._gang.close()
    found = monitor(self, group)
    status = self._gang.status()
    states.append((found.state.name, status.phase if status is not None else None))
    if closes:
        print("state", found.state.name)
        sys.exit(0)
    return found

SupervisedElasticAgent._monitor_workers = observe

def leaves():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.write(os.open("handled", os.O_WRONLY), b".")
    while True:
        signal.sigtimedwait([], 0.05)

def fails():
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    os._exit(7)

if __name__ == "__main__":
    os.mkfifo("handled")
    handled = os.open("handled", os.O_RDWR)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1", max_restarts=0, monitor_interval=0.1, start_method="fork",
    )
    before = [signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)]
    try:
        launch(config, leaves if closes else fails, grace=3)
    except Exception as error:
        print(type(error).__name__)
    print("healthy in a stop", sum(state == ("HEALTHY", "stopping") for state in states) > 1)
    print("restored", before == [signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT)])
"""


def test_a_gang_that_is_stopping_is_not_healthy_and_handlers_are_restored(agents):
    """Otherwise a node that joins would cause a restart that does not count. The stop takes the grace."""
    program = agents.folder / "observed.py"
    program.write_text(OBSERVED)
    agent = agents.program(str(program), "failed")
    assert agent.end() == 0, agent.told()
    assert agent.stdout.splitlines() == ["ChildFailedError", "healthy in a stop False", "restored True"], agent.told()


def test_ranks_that_were_stopped_without_a_failure_are_not_a_success(agents):
    """Other code has closed the gang, and all ranks have exited with 0."""
    program = agents.folder / "observed.py"
    program.write_text(OBSERVED)
    agent = agents.program(str(program), "closed")
    assert agent.end() == 0, agent.told()
    assert agent.stdout.splitlines() == ["state UNHEALTHY"], agent.told()


IGNORES = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "supervise.agent", *sys.argv[1:]])
"""


def test_an_ignored_signal_stays_ignored(agents):
    """As under nohup: the agent and its ranks go on."""
    program = agents.folder / "ignores.py"
    program.write_text(IGNORES)
    gate = Fifo(agents.folder / "gate")
    try:
        source = f"say(f'ready {{os.getpid()}}'); open({gate.path!r}).readline()"
        words = ("--local-addr=127.0.0.1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=fault")
        agent = agents.program(str(program), *words, "--nproc-per-node=1", FAULT, source)
        agents.hear(1)
        agent.process.send_signal(signal.SIGHUP)
        gate.tell()
        assert agent.end() == 0, agent.told()
    finally:
        gate.close()


DEVICES = """
from types import SimpleNamespace as Of
from supervise.agent.elastic_agent import rank_environment

handler = Of(get_run_id=lambda: "run", use_agent_store=True)
spec = Of(rdzv_handler=handler, local_world_size=2, role="r", max_restarts=0, virtual_local_rank=True)
group = Of(spec=spec, group_rank=0, group_world_size=1, master_addr="here", master_port=1)
worker = Of(local_rank=1, global_rank=1, world_size=2, role_rank=1, role_world_size=2)
found = rank_environment(group, worker, 0)
print(found["LOCAL_RANK"], repr(found["CUDA_VISIBLE_DEVICES"]))
"""


def test_a_virtual_local_rank_sees_one_device(agents):
    """The device of its place in a list with spaces."""
    program = agents.folder / "devices.py"
    program.write_text(f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '4, 5'\n{DEVICES}")
    agent = agents.program(str(program))
    assert agent.end() == 0, agent.told()
    assert agent.stdout == "0 '5'\n", agent.told()


def test_a_virtual_local_rank_without_a_device_is_an_error_that_names_it(agents):
    program = agents.folder / "devices.py"
    program.write_text(f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '4'\n{DEVICES}")
    agent = agents.program(str(program))
    assert agent.end() == 1, agent.told()
    assert agent.stderr.endswith("ValueError: local rank 1 has no device in CUDA_VISIBLE_DEVICES=4\n"), agent.told()


CHOOSES = """
import sys
from torch.distributed import run
from supervise.agent.__main__ import _choose_rendezvous

for nodes in ("1", "1:1", "1:2"):
    args = run.get_args_parser().parse_args(["--nnodes", nodes, "program.py"])
    _choose_rendezvous(args)
    print(nodes, args.rdzv_backend, args.master_port)
"""


def test_only_a_gang_that_cannot_grow_has_a_rendezvous_of_its_own(agents):
    program = agents.folder / "chooses.py"
    program.write_text(CHOOSES)
    agent = agents.program(str(program))
    assert agent.end() == 0, agent.told()
    assert agent.stdout.splitlines() == ["1 c10d 29500", "1:1 c10d 29500", "1:2 static 29500"], agent.told()
