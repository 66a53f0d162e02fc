"""The agent of supervise under signals, and several agents in one rendezvous."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.agent.agents import FAULT
from tests.clients.torchrun import PATIENCE_S
from tests.ports import free_port
from tests.processes.hosts import pids_of, watched

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

READY = "say(f'ready {os.getpid()}'); "
WAIT = "[signal.sigtimedwait([], 0.05) for _ in iter(int, 1)]"
LAUNCHES = """
import os, signal, sys
from torch.distributed.launcher.api import LaunchConfig
from supervise.agent import launch

def double(number):
    return number * 2, os.environ["RANK"]

def die():
    if os.environ["RANK"] == "1":
        os._exit(7)
    signal.pause()

if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1", max_restarts=0, monitor_interval=1000.0, start_method=sys.argv[1],
    )
    print(sorted(launch(config, double, 21).items()))
    config.run_id = ""
    try:
        launch(config, die)
    except Exception as error:
        rank, failure = error.get_first_failure()
        print(type(error).__name__, error.name, rank, failure.exitcode)
"""


GLOO = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0" and dist.get_rank() == 1:
    raise ValueError("once")
dist.barrier()
say(attempt)
"""


STOPPED = """
import os, pykka, signal, threading
from torch.distributed.launcher.api import LaunchConfig
from supervise import Status, SuperviseError, Supervisor
from supervise.agent import launch

def stay(pipe):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.write(pipe, b"1")
    while True:
        signal.pause()

def stop(pipe):
    os.read(pipe, 1)
    [gang] = pykka.ActorRegistry.get_by_class(Supervisor)
    while gang.ask(Status()).phase != "running":
        threading.Event().wait(0.01)
    pykka.ActorRegistry.stop_all(block=False)

if __name__ == "__main__":
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=1, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1", max_restarts=0, start_method="fork",
    )
    here, there = os.pipe()
    os.set_inheritable(there, True)
    threading.Thread(target=stop, args=(here,)).start()
    try:
        launch(config, stay, there)
    except SuperviseError as error:
        print(f"SuperviseError: {error}")
"""


