"""The rules of the manual of OTP's supervisor that apply to a tree of actors, one test each."""

import re
from functools import partial
from pathlib import Path

import pykka
import pytest

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildRestarting,
    ChildSpec,
    ChildStarted,
    Down,
    RestartChild,
    RestartLimitExceeded,
    RestartPolicy,
    SpecError,
    Start,
    StartChild,
    Status,
    SuperviseError,
    TerminateChild,
    TreeFinished,
    Wait,
    monitor,
)
from tests.tree.actors import PATIENCE_S, Gate, Part, ref_of, settle, status_of


@pytest.fixture
def boom():
    return ValueError("on purpose")


def starts(*names):
    return [f"{name} starts" for name in names]


def stops(*names):
    return [f"{name} stops" for name in names]


def test_otp_children_start_from_left_to_right_and_terminate_from_right_to_left(parts, grow):
    tree = grow(*map(parts.spec, "abc"))
    parts.says(*starts("a", "b", "c"))
    tree.stop(timeout=PATIENCE_S)
    parts.says(*stops("c", "b", "a"))


def test_otp_a_start_waits_until_the_child_before_has_started(parts, grow):
    gate = Gate()
    tree = grow(parts.slow("a", gate), parts.spec("b"), wait=False)
    assert gate.reached.wait(PATIENCE_S)
    assert status_of(tree, "b").state == "waiting"
    gate.open()
    parts.says(*starts("a", "b"))


def test_otp_one_for_one_restarts_only_the_child_that_has_terminated(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "abc"), strategy="one_for_one")
    others = ref_of(tree, "a"), ref_of(tree, "c")
    ref_of(tree, "b").tell(boom)
    assert ear.until(ChildRestarting).ids == ("b",)
    ear.until(ChildStarted, id="b")
    parts.says(*starts("a", "b", "c", "b"))
    assert others == (ref_of(tree, "a"), ref_of(tree, "c"))


def test_otp_one_for_all_terminates_all_others_and_restarts_all(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "abc"), strategy="one_for_all")
    ref_of(tree, "b").tell(boom)
    assert ear.until(ChildRestarting).ids == ("a", "b", "c")
    ear.until(ChildStarted, id="c")
    parts.says(*starts("a", "b", "c"), *stops("c", "a"), *starts("a", "b", "c"))


def test_otp_rest_for_one_terminates_and_restarts_those_that_were_started_after(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "abcd"), strategy="rest_for_one")
    ref_of(tree, "b").tell(boom)
    assert ear.until(ChildRestarting).ids == ("b", "c", "d")
    ear.until(ChildStarted, id="d")
    parts.says(*starts("a", "b", "c", "d"), *stops("d", "c"), *starts("b", "c", "d"))


def test_otp_a_permanent_child_is_always_restarted(parts, grow, ear, boom):
    tree = grow(parts.spec("a", restart="permanent"))
    ref_of(tree, "a").stop(timeout=PATIENCE_S)
    assert ear.until(ChildDown).normal
    ear.until(ChildStarted)
    ref_of(tree, "a").tell(boom)
    assert not ear.until(ChildDown).normal
    ear.until(ChildStarted)
    assert status_of(tree, "a").restarts == 2


def test_otp_a_transient_child_is_restarted_only_if_it_terminates_abnormally(parts, grow, ear, boom):
    tree = grow(parts.spec("a", restart="transient"))
    ref_of(tree, "a").tell(boom)
    assert ear.until(ChildDown) == ChildDown(id="a", reason=boom, normal=False)
    ear.until(ChildStarted)
    ref_of(tree, "a").stop(timeout=PATIENCE_S)
    assert ear.until(ChildDown) == ChildDown(id="a", reason=None, normal=True)
    settle(tree)
    assert status_of(tree, "a").state == "finished"
    parts.says(*starts("a", "a"), *stops("a"))


def test_otp_a_temporary_child_is_never_restarted(parts, grow, ear, boom):
    """Not even when a sibling's failure has stopped it; its spec is deleted."""
    tree = grow(parts.spec("a"), parts.spec("b", restart="temporary"), parts.spec("c"), strategy="one_for_all")
    ref_of(tree, "a").tell(boom)
    assert ear.until(ChildRestarting).ids == ("a", "c")
    ear.until(ChildStarted, id="c")
    assert list(tree.ask(Status(), timeout=PATIENCE_S).children) == ["a", "c"]


