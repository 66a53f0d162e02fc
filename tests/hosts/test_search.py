"""All orders of events of a gang over two hosts, and planted bugs that the search must find."""

from typing import Any

import pytest

from supervise._core import backoff
from supervise._core.backoff import Backoff
from supervise._hosts import decide, decide as module
from supervise._hosts.decide import OVER
from tests.hosts.world import search
from tests.model.timed import UNIT_NS, UNIT_S, Time

pytestmark = pytest.mark.timeout(900)  # a search computes for up to a minute, and shares its processor with four others


@pytest.mark.stress
@pytest.mark.parametrize("notifies", [False, True])
def test_all_orders_of_events_keep_the_promises(notifies: bool):
    """One restart, one close, one time limit, and one loss of one host."""
    assert search(restarts=1, losses=(1, 0), notifies=notifies) > 10_000


@pytest.mark.stress
@pytest.mark.parametrize(("restarts", "losses"), [(2, (1, 0)), (1, (1, 1))])
def test_all_orders_of_events_of_longer_lives_keep_the_promises(restarts: int, losses: tuple[int, ...]):
    """Two restarts; or a loss of each host. Both together take a minute, and hold as well."""
    assert search(restarts=restarts, losses=losses) > 30_000


def does_not_wait_for_the_lease(plant: Any) -> None:
    plant("OVER", OVER | {"lost"})


def stops_no_host(plant: Any) -> None:
    def defective(gang: Any, *args: Any) -> Any:
        return [action for action in real(gang, *args) if not isinstance(action, decide.StopHost)]

    real = plant("_stop", defective)


def restarts_after_a_close(plant: Any) -> None:
    def defective(gang: Any, now_ns: int) -> Any:
        gang.stopping = "failure" if gang.causes else gang.stopping
        return real(gang, now_ns)

    real = plant("_delay_s", defective)


def does_not_count(plant: Any) -> None:
    def defective(gang: Any, now_ns: int) -> Any:
        gang.backoff = gang.backoff._replace(counted_ns=())
        return real(gang, now_ns)

    real = plant("_delay_s", defective)


def takes_the_last_cause(plant: Any) -> None:
    def defective(gang: Any, number: int) -> Any:
        actions = real(gang, number)
        gang.causes.reverse()
        return actions

    real = plant("_fails", defective)


def forgets_a_late_reply(plant: Any) -> None:
    """Does not answer the start if the reply to a launch comes behind the end of its ranks."""

    def defective(gang: Any) -> Any:
        return [] if any(host.state == "ended" for host in gang.hosts) else real(gang)

    real = plant("_answer_start", defective)


def stops_before_the_launches_are_answered(plant: Any) -> None:
    def defective(gang: Any, number: int) -> Any:
        gang.causes.append(number)
        return [] if gang.stopping else module._stop(gang, "failure", None, None)

    plant("_fails", defective)


def does_not_stop_after_the_start(plant: Any) -> None:
    """Forgets the failures before the start was answered."""

    def defective(gang: Any) -> Any:
        causes, gang.causes = gang.causes, []
        actions, gang.causes = real(gang), causes
        return actions

    real = plant("_answer_start", defective)


def takes_an_earlier_attempt(plant: Any) -> None:
    """Ends an attempt with the first host that has ended."""

    def defective(gang: Any, now_ns: int) -> Any:
        for host in gang.hosts:
            if host.state == "running" and gang.stopping == "failure":
                host.state = "ended"
        return real(gang, now_ns)

    real = plant("_advance", defective)


def stops_a_lost_host(plant: Any) -> None:
    def defective(gang: Any, *args: Any) -> Any:
        lost = [n for n, host in enumerate(gang.hosts) if host.state == "lost"]
        return [*real(gang, *args), *(decide.StopHost(gang.epoch, number, None, None) for number in lost)]

    real = plant("_stop", defective)


def ends_twice(plant: Any) -> None:
    def defective(gang: Any, *end: Any) -> Any:
        return [*real(gang, *end), decide.Finish()]

    real = plant("_finish", defective)


PLANTED = {
    does_not_wait_for_the_lease: "ranks of the hosts .* compute|the end while ranks compute",
    stops_no_host: "no end can be reached",
    restarts_after_a_close: "a restart after the end was asked for",
    does_not_count: "more restarts than the policy allows",
    takes_the_last_cause: "the first cause changes",
    forgets_a_late_reply: "success without an answer to the start",
    stops_before_the_launches_are_answered: "the failure of a rank is an error of the start",
    does_not_stop_after_the_start: "a failure stops nobody",
    takes_an_earlier_attempt: "compute",
    stops_a_lost_host: "a stop for a lost host",
    ends_twice: "two ends",
}


