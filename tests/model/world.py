"""Everything that can happen around the core: the processes, the asks, the timers, as one hashable state.

A move is one event of the real world. Time exists only as the order of deaths and of recorded exceptions: both get
stamps. Only in the settings whose time passes (`timed`), the distance of two stamps matters, too.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.model import lives, roles, timed
from tests.model.lives import Lives
from tests.model.neutral import Neutral, check, neutral
from tests.model.roles import Roles
from tests.model.timed import Time

ABSENT, LAUNCHING, ALIVE, DEAD, REAPED = range(5)
"""What the kernel knows of a rank: a dead one is not told to the core yet."""

UNCOUNTED = 75
"""The exit code after which a restart does not count."""

FATE = frozenset({"dies", "starts", "fails to start", "group empties", "records"})
"""Moves that no one can enforce: a process may be stuck for ever."""


class Rank(NamedTuple):
    """One rank's process in this attempt."""

    stage: int = ABSENT
    recorded: int = 0
    """Stamp of the exception that it has recorded."""
    died: int = 0
    """Stamp of its death."""
    failed: bool = False
    signaled: bool = False
    """Whether its death came after our first signal."""
    accused: bool = False
    """Whether its exception was recorded when the first signal was sent."""
    group: bool = False
    """Whether it has left processes in its group."""
    stuck: bool = False
    """Whether the core wants it reported as unkillable."""
    given_up: bool = False
    again: int = 0
    """How often it was restarted alone, or with a part of the gang."""
    ready: bool = True
    hung: int = 0
    """Stamp of its fault: it hangs, or was not ready in time, and the core must act."""
    late: bool = False
    """Whether its launch was not answered until SIGKILL had had its time: nothing waits for it any more."""
    unlaunched: bool = False
    """Whether a later life of it could not be launched."""
    uncounted: bool = False
    """Whether it has failed with an exit code after which a restart does not count."""

    @property
    def bad(self) -> bool:
        """Whether its end, or its present state, is a failure."""
        return self.failed or not self.ready or self.hung > 0

    @property
    def left(self) -> bool:
        """Whether something of it lives that must be waited for."""
        return (self.stage in (LAUNCHING, ALIVE, DEAD) or self.group) and not (self.given_up or self.late)


class World(NamedTuple):
    """The state of everything but the core."""

    ranks: tuple[Rank, ...]
    tails: int
    draining: bool = False
    """Whether the Tails go on after they have shown the output of the ranks, because leftovers may write more."""
    lasting: int = 0
    """How many Tails show what leftovers write."""
    clock: int = 0
    counting: bool = False
    counted: bool = False
    killed: bool = False
    timers: frozenset[str] = frozenset()
    sweep: str = ""
    """"", "asked" or "done"."""
    waiting: bool = False
    """For the backoff."""
    assembling: bool = False
    running: bool = False
    """Whether this attempt's start was announced."""
    start: str = ""
    """The ask: "", "owed" or "answered"."""
    closes: int = 0
    """How many were asked."""
    close_owed: bool = False
    close_answered: bool = False
    ended: bool = False
    """Whether a close or the deadline came."""
    heeds_failures: bool = True
    """Whether a rank that fails stops the others."""
    published: bool = False
    restarts: int = 0
    notify: bool = False
    """Whether each rank reports that it is ready."""
    hangs: int = 0
    """How many ranks may still hang, or not be ready in time."""
    lives: Lives = Lives()
    roles: Roles = Roles()
    time: Time = Time()

    def with_rank(self, number: int, **changes: Any) -> "World":
        """Return this world with one rank changed."""
        ranks = list(self.ranks)
        ranks[number] = ranks[number]._replace(**changes)
        return self._replace(ranks=tuple(ranks))


Move = tuple[str, World, Neutral | None]
"""Its name, the world behind it, and the event for the core; None where the core is not told."""

CLOSES = {
    "close, 9 s": neutral("CloseAsked", death_sig="SIGTERM", timeout_s=9.0, reason="close"),
    "close, 1 s": neutral("CloseAsked", death_sig="SIGINT", timeout_s=1.0, reason="close"),
    "close in turn": neutral("CloseAsked", death_sig="SIGTERM", timeout_s=9.0, reason="close", order="each"),
    "close in turn, 4 s": neutral("CloseAsked", death_sig="SIGTERM", timeout_s=4.0, reason="close", order="whole"),
    "kill": neutral("CloseAsked", death_sig="SIGKILL", timeout_s=0.0, reason="close"),
    "deadline": neutral("CloseAsked", death_sig="SIGTERM", timeout_s=5.0, reason="timeout"),
}

