"""An actor's event of its end: its condition is made for the first waiter, perhaps while the actor ends."""

import threading

import pytest

from supervise._runtime.actor import _Stopped
from tests.patience import PATIENCE_S


def test_who_begins_to_wait_in_the_middle_of_the_end_is_woken():
    """The end has found no waiter by then, so the flag must be set before."""
    waits = []

    class Late(_Stopped):
        def __getattr__(self, name):  # the look for waiters, of which there are none
            if not waits:
                waits.append(threading.Thread(target=self.wait, args=(PATIENCE_S,), daemon=True))
                waits[0].start()
                waits[0].join(0.5)
            raise AttributeError(name)

    Late().set()
    assert len(waits) == 1
    waits[0].join(PATIENCE_S / 5)
    assert not waits[0].is_alive()


def test_who_waits_before_the_end_is_woken():
    stopped, woken = _Stopped(), []
    wait = threading.Thread(target=lambda: woken.append(stopped.wait(PATIENCE_S)))
    wait.start()
    while "_waiters" not in vars(stopped) or not stopped._cond._waiters:
        assert wait.is_alive()
    stopped.set()
    wait.join(PATIENCE_S / 5)
    assert woken == [True]


@pytest.mark.parametrize("waited", [False, True])
def test_a_wait_ends_with_its_timeout_or_at_once(waited):
    stopped = _Stopped()
    if waited:
        assert not stopped.wait(0.01)
    assert not stopped.is_set()
    stopped.set()
    assert stopped.is_set()
    assert stopped.wait(0)
