"""The state machine: gangs of real processes, and everything that can be asked of them or done to them, in any order.

What it decides depends on what was drawn and never on what it sees, so that a seed always makes the same plan.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pykka
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervise import (
    Close,
    GangStarted,
    Pids,
    Poll,
    RestartRanks,
    Signal,
    Start,
    Status,
    Subscribe,
    TerminateRanks,
    Unsubscribe,
    Wait,
)
from tests import conftest as leaks
from tests.chaos import case as cases, invariants, places
from tests.chaos.case import Case, settle
from tests.chaos.shapes import Spec, specs

MAX_GANGS = 3
SIGNALS = (signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
NONSENSE = ("nonsense", None, 7, {"command": "stop"}, GangStarted(pids={}), object)


def _stack(case: Case) -> str:
    """Where the thread of a gang is."""
    found = [thread for thread in threading.enumerate() if thread.name == f"supervise-{case.name}"]
    frames = sys._current_frames()
    return "".join("".join(traceback.format_stack(frames[thread.ident])) for thread in found if thread.ident in frames)


class BrokenError(AssertionError):
    """An invariant does not hold; says which, and what was done."""


class Tally:
    """What a run of machines did."""

    def __init__(self) -> None:
        self.machines = self.steps = self.gangs = 0
        self.broken: BrokenError | None = None
        self.shrinking = False


class Chaos(RuleBasedStateMachine):
    """Up to `MAX_GANGS` gangs at once; at the end all are closed, and nothing may be left."""

    tally = Tally()

    def __init__(self) -> None:
        super().__init__()
        if self.tally.broken is not None and not self.tally.shrinking:
            raise self.tally.broken  # hypothesis only wants to see it again
        self.tally.machines += 1
        self.journal: list[str] = []
        self.cases: list[Case] = []
        self.wrong: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        leaks._keep_fork_server()
        leaks.STARTED_HERE.clear()
        self.before = leaks._descendants(), set(threading.enumerate()), leaks._open_fds(), set(leaks._actors())

    def note(self, number: int | None, what: str) -> Case:
        """Write down a step; return the gang it is for."""
        self.tally.steps += 1
        case = self.cases[(number or 0) % len(self.cases)] if self.cases else None
        self.journal.append(f"{case.name if case and number is not None else 'host'}: {what}")
        return case  # type: ignore[return-value]

    def _make(self, spec: Spec) -> Case:
        self.tally.gangs += 1
        case = Case(spec, self.folder / f"{len(self.cases)}", f"gang{len(self.cases)}_")
        self.cases.append(case)
        self.note(len(self.cases) - 1, f"new {spec}")
        try:
            case.make()
        except OSError:
            self.cases.pop()
            if spec.logs != "full disk":
                raise
            case.console.close()
            shutil.rmtree(case.folder)
            return self._make(replace(spec, logs="files"))  # an earlier gang has left no room for the folders
        return case

    # A gang begins

    @initialize(spec=specs(), how=st.sampled_from(("wait", "ask", "rob", "close at once")))
    def first(self, spec: Spec, how: str) -> None:
        self.new_gang(spec, how)

    @precondition(lambda self: len(self.cases) < MAX_GANGS)
    @rule(spec=specs(), how=st.sampled_from(("wait", "ask", "rob", "close at once", "never")))
    def new_gang(self, spec: Spec, how: str) -> None:
        case = self._make(spec)
        self.note(self.cases.index(case), f"Start, {how}")
        if how == "never":
            return
        asked = case.ask(Start())
        if how == "close at once":
            case.ask(Close())
        elif how in ("wait", "rob"):
            self.answered(case, asked)
        if how == "rob":
            self.rob(self.cases.index(case))

    @precondition(lambda self: len(self.cases) < MAX_GANGS)
    @rule(spec=specs(), spare=st.integers(0, 40))
    def start_with_few_descriptors(self, spec: Spec, spare: int) -> None:
        case = self._make(spec)
        for each in self.cases:
            each.cramped = True
        self.note(len(self.cases) - 1, f"Start with {spare} descriptors left")
        with places.few_descriptors(spare):
            settle(case.ask(Start()))

    @precondition(lambda self: len(self.cases) < MAX_GANGS)
    @rule(spec=specs())
    def start_without_threads(self, spec: Spec) -> None:
        case = self._make(spec)
        for each in self.cases:
            each.cramped = True
        self.note(len(self.cases) - 1, "Start and 0.1 s, while no thread is to be had")
        with places.no_threads():
            self.answered(case, case.ask(Start()))
            self.answered(case, case.ask(Wait(timeout=0.1)))

    @precondition(lambda self: len(self.cases) < MAX_GANGS)
    @rule(spec=specs())
    def start_beside_forks(self, spec: Spec) -> None:
        case = self._make(spec)
        self.note(len(self.cases) - 1, "Start, beside forks without pause")
        with places.forking():
            self.answered(case, case.ask(Start()))

    # Questions

    @rule(number=st.integers(0, 2), timeout=st.sampled_from((None, 0.0, 0.02, 3600.0)))
    def wait(self, number: int, timeout: float | None) -> None:
        self.note(number, f"Wait {timeout}").ask(Wait(timeout=timeout))

    @rule(number=st.integers(0, 2))
    def let_time_pass(self, number: int) -> None:
        case = self.note(number, "Wait 0.05 s for it")
        self.answered(case, case.ask(Wait(timeout=0.05)))

    @rule(number=st.integers(0, 2), message=st.sampled_from((Poll(), Status(), Pids(), Start())))
    def ask_now(self, number: int, message: object) -> None:
        case = self.note(number, f"{message}")
        asked = case.ask(message)
        if not isinstance(message, Start):
            self.answered(case, asked)

    def answered(self, case: Case, asked: Any) -> None:
        """Check that an answer comes at once, except that of a failed start whose ranks' output nobody reads."""
        spec = case.spec
        if isinstance(asked.message, Start) and (spec.ready, spec.console) == ("notify", "unread pipe"):
            return
        if isinstance(settle(asked), pykka.Timeout):
            self.wrong.append(f"{case.name}: {asked.what} was not answered at once; its thread: {_stack(case)}")

    @rule(
        number=st.integers(0, 2),
        sig=st.sampled_from(SIGNALS),
        ranks=st.none() | st.frozensets(st.integers(0, 6), max_size=3),
    )
    def signal_ranks(self, number: int, sig: signal.Signals, ranks: frozenset[int] | None) -> None:
        case = self.note(number, f"Signal {sig.name} to {ranks}")
        for rank in range(len(case.spec.ranks)) if ranks is None else ranks:
            if sig not in (signal.SIGSTOP, signal.SIGCONT):
                case.hurt.setdefault(rank, set()).add(sig)
        case.ask(Signal(sig=sig, ranks=ranks))

    @rule(
        number=st.integers(0, 2),
        kind=st.sampled_from((RestartRanks, RestartRanks, TerminateRanks)),
        ranks=st.frozensets(st.integers(0, 5), min_size=1, max_size=2),
    )
    def restart_or_terminate_ranks(
        self, number: int, kind: type[RestartRanks | TerminateRanks], ranks: frozenset[int]
    ) -> None:
        case = self.note(number, f"{kind.__name__} {sorted(ranks)}")
        case.ask(kind(frozenset(rank % (len(case.spec.ranks) + (rank == 5)) for rank in ranks)))

    @rule(number=st.integers(0, 2))
    def subscribe(self, number: int) -> None:
        self.note(number, "Subscribe").subscribe()

    @rule(number=st.integers(0, 2))
    def unsubscribe(self, number: int) -> None:
        case = self.note(number, "Unsubscribe")
        recorder, _ = case.recorders[-1]
        case.recorders[-1] = recorder, False
        case.ask(Unsubscribe(ref=recorder.ref))

    @rule(number=st.integers(0, 2))
    def a_subscriber_dies(self, number: int) -> None:
        case = self.note(number, "a subscriber dies")
        recorder, _ = case.recorders[-1]
        case.recorders[-1] = recorder, False
        recorder.ref.stop(block=False)
        case.ask(Subscribe(ref=recorder.ref))

    @rule(number=st.integers(0, 2), what=st.sampled_from(NONSENSE), asked=st.booleans())
    def nonsense(self, number: int, what: object, asked: bool) -> None:
        case = self.note(number, f"{'asked' if asked else 'told'} {what!r}")
        if asked:
            case.ask(what, "nonsense").message = "nonsense"
        else:
            with suppress(pykka.ActorDeadError):
                case.ref.tell(what)

    # The end

    @rule(
        number=st.integers(0, 2),
        sig=st.sampled_from((None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1)),
        timeout=st.sampled_from((None, 0.0, 0.1, 0.5)),
    )
    def close(self, number: int, sig: signal.Signals | None, timeout: float | None) -> None:
        self.note(number, f"Close {sig} {timeout}").ask(Close(death_sig=sig, timeout=timeout))

    @rule(number=st.integers(0, 2), how=st.sampled_from(("stop", "stop a member", "stop_all")))
    def stop(self, number: int, how: str) -> None:
        case = self.note(number, how)
        if how == "stop":
            case.stop()
        elif how == "stop_all":
            for each in self.cases:
                each.close_asked = each.stop_asked = True
                each.recorders = [(recorder, False) for recorder, _ in each.recorders]
            refs = pykka.ActorRegistry.get_all()
            case.in_thread(
                lambda: [ref.stop(timeout=cases.PATIENCE_S) for ref in reversed(refs)]
            )  # as pykka's stop_all
        else:
            members = [ref for ref in pykka.ActorRegistry.get_all() if ref.actor_class.__name__ in ("Worker", "Tail")]
            for each in self.cases:  # whose it is cannot be seen
                each.close_asked = each.close_asked or bool(members)
            for ref in members[:1]:
                with suppress(pykka.ActorDeadError):
                    ref.stop(block=False)

    # Violence

    @rule(number=st.integers(0, 2), rank=st.integers(0, 5), sig=st.sampled_from(SIGNALS), children=st.booleans())
    def attack(self, number: int, rank: int, sig: signal.Signals, children: bool) -> None:
        case = self.note(number, f"{sig.name} from outside to rank {rank}{' and its children' if children else ''}")
        case.attack(rank % len(case.spec.ranks), sig, children=children)

    @rule(number=st.integers(0, 2))
    def rob(self, number: int) -> None:
        case = self.note(number, "threads wait for its ranks")
        for rank in range(len(case.spec.ranks)):
            case.rob(rank)

    @rule()
    def fork_the_host(self) -> None:
        self.note(None, "forks")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(any(case.ref.is_alive() for case in self.cases))
        _, status = os.waitpid(pid, 0)
        if status:
            self.wrong.append("in a forked child an actor of the host seems to live")

    @invariant()
    def nothing_is_wrong_yet(self) -> None:
        if self.wrong:
            raise self._broken()

    # All is over

    def teardown(self) -> None:
        if not hasattr(self, "journal"):
            return
        for number, case in enumerate(self.cases):
            case.begin_end(("close", "stop", "kill")[number % 3] if case.start_asked else "close")
        for case in self.cases:
            self.wrong += [f"{case.name}: {what}" for what in case.finish_end()]
            bound_s = case.spec.grace * 2 + 7.0 + cases.PATIENCE_S / 2
            if time.monotonic() - case.ended_s > bound_s * len(self.cases):
                self.wrong.append(f"{case.name}: the end took {time.monotonic() - case.ended_s:.1f} s")
        for case in self.cases:
            case.close()
            self.wrong += [f"{case.name}: {what}" for what in invariants.violations(case)]
        processes, threads, fds, actors = self.before
        leaks.STARTED_HERE.clear()  # the ranks were looked at one by one; a number may be another process's by now
        self.wrong += [
            *leaks._end_actors(actors),
            *leaks._end_processes(processes),
            *leaks._end_threads(threads),
            *leaks._await_fds(fds),
        ]
        shutil.rmtree(self.folder, ignore_errors=True)
        places.empty_small_disk()
        if self.wrong and self.tally.broken is None:
            raise self._broken()

    def _broken(self) -> BrokenError:
        steps = "\n".join(f"  {step}" for step in self.journal)
        broken = BrokenError("\n".join(f"- {what}" for what in self.wrong) + f"\nwhat was done:\n{steps}")
        if not self.tally.shrinking:
            self.tally.broken = broken
        return broken