def until_accepted(port):
    """Wait until a server listens."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        threading.Event().wait(0.05)
    pytest.fail(f"no server at port {port}")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_agent_reaches_the_ranks(agents, sig):
    """Each rank gets the same signal; the agent names it and exits with 1, as torchrun does."""
    obey = f"signal.signal({int(sig)}, lambda *_: (say('bye'), os._exit(0))); {READY} {WAIT}"
    for whose in ("ours", "theirs"):
        agent = agents.fault(whose, obey)
        with watched(pids_of(agents.hear(2))) as ranks:
            agent.process.send_signal(sig)
            assert agents.hear(2) == ["bye", "bye"]
            assert agent.end() == 1, agent.told()
            assert not ranks.survivors(0)
        text = f"SignalException: Process {agent.process.pid} got signal: {int(sig)}"
        assert text in agent.stderr, agent.told()


def test_a_signal_before_the_first_start_ends_the_agent(agents):
    """As with torchrun: there are no ranks to stop. The handlers would only run when the rendezvous is over."""
    port = free_port()
    endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
    agent = agents.start("ours", "--nnodes=2", "--rdzv-backend=c10d", endpoint, "--rdzv-conf=is_host=1", FAULT, "1")
    until_accepted(port)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.end() == -signal.SIGTERM, agent.told()


def test_ranks_that_other_code_stops_are_no_success(agents):
    program = agents.folder / "stopped.py"
    program.write_text(STOPPED)
    agent = agents.program(str(program))
    assert agent.end() == 0, agent.told()
    assert agent.stdout == "SuperviseError: stay: other code has stopped the ranks before their end\n", agent.told()


def test_a_killed_agent_leaves_no_rank(agents):
    """The kernel ends the ranks by the lifeline, also ranks that ignore SIGTERM."""
    agent = agents.fault("ours", f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} {WAIT}")
    with watched(pids_of(agents.hear(2))) as ranks:
        agent.kill()
        assert not ranks.survivors()


def test_the_shutdown_timeout_bounds_the_stop(agents):
    """Ranks that ignore SIGTERM get SIGKILL after it, when one of them has failed."""
    agent = agents.fault(
        "ours", f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} {WAIT}", "--shutdown-timeout=1"
    )
    pids = pids_of(agents.hear(2))
    with watched(pids) as ranks:
        os.kill(pids[0], signal.SIGKILL)
        assert agent.end() == 1, agent.told()
        assert not ranks.survivors(0)
    assert f"exitcode  : -9 (pid: {pids[0]})" in agent.stderr, agent.told()


def _words(run_id, nodes, source):
    """Return a function from whether an agent has the store to its words: if each tries to, two stores may exist."""
    conf = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=10,is_host="
    endpoint, limit = f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=0"
    words = (f"--nnodes={nodes}", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint, f"--rdzv-id={run_id}", limit)
    return lambda has_store: (*words, f"{conf}{has_store:d}", FAULT, source)


def test_a_restart_of_gloo_does_not_meet_the_addresses_of_the_last_attempt(agents):
    """In a store that the attempts share, gloo would find them, and wait for processes that have ended."""
    agent = agents.fault("ours", GLOO, "--max-restarts=1")
    assert agents.hear(2) == ["1", "1"]
    assert agent.end() == 0, agent.told()


def test_two_agents_meet(agents):
    """Two agents in a c10d rendezvous: the ranks of both have one world, and both succeed."""
    words = _words("two", "2", "say(f\"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}\")")
    both = [agents.start("ours", *words(has_store)) for has_store in (True, False)]
    assert sorted(agents.hear(2)) == ["0 of 2", "1 of 2"]
    assert [agent.end() for agent in both] == [0, 0], "\n".join(agent.told() for agent in both)


@pytest.mark.parametrize("start_method", ["fork"])
def test_functions_without_polling(agents, start_method):
    """Values come back by global rank; ends are noticed at once, with a monitor interval of 1000 s."""
    program = agents.folder / "launches.py"
    program.write_text(LAUNCHES)
    begun_s = time.monotonic()
    agent = agents.program(str(program), start_method)
    assert agent.end() == 0, agent.told()
    assert time.monotonic() - begun_s < PATIENCE_S
    values = [(rank, (42, str(rank))) for rank in (0, 1)]
    assert agent.stdout.splitlines() == [str(values), "ChildFailedError die 1 7"], agent.told()


STUBBORN = """
import os, signal, sys, threading
from torch.distributed.launcher.api import LaunchConfig
from supervise.agent import launch, launcher
from supervise.agent.elastic_agent import SupervisedElasticAgent

closed, make = [], launcher.get_rendezvous_handler
watched, monitor = threading.Event(), SupervisedElasticAgent._monitor_workers

def observe(self, group):
    watched.set()
    return monitor(self, group)

SupervisedElasticAgent._monitor_workers = observe

def noted(parameters):
    handler = make(parameters)
    shutdown = handler.shutdown
    handler.shutdown = lambda: (closed.append(parameters.run_id), shutdown())[1]
    return handler

launcher.get_rendezvous_handler = noted

def ignores():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(ready, b".")
    while True:
        signal.pause()

def interrupt():
    for _ in range(2):
        os.read(heard, 1)
    watched.wait()  # a signal during the start has the grace
    os.kill(os.getpid(), signal.SIGTERM)

if __name__ == "__main__":
    heard, ready = os.pipe()
    os.set_inheritable(ready, True)
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", run_id="a",
        local_addr="127.0.0.1", max_restarts=0, start_method="fork", shutdown_timeout=1,
    )
    launch(config, os.getpid)
    print(closed)
    watched.clear()
    threading.Thread(target=interrupt).start()
    config.run_id = "b"
    try:
        launch(config, ignores, grace=1000)
    except BaseException as error:
        print(type(error).__name__, closed)
"""


def test_a_signal_ends_the_ranks_within_the_shutdown_timeout_and_leaves_the_rendezvous_open(agents):
    """The grace is for a failure. Other agents can go on in a rendezvous that is open."""
    program = agents.folder / "stubborn.py"
    program.write_text(STUBBORN)
    agent = agents.program(str(program))
    assert agent.end() == 0, agent.told()
    assert agent.stdout.splitlines() == ["['a']", "SignalException ['a']"], agent.told()
