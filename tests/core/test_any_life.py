"""The pure core under everything that can happen, in any order: one end, one blame, no signal to a stranger."""

from signal import SIGINT, SIGKILL, SIGTERM

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from supervise._core.model import Gang
from supervise._core.steps import (
    AbandonTails,
    AllReaped,
    AnnounceRestart,
    AnswerClose,
    AnswerStart,
    Assemble,
    Assembled,
    CloseAsked,
    GroupEmptied,
    LaunchRank,
    NotAssembled,
    Publish,
    ReapAll,
    ReportUnkillable,
    SendSignal,
    SetTimer,
    StartAsked,
    SweepUp,
    Swept,
    TailEnded,
    WorkerFailedToStart,
    WorkerUnkillable,
)
from supervise._core.verdict import judge
from supervise.messages import WorkerExited, WorkerStarted
from supervise.restarts import RestartPolicy
from tests.core.stepping import decide, expired, with_tails


def started(rank):
    return WorkerStarted(local_rank=rank, pid=100 + rank, started_ns=rank)


def exited(rank, code=0, at=0, **more):
    return WorkerExited(local_rank=rank, pid=100 + rank, exitcode=code, ended_ns=at, **more)


def unkillable(rank):
    return WorkerUnkillable(local_rank=rank, pid=100 + rank, state="D")


def close(sig=SIGTERM, timeout_s=30.0, reason="close"):
    return CloseAsked(death_sig=sig, timeout_s=timeout_s, reason=reason)


def census():
    return AllReaped(recorded={})


def by_themselves(gang):
    return [number for number, rank in enumerate(gang.ranks) if rank.by_itself]


