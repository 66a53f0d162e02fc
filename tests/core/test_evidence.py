"""The evidence of stacks: the rank outside of the collective, or unlike the majority; honest if they do not decide."""

from dataclasses import replace

import pytest

from supervise._core.evidence import by_stacks
from supervise.stacks import RankStacks, StackFrame, ThreadStack

STANDARD = "/usr/lib/python3.11"
TORCH = f"{STANDARD}/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
MAIN = StackFrame(function="main", file="/home/you/train.py", line=3)
STEP = StackFrame(function="step", file="/home/you/train.py", line=20)
ALL_REDUCE = [
    StackFrame(function="all_reduce", file=C10D, line=2800),
    StackFrame(function="wrapper", file=f"{TORCH}/distributed/c10d_logger.py", line=81),
    STEP,
    MAIN,
]
BARRIER = [StackFrame(function="barrier", file=C10D, line=4900), STEP, MAIN]
BACKWARD = [
    StackFrame(function="_engine_run_backward", file=f"{TORCH}/autograd/graph.py", line=979),
    StackFrame(function="backward", file=f"{TORCH}/_tensor.py", line=630),
    STEP,
    MAIN,
]
FORWARD = [
    StackFrame(function="read_batch", file="/home/you/data.py", line=7),
    StackFrame(function="forward", file=f"{TORCH}/nn/parallel/distributed.py", line=1600),
    STEP,
    MAIN,
]
LOADER = [
    StackFrame(function="wait", file=f"{STANDARD}/multiprocessing/connection.py", line=947),
    StackFrame(function="_try_get_data", file=f"{TORCH}/utils/data/dataloader.py", line=1243),
    StackFrame(function="__next__", file=f"{TORCH}/utils/data/dataloader.py", line=700),
    STEP,
    MAIN,
]
LOCK = [StackFrame(function="save", file="/home/you/train.py", line=40), MAIN]
TENSOR_PARALLEL = [
    StackFrame(function="__call__", file=f"{TORCH}/_ops.py", line=1279),
    StackFrame(function="wait_tensor", file=f"{TORCH}/distributed/_functional_collectives.py", line=142),
    STEP,
    MAIN,
]
PIPELINE = [
    StackFrame(function="_wait_batch_p2p", file=f"{TORCH}/distributed/pipelining/schedules.py", line=683),
    STEP,
    MAIN,
]
REMOTE_CALL = [StackFrame(function="rpc_sync", file=f"{TORCH}/distributed/rpc/api.py", line=842), MAIN]
ANYWHERE = {"forward": FORWARD, "loader": LOADER, "lock": LOCK}
PLAIN = [
    StackFrame(function="wait", file=f"{STANDARD}/threading.py", line=331),
    StackFrame(function="meet", file="/home/you/train.py", line=50),
    MAIN,
]


def rank(*stacks, source="faulthandler", state="S"):
    """Return the stacks of a rank whose threads have these calls, the main thread first."""
    threads = [
        ThreadStack(tid=9 if number == 0 else None, frames=tuple(each), state=state)
        for number, each in enumerate(stacks)
    ]
    return RankStacks(pid=9, source=source, threads=tuple(threads))


def named(*stacks, suspects=None):
    """Return rank and evidence for ranks with these stacks."""
    found = by_stacks(dict(enumerate(stacks)), suspects or range(len(stacks)))
    return found.rank, found.evidence


