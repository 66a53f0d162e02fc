"""The time in which a rank must become ready."""

import time
from types import SimpleNamespace

from supervise._gang.notify_sockets import Told
from supervise._gang.rank_health import RankHealth


class Timers:
    """A loop that has only timers."""

    def __init__(self):
        self.set = []

    def call_later(self, delay_s, callback):
        self.set.append((delay_s, callback))
        return SimpleNamespace(cancel=lambda: None, pending=False, due_s=time.monotonic() + delay_s)


def test_a_rank_that_asks_for_more_time_again_and_again_has_one_timer():
    steps, loop = [], Timers()
    part = SimpleNamespace(ready="notify", ready_timeout_s=60.0)
    spec = SimpleNamespace(notify_token="x", heartbeat_timeout_s=None, watchdog=None, of=lambda _: part)
    gang = SimpleNamespace(ranks=[SimpleNamespace(attempt=0)])
    host = SimpleNamespace(gang=gang, attempt=SimpleNamespace(spec=spec), step=steps.append)
    health = RankHealth(host, loop, None, None)
    health.started(SimpleNamespace(local_rank=0, pid=1, started_ns=time.monotonic_ns()))
    for _ in range(1000):
        health._told(Told(0, "extended", 600_000_000))
    ((delay_s, check),) = loop.set
    assert delay_s <= 60.0
    check()
    assert steps == []
    assert 500.0 < loop.set[1][0] <= 600.0
    health._due_s[0] = 0.0
    loop.set[1][1]()
    assert [step.why for step in steps] == ["was not ready within 60 s"]
    assert len(loop.set) == 2
    health.end()
