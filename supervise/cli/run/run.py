"""``supervise run``: start the gang, process its events on the main thread, and report the result."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, suppress
from signal import SIGCHLD, SIGKILL, SIGTSTP, SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise._control.server import ControlServer
from supervise._gang.rank_variables import Master
from supervise._second_signal import means_now
from supervise._story import failure_report
from supervise._story.wording import counted, shortened
from supervise._views.recorded_run import SOCKET
from supervise.cli.options.options import Options, title
from supervise.cli.run import program, reaping, settings
from supervise.cli.run.console import Console, as_text, library_log
from supervise.cli.run.directory import EventFile, Sampling, table, write_metrics, write_result
from supervise.cli.run.progress import OF_INTEREST, Progress, has_no_reader
from supervise.cli.run.rank_stdin import JobControl, RankStdin, reads_terminal
from supervise.cli.run.signal_inbox import SignalInbox
from supervise.cli.streams import complaint, is_of_a_file, refusal
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from supervise._gang.supervisor import Supervisor
    from supervise._runtime.future import Reply
    from supervise.result import RunProcsResult

    _Message = say.Close | dict[str, Any]
    """A stop by a command, or an event of the gang."""

_PASSED_ON = (SIGUSR1, SIGUSR2)
_INTERNAL = 1
_LEAVE_S = 10.0
_STATUS_S = 1.0
_CONTROL_END_S = 2.0
_NOT_ON_RAY = frozenset({"restart", "reload", "terminate", "stacks"})
"""Requests to the control socket that a gang on Ray does not accept."""
_STARTED = "supervise.gang.started"


def run(options: Options, *, own_process: bool = True) -> int:
    """Run a gang on the main thread and return the exit code.

    Args:
        options: The validated options.
        own_process: Whether this process only runs the command, so that signal handlers are not restored.
    """
    shared = options.straight_through or reads_terminal(options)
    console = Console(options.color, quiet=options.quiet, json=options.json_log, shared=shared)
    if signal.getsignal(SIGCHLD) == signal.SIG_IGN:  # inherited; the kernel would discard exit statuses
        signal.signal(SIGCHLD, signal.SIG_DFL)
    received = {*options.stopping_signals, *_PASSED_ON, SIGCHLD, SIGTSTP}
    inbox: SignalInbox[_Message]
    with library_log(console), SignalInbox(received, restore=not own_process) as inbox, ExitStack() as ends:
        ends.callback(console.finish)
        console.on_left = inbox.wake
        try:
            stdin = RankStdin(options, console.leave_note)
        except OSError as error:
            console.error(f"cannot start: {complaint(error)}")
            return _INTERNAL
        ends.callback(stdin.close, restore=not own_process)
        return _Run(options, console, inbox, stdin).main()


class _Run:
    """One run. All methods except `_event` are called on the main thread."""

    def __init__(self, options: Options, console: Console, inbox: SignalInbox[_Message], stdin: RankStdin) -> None:
        self._options = options
        self._console = console
        self._inbox = inbox
        self._progress = Progress(options, console, self._left_behind)
        self._story = self._progress.story
        self._stdin = stdin
        self._jobs = JobControl(stdin, console, self._ask)
        self._inherited = reaping.inherited() if reaping.is_needed() else None
        """The children that this process had before; None if orphans do not become its children."""
        self._events = EventFile()
        self._control: ControlServer | None = None
        self._sampling: Sampling | None = None
        self._run_id = options.run_id or f"{title(options)}-{os.urandom(4).hex()}"
        self._gang: pykka.ActorRef[Supervisor]
        self._master = Master("", "")
        self._to_pass_on: list[Signals] = []
        self._started = False
        self._stopped_s = 0.0
        self._shows_events = options.verbose or options.json_log
        self._threads: int | None = None
        """The threads to which the ranks are limited, until a message has said so; None without a limit."""

    def main(self) -> int:
        """Run the gang and return the exit code."""
        rank = 0
        for part in self._options.parts:
            try:
                program.command(part)
            except OSError as error:
                for text in self._options.notes:
                    self._console.note(text)
                text = program.not_started(error, self._progress.who(rank), part)
                return self._refuse(program.start_code(error), text)
            rank += part.count
        if self._options.dry_run:
            from supervise.cli.commands.check import dry_run

            return dry_run(self._options, self._run_id, self._console)
        try:
            try:
                self._prepare()
            except (OSError, ImportError, SuperviseError) as error:
                is_usage = is_of_a_file(error) or isinstance(error, SuperviseError)
                return self._refuse(program.USAGE if is_usage else _INTERNAL, refusal(error, self._options.log_dir))
            return self._supervise()
        finally:
            self._leave()

    def _refuse(self, code: int, text: str) -> int:
        """Print why no gang begins; return `code`, also as the metrics of the run: an alert must not see older ones."""
        self._console.error(text)
        if not self._options.dry_run:
            self._write_metrics(code, None)
        return code

    def _prepare(self) -> None:
        """Create the run directory and the Supervisor; start no process."""
        options = self._options
        start = settings.start_on_ray if options.engine == "ray" else settings.start_locally
        self._master = settings.choose_master(options.hosts)
        prefixes = {
            rank: self._console.prefix(options.prefix_of(rank), rank) if options.prefix else ""
            for rank in range(options.nproc)
        }
        envs = settings.environments(options, run_id=self._run_id, master=self._master)
        self._console.add_variables(envs, {rank: prefixes[rank] for rank in prefixes if options.shows(rank)})
        self._gang, directory = start(
            options,
            run_id=self._run_id,
            envs=envs,
            prefixes=prefixes,
            sink=self._event,
            console=self._console,
            stdin=self._stdin,
        )
        self._story.directory = directory
        if directory is None:
            return
        try:
            self._events.open(directory)
        except OSError as error:
            self._console.error(f"no events.jsonl: {complaint(error)}")
        try:
            self._events.write_info(options, run_id=self._run_id)
        except OSError as error:
            self._console.error(f"no command finds this run until run.json is written: {complaint(error)}")
        self._control = open_control(directory, self._gang, self._inbox, self._console, engine=options.engine)
        if options.engine == "local":
            self._sampling = Sampling(directory, options.nproc, self._ask, self._tell_threads)

    def _supervise(self) -> int:
        self._introduce()
        start: Reply[dict[int, int]] = self._ask(say.Start())
        end: Reply[RunProcsResult] = self._ask(say.Wait())
        while not end.done() and start.error() is None:
            self._take()
            if not self._started and start.done() and start.error() is None:
                self._started = True
                self._pass_on()
        if start.error() is None:
            self._progress.all_ended()
        options = self._options
        closed: Reply[RunProcsResult] = self._ask(say.Close())  # also ends the leftovers of finished ranks
        while not closed.done():
            self._take()
        self._sort(self._inbox.take(0))
        self._stdin.warn_if_dropped()
        self._console.clear()
        lost = end.error()
        if (stuck := closed.error()) is not None and stuck is not lost:
            self._console.error(complaint(stuck))
        if not end.done():  # the loop has crashed; otherwise the reply to Wait comes before the reply to Close
            return self._no_result(_INTERNAL, "the gang ended without a result")
        story = self._story
        stopped = lost is None and (
            story.user_signal is not None or story.halted or end.get(timeout=0).outcome == "timed_out"
        )
        if (failed := start.error()) is not None and not stopped:
            rank = self._progress.unstarted_rank
            who = "" if rank is None else self._progress.who(rank)
            text = program.not_started(failed, who, options.part_of(rank or 0))
            code = program.start_code(failed, self._story.directory)
            return self._no_result(code, text, program.unready(failed, self._story))
        return self._report(end.get(timeout=0)) if lost is None else self._no_result(_INTERNAL, complaint(lost))

    def _left_behind(self) -> bool:
        """Return whether processes remain in the groups of ranks that have ended."""
        status = self._status()
        return status is not None and bool(status.leftovers)

    def _status(self) -> say.GangStatus | None:
        with suppress(pykka.ActorDeadError, pykka.Timeout):
            # Not by `_ask`: the reply would wake the main thread, which shows the status line and asks again
            status: say.GangStatus = self._gang.ask(say.Status(), block=False).get(timeout=_STATUS_S)
            return status
        return None

    def _rank_pids(self) -> set[int] | None:
        """Return the pids of all ranks that were started until the call.

        The Supervisor is asked twice. If a rank is just being started at the first reply, its Worker has reported the
        rank by the second reply.
        """
        first, second = self._status(), self._status()
        return {*first.pids.values(), *second.pids.values()} if first is not None and second is not None else None

    def _ask(self, message: object) -> Any:
        """Send a message to the gang; return the reply, which wakes the main thread when it is set."""
        reply: Any = self._gang.ask(message, block=False)
        reply.add_done_callback(self._inbox.wake)
        return reply

    def _leave(self) -> None:
        with suppress(Exception):  # the gang has ended; if its actor does not stop in time, the exit handler ends it
            self._gang.stop(timeout=_LEAVE_S)
        if self._control is not None:
            self._control.close()
            self._control.join(_CONTROL_END_S)  # clients read their last answers
        if self._sampling is not None:
            self._sampling.close()
        self._events.close()
        self._master.release()

    # Events and signals

    def _event(self, event: dict[str, Any]) -> None:
        """Write an event to the file and pass it to the main thread. Runs on the gang's thread: must not block."""
        self._events.write(event)
        if self._options.nnodes > 1 and event.get("rank") is not None:
            event = {**event, "local_rank": event["rank"]}  # the messages name global ranks
        if self._shows_events or event["event"] in OF_INTEREST:
            self._inbox.put(event)

    def _take(self) -> None:
        """Wait for signals, events and replies, and process them."""
        self._progress.announce()  # before the wait: a stop that ends during the wait is not announced
        waits_s = [self._progress.wait_s(), self._sampling.wait_s() if self._sampling is not None else None]
        self._sort(self._inbox.take(min((each for each in waits_s if each is not None), default=None)))
        if self._sampling is not None:
            self._sampling.look()
        with suppress(OSError):
            self._events.write_pending()
        if self._inherited is not None:
            reaping.reap_strangers(self._rank_pids, self._inherited)
        self._console.show_left()

    def _sort(self, received: list[Signals | _Message]) -> None:
        # A Status makes the Supervisor check for suspended ranks. Send one at SIGCHLD, and one after the start for
        # ranks that were suspended during the start.
        if SIGCHLD in received or any(isinstance(item, dict) and item["event"] == _STARTED for item in received):
            with suppress(pykka.ActorDeadError):
                self._gang.tell(say.Status())
        for item in received:
            if isinstance(item, say.Close):
                self._stopped_s, self._jobs.stopping = time.monotonic(), True
                self._progress.command_stops(item.death_sig, item.timeout)
            elif isinstance(item, dict):
                self._process(item)
            elif item != SIGCHLD:
                self._signal(item, self._inbox.arrival_s(item))

    def _process(self, event: dict[str, Any]) -> None:
        if self._shows_events:
            self._console.show([json.dumps(event, default=str) if self._options.json_log else as_text(event)])
        if event["event"] not in OF_INTEREST or self._jobs.takes(event):
            return
        self._progress.take(event)
        if (sig := self._jobs.typed(event)) is not None and self._story.user_signal is None:
            self._story.interrupted = event["local_rank"]
            self._signal(sig, time.monotonic())
        halts = self._options.halt_on_broken_pipe and has_no_reader(event)
        if halts and not self._story.halted and self._story.user_signal is None:
            self._story.halted = True
            self._ask(say.Close())

    def _signal(self, sig: Signals, at_s: float) -> None:
        if sig in _PASSED_ON and sig not in self._options.stopping_signals:
            self._to_pass_on.append(sig)
            self._pass_on()
        elif sig == SIGTSTP:
            self._jobs.suspend(sig)
        elif self._story.user_signal is None:
            self._stopped_s, self._jobs.stopping = at_s, True  # before the announcement: a later signal is a second one
            self._progress.user_stops(sig)
            self._ask(say.Close(death_sig=self._options.stop_signal or sig))
        elif not self._story.killed and means_now(sig, self._story.user_signal, at_s - self._stopped_s):
            self._progress.user_kills(sig)
            self._ask(say.Close(death_sig=SIGKILL, timeout=0))

    def _pass_on(self) -> None:
        if self._started:
            signals, self._to_pass_on = self._to_pass_on, []
            for sig in signals:
                self._ask(say.Signal(sig=sig))

    # Messages

    def _introduce(self) -> None:
        options = self._options
        if self._console.terminal:
            import shlex

            what = shlex.join(options.words)
            where = f", logs in {self._story.directory}" if self._story.directory else ", no logs are kept"
            self._console.note(f"{shortened(what, 60)} on {counted(options.nproc, 'rank')}{where}")
        for text in options.notes:
            self._console.note(text)
        self._threads = settings.limited_threads(options)
        self._tell_threads([])
        self._stdin.warn_if_dropped()

    def _tell_threads(self, pids: list[int]) -> None:
        """Tell once that threads are limited: with ``-v``, or when a rank has loaded a library that starts some."""
        if self._threads is not None and (self._options.verbose or any(map(settings.uses_threads, pids[:8]))):
            self._console.note(f"each rank gets OMP_NUM_THREADS={self._threads}; set it to use more threads in each")
            self._threads = None

    # The end

    def _report(self, result: RunProcsResult) -> int:
        self._progress.finish(result)
        code = program.exit_code(result, self._story, self._options.exit_code_from)
        failed = result.outcome != "succeeded"
        self._story.advice = program.about(result, self._options)
        self._keep_result(code, result, None, failure_report.lines(result, self._story) if failed else [])
        if self._options.summary and not self._options.json_log:
            self._console.show(table(result, self._story.titles))
        if not failed and self._progress.restarts:
            self._console.note(f"succeeded after {counted(self._progress.restarts, 'restart')}")
        if not failed and not self._console.terminal and self._story.directory is not None:
            self._console.note(f"logs: {self._story.directory}")  # on a terminal, the note was shown at the start
        if failed and not self._options.json_log:
            self._console.show(failure_report.lines(result, self._story, self._console.paint))
        return code

    def _no_result(self, code: int, text: str, more: list[str] | None = None) -> int:
        self._progress.finish(None)
        self._keep_result(code, None, text, [f"supervise: {text}", *(more or [])])
        self._console.error(text)
        self._console.show(more or [])
        return code

    def _write_metrics(self, code: int, result: RunProcsResult | None) -> None:
        if (path := self._options.metrics) is None:
            return
        restarts, duration_s = self._progress.restarts, self._progress.duration_s
        try:
            write_metrics(path, result, run_id=self._run_id, exit_code=code, restarts=restarts, duration_s=duration_s)
        except OSError as e:
            self._console.error(f"no metrics: {complaint(e)}")

    def _keep_result(self, code: int, result: RunProcsResult | None, error: str | None, report: list[str]) -> None:
        options, story = self._options, self._story
        self._write_metrics(code, result)
        try:
            if story.directory is not None:
                write_result(
                    story.directory,
                    options,
                    run_id=self._run_id,
                    exit_code=code,
                    attempts=story.restarts + 1,
                    restarts=self._progress.restarts,
                    duration_s=self._progress.duration_s,
                    result=result,
                    error=error,
                    report=report,
                )
        except OSError as e:
            self._console.error(f"no result.json: {complaint(e)}")
        if self._events.error is not None:
            lost = f"{counted(self._events.lost, 'event')} missing in events.jsonl"
            self._console.error(f"{lost}: {complaint(self._events.error)}")


def open_control(
    directory: str, gang: pykka.ActorRef[Any], inbox: SignalInbox[_Message], console: Console, *, engine: str
) -> ControlServer | None:
    """Start the server of the control socket in a run directory.

    If that fails, show the error and return None; the run continues without a server.
    """
    without = _NOT_ON_RAY if engine == "ray" else frozenset[str]()
    server = ControlServer(os.path.join(directory, SOCKET), gang, name="run", on_stop=inbox.put, without=without)
    try:
        server.start()
    except OSError as error:
        console.error(f"no control socket: {complaint(error)}")
        return None
    return server
