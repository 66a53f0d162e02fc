"""Only ever type-checked: calls that mypy and pyright refuse. Both report an ignore comment that nothing needs."""

from __future__ import annotations

from supervise import Pids, RunProcsResult, Status, Supervisor, Wait, run, start_processes


def train(size: float, name: str) -> int:
    """Stand for a function of a rank."""
    return int(size) + len(name)


def misspelled(supervisor_args: dict[int, tuple[float, str]]) -> None:
    """Misspelled keywords."""
    Supervisor.start(name="a", entrypoint=train, args=supervisor_args, grase=5.0)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    start_processes("a", train, supervisor_args, grase=5.0)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    run(train, 2, (1.0, "a"), grase=5.0)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]


def of_another_type() -> None:
    """Arguments of another type."""
    Supervisor.start(name="a", entrypoint=train, args={0: (1.0, "a")}, grace="5")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Supervisor.start(name="a", strategy="all")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    run(train, 2, (1.0, 2))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    run(train, 2, (1.0,))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    run(train, args={0: ("a",)})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType, reportCallIssue]
    run(train)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]


def replies() -> None:
    """Replies of another type."""
    gang = Supervisor.start(name="a", entrypoint=train, args={0: (1.0, "a")})
    found = gang.ask(Pids())
    pids: dict[str, int] = found  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
    result: RunProcsResult = gang.ask(Wait(timeout=5))  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
    print(gang.ask(Status()).phases)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    values: list[str] = run(train, 2, (1.0, "a"))  # type: ignore[arg-type] # pyright: ignore[reportAssignmentType]
    del pids, result, values