def test_otp_the_failure_of_a_temporary_child_is_nobody_elses(parts, grow, ear, boom):
    tree = grow(parts.spec("a", restart="temporary"), parts.spec("b"), strategy="one_for_all")
    ref_of(tree, "a").tell(boom)
    ear.until(ChildDown, id="a")
    settle(tree)
    assert list(tree.ask(Status(), timeout=PATIENCE_S).children) == ["b"]
    parts.says(*starts("a", "b"))
    parts.is_silent()


def test_otp_a_restart_of_a_set_starts_the_finished_children_of_it(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "abc"), strategy="one_for_all")
    ref_of(tree, "b").stop(timeout=PATIENCE_S)
    ear.until(ChildDown, id="b")
    ref_of(tree, "a").tell(boom)
    assert ear.until(ChildRestarting).ids == ("a", "b", "c")
    ear.until(ChildStarted, id="c")


def test_otp_more_restarts_than_the_intensity_terminate_all_children_and_the_supervisor(parts, grow, ear, boom):
    tree = grow(*map(parts.spec, "ab"), strategy="one_for_one", restart_policy=RestartPolicy(max_restarts=1, backoff=0))
    waiting = tree.ask(Wait(), block=False)
    ref_of(tree, "b").tell(boom)
    ear.until(ChildStarted, id="b")
    ear.until(ChildStarted, id="b")
    ref_of(tree, "b").tell(boom)
    with pytest.raises(RestartLimitExceeded, match=r"'b' has failed, after 1 restart$") as caught:
        waiting.get(timeout=PATIENCE_S)
    assert caught.value.__cause__ is boom
    assert caught.value.child_id == "b"
    assert ear.until(TreeFinished).error is caught.value
    assert tree.actor_stopped.wait(PATIENCE_S)
    assert tree not in pykka.ActorRegistry.get_all()
    parts.says(*starts("a", "b", "b"), *stops("a"))


def test_otp_restarts_that_are_older_than_the_period_do_not_count(parts, grow, ear, boom):
    tree = grow(parts.spec("a"), restart_policy=RestartPolicy(max_restarts=1, within_s=1e-6, backoff=0.0))
    for _ in range(4):
        ear.until(ChildStarted)
        ref_of(tree, "a").tell(boom)
        assert ear.until(ChildRestarting).restarts == 1


def test_otp_a_supervisor_that_gives_up_is_restarted_by_the_one_above(parts, grow, ear, boom):
    """Ours differs: to a transient child's supervisor it is abnormal. OTP's `shutdown` is normal."""
    policy = RestartPolicy(max_restarts=0)
    sub = partial(ActorSupervisor.start, name="sub", restart_policy=policy, children=[parts.spec("x")])
    tree = grow(ChildSpec(id="sub", start=sub, restart="transient"))
    ref_of(ref_of(tree, "sub"), "x").tell(boom)
    down = ear.until(ChildDown)
    assert (down.id, type(down.reason), down.normal) == ("sub", RestartLimitExceeded, False)
    assert down.reason.__cause__ is boom
    ear.until(ChildStarted)
    parts.says(*starts("x", "x"))


def test_otp_a_child_that_cannot_be_started_terminates_those_before_it_and_the_supervisor(parts, ear, boom):
    gate = Gate()
    failing = ChildSpec(id="b", start=partial(Part.start, "b", parts.said, fails=boom))
    specs = [parts.slow("a", gate), failing, parts.spec("c")]
    tree = ActorSupervisor.start(name="tree", children=specs, restart_policy=RestartPolicy(max_restarts=9))
    monitor(tree, tell=ear.ref)
    gate.open()
    down = ear.until(Down)
    assert (str(down.reason), down.reason.__cause__) == ("tree: child 'b' could not be started", boom)
    parts.says(*starts("a"), *stops("a"))
    parts.is_silent()


