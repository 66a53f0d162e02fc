"""Only ever type-checked: the calls that users of trees write, with the types they may rely on."""

from __future__ import annotations

from functools import partial
from typing import assert_type

import pykka

from supervise import (
    ActorSupervisor,
    ChildDown,
    ChildSpec,
    Down,
    RestartLimitExceeded,
    RestartPolicy,
    StartChild,
    Status,
    Supervisor,
    TreeFinished,
    TreeRef,
    TreeStatus,
    Wait,
    monitor,
)


class Database(pykka.ThreadingActor):
    """Stand for an actor of an application."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


def tree() -> None:
    """A tree with an actor, a gang and a tree, as the documentation has it."""
    gang = partial(Supervisor.start, name="train", entrypoint="sleep", args={0: (1,)})
    sub = partial(ActorSupervisor.start, name="sub", children=[])
    ref: pykka.ActorRef[ActorSupervisor] = ActorSupervisor.start(
        name="app",
        strategy="rest_for_one",
        restart_policy=RestartPolicy(max_restarts=1, within_s=5.0, backoff=0.0, restart="permanent"),
        children=[
            ChildSpec(id="db", start=partial(Database.start, "db://local")),
            ChildSpec(id="train", start=gang, restart="transient", shutdown_s=30.0),
            ChildSpec(id="sub", start=sub),
            ChildSpec(id="nothing", start=lambda: None),
        ],
    )
    with ActorSupervisor.start(name="typed", children=[]) as typed:
        assert_type(typed, TreeRef)
        assert_type(typed.ask(Status()), TreeStatus)
        assert_type(typed.ask(Status(), block=False), pykka.Future[TreeStatus])
    status: TreeStatus = ref.ask(Status(), block=True)
    child: pykka.ActorRef[Database] | None = status.children["db"].ref
    added: pykka.ActorRef[Database] = ref.ask(StartChild(spec=ChildSpec(id="a", start=Database.start)), block=True)
    monitor(added, tell=ref)
    try:
        finished: TreeFinished | None = ref.ask(Wait(timeout=5), block=True)
    except RestartLimitExceeded as error:
        culprit: str = error.child_id
        del culprit
    else:
        del finished
    del child


def told(message: ChildDown | Down) -> str:
    """Both say why."""
    reason: BaseException | str | None = message.reason
    return "stopped" if message.normal else repr(reason)
