"""`python -m tests.chaos_tree`: kill the children of `examples/chat.py` at random, for ten minutes by default.

Actors end by an exception in a handler, ranks and the service by SIGKILL: one at a time, or some in quick succession.
After each round everything has come back and does its work, the tree has told and counted just what the policy and the
strategy say, and there are no more processes, threads, actors and descriptors than before. At last a tree with few
restarts gives up, and nothing is left. The command ends with code 1 when something of this does not hold.
"""

import argparse
import faulthandler
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pykka

from supervise import Pids, RestartLimitExceeded, RestartPolicy, SuperviseError, Wait
from tests import conftest as leaks

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import chat

PATIENCE_S = 30
NAMES = ("room", "moderator", "index", "door")
POLICY = RestartPolicy(max_restarts=1_000_000, within_s=10.0, backoff=0.0, restart="permanent")
NEAR_NS = 500_000_000
"""An event is told a little after what it tells, so a restart so close to the limit of the window may count or not."""


class BrokenError(Exception):
    """Something that must hold does not."""


def check(holds: bool, what: str) -> None:
    """Raise a `BrokenError` unless `holds`."""
    if not holds:
        raise BrokenError(what)


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until `holds`; break after `PATIENCE_S`."""
    give_up_s, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not holds():
        check(time.monotonic() < give_up_s, what())
        pause.wait(0.005)


class Chaos:
    """One chat, who kills its children, and what has been counted."""

    def __init__(self, folder: Path, chance: random.Random, policy: RestartPolicy) -> None:
        """Start the chat."""
        self.folder, self.chance = folder, chance
        self.kills, self.restarted_ns = Counter[str](), list[int]()
        self.rounds = self.restarts = self.lines = 0
        self.slowest_s = 0.0
        self._told: list[dict[str, Any]] = []
        self.tree = chat.start_tree(folder, policy, self._told.append)
        self._work()
        self._told.clear()
        self._usual = _usage()

    def kill(self, name: str) -> pykka.ActorRef[Any] | None:
        """Kill a child as it is now; return its ref, or None if there was nothing to kill."""
        ref = chat.status(self.tree).children[name].ref
        if ref is None:
            return None
        try:
            if name in {"room", "door"}:
                ref.tell(None)  # neither a line nor a pair: the handler raises
            else:
                pids = ref.ask(Pids(), timeout=PATIENCE_S)
                process = psutil.Process(pids[self.chance.choice(sorted(pids))])
                if os.getpid() not in {parent.pid for parent in process.parents()}:
                    return None  # the number is another process's by now
                process.kill()
        except (pykka.ActorDeadError, SuperviseError, psutil.NoSuchProcess, IndexError):
            return None
        self.kills[name] += 1
        return ref

    def round(self) -> None:
        """Kill one child or some in quick succession, and wait until all is as before."""
        begun_s, pause = time.monotonic(), threading.Event()
        first = self.chance.choice(NAMES)
        killed = [self.kill(first)]
        check(killed[0] is not None, f"{first} was not there to be killed")
        more = self.chance.choice((0, 0, 0, 1, 2))
        for _ in range(more):
            pause.wait(self.chance.uniform(0.0, 0.15))
            killed.append(self.kill(self.chance.choice(NAMES)))
        dead = [ref for ref in killed if ref is not None]
        for ref in dead:
            check(ref.actor_stopped.wait(PATIENCE_S), f"{ref} was killed, and did not end")
        until(lambda: self._is_back(dead), lambda: f"not all came back: {chat.status(self.tree)}")
        self._work()
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)
        told = [(event["event"].removeprefix("supervise.child."), event.get("child")) for event in self._told]
        if not more:
            check(told == _expected(first), f"after the end of {first}, the tree told {told}")
        self._count(at_most=len(dead))
        until(self._is_lean, lambda: f"more is there than before: {_usage()}, not {self._usual}")
        self.rounds += 1
        self._told.clear()

    def _is_back(self, dead: list[pykka.ActorRef[Any]]) -> bool:
        children = chat.status(self.tree).children.values()
        return all(child.state == "ready" and child.ref not in dead for child in children)

    def _work(self) -> None:
        """Every child does what it is there for; no line is lost."""
        self.lines += 1
        heard = chat.say(self.tree, "door", ("anna", f"heck, {self.lines} times!"))
        check(heard == self.lines, f"the room has {heard} lines, not {self.lines}")
        last = (self.folder / "transcript").read_text().splitlines()[-1]
        check(last == f"anna: ****, {self.lines} times!", f"the room has {last!r}")
        counts = chat.word_counts(self.folder)
        check(counts["anna:"] == self.lines, f"the index has counted {counts}")

    def _count(self, at_most: int) -> None:
        """The restarts that are told, that the status counts and that the policy counts are the same."""
        restarting = [event for event in self._told if event["event"] == "supervise.child.restarting"]
        check(1 <= len(restarting) <= at_most, f"{len(restarting)} restarts after {at_most} kills")
        for event in restarting:
            at_ns = event["monotonic_ns"]
            self.restarted_ns.append(at_ns)
            ages_ns = [at_ns - then_ns - int(POLICY.within_s * 1e9) for then_ns in self.restarted_ns]
            least, most = sum(age < -NEAR_NS for age in ages_ns), sum(age < NEAR_NS for age in ages_ns)
            check(least <= event["restarts"] <= most, f"{event['restarts']} restarts count, not {least} to {most}")
            self.restarted_ns = [then for then, age in zip(self.restarted_ns, ages_ns, strict=True) if age < NEAR_NS]
        self.restarts += len(restarting)
        total = chat.status(self.tree).restarts_total
        check(total == self.restarts, f"the status has {total} restarts, not {self.restarts}")

    def _is_lean(self) -> bool:
        return all(now <= usual for now, usual in zip(_usage(), self._usual, strict=True))

    def give_up(self, restarts: int) -> None:
        """Kill one child after the other: the tree restarts so many, and gives up at the next."""
        waiting = self.tree.ask(Wait(), block=False)
        for number in range(restarts + 1):
            name = self.chance.choice(NAMES)
            ref = self.kill(name)
            check(ref is not None and ref.actor_stopped.wait(PATIENCE_S), f"{name} could not be killed")
            if number < restarts:
                until(lambda dead=[ref]: self._is_back(dead), lambda: f"not all came back: {chat.status(self.tree)}")
        try:
            waiting.get(timeout=PATIENCE_S)
        except RestartLimitExceeded as error:
            check(error.child_id == name, f"the tree gave up because of {error.child_id}, not {name}")
        else:
            raise BrokenError("the tree did not give up")
        told = Counter(event["event"] for event in self._told)
        check(told["supervise.child.restarting"] == restarts, f"a tree with {restarts} restarts told {told}")
        check(self._told[-1]["event"] == "supervise.tree.finished", f"the last event is {self._told[-1]}")


def _expected(name: str) -> list[tuple[str, str]]:
    """Return the events of one failure under ``rest_for_one``."""
    set_of = NAMES[NAMES.index(name) :]
    stops = [(what, later) for later in reversed(set_of[1:]) for what in ("stopping", "down")]
    return [("down", name), ("restarting", name), *stops, *(("started", each) for each in set_of)]


def _usage() -> tuple[int, int, int, int]:
    """Return the numbers of processes, threads, actors and descriptors."""
    actors = len(pykka.ActorRegistry.get_all())
    return len(leaks._descendants()), threading.active_count(), actors, len(leaks._open_fds())


def run(seconds: float, seed: int) -> None:
    """Kill for so long; then check that nothing is left.

    Raises:
        BrokenError: Something does not hold; the text names it.
    """
    chance, begun_s = random.Random(seed), time.monotonic()
    processes, threads, fds = leaks._descendants(), set(threading.enumerate()), leaks._open_fds()
    actors = set(leaks._actors())
    with tempfile.TemporaryDirectory(prefix="chat-") as name:
        chaos = Chaos(Path(name), chance, POLICY)
        memory_bytes, told_s = psutil.Process().memory_info().rss, begun_s
        try:
            while (now_s := time.monotonic()) < begun_s + seconds:
                chaos.round()
                if now_s > told_s + 30:
                    told_s = now_s
                    kills, restarts = chaos.kills.total(), chaos.restarts
                    print(f"{now_s - begun_s:.0f} s: {kills} kills, {restarts} restarts", flush=True)
        finally:
            chaos.tree.stop(timeout=PATIENCE_S)
    with tempfile.TemporaryDirectory(prefix="chat-") as name:
        few = RestartPolicy(max_restarts=3, backoff=0.0, restart="permanent")
        last = Chaos(Path(name), chance, few)
        try:
            last.give_up(3)
        finally:
            last.tree.stop(timeout=PATIENCE_S) if last.tree.is_alive() else None
    grown_bytes = psutil.Process().memory_info().rss - memory_bytes
    left = [*leaks._end_actors(actors), *leaks._end_processes(processes), *leaks._end_threads(threads)]
    left += leaks._await_fds(fds)
    check(not left, f"left behind: {left}")
    kills = ", ".join(f"{name} {chaos.kills[name]}" for name in NAMES)
    print(f"{chaos.kills.total()} kills ({kills}) in {chaos.rounds} rounds, {chaos.restarts} restarts, none lost")
    print(f"slowest return to work {chaos.slowest_s:.2f} s; memory grew by {grown_bytes / 1e6:.1f} MB; nothing is left")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos_tree", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="no round is begun after so long (default: 600)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of what is random")
    asked = parser.parse_args()
    logging.getLogger("pykka").addHandler(logging.NullHandler())
    logging.lastResort = None
    leaks.settle_down()  # what lives as long as this process is there before the first look
    faulthandler.enable()
    print(f"seed {asked.seed}", flush=True)
    try:
        run(asked.seconds, asked.seed)
    except BrokenError as found:
        print(f"BROKEN\n{found}", flush=True)
        return 1
    finally:
        forkserver._forkserver._stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