def test_otp_a_start_function_that_raises_is_a_child_that_cannot_be_started(parts, grow, ear, boom):
    def fail():
        raise boom

    gate = Gate()
    tree = grow(parts.slow("a", gate), ChildSpec(id="b", start=fail), wait=False)
    starting = tree.ask(Start(), block=False)
    gate.open()
    with pytest.raises(SuperviseError, match="child 'b' could not be started") as caught:
        starting.get(timeout=PATIENCE_S)
    assert caught.value.__cause__ is boom
    assert ear.until(TreeFinished).error is caught.value
    parts.says(*starts("a"), *stops("a"))


def test_otp_a_start_function_may_say_that_there_is_nothing_to_start(parts, grow):
    """`ignore`: the spec is kept, unless the child is temporary."""
    ignored = [
        ChildSpec(id="b", start=lambda: None),
        ChildSpec(id="c", start=lambda: None, restart="temporary"),
    ]
    tree = grow(parts.spec("a"), *ignored, parts.spec("d"))
    children = tree.ask(Status(), timeout=PATIENCE_S).children
    assert {name: child.state for name, child in children.items()} == {"a": "ready", "b": "finished", "d": "ready"}
    assert tree.ask(RestartChild(id="b"), timeout=PATIENCE_S) is None


def test_otp_a_start_that_fails_in_a_restart_is_tried_again_and_counts(parts, grow, ear, boom):
    failing = iter([None, boom, boom, None])
    spec = ChildSpec(id="a", start=lambda: parts.start("a", fails=next(failing)))
    tree = grow(spec, restart_policy=RestartPolicy(max_restarts=3, backoff=0.0))
    ref_of(tree, "a").tell(boom)
    assert [ear.until(ChildRestarting).restarts for _ in range(3)] == [1, 2, 3]
    ear.until(ChildStarted)


def test_otp_start_child_adds_a_child_behind_all_others(parts, grow):
    tree = grow(parts.spec("a"))
    ref = tree.ask(StartChild(spec=parts.spec("b")), timeout=PATIENCE_S)
    assert ref == ref_of(tree, "b")
    tree.stop(timeout=PATIENCE_S)
    parts.says(*starts("a", "b"), *stops("b", "a"))


def test_otp_start_child_refuses_an_id_that_exists(parts, grow):
    tree = grow(parts.spec("a"))
    with pytest.raises(SpecError, match="there is a child 'a' already"):
        tree.ask(StartChild(spec=parts.spec("a")), timeout=PATIENCE_S)


def test_otp_start_child_discards_the_spec_of_a_child_that_cannot_be_started(parts, grow, boom):
    tree = grow(parts.spec("a"))
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            tree.ask(StartChild(spec=ChildSpec(id="b", start=lambda: parts.start("b", fails=boom))), timeout=PATIENCE_S)
    tree.ask(StartChild(spec=parts.spec("c")), timeout=PATIENCE_S)
    assert list(tree.ask(Status(), timeout=PATIENCE_S).children) == ["a", "c"]


def test_otp_terminate_child_keeps_the_spec_and_restart_child_starts_it(parts, grow):
    tree = grow(*map(parts.spec, "ab"))
    assert tree.ask(TerminateChild(id="a"), timeout=PATIENCE_S) is None
    assert status_of(tree, "a").state == "terminated"
    assert tree.ask(RestartChild(id="a"), timeout=PATIENCE_S) == ref_of(tree, "a")
    parts.says(*starts("a", "b"), *stops("a"), *starts("a"))


def test_otp_terminate_child_deletes_a_temporary_child(parts, grow):
    tree = grow(parts.spec("a", restart="temporary"))
    tree.ask(TerminateChild(id="a"), timeout=PATIENCE_S)
    with pytest.raises(SpecError, match="there is no child 'a'"):
        tree.ask(RestartChild(id="a"), timeout=PATIENCE_S)


@pytest.mark.parametrize("message", [TerminateChild, RestartChild])
def test_otp_an_unknown_id_is_refused(parts, grow, message):
    tree = grow(parts.spec("a"))
    with pytest.raises(SpecError, match="there is no child 'b'"):
        tree.ask(message(id="b"), timeout=PATIENCE_S)


