"""What can happen around the core while single ranks restart: batches, their timers and sweeps, the requests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tests.model import timed
from tests.model.neutral import Known, Neutral, check, neutral
from tests.model.roles import check_dismissed, check_due, check_launch, clients_are_over, following

if TYPE_CHECKING:
    from tests.model.world import World

TIMER_EVENTS = {"grace": "BatchGraceExpired", "kill": "BatchKillExpired", "backoff": "BatchBackoffExpired"}


Owed = tuple[int, str, tuple[int, ...], tuple[int, ...]]
"""Key and kind of a request, its ranks, and the ranks that must be launched anew."""


class Lives(NamedTuple):
    """The state of everything that concerns single ranks."""

    strategy: str = "one_for_all"
    most: int | None = None
    """The largest number of restarts that count; None without a policy."""
    timers: frozenset[tuple[str, int]] = frozenset()
    """Name and number of a batch."""
    sweeps: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
    swept: frozenset[int] = frozenset()
    """Ranks whose last life is over and swept."""
    sigkilled: frozenset[int] = frozenset()
    asked_to_exit: frozenset[int] = frozenset()
    """Ranks that got the first signal of a batch, or whose leftovers got it."""
    told: frozenset[int] = frozenset()
    """Ranks that were signaled while they lived, by a batch: their ends are not causes."""
    concerned: frozenset[int] = frozenset()
    """Ranks that the core has a reason to signal."""
    owed: frozenset[Owed] = frozenset()
    """Requests that are not answered."""
    asked: int = 0
    down: frozenset[int] = frozenset()
    """Ranks that ran when they were terminated, and temporary ranks that had ended when all ranks restarted."""
    temporary: frozenset[int] = frozenset()
    """Ranks of this restart kind."""
    first: int = 0
    """The first rank that the last restart of all ranks starts again."""


def moves(world: "World", requests: int) -> Iterator[tuple[str, "World", Neutral]]:
    """Yield the timers and sweeps of batches, and the requests, of which there may be so many."""
    lives = world.lives
    for name, number in sorted(lives.timers):
        if not (timed.is_over(world, number) if name == "backoff" else timed.may_escalate(world)):
            continue
        after = lives._replace(timers=lives.timers - {(name, number)})
        yield f"{name} of a batch", world._replace(lives=after), neutral(TIMER_EVENTS[name], key=number)
    for number, ranks in sorted(lives.sweeps):
        after = lives._replace(sweeps=lives.sweeps - {(number, ranks)}, swept=lives.swept | set(ranks))
        yield "a batch is swept", world._replace(lives=after), neutral("BatchSwept", key=number)
    if world.start and not world.published and lives.asked < requests:
        every = tuple(range(len(world.ranks)))
        for ranks in {every, *((rank,) for rank in every)}:
            for kind, event in (("restart", "RestartAsked"), ("terminate", "TerminateAsked")):
                must = ranks if kind == "restart" else ()
                owed = _lifted(lives.owed, ranks) if kind == "restart" else lives.owed
                after = lives._replace(
                    asked=lives.asked + 1,
                    owed=owed | {(lives.asked, kind, ranks, must)},
                    concerned=lives.concerned | set(ranks),
                    down=lives.down - set(ranks) if kind == "restart" else lives.down | _to_end(world, ranks),
                )
                asked = neutral(event, key=lives.asked, ranks=frozenset(ranks))
                yield f"{kind} {ranks}", world._replace(lives=after), asked


def _lifted(owed: frozenset[Owed], ranks: tuple[int, ...]) -> frozenset[Owed]:
    """Return the requests without the terminations of ranks that a later request starts again."""
    return frozenset(
        (key, kind, tuple(rank for rank in wanted if kind == "restart" or rank not in ranks), must)
        for key, kind, wanted, must in owed
    )


def _to_end(world: "World", ranks: tuple[int, ...]) -> set[int]:
    """Return the ranks that a termination keeps down at once: those that run, or wait for the restart of all."""
    from tests.model.world import ALIVE, LAUNCHING

    if world.waiting:
        return set(ranks)
    runs = world.running and not (world.counting or world.counted)  # otherwise the request waits
    return {number for number in ranks if runs and world.ranks[number].stage in (LAUNCHING, ALIVE)}


def ended(world: "World", number: int, *, failed: bool) -> "World":
    """Return the world behind the end of a rank, which may concern others."""
    if failed:
        world = timed.failed(world, number)
    lives = world.lives
    concerned = {number} | (world.roles.services if clients_are_over(world) else set())
    if failed and lives.strategy == "rest_for_one":
        concerned |= following(world, number)
    return world._replace(lives=lives._replace(concerned=lives.concerned | concerned))


def running(world: "World") -> "World":
    """Return the world behind the announcement of the start, which may come after the end of all but services."""
    if not clients_are_over(world):
        return world
    lives = world.lives
    return world._replace(lives=lives._replace(concerned=lives.concerned | world.roles.services))


def obey(world: "World", action: Neutral) -> "World | None":
    """Do what the core says about single ranks; None for another action.

    Raises:
        BrokenPromiseError: Names the invariant.
    """
    lives, fields = world.lives, action.fields
    match action.name:
        case "SetTimer" if fields.get("key") is not None:
            check(not world.ended, "a batch's timer after the end was asked for")
            lives = lives._replace(timers=lives.timers | {(fields["name"], fields["key"])})
        case "SendSignal" if not (world.counted or world.published):
            lives = _signaled(world, fields["ranks"], fields["sig"])
        case "ReportUnkillable" if not world.killed:
            check(set(fields["ranks"]) <= lives.sigkilled, "called unkillable before SIGKILL")
            for number in fields["ranks"]:
                world = world.with_rank(number, stuck=True)
        case "SweepUp" if fields["key"]:
            check(not any(world.ranks[number].left for number in fields["ranks"]), "a sweep beside what is left")
            lives = lives._replace(sweeps=lives.sweeps | {(fields["key"], fields["ranks"])})
        case "AnnounceRestarts":
            check(not world.ended, "a restart after the end was asked for")
            check(set(fields["ranks"]) <= lives.swept, "a restart before the sweep")
            lives = lives._replace(timers=lives.timers | {("backoff", fields["number"])})
            world = world._replace(
                time=timed.batch_announced(world, fields["number"], fields["ranks"], fields["delay_s"])
            )
        case "RelaunchRank":
            return _relaunched(world, fields["local_rank"])
        case "AnswerAsk":
            return _answered(world, fields["key"])
        case "FailAsks":
            owed = {key for key, *_ in lives.owed}
            check(set(fields["keys"]) <= owed, "a request is answered twice")
            lives = lives._replace(owed=frozenset(each for each in lives.owed if each[0] not in fields["keys"]))
        case _:
            return None
    return world._replace(lives=lives)


def _signaled(world: "World", targets: tuple[int, ...], sig: str) -> Lives:
    from tests.model.world import ALIVE, DEAD

    lives = world.lives
    check_dismissed(world, targets)
    for number in targets:
        rank = world.ranks[number]
        check(rank.stage in (ALIVE, DEAD) or rank.group, "a signal to a rank that does not run")
        check(number in lives.concerned, "a signal to a rank that the strategy leaves alone")
        check(sig == "SIGKILL" or number not in lives.sigkilled, "a polite signal after SIGKILL")
        check(sig == "SIGKILL" or number not in lives.asked_to_exit, "the first signal is sent twice")
    lives = lives._replace(told=lives.told | {number for number in targets if world.ranks[number].stage == ALIVE})
    if sig == "SIGKILL":
        return lives._replace(sigkilled=lives.sigkilled | set(targets))
    return lives._replace(asked_to_exit=lives.asked_to_exit | set(targets))


def _relaunched(world: "World", number: int) -> "World":
    from tests.model.world import ABSENT, LAUNCHING, REAPED, Rank

    rank, lives = world.ranks[number], world.lives
    check(rank.stage in (ABSENT, REAPED) and not rank.left, "two lives of a rank")
    check(number in lives.swept, "a launch before the sweep")
    check(not world.ended, "a launch after the end was asked for")
    check(not (world.counting or world.counted or world.published), "a launch during the stop")
    check(number not in lives.down, "a terminated rank starts again")
    check_launch(world, number)
    again = rank.again + 1
    time = timed.relaunched(world, number)
    check(
        time.failures is not None or lives.asked > 0 or (lives.most is not None and again <= lives.most),
        "the intensity was exceeded",
    )
    owed = frozenset(
        (key, kind, ranks, tuple(rank for rank in must if rank != number)) for key, kind, ranks, must in lives.owed
    )
    lives = lives._replace(
        swept=lives.swept - {number},
        sigkilled=lives.sigkilled - {number},
        asked_to_exit=lives.asked_to_exit - {number},
        told=lives.told - {number},
        concerned=lives.concerned - {number},
        owed=owed,
    )
    ranks = list(world.ranks)
    ranks[number] = Rank(stage=LAUNCHING, again=again)
    return world._replace(ranks=tuple(ranks), lives=lives, time=time)


def _answered(world: "World", key: int) -> "World":
    from tests.model.world import LAUNCHING

    lives = world.lives
    found = [each for each in lives.owed if each[0] == key]
    check(len(found) == 1, "a request is answered twice")
    _, kind, ranks, must = found[0]
    check(not must, "a rank is said to have been restarted")
    for number in ranks:
        rank = world.ranks[number]
        if kind == "restart":
            check(rank.stage != LAUNCHING, "a rank is said to run that is being launched")
            check(not rank.unlaunched, "a rank is said to run that could not be launched")
            check(rank.ready, "a rank is said to be ready")
        else:
            check(rank.late or rank.stage not in (LAUNCHING, 2, 3), "a terminated rank lives")
    down = lives.down
    if kind == "terminate" and world.counted:  # all ranks are to restart, but not these
        down |= set(ranks)
    return world._replace(lives=lives._replace(owed=lives.owed - {found[0]}, down=down))


def assembled(world: "World") -> Lives:
    """Return the state behind a restart of all ranks, for which requests may have waited."""
    from tests.model.world import REAPED

    lives = world.lives
    stay = {number for number in lives.temporary if world.ranks[number].stage == REAPED}
    owed = frozenset(
        (key, kind, ranks, tuple(rank for rank in ranks if kind == "restart" and rank in stay))
        for key, kind, ranks, _ in lives.owed
    )
    again = {rank for _, _, _, must in owed for rank in must}
    concerned = frozenset(rank for _, _, ranks, _ in lives.owed for rank in ranks)
    down = lives.down | (stay - again)
    return Lives(
        strategy=lives.strategy,
        most=lives.most,
        owed=owed,
        asked=lives.asked,
        concerned=concerned,
        down=down,
        temporary=lives.temporary,
        first=min(set(range(len(world.ranks))) - down - lives.temporary, default=0),
    )


def check_answered(world: "World") -> None:
    """Check that no request is forgotten whose ranks have started again, or are down."""
    from tests.model.world import ABSENT, LAUNCHING, REAPED

    lives = world.lives
    check(not world.waiting or all(kind == "restart" for _, kind, *_ in lives.owed), "a request waits for the backoff")
    if not world.running or world.ended or world.counting or world.counted or world.published:
        return
    in_batches = bool(lives.sweeps) or any(world.ranks[rank].left for rank in lives.concerned)
    for _, kind, ranks, must in lives.owed:
        found = [world.ranks[number] for number in ranks]
        if kind == "restart":
            again = {rank for *_, others in lives.owed for rank in others}  # a later request stops them once more
            done = (
                not must
                and again.union(lives.told).isdisjoint(ranks)
                and all(rank.stage != LAUNCHING and rank.ready and not rank.unlaunched for rank in found)
            )
        else:
            over = all(rank.stage in (ABSENT, REAPED) and not rank.left for rank in found)
            done = bool(ranks) and over and not in_batches  # a rank that has ended may be in the batch of another
        check(not done, f"a request is forgotten: {kind} {ranks}")


def check_hung(world: "World") -> None:
    """Check that a rank that hangs is stopped."""
    from tests.model.world import ALIVE

    if world.counting or world.counted or world.published:
        return
    for number, rank in enumerate(world.ranks):
        check(
            not (rank.hung and rank.stage == ALIVE and number not in world.lives.told),
            "a rank that hangs is left alone",
        )


def check_batches(world: "World", known: Known) -> None:
    """Check the batches of a core: what they wait for, and that each of them has a deadline."""
    lives = world.lives
    held = [rank for batch in known.batches for rank in batch.ranks]
    check(len(held) == len(set(held)), "a rank is in two batches")
    alive = known.starting | known.running | known.leftovers
    for batch in known.batches:
        check(batch.pending == alive & batch.ranks, "a batch waits for the wrong ranks")
        check(batch.number == 0 or batch.down <= batch.ranks, "a rank stays down that is not in the batch")
        if not batch.number:
            check_due(world, batch.pending, batch.signaled)
            continue
        there = batch.pending - known.starting
        check((batch.state == "stopping") == bool(batch.pending), "a batch is swept when nothing of it is left")
        check(not batch.killed & there - lives.sigkilled, "a killed batch leaves a rank alive")
        check(not there & batch.signaled - lives.asked_to_exit - lives.sigkilled, "a batch does not signal a rank")
        due = ("kill" if batch.killed else "grace", batch.number)
        reported = all(world.ranks[rank].stuck or rank in known.stuck for rank in there)
        check(due in lives.timers or (bool(batch.killed) and reported) or not batch.pending, "a batch has no deadline")


def without_stale(world: "World", numbers: dict[int, int]) -> "World":
    """Return the world without timers and sweeps of batches that are no more: they have no effect."""
    lives = world.lives
    timers = frozenset(each for each in lives.timers if each[1] in numbers)
    sweeps = frozenset(each for each in lives.sweeps if each[0] in numbers)
    return world._replace(lives=lives._replace(timers=timers, sweeps=sweeps))


def renumbered(lives: Lives, numbers: dict[int, int]) -> Lives:
    """Return the state with each batch's place for its number, so that the numbers do not tell states apart."""
    timers = frozenset((name, numbers[number]) for name, number in lives.timers)
    return lives._replace(timers=timers, sweeps=frozenset((numbers[number], ranks) for number, ranks in lives.sweeps))