TIMERS = {"grace": "GraceExpired", "kill": "KillExpired", "drain": "DrainExpired"}
"""The name of a timer -> its event."""


def moves(world: World, *, asks: int, closes: Iterable[str], late: bool) -> Iterator[Move]:
    """Yield every event that can come next.

    Args:
        world: The state before it.
        asks: How many closes there may be.
        closes: Which of `CLOSES`.
        late: Whether a death may be told some time after it, as by a fork server; else the two are one move.
    """
    if not world.start:
        yield "start", world._replace(start="owed"), neutral("StartAsked")
    for number, rank in enumerate(world.ranks):
        yield from _rank_moves(world, number, rank, late=late)
    yield from _answers(world)
    if not world.heeds_failures:
        yield "heed failures", world._replace(heeds_failures=True), neutral("StopOnFailure", on=True)
    if world.closes < asks:
        for name in closes:
            yield name, _closed(world, CLOSES[name].fields), CLOSES[name]
    if timed.may_pass(world):
        yield "time passes", timed.passed(world), None


def _closed(world: World, fields: dict[str, Any]) -> World:
    owed = world.close_owed or fields["reason"] == "close"
    after = roles.closed(world, fields)
    return world._replace(closes=world.closes + 1, close_owed=owed, ended=True, roles=after)


def _rank_moves(world: World, number: int, rank: Rank, *, late: bool) -> Iterator[Move]:
    yield from _health_moves(world, number, rank)
    if rank.stage == LAUNCHING:
        begun = world.with_rank(number, stage=ALIVE, ready=not world.notify)
        yield "starts", begun, neutral("WorkerStarted", local_rank=number)
        if world.time.failures is None:
            yield "fails to start", *_not_started(world, number, rank)
    if rank.stage == ALIVE:
        now = world.clock + 1
        if not rank.recorded and world.time.failures is None:
            yield "records", world._replace(clock=now).with_rank(number, recorded=now), None
        for failed, group, uncounted in _ways_to_die(world, rank):
            dead = rank._replace(
                stage=DEAD, died=now, failed=failed, group=group, signaled=world.counted, uncounted=uncounted
            )
            after = world._replace(clock=now).with_rank(number, **dead._asdict())
            yield ("dies", after, None) if late else ("dies", *_reaped(after, number, dead))
    if rank.stage == DEAD:
        yield "is reaped", *_reaped(world, number, rank)
    if rank.group and rank.stage == REAPED:
        yield "group empties", world.with_rank(number, group=False), neutral("GroupEmptied", local_rank=number)
    if rank.stuck:
        left = rank.stage in (ALIVE, DEAD) or rank.group
        told = neutral("WorkerUnkillable", local_rank=number) if left else None
        yield "is stuck", world.with_rank(number, stuck=False, given_up=left), told


def _ways_to_die(world: World, rank: Rank) -> Iterator[tuple[bool, bool, bool]]:
    """Yield whether the rank fails, leaves processes in its group, and has an exit code that does not count."""
    time = world.time
    if time.failures is None:
        for failed in (False, True) if not rank.recorded else (True,):
            yield failed, False, False
            yield failed, True, False
        return
    yield False, False, False
    if time.failures:
        yield True, False, False
        if time.uncounted:
            yield True, False, True


def _health_moves(world: World, number: int, rank: Rank) -> Iterator[Move]:
    if rank.stage == ALIVE and not rank.ready:
        yield "is ready", world.with_rank(number, ready=True), neutral("RankReady", local_rank=number)
    if rank.stage == ALIVE and world.hangs and not rank.hung:
        now = world.clock + 1
        yield "hangs", _hung(world, number, now), neutral("RankFaulted", local_rank=number, at_ns=now)


def _hung(world: World, number: int, now: int) -> World:
    """Return the world behind a fault, which is none of a rank that is being stopped."""
    if world.counting or world.counted or world.published or number in world.lives.told:
        return world
    after = world._replace(clock=now, hangs=world.hangs - 1).with_rank(number, hung=now)
    return lives.ended(after, number, failed=True)


def _not_started(world: World, number: int, rank: Rank) -> tuple[World, Neutral]:
    """Return the world behind a failed launch, which is a failure of the rank unless it fails the first start."""
    if not (rank.again or world.restarts):
        return world.with_rank(number, stage=ABSENT), neutral("WorkerFailedToStart", local_rank=number)
    dead = _unlaunched(world, number)
    return dead, neutral("WorkerFailedToStart", local_rank=number, at_ns=dead.clock)


