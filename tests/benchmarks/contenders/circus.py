"""circus: its arbiter in our process, a watcher for each command line, no respawning."""

from __future__ import annotations

import importlib
import logging
import shlex
import tempfile
from typing import TYPE_CHECKING, Any

from tests.benchmarks.job import Gang, Job, Unsupported
from tests.benchmarks.work import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping


class Circus:
    """`circus.get_arbiter`, as it is."""

    imports = "from circus import get_arbiter"
    needs = ("circus", "tornado")

    def gang(self, job: Job) -> Gang:
        """Return a gang of programs."""
        job.without_tee()
        job.program  # noqa: B018 - refuses functions
        return _Watched(job)


class _Watched:
    def __init__(self, job: Job) -> None:
        logging.getLogger("circus").setLevel(logging.ERROR)
        circus: Any = importlib.import_module("circus")
        asyncio: Any = importlib.import_module("tornado.ioloop")
        self._job = job
        self._left = job.nprocs
        self._stopping = False
        self._loop: Any = asyncio.IOLoop()
        folder = tempfile.mkdtemp(prefix="circus-")
        self._arbiter: Any = circus.get_arbiter(
            self._watchers(),
            controller=f"ipc://{folder}/controller",
            pubsub_endpoint=f"ipc://{folder}/events",
            loop=self._loop,
        )

    def _watchers(self) -> list[dict[str, Any]]:
        ranks_of: dict[str, int] = {}
        for rank in self._job.args:
            line = shlex.join(command_line(self._job, rank))
            ranks_of[line] = ranks_of.get(line, 0) + 1
        return [
            {
                "name": f"watcher{number}",
                "cmd": line,
                "numprocesses": count,
                "respawn": False,
                "copy_env": True,
                "hooks": {"after_reap": (self._reaped, False)},
            }
            for number, (line, count) in enumerate(ranks_of.items())
        ]

    def _reaped(self, *_: object, exit_code: int = 0, **__: object) -> bool:
        self._left -= 1
        if exit_code and not self._stopping:
            self._stopping = True
            self._loop.add_callback(self._stop)
        elif not self._left and not self._stopping:
            self._loop.add_callback(self._loop.stop)
        return True

    async def _stop(self) -> None:
        await self._arbiter.stop()
        self._loop.stop()

    def start(self) -> list[int]:
        self._loop.run_sync(self._arbiter.start)
        return [pid for watcher in self._arbiter.watchers for pid in watcher.processes]

    def wait(self, timeout_s: float | None = None) -> Mapping[int, Any] | None:
        if timeout_s is not None:
            raise Unsupported("its loop has no timeout")
        self._loop.start()
        return dict.fromkeys(range(self._job.nprocs))

    def close(self, grace_s: float = 30.0) -> None:
        self._stopping = True
        for watcher in self._arbiter.watchers:
            watcher.graceful_timeout = grace_s
        self._loop.run_sync(self._arbiter.stop)

    def discard(self) -> None:
        if not self._stopping:
            self.close()
        self._loop.close()
