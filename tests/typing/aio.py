"""Only ever type-checked: the calls that users of asyncio write, with the types they may rely on."""

from __future__ import annotations

import signal

from supervise import GangFinished, GangStatus, RankStacks, RestartPolicy, RunProcsResult, WorkerExited, aio


def work(number: int) -> int:
    """Stand for a function of an application."""
    return number


async def gang() -> None:
    """Every verb, with its type."""
    async with aio.Gang(
        name="work", entrypoint=work, args={0: (1,)}, restart_policy=RestartPolicy(uncounted_exit_codes={75})
    ) as gang:
        result: RunProcsResult = await gang.wait()
        closed: RunProcsResult = await gang.close(5.0, death_sig=signal.SIGINT)
        pids: dict[int, int] = await gang.pids()
        status: GangStatus = await gang.status()
        signaled: frozenset[int] = await gang.signal(signal.SIGUSR1, [0])
        restarted: dict[int, int] = await gang.restart_ranks({0})
        terminated: dict[int, int] = await gang.terminate_ranks(range(1))
        stacks: dict[int, RankStacks] = await gang.stacks()
    print(result, closed, pids, status, signaled, restarted, terminated, stacks)


async def events(gang: aio.Gang) -> RunProcsResult | None:
    """The events are told apart by their classes."""
    async with gang.events(buffer_size=10) as events:
        async for event in events:
            match event:
                case WorkerExited(local_rank=rank, exitcode=code):
                    print(rank + 1, code)
                case aio.EventsDropped(count=count):
                    print(count + 1)
                case GangFinished(result=result):
                    return result
                case _:
                    print(event)
    return None


def refused() -> None:
    """Wrong keywords and values."""
    aio.Gang(name="work", entrypiont=work, args={0: (1,)})  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    aio.Gang(name="work", entrypoint="true", args={0: ()}, grace="5")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    aio.Gang(entrypoint="true", args={0: ()})  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    aio.Gang("work")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