LATE = {stops_no_host, does_not_count}
"""Bugs that the search finds late: three to seven seconds."""


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=pytest.mark.stress) if bug in LATE else bug for bug in PLANTED],
    ids=lambda bug: bug.__name__,
)
def test_the_search_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch):
    """Each is found with a way that shows it."""

    def plant(name: str, new: Any) -> Any:
        real = getattr(module, name)
        monkeypatch.setattr(module, name, new)
        return real

    bug(plant)
    with pytest.raises(AssertionError, match=f"({PLANTED[bug]}); after "):
        search(restarts=1, losses=(1, 0))


TIMED: dict[str, Any] = {
    "no window": (2, (0,), Time(backoff_s=UNIT_S, failures=4, uncounted=True)),
    "a window": (1, (1,), Time(backoff_s=UNIT_S, failures=3, within=1.5)),
    "no backoff": (1, (0,), Time(failures=3, within=1.5, uncounted=True)),
    "a longer window": (2, (0,), Time(backoff_s=UNIT_S / 2, failures=3, within=3.5)),
}
"""The limit, the losses of the host, and the rest of the policy."""


@pytest.mark.parametrize("name", TIMED)
def test_attempts_begin_at_the_times_of_the_policy_in_every_order_of_events(name: str):
    """The delay, the window, and the codes that do not count."""
    restarts, losses, time = TIMED[name]
    assert search(restarts=restarts, losses=losses, time=time) > 300


def begins_before_the_backoff_is_over(plant: Any) -> None:
    def defective(gang: Any, now_ns: int) -> Any:
        actions = real(gang, now_ns)
        return [*actions, *module._place(gang)] if gang.phase == "backoff" and actions else actions

    real = plant("_advance", defective)


def grows_no_delay(plant: Any) -> None:
    plant_count(plant, "next", lambda real, self, *rest: real(self._replace(in_a_row=0), *rest))


def grows_with_the_row(plant: Any) -> None:
    plant_count(plant, "next", lambda real, self, *rest: real(self._replace(by_count=False), *rest))


def has_a_short_window(plant: Any) -> None:
    plant_count(plant, "gives_up", lambda real, self, policy, at_ns, *rest: real(self, policy, at_ns + UNIT_NS, *rest))


def counts_what_was_before_the_window(plant: Any) -> None:
    plant_count(plant, "gives_up", lambda real, self, policy, _at_ns, *rest: real(self, policy, self.last_ns, *rest))


def counts_every_code(plant: Any) -> None:
    plant_count(plant, "gives_up", lambda real, self, policy, at_ns, *_: real(self, policy, at_ns))


def needs_no_least_delay(plant: Any) -> None:
    plant("LEAST_UNCOUNTED_S", 0.0, backoff)


def plant_count(plant: Any, name: str, new: Any) -> None:
    real = getattr(Backoff, name)
    plant(name, lambda *args: new(real, *args), Backoff)


PLANTED_IN_TIME = {
    begins_before_the_backoff_is_over: ("a window", "before the backoff is over"),
    grows_no_delay: ("no window", "a delay of 30 s where the policy has 60 s"),
    grows_with_the_row: ("a longer window", "a delay of 60 s where the policy has 30 s"),
    has_a_short_window: ("a window", "more restarts within the window"),
    counts_what_was_before_the_window: ("a window", "gives up too early"),
    counts_every_code: ("no window", "gives up too early"),
    needs_no_least_delay: ("no backoff", "comes too soon"),
}


@pytest.mark.parametrize("bug", PLANTED_IN_TIME, ids=lambda bug: bug.__name__)
def test_the_search_finds_a_planted_bug_in_the_time_of_restarts(bug: Any, monkeypatch: pytest.MonkeyPatch):
    """By the invariant that it breaks."""

    def plant(name: str, new: Any, where: Any = module) -> Any:
        real = getattr(where, name)
        monkeypatch.setattr(where, name, new)
        return real

    bug(plant)
    name, said = PLANTED_IN_TIME[bug]
    restarts, losses, time = TIMED[name]
    with pytest.raises(AssertionError, match=said):
        search(restarts=restarts, losses=losses, time=time)