def test_otp_restart_child_of_one_that_runs(parts, grow):
    """OTP refuses; ours stops it first, then starts it. No other child is affected, and nothing is counted."""
    tree = grow(*map(parts.spec, "abc"), strategy="one_for_all", restart_policy=RestartPolicy(max_restarts=0))
    tree.ask(RestartChild(id="b"), timeout=PATIENCE_S)
    parts.says(*starts("a", "b", "c"), *stops("b"), *starts("b"))
    assert tree.ask(Status(), timeout=PATIENCE_S).restarts_total == 0


def test_otp_a_terminated_child_stays_down_when_a_set_is_restarted(parts, grow, ear, boom):
    """OTP starts it with the set; ours waits for `RestartChild`."""
    tree = grow(*map(parts.spec, "abc"), strategy="one_for_all")
    tree.ask(TerminateChild(id="b"), timeout=PATIENCE_S)
    ref_of(tree, "a").tell(boom)
    assert ear.until(ChildRestarting).ids == ("a", "c")
    ear.until(ChildStarted, id="c")
    assert status_of(tree, "b").state == "terminated"


def test_otp_a_child_that_does_not_stop_in_time_is_abandoned(parts, grow, ear):
    """OTP kills it. A thread cannot be killed: it is named, not restarted, and its supervisor gives up."""
    gate = Gate()
    tree = grow(parts.spec("a"), parts.spec("b", shutdown_s=0.05))
    stuck, waiting = ref_of(tree, "b"), tree.ask(Wait(), block=False)
    stuck.tell(gate)
    assert gate.reached.wait(PATIENCE_S)
    tree.tell(RestartChild(id="b"))
    with pytest.raises(RestartLimitExceeded, match="'b' has not stopped in time; its thread was abandoned") as caught:
        waiting.get(timeout=PATIENCE_S)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert ear.until(ChildDown, id="b").reason is caught.value.__cause__
    assert tree.actor_stopped.wait(PATIENCE_S)
    parts.says(*starts("a", "b"), *stops("a"))
    gate.open()
    assert stuck.actor_stopped.wait(PATIENCE_S)
    parts.says(*stops("b"))


def test_otp_a_supervisor_has_as_long_as_it_takes_to_stop(parts, grow, ear):
    gate = Gate()

    class Slow(Part):
        def on_stop(self):
            gate()
            super().on_stop()

    inner = [ChildSpec(id="x", start=partial(Slow.start, "x", parts.said), shutdown_s=PATIENCE_S)]
    tree = grow(ChildSpec(id="sub", start=partial(ActorSupervisor.start, name="sub", children=inner)))
    stopping = tree.stop(block=False)
    assert gate.reached.wait(PATIENCE_S)
    assert status_of(tree, "sub").state == "stopping"
    gate.open()
    assert stopping.get(timeout=PATIENCE_S)
    assert ear.until(TreeFinished).error is None


def test_otp_a_supervisor_goes_on_when_all_its_children_have_finished(parts, grow, ear):
    """`auto_shutdown` is `never`."""
    tree = grow(parts.spec("a"))
    ref_of(tree, "a").stop(timeout=PATIENCE_S)
    ear.until(ChildDown)
    assert tree.ask(Wait(timeout=0.01), timeout=PATIENCE_S) is None
    assert tree.ask(RestartChild(id="a"), timeout=PATIENCE_S).is_alive()


def test_otp_a_backoff_doubles_with_each_restart_that_counts(parts, grow, ear, boom):
    """OTP has none."""
    tree = grow(parts.spec("a"), restart_policy=RestartPolicy(backoff=0.01))
    for delay_s in (0.01, 0.02, 0.04):
        ref_of(tree, "a").tell(boom)
        assert ear.until(ChildRestarting).delay_s == delay_s
        ear.until(ChildStarted)


def test_the_table_of_the_rules_names_every_test_here():
    """And no other; each rule has one."""
    page = (Path(__file__).parents[2] / "docs/explanation/strategies.md").read_text()
    (table,) = re.findall(r"^\| rule \| OTP \| ours .*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert [row for row in table.splitlines()[2:] if "`test_otp_" not in row] == []
    here = {name for name in globals() if name.startswith("test_otp_")}
    assert set(re.findall(r"`(test_otp_\w+)`", page)) == here
