"""How an attempt of a gang concludes: values read, leftovers swept, the result published or the attempt repeated."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervise import messages as say
from supervise._core import steps
from supervise._core.verdict import judge
from supervise._gang.escapees import Sweep
from supervise._gang.ranks import RankActors
from supervise._gang.results import build_result, start_error
from supervise._gang.shutdown import DepartingActor
from supervise.errors import SpawnError, SuperviseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervise._core.verdict import Verdict
    from supervise.result import RunProcsResult

_LEAST_SWEEP_S = 1.0
"""What has left the groups is given at the least, from SIGTERM to SIGKILL, though the groups took all of the grace."""


class ConcludingActor(DepartingActor):
    """An actor whose gang has ended does with it what the core says."""

    _values: dict[int, Any]
    _failed: RunProcsResult | None = None
    """Of the attempt before this one."""

    def _guarded(self, act: Callable[..., object], *args: Any) -> None:
        """Call what comes from a timer or a post, where no envelope's guard stands around it."""
        try:
            act(*args)
        except BaseException as error:
            self.on_crash(error)

    def _loaded(self, values: dict[int, Any], problems: dict[int, str]) -> None:
        """The return values have been read, off the loop."""
        self._values = values
        self._step(steps.ValuesLoaded(complaints=problems))

    def _sweep_up(self, timeout_s: float) -> None:
        """Look for what has left the groups; where it would only be told, only if somebody listens."""
        contained = self._plan.contained
        if contained is None or not (contained.ends or self._report.listens()):
            self.loop.post(self._guarded, self._step, say.Swept())
            return
        grace = self._timers.get((None, "grace"))
        if grace is not None:  # the groups were given the same time: what is left of it, and a moment to end politely
            timeout_s = min(timeout_s, max(grace.due_s - time.monotonic(), _LEAST_SWEEP_S))
        stuck = [found.pid for found in self._gang.unkillable.values()]
        self._sweep = Sweep(self.loop, contained, end=contained.ends, timeout_s=timeout_s, skip=stuck, done=self._swept)
        self._sweep.begin()

    def _swept(self, found: say.Swept) -> None:
        self._sweep = None
        if self._plan.contained is not None:
            self._plan.contained.close()
        self._guarded(self._step, found)

    # Restarts

    def _announce_restart(self, delay_s: float) -> None:
        """This attempt has failed and nothing of it is left: say so, and wait a little before the next."""
        import random

        policy = self._plan.spec.restart_policy
        assert policy is not None  # noqa: S101 - else nothing is announced
        delay_s *= random.uniform(0.75, 1.25)  # noqa: S311 - so that many machines do not start at once
        attempt = self._gang.attempt + 1
        verdict = judge(self._gang)
        self._failed = result = self._result(verdict)
        self._report.restarting(result, verdict, attempt, policy.max_restarts, delay_s)
        self._subscribers.tell(
            say.GangRestarting(attempt=attempt, max_restarts=policy.max_restarts, delay_s=delay_s, result=result)
        )
        self._set_timer(steps.SetTimer(name="backoff", delay_s=delay_s))

    def _assemble(self) -> None:
        """Make the next attempt's plan, files and actors; what is known of the ranks is known anew."""
        for name in ("grace", "kill", "drain"):
            if (None, name) in self._timers:
                self._timers.pop((None, name)).cancel()
        self._ranks.dismiss()
        self._values = {}
        try:
            self._plan = self._plan.again(self._gang.attempt)
            self._subscribers.begin_anew()
            self._report.begin_anew(self._plan)
            self._ranks = RankActors(self._plan, self.loop, self.actor_ref, self._report)
            self._step(self._ranks.assemble())
        except (OSError, SuperviseError) as error:
            self._replies.error = error
            self.loop.post(self._guarded, self._step, steps.NotAssembled())
        else:
            self.loop.post(self._guarded, self._step, steps.Assembled())

    def _remember_failed(self, error: BaseException) -> None:
        """Have an error that ends a restart tell what had failed before."""
        if self._failed is not None:
            error.add_note(f"{self._plan.spec.name} had failed, and attempt {self._gang.attempt} could not be started")
            error.previous_result = self._failed  # type: ignore[attr-defined]

    # The result

    def _result(self, verdict: Verdict) -> RunProcsResult:
        return build_result(self._gang, verdict, self._plan, self._values)

    def _publish(self) -> None:
        for name in ("drain", "deadline", "backoff", "oom"):
            if (None, name) in self._timers:
                self._timers[None, name].cancel()
        self._suspend_poll.end()
        self._ranks.slots.close_outcomes()
        if self._replies.error is None and self._gang.start_failure is not None:
            self._replies.error = start_error(self._gang.start_failure)
        if self._replies.error is not None:
            self._remember_failed(self._replies.error)
            self._report.aborted(self._replies.error)
        else:
            verdict = judge(self._gang)
            self._replies.result = result = self._result(verdict)
            self._report.finished(result, verdict)
        early = SpawnError("the gang was closed before every rank ran", local_rank=self._gang.launched)
        self._replies.publish(early)
        self._subscribers.finish(say.GangFinished(result=self._replies.result, error=self._replies.error))