def _unlaunched(world: World, number: int) -> World:
    now = world.clock + 1
    how: dict[str, Any] = {"stage": REAPED, "died": now, "failed": True, "signaled": world.counted, "unlaunched": True}
    return lives.ended(world._replace(clock=now).with_rank(number, **how), number, failed=True)


def _not_assembled(world: World) -> tuple[World, Neutral]:
    """Return the world behind an attempt without files or actors: its first rank could not be launched."""
    after = world._replace(assembling=False)
    if not world.published:
        after = _unlaunched(after._replace(sweep="done"), world.lives.first)
    return after, neutral("NotAssembled", at_ns=after.clock)


def _reaped(world: World, number: int, rank: Rank) -> tuple[World, Neutral]:
    known = not rank.given_up  # the end of a rank that was given up is not told any more
    after = world.with_rank(
        number, stage=REAPED, group=rank.group and known, failed=rank.failed and known, ready=rank.ready or not known
    )
    after = lives.ended(after, number, failed=rank.bad)
    told = neutral(
        "WorkerExited",
        local_rank=number,
        exitcode=UNCOUNTED if rank.uncounted else int(rank.failed),
        ended_ns=rank.died,
        error_ns=rank.recorded or None,
        group_left=rank.group,
    )
    return after, told


def _answers(world: World) -> Iterator[Move]:
    """Yield what was asked of the world, and the timers."""
    if world.counting:
        recorded = {n: r.recorded for n, r in enumerate(world.ranks) if r.recorded and r.stage in (ALIVE, DEAD)}
        after = world._replace(counting=False, counted=True, clock=world.clock + 1)
        for number in recorded:
            after = after.with_rank(number, accused=True)
        yield "census", after, neutral("AllReaped", recorded=recorded, taken_ns=after.clock)
    for name in sorted(world.timers) if timed.may_escalate(world) else ():
        kind, _, role = name.partition(" ")
        yield name, _expired(world, name), neutral(TIMERS[kind], **({"role": int(role)} if role else {}))
    if world.sweep == "asked":
        yield "swept", world._replace(sweep="done"), neutral("Swept")
    yield from _begins(world)
    if world.tails and world.start and not world.assembling:
        yield "tail ends", world._replace(tails=world.tails - 1), neutral("TailEnded")
        if world.draining:
            after = world._replace(tails=world.tails - 1, lasting=world.lasting + 1)
            yield "tail drained", after, neutral("TailDrained")
    if world.lasting:
        yield "tail ends at last", world._replace(lasting=world.lasting - 1), neutral("TailEnded", drained=True)


def _begins(world: World) -> Iterator[Move]:
    """Yield what leads to the next attempt."""
    if world.waiting and timed.is_over(world, timed.ALL):
        yield "backoff", world._replace(waiting=False), neutral("BackoffExpired")
    if world.assembling:
        yield "assembled", world._replace(assembling=False), neutral("Assembled")
        if world.time.failures != 0:  # it would be one more
            yield "not assembled", *_not_assembled(world)


def _expired(world: World, name: str) -> World:
    world = world._replace(timers=world.timers - {name}, roles=roles.expired(world, name))
    if name.startswith("kill"):
        for number, rank in enumerate(world.ranks):
            if rank.stage == LAUNCHING and roles.late(world, number):
                world = world.with_rank(number, late=True)
    return world