class _Machine(RuleBasedStateMachine):
    """Drives a gang with everything that can plausibly happen; checks the promises at every step."""

    @initialize(
        nprocs=st.integers(1, 5),
        more=st.fixed_dictionaries(
            {"window": st.integers(1, 5), "tails": st.integers(0, 2), "grace_s": st.sampled_from([0.0, 5.0])}
        ),
        immortal=st.sets(st.integers(0, 4), max_size=2),
        never_start=st.sets(st.integers(0, 4), max_size=1),
        policy=st.none() | st.builds(RestartPolicy, st.integers(0, 3), st.none() | st.just(1e-9)),
    )
    def begin(self, nprocs, more, immortal, never_start, policy):
        self.immortal, self.never_start = immortal, never_start
        self.all_tails = more.pop("tails")
        self.gang = with_tails(Gang(nprocs=nprocs, policy=policy, **more), self.all_tails)
        self.clock = 0
        self.published = self.started = self.start_answers = 0
        self.user_ended = self.close_owed = False
        self.new_life()

    def new_life(self):
        """Nothing is known of this attempt yet."""
        self.launching, self.alive, self.groups = set(), set(), set()
        self.stuck, self.reaped, self.counting, self.counted = set(), set(), False, False
        self.timers, self.tails = set(), self.all_tails
        self.kill_asked = self.polite = self.asked_end = False
        self.sweeping = self.swept = self.waiting = self.assembling = self.answered = False

    def tell(self, event):
        before = self.gang
        self.gang, actions = decide(self.gang, event)
        for action in actions:
            self.check(action)
            self.act(action)
        if self.gang.attempt > before.attempt:
            assert event == expired("backoff")
            return
        if before.stop.reason is not None:
            assert self.gang.stop.reason == before.stop.reason
        if before.start_failure is not None:
            assert self.gang.start_failure is before.start_failure
        assert self.gang.ends[: len(before.ends)] == before.ends
        if before.stop.signaled:
            assert by_themselves(self.gang) == by_themselves(before), "a cause came after our signal"
        assert not self.gang.running & self.gang.starting

    def check(self, action):
        assert self.published == 0 or not isinstance(action, (Publish, LaunchRank, AnswerStart, ReapAll))
        if isinstance(action, SendSignal):
            assert self.counted or self.published, "signaled before the dead were counted"
            assert self.asked_end, "success alone signals nobody"
            if not self.launching:
                assert action.ranks, "a signal to nobody"
            for rank in action.ranks:
                assert rank not in self.reaped or rank in self.groups, "signaled what is reaped and left nothing"
            if action.sig == SIGKILL:
                assert self.polite or self.kill_asked
            else:
                assert not self.gang.stop.killed, "polite after the kill"
                self.polite = True

    def act(self, action):  # noqa: C901 - one line an action
        match action:
            case LaunchRank():
                self.launching.add(action.local_rank)
            case AnswerStart():
                self.start_answers += 1
                assert not self.answered, "an attempt's start is told once"
                self.answered = True
            case ReapAll():
                assert not self.counting
                assert not self.counted
                self.counting = True
            case SetTimer():
                self.timers.add(action.name)
            case ReportUnkillable():
                self.stuck |= action.ranks
            case SweepUp():
                assert not self.sweeping
                assert not self.swept
                self.sweeping = True
            case AnnounceRestart():
                assert not self.user_ended, "a restart after somebody asked for the end"
                assert not self.alive | self.groups | self.launching, "a restart beside what is left"
                assert self.swept
                assert not self.waiting
                self.waiting = True
            case Assemble():
                assert self.waiting
                self.new_life()
                self.assembling = True
                self.gang = with_tails(self.gang, self.all_tails)
            case AbandonTails():
                self.timers.discard("drain")
            case Publish():
                self.published += 1
                assert not self.alive - self.given_up()
                assert not self.launching or self.gang.stop.killed
            case AnswerClose():
                assert self.swept or not self.close_owed or self.started == 0
                self.close_owed = False
                assert not self.groups - self.given_up()

    def given_up(self):
        return set(self.gang.unkillable)

    # What can happen

    @precondition(lambda self: self.started == 0)
    @rule()
    def start(self):
        self.started += 1
        self.tell(StartAsked())

    @precondition(lambda self: self.launching - self.never_start)
    @rule(data=st.data())
    def starts(self, data):
        rank = data.draw(st.sampled_from(sorted(self.launching - self.never_start)))
        self.launching.remove(rank)
        self.alive.add(rank)
        self.tell(started(rank))

    @precondition(lambda self: self.launching)
    @rule(data=st.data())
    def fails_to_start(self, data):
        rank = data.draw(st.sampled_from(sorted(self.launching)))
        self.launching.remove(rank)
        self.asked_end = True
        self.kill_asked |= self.gang.grace_s == 0
        self.clock += 1
        self.tell(WorkerFailedToStart(local_rank=rank, error=OSError(), at_ns=self.clock))

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        code=st.sampled_from([0, 0, 1, -9, -15, None]),
        group_left=st.booleans(),
        recorded=st.booleans(),
    )
    def exits(self, data, code, group_left, recorded):
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(rank)
        self.reaped.add(rank)
        if group_left and rank not in self.given_up():
            self.groups.add(rank)
        self.clock += 1
        if code != 0:
            self.asked_end = True
            self.kill_asked |= self.gang.grace_s == 0
        self.tell(exited(rank, code, self.clock, group_left=group_left, error_ns=self.clock if recorded else None))

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def group_empties(self, data):
        rank = data.draw(st.sampled_from(sorted(self.groups)))
        self.groups.remove(rank)
        self.tell(GroupEmptied(local_rank=rank))

    @precondition(lambda self: self.counting)
    @rule(data=st.data())
    def counted_the_dead(self, data):
        self.counting, self.counted = False, True
        recorded = data.draw(st.dictionaries(st.sampled_from(sorted(self.alive)), st.just(1))) if self.alive else {}
        self.tell(AllReaped(recorded=recorded))

    @rule(
        sig=st.sampled_from([SIGTERM, SIGINT, SIGKILL]),
        timeout_s=st.sampled_from([0.0, 1.0, 9.0]),
        reason=st.sampled_from(["close", "close", "timeout"]),
    )
    def close(self, sig, timeout_s, reason):
        self.asked_end = self.user_ended = True
        self.close_owed = reason == "close" or self.close_owed
        self.kill_asked |= sig == SIGKILL or timeout_s == 0
        self.counted |= self.gang.phase == "new"  # there is nobody to count
        self.swept |= self.gang.phase == "new"
        self.tell(close(sig, timeout_s, reason))

    @rule(event=st.sampled_from([expired("grace"), expired("kill"), expired("drain")]))
    def timer(self, event):
        if event == expired("grace") and "grace" not in self.timers and self.gang.stop.signaled:
            return  # it was never set
        self.tell(event)

    @precondition(lambda self: self.sweeping)
    @rule()
    def sweeps(self):
        self.sweeping, self.swept = False, True
        self.tell(Swept())

    @precondition(lambda self: self.waiting)
    @rule()
    def has_waited(self):
        self.tell(expired("backoff"))
        self.waiting = False

    @precondition(lambda self: self.assembling)
    @rule(well=st.booleans())
    def is_assembled(self, well):
        self.assembling = False
        if well:
            self.tell(Assembled())
            return
        self.clock += 1
        self.asked_end = True
        self.swept |= self.gang.phase != "finished"  # no process was started since the last sweep
        self.tell(NotAssembled(OSError("no"), self.clock))

    @precondition(lambda self: self.stuck)
    @rule(data=st.data())
    def is_stuck(self, data):
        rank = data.draw(st.sampled_from(sorted(self.stuck)))
        self.stuck.remove(rank)
        if rank in self.alive or rank in self.groups:  # else it went in time
            self.tell(unkillable(rank))

    @precondition(lambda self: self.tails and self.gang.phase != "new" and not self.assembling)
    @rule()
    def tail_ends(self):
        self.tails -= 1
        self.tell(TailEnded(name="stdout"))

    def teardown(self):
        """Whatever has happened: when the world answers from now on, the gang ends, and its close is answered."""
        if not hasattr(self, "gang"):
            return
        if self.started == 0:
            self.start()
        self.close_owed = self.user_ended = True
        self.asked_end = True
        self.counted |= self.gang.phase == "new"
        self.tell(close())
        for _ in range(50):
            self.world_answers()
        assert self.published == 1
        assert not self.close_owed, "a close was not answered"
        verdict = judge(self.gang)
        good = {e.local_rank for e in self.gang.ends if not self.gang.failed(e)}
        if verdict.outcome == "succeeded":
            assert len(good) == self.gang.nprocs
        elif verdict.outcome == "stopped":
            assert verdict.blamed or len(good) == self.gang.nprocs
        else:
            assert verdict.blamed
        assert (verdict.outcome == "failed") == (verdict.kind == "cause" and bool(verdict.blamed))

    def world_answers(self):  # noqa: C901 - all that can be asked for
        """Everything that was asked for happens; what is immortal or never starts does not."""
        if self.counting:
            self.counting, self.counted = False, True
            self.tell(census())
        for rank in sorted(self.launching - self.never_start):
            self.launching.remove(rank)
            self.alive.add(rank)
            self.tell(started(rank))
        for rank in sorted(self.alive - self.immortal):
            self.alive.remove(rank)
            self.reaped.add(rank)
            self.tell(exited(rank, -15))
        for rank in sorted(self.groups - self.immortal):
            self.groups.remove(rank)
            self.tell(GroupEmptied(local_rank=rank))
        for name, event in (("grace", expired("grace")), ("kill", expired("kill"))):
            if name in self.timers:
                self.timers.remove(name)
                self.tell(event)
        for rank in sorted(self.stuck):
            self.stuck.remove(rank)
            if rank in self.alive | self.groups:
                self.tell(unkillable(rank))
        if self.assembling:
            self.is_assembled(well=True)
        while self.tails:
            self.tail_ends()
        if self.sweeping:
            self.sweeps()


_Machine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestAnyLife = _Machine.TestCase
