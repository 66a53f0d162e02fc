"""The core that is being rewritten decides as the old one did: same histories, same actions, same result."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.model.neutral import Neutral, Spec
from tests.model.planted import PLANTED as BROKEN
from tests.model.search import search
from tests.model.test_model import SETTINGS
from tests.oracle.histories import Attempt, Mailbox
from tests.oracle.old import OldCore
from tests.oracle.plans import random_plans
from tests.oracle.planted import PLANTED as DIFFERENT
from tests.oracle.recorded import recorded
from tests.oracle.twins import Twins, compare, compare_along, difference

pytestmark = pytest.mark.timeout(240)  # it computes for seconds, and machines are busy

QUICK = ("two ranks, one after the other",)
"""Settings of the model whose transitions are compared in the default run; the others are stress tests."""

SEED, MANY = 7, 800
"""The random histories that every run compares."""


@st.composite
def plans(draw):
    """Draw plans; most histories are short, some have hundreds of events and dozens of restarts."""
    policy = st.tuples(st.integers(0, 50), st.sampled_from([None, 1e-8, 1e-6]), st.sampled_from([1.0, 0.0]))
    nprocs = draw(st.integers(1, 8))
    spec = Spec(
        nprocs=nprocs,
        grace_s=draw(st.sampled_from([5.0, 0.0])),
        window=draw(st.integers(1, nprocs)),
        stop_on_failure=draw(st.sampled_from([True, True, False])),
        policy=draw(st.none() | policy),
    )
    least = draw(st.sampled_from([0, 40, 200]))
    return Attempt(
        spec,
        draw(st.lists(st.integers(0, 2**20), min_size=least, max_size=600)),
        tails=draw(st.integers(0, 2)),
        values=draw(st.booleans()),
        calm=draw(st.sampled_from([0, 40, 1_000])),
    )


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate),  # `compare_along` has a faster way to shrink
)
@given(plans())
def test_any_history_has_the_same_answers(plan):
    """Up to eight ranks and hundreds of events, in any order that the mailbox allows."""
    compare_along(plan)


def test_fixed_histories_have_the_same_answers():
    """A difference that was found once is found in every run."""
    for plan in random_plans(SEED, MANY):
        compare_along(plan)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.stress) for name in SETTINGS]
)
def test_every_transition_of_the_model_has_the_same_answers(name):
    """Both cores make every transition that the model checker explores."""
    found = search(SETTINGS[name], new=Twins)
    assert not found.broken, f"{found.broken}\nby: {', '.join(found.path)}"


def test_recorded_histories_have_the_same_answers():
    """Histories of the tests of the core and of real gangs."""
    histories = recorded()
    assert len(histories) > 200
    for history in histories:
        compare(history.spec, history.events)


# Proof that these tests can fail


@pytest.mark.parametrize("bug", [*DIFFERENT, *BROKEN], ids=lambda bug: bug.__name__)
def test_a_planted_difference_is_found(bug):
    """A bug planted in the live core only."""
    with bug():
        assert any(map(difference, random_plans(SEED, MANY)))


@pytest.mark.parametrize("bug", DIFFERENT, ids=lambda bug: bug.__name__)
def test_a_planted_difference_is_found_among_the_transitions_of_the_model(bug):
    """The invariants of the model find only one of these."""
    with bug():
        assert "old core: " in search(SETTINGS["one rank"], new=Twins).broken


@pytest.mark.parametrize("bug", DIFFERENT, ids=lambda bug: bug.__name__)
def test_a_difference_is_shown_by_a_short_history_and_both_answers(bug):
    """One event a line, and no more of them than it takes."""
    with bug():
        plan = next(filter(difference, random_plans(SEED, MANY)))
        with pytest.raises(AssertionError) as raised:
            compare_along(plan)
    lines = str(raised.value).splitlines()
    print("\n".join(lines))
    assert lines[0] == "the cores differ:"
    assert len(lines) <= 20
    assert any(line.startswith("    old core: ") for line in lines)
    assert any(line.startswith("    new core: ") for line in lines)


def test_histories_have_every_event_and_lead_to_every_action():
    """The histories cover every event and every action of the core."""
    heard, wanted, restarts = set(), set(), 0

    class Listening(OldCore):
        def feed(self, event: Neutral) -> list[Neutral]:
            actions = super().feed(event)
            heard.add(event.name)
            wanted.update(action.name for action in actions)
            return actions

    for plan in random_plans(SEED, MANY):
        core = Listening(plan.spec)
        Mailbox(plan, core).run()
        restarts = max(restarts, core.status()["attempt"])
    core = Path(__file__).parent / "core"
    events = {pattern.cls.attr for pattern in ast.walk(ast.parse((core / "decide.py").read_text())) if is_case(pattern)}
    actions = ast.parse((core / "state.py").read_text()).body[-1].value
    assert heard == {*events, "TailsMade", "ValuesLoaded"}
    assert wanted == {name.id for name in ast.walk(actions) if isinstance(name, ast.Name)}
    assert restarts > 10


def is_case(node):
    return isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Attribute)


def test_the_old_core_imports_nothing_of_the_package():
    """So that no change of the package changes its answers."""
    look = "import sys, tests.oracle.old; print([name for name in sys.modules if name.split('.')[0] == 'supervise'])"
    root = Path(__file__).parents[2]
    assert subprocess.check_output([sys.executable, "-c", look], cwd=root, text=True, timeout=50) == "[]\n"
