"""A web service whose jobs are gangs: start one by POST, watch it by server-sent events, end it by DELETE.

    python examples/service_fastapi.py --port 8000

    curl -s localhost:8000/gangs --json '{"job": "primes", "ranks": 2, "below": 3000000}'
    curl -s localhost:8000/gangs
    curl -N localhost:8000/gangs/1/events
    curl -s -X DELETE localhost:8000/gangs/1

A job is a task that stays in the block of its gang. The cancellation of the task closes the gang politely, and a second
one kills it: this is what DELETE does, and what a signal to the service does to all jobs. It needs fastapi and uvicorn.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from supervise import GangFinished, RunProcsResult, SuperviseError, aio, notify

if TYPE_CHECKING:
    from fastapi import FastAPI

# fastapi and uvicorn are imported in functions: each rank imports this file, and needs neither


def primes(rank: int, ranks: int, below: int) -> int:
    """Count the primes of one rank's share of the numbers, and report the progress: what a rank runs."""
    if below < 1:
        raise ValueError(f"no number is below {below}")
    found = 0
    for step, number in enumerate(range(rank, below, ranks)):
        found += number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        if step % 1000 == 0:
            notify(ready=step == 0, step=step, status=f"{found} primes below {number}")
    return found


JOBS: dict[str, Callable[..., Any]] = {"primes": primes}
"""What the service may run. A service that runs whatever its clients send is a security hole."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A gang, and the task that stays in its block."""

    gang: aio.Gang
    task: asyncio.Task[None]
    entered: asyncio.Event


class Refused(Exception):  # noqa: N818 - an answer to a client
    """What the service does not do, with the status code of its answer."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Jobs:
    """The jobs of the service, by number."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.closing = False
        self.found: dict[int, Job] = {}
        self._numbers = itertools.count(1)

    def find(self, number: int) -> Job:
        """Return a job."""
        if number not in self.found:
            raise Refused(404, f"no gang has the number {number}")
        return self.found[number]

    async def start(self, name: str, ranks: int, below: int) -> int:
        """Start a gang, and return its number when its ranks are ready."""
        if self.closing:
            raise Refused(503, "the service is closing")
        if name not in JOBS:
            raise Refused(422, f"job is {name!r}; it is one of {', '.join(JOBS)}")
        args = {rank: (rank, ranks, below) for rank in range(ranks)}
        gang = aio.Gang(name=name, entrypoint=JOBS[name], args=args, ready="notify", grace=self.grace_s)
        entered, number = asyncio.Event(), next(self._numbers)
        task = asyncio.create_task(stay(gang, entered))
        self.found[number] = Job(gang, task, entered)
        starting = asyncio.create_task(entered.wait())
        await asyncio.wait((starting, task), return_when=asyncio.FIRST_COMPLETED)
        if not entered.is_set():
            starting.cancel()
            self.found.pop(number, None)
            if task.cancelled():
                raise Refused(503, "the gang was canceled before it had started")
            task.result()  # raises why it did not start
        return number

    async def end(self, number: int) -> Job:
        """Cancel a job, wait until nothing of it is left, and forget it. A second call meanwhile kills it."""
        job = self.find(number)
        job.task.cancel()
        await asyncio.wait((job.task,))
        self.found.pop(number, None)
        return job

    def cancel(self) -> None:
        """Cancel every job: its gang closes politely. At a second call, it is killed."""
        self.closing = True
        for job in self.found.values():
            job.task.cancel()

    async def close(self) -> None:
        """Cancel every job, unless that was done, and wait until no gang is left."""
        if not self.closing:
            self.cancel()
        if self.found:
            await asyncio.wait([job.task for job in self.found.values()])


async def stay(gang: aio.Gang, entered: asyncio.Event) -> None:
    """Run a gang from its start to its end."""
    async with gang:
        entered.set()
        await gang.wait()


async def describe(number: int, job: Job) -> dict[str, Any]:
    """Return what a client may know of a job."""
    about = {"id": number, "job": job.gang.name}
    if not job.entered.is_set():
        return {**about, "state": "starting"}
    if job.task.done():
        return {**about, **summary(await job.gang.wait())}
    status = await job.gang.status()
    ranks = {rank: {"pid": one.pid, "state": one.state, "status": one.status} for rank, one in status.ranks.items()}
    return {**about, "state": status.phase, "ranks": ranks}


def summary(result: RunProcsResult) -> dict[str, Any]:
    """Return what a client may know of a result."""
    why = {rank: f"exit code {failure.exitcode}" for rank, failure in result.failures.items()}
    return {"state": result.outcome, "values": result.return_values, "failures": why, "root_cause": result.root_cause}


async def stream(gang: aio.Gang) -> AsyncIterator[str]:
    """Yield the events of a gang as server-sent events. A client that leaves cancels this, which ends the iteration."""
    async with gang.events() as events:
        async for event in events:
            if isinstance(event, GangFinished):
                about = summary(event.result) if event.result else {"error": str(event.error)}
            else:
                about = dataclasses.asdict(event)
            yield f"event: {type(event).__name__}\ndata: {json.dumps(about, default=str)}\n\n"


def make_app(jobs: Jobs) -> "FastAPI":
    """Return the application."""
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse, StreamingResponse
    from pydantic import BaseModel, Field

    class Order(BaseModel):
        """What a client sends to start a gang."""

        job: str
        ranks: int = Field(2, ge=1, le=64)
        below: int = 100_000

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await jobs.close()

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=getattr(error, "code", 422))

    app = FastAPI(title="gangs", lifespan=lifespan)
    for kind in (Refused, OSError, SuperviseError):
        app.add_exception_handler(kind, refuse)

    @app.post("/gangs", status_code=201)
    async def start(order: Order) -> dict[str, Any]:
        number = await jobs.start(order.job, order.ranks, order.below)
        return await describe(number, jobs.find(number))

    @app.get("/gangs")
    async def every() -> list[dict[str, Any]]:
        return [await describe(number, job) for number, job in list(jobs.found.items())]

    @app.get("/gangs/{number}")
    async def one(number: int) -> dict[str, Any]:
        return await describe(number, jobs.find(number))

    @app.get("/gangs/{number}/events")
    async def events(number: int) -> StreamingResponse:
        return StreamingResponse(stream(jobs.find(number).gang), media_type="text/event-stream")

    @app.delete("/gangs/{number}")
    async def end(number: int) -> dict[str, Any]:
        return await describe(number, await jobs.end(number))

    return app


def serve(host: str, port: int, grace_s: float) -> None:
    """Serve until a signal. SIGTERM or Ctrl-C closes all gangs, a second one kills them."""
    import uvicorn

    jobs = Jobs(grace_s)

    class Server(uvicorn.Server):
        """Cancels the jobs at a signal, so that their event streams end: uvicorn waits for these before its exit."""

        def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
            asyncio.get_running_loop().call_soon_threadsafe(jobs.cancel)
            super().handle_exit(sig, frame)

    Server(uvicorn.Config(make_app(jobs), host=host, port=port)).run()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one, which the log names")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds from SIGTERM to SIGKILL of the ranks")
    given = parser.parse_args()
    serve(given.host, given.port, given.grace)


if __name__ == "__main__":
    main()