def obey(world: World, action: Neutral, *, tails: int) -> World:  # noqa: C901, PLR0911, PLR0912 - one line an action
    """Do what the core says, and check that it may say so.

    Raises:
        BrokenPromiseError: Names the invariant.
    """
    if (after := roles.obey(world, action)) is not None or (after := lives.obey(world, action)) is not None:
        return after
    match action.name:
        case "LaunchRank":
            rank = world.ranks[action.fields["local_rank"]]
            check(rank.stage == ABSENT and not rank.died, "two lives of a rank in one attempt")
            check(not world.published, "a launch after the end")
            check(not world.ended, "a launch after the end was asked for")
            check(action.fields["local_rank"] not in world.lives.down, "a terminated rank starts again")
            roles.check_launch(world, action.fields["local_rank"])
            return world.with_rank(action.fields["local_rank"], stage=LAUNCHING)
        case "AnswerStart":
            check(not world.running, "a start announced twice")
            runs = [rank for rank in world.ranks if rank.stage in (ALIVE, DEAD)]
            check(all(rank.ready for rank in runs), "a rank is said to be ready")
            over = [rank for rank in world.ranks if rank.stage == REAPED and world.notify and not world.restarts]
            check(not any(rank.bad for rank in over), "a failed start is said to have succeeded")
            return lives.running(timed.running(world._replace(running=True, start="answered")))
        case "ReapAll":
            check(not (world.counting or world.counted), "the dead counted twice")
            return world._replace(counting=True)
        case "SendSignal":
            return _signaled(world, action.fields["ranks"], action.fields["sig"])
        case "SetTimer" if action.fields["name"] == "backoff":
            check(world.waiting, "a backoff is skipped that has not begun")
            return world
        case "SetTimer":
            name = action.fields["name"]  # without a process to kill, the kill begins with the wait for launches
            name += f" {role}" if (role := action.fields.get("role")) is not None else ""
            return world._replace(timers=world.timers | {name}, killed=world.killed or name.startswith("kill"))
        case "ReportUnkillable":
            check(world.killed, "called unkillable before SIGKILL")
            for number in action.fields["ranks"]:
                world = world.with_rank(number, stuck=True)
            return world
        case "DrainTails":
            left = any(rank.group and not rank.given_up for rank in world.ranks)
            check(not (world.lasting and left), "the last drain beside leftovers")
            return world._replace(draining=left)
        case "AbandonTails":
            return world._replace(timers=world.timers - {"drain"})
        case "SweepUp":
            check(not world.sweep, "swept twice")
            return world._replace(sweep="asked")
        case "AnnounceRestart":
            check(not world.waiting, "two restarts at once")
            check(action.fields["causes"], "a restart of all ranks without a cause")
            time = timed.all_announced(world, action.fields["delay_s"], causes(world)[0])
            return world._replace(waiting=True, time=time)
        case "Assemble":
            return _assembled(world, tails)
        case "Publish":
            return _published(world)
        case "AnswerClose":
            return _answered(world)
        case _:  # nothing of the world changes
            return world


def _signaled(world: World, targets: tuple[int, ...], sig: str) -> World:
    check(world.counted or world.published, "a signal before the dead were counted")
    for number in targets:
        rank = world.ranks[number]
        there = rank.stage in (ALIVE, DEAD) or rank.group
        check(there and not rank.given_up, "a signal to a rank that does not run")
    if sig == "SIGKILL":
        return world._replace(killed=True)
    check(not world.killed, "a polite signal after SIGKILL")
    return world


def _assembled(world: World, tails: int) -> World:
    check(not world.ended, "a restart after the end was asked for")
    check(not any(rank.left for rank in world.ranks), "a restart beside what is left")
    check(world.sweep == "done", "a restart before the sweep")
    check(not world.lasting, "a restart beside a Tail")
    fresh = World(ranks=(Rank(),) * len(world.ranks), tails=tails, assembling=True, restarts=world.restarts + 1)
    return fresh._replace(
        start=world.start,
        notify=world.notify,
        hangs=world.hangs,
        closes=world.closes,
        heeds_failures=world.heeds_failures,
        clock=world.clock,
        time=timed.assembled(world),
        lives=lives.assembled(world),
        roles=world.roles._replace(killed=frozenset(), over=frozenset()),
    )


def _published(world: World) -> World:
    check(not world.published, "two results")
    check(not world.lives.owed, "a request is not answered")
    alive = (LAUNCHING, ALIVE, DEAD)
    check(not any(rank.left and rank.stage in alive for rank in world.ranks), "a result before a rank was reaped")
    return world._replace(published=True, start="answered" if world.start else "")


def _answered(world: World) -> World:
    check(not any(rank.left for rank in world.ranks), "a close answered beside what is left")
    check(world.published, "a close answered before the result")
    check(not world.lasting, "a close answered beside a Tail")
    return world._replace(close_owed=False, close_answered=True)


def causes(world: World) -> list[int]:
    """Return the ranks that failed by themselves, the first cause first."""
    found = []
    for number, rank in enumerate(world.ranks):
        if rank.hung and (rank.stage == REAPED or rank.given_up):
            found.append((rank.hung, number))
        elif rank.stage == REAPED and rank.bad and (rank.accused or not rank.signaled):
            found.append((rank.recorded or rank.died, number))
    return [number for _, number in sorted(found)]
