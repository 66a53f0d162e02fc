"""The restart of one rank while all others exchange messages: they notice nothing, and lose none."""

import os

from supervise import RestartPolicy
from tests.processes.gangs import faulty

RANKS = 64
RESTARTS = 5
RING = """
import select, socket
rank, last = int(os.environ["LOCAL_RANK"]), int(os.environ["LAST"])
if rank == 0:
    say("runs")
    os._exit(int(wait_for_word()))
address = "\\0" + os.environ["RING"]
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.bind(address + str(rank))
say("bound")
wait_for_word()
if rank == 1:
    say("begins")
gate = os.open(os.environ["GATE"], os.O_RDONLY | os.O_NONBLOCK)
beyond = address + str(rank % last + 1)
number, word = 0, ""
while True:
    number += 1
    if word != "end":
        if rank == 1 and select.select([gate], [], [], 0)[0]:
            word = os.read(gate, 100).decode().strip()
            if word == "count":
                say(f"count {number}")
        end.sendto(b"end" if word == "end" else b"%d" % number, beyond)
    got = end.recv(100)
    if got == b"end":
        break
    assert got == b"%d" % number, (got, number)
if rank != 1:
    end.sendto(b"end", beyond)
"""
"""Ranks 1 and above pass numbers around a ring, each one higher than the last, until rank 1 is told to end it."""


def test_r1_the_other_ranks_lose_no_message(tmp_path):
    policy = RestartPolicy(max_restarts=RESTARTS, backoff=0.0)
    env = {"RING": f"supervise-test-{os.getpid()}-", "LAST": str(RANKS - 1)}
    settings = {"strategy": "one_for_one", "restart_policy": policy, "envs": dict.fromkeys(range(RANKS), env)}
    with faulty(tmp_path, "binary", [RING] * RANKS, **settings) as gang:
        gang.hear(RANKS)
        before = gang.pids
        for rank in range(1, RANKS):
            gang.tell(rank)
        assert gang.hear() == ["begins"]
        counts = [count(gang)]
        for _ in range(RESTARTS):
            gang.tell(0, "3")
            assert gang.hear() == ["runs"]
            counts.append(count(gang))
        gang.tell(1, "end")
        gang.tell(0, "0")
        result = gang.wait()
    assert result.outcome == "succeeded", result.failures
    assert counts == sorted(set(counts))
    assert [(restart.local_rank, restart.attempt) for restart in result.restarts] == [(0, n) for n in range(RESTARTS)]
    assert all(result.ends[rank].pid == before[rank] for rank in range(1, RANKS))


def count(gang):
    """Return how many numbers rank 1 has passed on."""
    gang.tell(1, "count")
    (said,) = gang.hear()
    return int(said.removeprefix("count "))
