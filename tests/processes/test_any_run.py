"""The events of any run of real processes: each start has its exit, the sequence has no holes, one end, last."""

from collections import Counter
from contextlib import suppress
from queue import SimpleQueue

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from supervise import Close, RestartPolicy, RestartRanks, Start, SuperviseError, Supervisor, TerminateRanks, Wait
from tests.patience import PATIENCE_S

ENDS = ["exit 0", "exit 3", "kill -9 $$", "exec sleep 1000", "trap '' TERM; sleep 0.3; exit 1"]
REQUESTS = [None, RestartRanks(ranks={0}), TerminateRanks(ranks={0})]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scripts=st.lists(st.sampled_from(ENDS), min_size=1, max_size=3),
    strategy=st.sampled_from(["one_for_all", "one_for_one", "rest_for_one"]),
    restarts=st.sampled_from([None, 0, 2]),
    request=st.sampled_from(REQUESTS),
    unlaunchable=st.booleans(),
)
def test_e3_any_run_of_processes_has_an_exit_for_each_start_and_one_end(
    scripts, strategy, restarts, request, unlaunchable
):
    told = SimpleQueue()
    policy = None if restarts is None else RestartPolicy(max_restarts=restarts, backoff=0.0)
    gang = Supervisor.start(
        name="any",
        entrypoint="no-such-program" if unlaunchable else "sh",
        args={rank: ("-c", script) for rank, script in enumerate(scripts)},
        strategy=strategy,
        restart_policy=policy,
        event_sink=told.put,
        grace=0.2,
    )
    with gang:
        if unlaunchable:
            with pytest.raises(OSError, match="no-such-program"):
                gang.ask(Start(), timeout=PATIENCE_S)
        else:
            gang.ask(Start(), timeout=PATIENCE_S)
            reply = None if request is None else gang.ask(request, block=False)
            endless = any("1000" in script for script in scripts)
            gang.ask(Close() if endless else Wait(), timeout=PATIENCE_S)
            if reply is not None:  # it may be refused, or fail; it is answered
                with suppress(SuperviseError):
                    reply.get(timeout=PATIENCE_S)
    events = [told.get() for _ in range(told.qsize())]
    assert [event["seq"] for event in events] == list(range(len(events)))
    times = [event["monotonic_ns"] for event in events]
    assert times == sorted(times)
    names = [event["event"] for event in events]
    assert names[0] == "supervise.gang.starting"
    assert names.count("supervise.gang.finished") == 1

    def lives(name):
        return Counter((each["local_rank"], each["attempt"], each["pid"]) for each in events if each["event"] == name)

    started = lives("supervise.process.started")
    assert lives("supervise.process.exited") == started
    assert set(started.values()) <= {1}
    assert len({pid for _, _, pid in started}) == len(started) or restarts
    for rank, attempt, pid in started:
        own = [each for each in events if (each.get("local_rank"), each["attempt"]) == (rank, attempt)]
        own = [each["event"].rpartition(".")[2] for each in own if each.get("pid") == pid]
        assert own.index("started") < own.index("exited")
    after = names[names.index("supervise.gang.finished") + 1 :]
    assert set(after) <= {"supervise.process.leaked"}, "nothing but what was left behind is told after the end"
