"""Binding to CPUs, on machines that are made up in a folder; what is bound is bound for real."""

import os
import sys
from enum import Enum
from types import SimpleNamespace

import machine
import pytest
import ranks

from supervise import DefaultLogsSpecs, SpecError, Std, start_processes
from supervise.elastic.numa import AffinityMode, NumaOptions
from supervise.elastic.subprocess_handler import get_subprocess_handler

NO_FILES = DefaultLogsSpecs(os.devnull)
PRINT_CPUS = "import os; print(*sorted(os.sched_getaffinity(0)))"

ONE_SOCKET_A_NODE = {
    "nodes": {0: "0-7", 1: "8-15"},
    "gpus": {"0000:10:00.0": 0, "0000:20:00.0": 1, "0000:30:00.0": 1, "0000:40:00.0": 1},
    "sockets": {cpu: cpu // 8 for cpu in range(16)},
    "siblings": {cpu: f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}" for cpu in range(16)},
    "caches": {cpu: f"{cpu - cpu % 4}-{cpu - cpu % 4 + 3}" for cpu in range(16)},
}
TWO_NODES_A_SOCKET = {
    "nodes": {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"},
    "gpus": {"0000:10:00.0": -1, "0000:20:00.0": 2, "0001:00:00.0": 3},
    "sockets": {cpu: cpu // 8 for cpu in range(16)},
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Put a machine in place, of which this process may use some CPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(allowed=range(16), **what):
        machine.write(tmp_path / "sys", **what)
        machine.use(monkeypatch, tmp_path / "sys")
        if allowed is not None:
            monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))

    return make


@pytest.fixture
def _here(make):
    """A machine whose CPUs this process really may use: one node and one GPU for each of two."""
    mine = sorted(os.sched_getaffinity(0))[:2]
    if len(mine) < 2:
        pytest.skip("needs two CPUs")
    make(
        allowed=None,
        nodes=dict(enumerate(map(str, mine))),
        gpus={"0000:10:00.0": 0, "0000:20:00.0": 1},
        sockets=dict.fromkeys(mine, 0),
    )


def bound(mode, gpu, **more):
    return sorted(machine.cpus_of_ranks([gpu], NumaOptions(AffinityMode(mode), **more))[gpu])


@pytest.mark.parametrize(
    ("mode", "cpus"),
    [
        ("node", [range(8), range(8, 16), range(8, 16), range(8, 16)]),
        ("socket", [range(8), range(8, 16), range(8, 16), range(8, 16)]),
        ("exclusive", [range(8), range(8, 12), range(12, 14), range(14, 16)]),
        ("core-complex", [range(4), range(8, 12), range(12, 16), range(8, 12)]),
    ],
)
def test_each_mode_gives_what_pytorch_gives(make, mode, cpus):
    make(**ONE_SOCKET_A_NODE)
    assert [bound(mode, gpu) for gpu in range(4)] == [list(some) for some in cpus]


def test_a_socket_is_all_its_nodes_and_no_node_is_node_0(make):
    make(**TWO_NODES_A_SOCKET)
    assert [bound("socket", gpu) for gpu in range(3)] == [list(range(8)), list(range(8, 16)), list(range(8, 16))]
    assert bound("node", 0) == [0, 1, 2, 3]


def test_only_cpus_that_this_process_may_use(make):
    make(allowed=[2, 3, 9, 10, 11], **ONE_SOCKET_A_NODE)
    assert bound("node", 0) == [2, 3]
    assert bound("core-complex", 1) == [9, 10, 11]
    with pytest.raises(SpecError, match=r"rank 1 .* NUMA node 1 has 2 physical cores .* fewer than its 3 GPUs"):
        bound("exclusive", 1)


@pytest.mark.parametrize("mode", ["node", "socket", "core-complex"])
def test_a_node_of_which_no_cpu_may_be_used_is_a_spec_error(make, mode):
    make(allowed=[15], **ONE_SOCKET_A_NODE)
    with pytest.raises(SpecError, match="may use none of the CPUs of NUMA node 0"):
        bound(mode, 0)


@pytest.mark.parametrize(
    ("shown", "cpus"), [("2", [range(8, 16)]), ("1, 0", [range(8, 16), range(8)]), ("0,9,1", [range(8)])]
)
def test_visible_devices_number_the_gpus(make, monkeypatch, shown, cpus):
    make(**ONE_SOCKET_A_NODE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [bound("node", gpu) for gpu in range(len(cpus))] == [list(some) for some in cpus]
    with pytest.raises(SpecError, match=f"no GPU with index {len(cpus)}"):
        bound("node", len(cpus))


def test_visible_devices_by_name_are_a_spec_error(make, monkeypatch):
    make(**ONE_SOCKET_A_NODE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937")
    with pytest.raises(SpecError, match="only indices"):
        bound("node", 0)


@pytest.mark.parametrize("entrypoint", ["true", ranks.cpus_of_all_threads])
def test_without_a_gpu_the_start_fails_and_says_why(make, entrypoint, tmp_path):
    """PyTorch fails as well: it asks CUDA."""
    make(nodes={0: "0-15"}, gpus={})
    specs = DefaultLogsSpecs(str(tmp_path / "logs"))
    with pytest.raises(SpecError, match="rank 0 cannot be bound to the CPUs of its GPU: there is no GPU with index 0"):
        start_processes("n", entrypoint, {0: ()}, {0: {}}, specs, numa_options=NumaOptions(AffinityMode.NODE))
    assert not list((tmp_path / "logs").iterdir())


def test_an_unknown_mode_is_a_spec_error(make):
    make(**ONE_SOCKET_A_NODE)
    for options in (SimpleNamespace(affinity_mode="nope"), "nope"):
        with pytest.raises(SpecError, match="Affinity mode nope not supported"):
            machine.cpus_of_ranks([0], options)


def test_falling_back_runs_unbound_with_a_warning(make, caplog):
    make(nodes={0: "0-15"}, gpus={})
    options = NumaOptions(AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    assert machine.cpus_of_ranks([0, 1], options) == {}
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "rank 0 runs without NUMA binding",
        "rank 1 runs without NUMA binding",
    ]


@pytest.mark.usefixtures("_here")
def test_an_object_like_pytorchs_is_understood():
    class TheirMode(str, Enum):  # noqa: UP042 - as theirs
        NODE = "node"

    theirs = SimpleNamespace(affinity_mode=TheirMode.NODE, should_fall_back_if_binding_fails=False)
    assert machine.cpus_of_ranks([1], theirs) == machine.cpus_of_ranks([1], NumaOptions(AffinityMode.NODE))


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_functions_run_on_their_cpus_and_we_do_not(method):
    mine = os.sched_getaffinity(0)
    options = NumaOptions(AffinityMode.NODE)
    context = start_processes(
        "n",
        ranks.cpus_of_all_threads,
        {0: (), 1: ()},
        {0: {}, 1: {}},
        NO_FILES,
        start_method=method,
        numa_options=options,
    )
    result = context.wait()
    assert result.return_values == {rank: sorted(cpus) for rank, cpus in machine.cpus_of_ranks([0, 1], options).items()}
    assert os.sched_getaffinity(0) == mine


@pytest.mark.usefixtures("_here")
def test_programs_run_on_their_cpus(tmp_path):
    options = NumaOptions(AffinityMode.NODE)
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    context = start_processes(
        "n", sys.executable, dict.fromkeys(range(2), ("-c", PRINT_CPUS)), {0: {}, 1: {}}, specs, numa_options=options
    )
    result = context.wait()
    assert not result.is_failed()
    for rank, (cpu,) in machine.cpus_of_ranks([0, 1], options).items():
        with open(result.stdouts[rank]) as file:  # noqa: PTH123 - a path as a string
            assert file.read() == f"{cpu}\n"


@pytest.mark.usefixtures("_here")
def test_a_handler_starts_its_program_on_its_cpus(tmp_path):
    options = NumaOptions(AffinityMode.NODE)
    out = tmp_path / "out"
    handler = get_subprocess_handler(sys.executable, ("-c", PRINT_CPUS), {}, str(out), "", 1, options)
    assert handler.proc.wait(20) == 0
    (cpu,) = machine.cpus_of_ranks([1], options)[1]
    assert out.read_text() == f"{cpu}\n"