@pytest.mark.parametrize("where", ANYWHERE)
@pytest.mark.parametrize("collective", [ALL_REDUCE, BARRIER, BACKWARD], ids=["all_reduce", "barrier", "backward"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rank_outside_of_the_collective_is_named(where, collective, ranks):
    stacks = [rank(collective)] * (ranks - 1) + [rank(ANYWHERE[where])]
    culprit, evidence = named(*stacks)
    assert culprit == ranks - 1
    assert evidence.startswith("by its stack: ")
    assert evidence.endswith(", outside of the collective")


def test_the_evidence_says_where_the_rank_is():
    assert named(rank(LOCK), rank(BACKWARD))[1] == "by its stack: save (train.py:40), outside of the collective"


def test_ranks_may_wait_in_different_collectives():
    """Some are in backward, others in an all_reduce."""
    assert named(rank(ALL_REDUCE), rank(LOADER), rank(BACKWARD))[0] == 1


def test_the_most_suspicious_of_several_ranks_outside_is_named():
    stacks = [rank(LOCK), rank(BACKWARD), rank(LOADER), rank(BACKWARD), rank(BACKWARD)]
    culprit, evidence = named(*stacks, suspects=[2, 0, 1])
    assert (culprit, evidence.rpartition(", ")[2]) == (2, "as rank 0")


def test_a_rank_that_silence_does_not_suspect_is_not_named():
    """It is a step ahead."""
    assert named(rank(BACKWARD), rank(BACKWARD), rank(LOADER), suspects=[0, 1])[0] == 0


def test_a_rank_in_another_collective_than_the_majority_is_named():
    assert named(rank(ALL_REDUCE), rank(ALL_REDUCE), rank(BARRIER)) == (
        2,
        "by its stack: step (train.py:20), in barrier (distributed_c10d.py:4900), unlike ranks 0-1",
    )


def test_without_a_known_collective_the_majority_decides():
    culprit, evidence = named(rank(PLAIN), rank(LOCK), rank(PLAIN))
    assert (culprit, evidence) == (1, "by its stack: save (train.py:40), unlike ranks 0, 2")


def test_lines_do_not_count():
    """Ranks that wait in a loop are on different lines of it."""
    elsewhere = [StackFrame(function=frame.function, file=frame.file, line=frame.line + 1) for frame in PLAIN]
    assert named(rank(PLAIN), rank(LOCK), rank(elsewhere))[0] == 1


def test_lines_count_if_nothing_else_differs():
    """One rank sleeps, a call without a frame, in the function in which the others wait for an asynchronous result."""
    waits = [StackFrame(function="train", file="/home/you/train.py", line=14), MAIN]
    sleeps = [StackFrame(function="train", file="/home/you/train.py", line=12), MAIN]
    evidence = "by its stack: train (train.py:12), on another line than ranks 0-1"
    assert named(rank(waits), rank(waits), rank(sleeps)) == (2, evidence)
    assert named(rank(waits), rank(sleeps)) == (0, "silent longest: the stacks do not decide")


@pytest.mark.parametrize(
    "waiting", [TENSOR_PARALLEL, PIPELINE, REMOTE_CALL], ids=["tensor_parallel", "pipeline", "rpc"]
)
def test_what_waits_below_operators_pipelines_and_remote_calls_is_a_collective(waiting):
    assert named(rank(waiting), rank(LOCK))[0] == 1


def test_a_rank_that_works_for_another_one_is_outside():
    """A parameter server: its main thread waits for the end, and another thread serves."""
    shutdown = [StackFrame(function="_all_gather", file=f"{TORCH}/distributed/rpc/api.py", line=200), MAIN]
    serves = [
        StackFrame(function="serve", file="/home/you/server.py", line=11),
        StackFrame(function="_run_function", file=f"{TORCH}/distributed/rpc/internal.py", line=207),
    ]
    evidence = "by its stack: serve (server.py:11), in sleep (time.py:1), outside of the collective"
    sleep = StackFrame(function="sleep", file=f"{STANDARD}/time.py", line=1)
    assert named(rank(REMOTE_CALL), rank(shutdown, [sleep, *serves])) == (1, evidence)
    assert named(rank(shutdown), rank(shutdown, serves), rank(shutdown))[0] == 1


def test_ranks_in_different_collectives_are_said_to_be():
    evidence = "silent longest: all wait in a collective, but not in the same call"
    assert named(rank(BACKWARD), rank(BARRIER)) == (0, evidence)


def test_of_two_ranks_only_a_known_collective_decides():
    assert named(rank(PLAIN), rank(LOCK)) == (0, "silent longest: the stacks do not decide")


def test_groups_of_equal_size_do_not_decide():
    stacks = [rank(PLAIN), rank(LOCK), rank(LOCK), rank(PLAIN)]
    assert named(*stacks, suspects=[3, 0, 1, 2]) == (3, "silent longest: the stacks do not decide")
    assert named(rank(BACKWARD), rank(LOCK), rank(LOCK), rank(BACKWARD))[1].startswith("silent longest: ")


def test_alike_stacks_do_not_decide():
    assert named(*[rank(BACKWARD)] * 4) == (0, "silent longest: the stacks are alike")
    assert named(rank(LOCK), rank(LOCK)) == (0, "silent longest: the stacks are alike")


def test_another_thread_may_do_the_work():
    join = [StackFrame(function="join", file=f"{STANDARD}/threading.py", line=1119), MAIN]
    assert named(rank(join, BACKWARD), rank(join, BACKWARD), rank(join, LOADER))[0] == 2
    assert named(rank(join, BACKWARD), rank(join, LOADER))[0] == 1


def test_a_thread_that_one_rank_has_in_addition_proves_nothing():
    """Rank 0 often has a thread that writes a log."""
    assert named(rank(BACKWARD, LOADER), rank(BACKWARD), rank(BACKWARD)) == (0, "silent longest: the stacks are alike")


def test_stacks_of_the_kernel_prove_nothing():
    unread = rank([], source="kernel")
    assert named(unread, unread, unread) == (0, "silent longest: no stacks can be compared; no stack of ranks 0-2")
    alike = "silent longest: the stacks are alike; no stack of rank 2"
    assert named(rank(PLAIN), rank(PLAIN), unread) == (0, alike)


def test_a_rank_in_a_collective_is_not_blamed_while_a_stack_could_not_be_read():
    """Such as that of the rank for which the others wait, on a machine that is too busy for py-spy."""
    unread = replace(rank([], source="kernel"), notes=("py-spy took too long", "faulthandler: it is not enabled"))
    evidence = "no stack of rank 1 (py-spy took too long), and the others wait in a collective"
    assert named(rank(BACKWARD), unread, rank(BACKWARD)) == (1, evidence)
    assert named(rank(BACKWARD), unread) == (1, evidence)


def test_a_rank_that_the_kernel_blocks_is_in_no_collective():
    """In state D, it does not even handle the signal that asks for its stack."""
    blocked = rank([], source="kernel", state="D")
    assert named(rank(BACKWARD), blocked, rank(BACKWARD))[0] == 1


@pytest.mark.parametrize(("stacks", "waits"), [([BACKWARD, ALL_REDUCE], True), ([PLAIN, LOCK], False), ([], False)])
def test_it_tells_whether_all_wait_in_a_collective(stacks, waits):
    found = by_stacks({number: rank(each) for number, each in enumerate(stacks)}, [0, 1])
    assert found.waits == waits
