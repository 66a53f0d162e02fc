"""``supervise run``: start the gang, process its events on the main thread, and report the result."""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import suppress
from signal import SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any

import pykka

from supervise import messages as say
from supervise.cli import failure_screen, program, ranks
from supervise.cli.console import Console, library_log
from supervise.cli.progress import OF_INTEREST, Progress
from supervise.cli.run_directory import EventFile, write_result
from supervise.cli.signal_inbox import SignalInbox
from supervise.errors import SuperviseError

if TYPE_CHECKING:
    from supervise._gang.supervisor import Supervisor
    from supervise._runtime.future import Reply
    from supervise.cli.options import Options
    from supervise.cli.signal_inbox import Received
    from supervise.result import RunProcsResult

_STOPPING = (SIGINT, SIGTERM, SIGHUP, SIGQUIT)
_PASSED_ON = (SIGUSR1, SIGUSR2)
_INTERNAL, _TIMED_OUT = 1, 124
_ONE_SIGNAL_S = 0.05
"""Two equal signals within this time count as one: `timeout` sends each signal twice."""
_LEAVE_S = 10.0
_STATUS_S = 1.0
_STARTED = "supervise.gang.started"


def run(options: Options, *, own_process: bool = True) -> int:
    """Run a gang on the main thread and return the exit code.

    Args:
        options: The validated options.
        own_process: Whether this process only runs the command, so that signal handlers are not restored.
    """
    console = Console(options.color)
    if signal.getsignal(SIGCHLD) == signal.SIG_IGN:  # inherited: the kernel would discard exit statuses
        signal.signal(SIGCHLD, signal.SIG_DFL)
    with library_log(console), SignalInbox((*_STOPPING, *_PASSED_ON, SIGCHLD), restore=not own_process) as inbox:
        console.on_left = inbox.wake
        try:
            return _Run(options, console, inbox).main()
        finally:
            console.finish()


class _Run:
    """One run. All methods except `_event` are called on the main thread."""

    def __init__(self, options: Options, console: Console, inbox: SignalInbox) -> None:
        self._options = options
        self._console = console
        self._inbox = inbox
        self._progress = Progress(options, console, self._left_behind)
        self._story = self._progress.story
        self._events = EventFile(None)
        self._run_id = options.run_id or f"{_title(options)}-{os.urandom(4).hex()}"
        self._gang: pykka.ActorRef[Supervisor]
        self._master = ranks.Master("", "")
        self._to_pass_on: list[Signals] = []
        self._started = False
        self._stopped_s = 0.0

    def main(self) -> int:
        """Run the gang and return the exit code."""
        try:
            command = program.command(self._options)
        except OSError as error:
            self._console.note(failure_screen.not_started(error, 0, self._options))
            return program.start_code(error)
        try:
            return self._refused(command) or self._supervise()
        finally:
            self._leave()

    def _refused(self, command: tuple[str, ...]) -> int:
        """Create the run directory and the Supervisor; return 0, or an exit code after an error."""
        try:
            self._prepare(command)
        except (OSError, SuperviseError) as error:
            of_a_file = isinstance(error, NotADirectoryError) or getattr(error, "filename", None) is not None
            advice = "; give --log-dir a writable directory" if self._options.log_dir else ""
            self._console.note(f"{_complaint(error)}{advice if of_a_file else ''}")
            return program.USAGE if of_a_file or isinstance(error, SuperviseError) else _INTERNAL
        return 0

    def _prepare(self, command: tuple[str, ...]) -> None:
        """Create the run directory and the Supervisor; start no process."""
        from supervise._gang.supervisor import Supervisor
        from supervise.logs import DefaultLogsSpecs

        options = self._options
        self._master = ranks.choose_master()
        specs = DefaultLogsSpecs(options.log_dir, options.redirects, options.tee, set(options.ranks_shown) or None)
        prefix = self._console.prefix if options.prefix else _bare
        self._gang = Supervisor.start(
            name=options.role,
            entrypoint=command[0],
            args=dict.fromkeys(range(options.nproc), command[1:]),
            envs=ranks.environments(
                options.nproc,
                run_id=self._run_id,
                role=options.role,
                master=self._master,
                max_restarts=options.restarts.max_restarts if options.restarts else 0,
                record=options.record and program.runs_python(options),
            ),
            logs_specs=specs,
            log_line_prefixes={rank: prefix(options.role, rank) for rank in range(options.nproc)},
            grace=options.grace_s,
            timeout=options.timeout_s,
            event_sink=self._event,
            restart_policy=options.restarts,
            containment=options.containment,
            gate=options.gate,
            strategy=options.strategy,
            success_exit_codes=options.success_exit_codes,
        )
        self._story.directory = specs._run_log_dir  # noqa: SLF001 - no public name, as in PyTorch
        try:
            self._events = EventFile(self._story.directory)
        except OSError as error:
            self._console.note(f"no events.jsonl: {_complaint(error)}")

    def _supervise(self) -> int:
        self._introduce()
        start: Reply[dict[int, int]] = self._ask(say.Start())
        end: Reply[RunProcsResult] = self._ask(say.Wait())
        while not end.done() and _error(start) is None:
            self._take()
            if not self._started and start.done() and _error(start) is None:
                self._started = True
                self._pass_on()
        if _error(start) is None:
            self._progress.all_ended()
        closed = self._ask(say.Close())  # also ends what finished ranks left behind
        while not closed.done():
            self._take()
        self._sort(self._inbox.take(0))
        self._console.clear()
        lost = _error(end)
        if (stuck := _error(closed)) is not None and stuck is not lost:
            self._console.note(_complaint(stuck))
        if not end.done():  # the loop has crashed; otherwise the reply to Wait comes before the reply to Close
            return self._no_result(_INTERNAL, "the gang ended without a result")
        stopped = self._story.user_signal is not None or (lost is None and end.get(timeout=0).outcome == "timed_out")
        if (failed := _error(start)) is not None and not stopped:
            text = failure_screen.not_started(failed, self._progress.unstarted_rank, self._options)
            return self._no_result(program.start_code(failed, self._story.directory), text)
        if lost is None:
            return self._report(end.get(timeout=0))
        if (failed_before := getattr(lost, "previous_result", None)) is None:
            return self._no_result(_INTERNAL, _complaint(lost))
        self._story.waiting = None
        self._console.note(text := f"the restart failed: {_complaint(lost)}")
        return self._report(failed_before, text)

    def _left_behind(self) -> bool:
        """Return whether processes remain in the groups of ranks that have ended."""
        try:
            status: say.GangStatus = self._ask(say.Status()).get(timeout=_STATUS_S)
        except (pykka.ActorDeadError, pykka.Timeout):
            return False
        return bool(status.leftovers)

    def _ask(self, message: object) -> Any:
        reply = self._gang.ask(message, block=False)
        self._inbox.expect(reply)  # type: ignore[arg-type]  # a Supervisor replies with a Reply
        return reply

    def _leave(self) -> None:
        with suppress(Exception):  # the gang has ended; if its actor does not stop in time, the exit handler ends it
            self._gang.stop(timeout=_LEAVE_S)
        self._events.close()
        if self._master.claim is not None:
            self._master.claim.close()

    # Events and signals

    def _event(self, event: dict[str, Any]) -> None:
        """Write an event to the file and pass it to the main thread. Runs on the gang's thread: must not block."""
        self._events.write(event)
        if event["event"] in OF_INTEREST:
            self._inbox.put(event)

    def _take(self) -> None:
        """Wait for signals, events and replies, and process them."""
        self._sort(self._inbox.take(self._progress.wait_s()))
        self._console.show_left()
        self._progress.announce()

    def _sort(self, received: list[Received]) -> None:
        # A Status makes the Supervisor look for suspended ranks. Send one at SIGCHLD, and one after the start for
        # ranks that were suspended during the start.
        if SIGCHLD in received or any(isinstance(item, dict) and item["event"] == _STARTED for item in received):
            with suppress(pykka.ActorDeadError):
                self._gang.tell(say.Status())
        for item in received:
            if item == SIGCHLD:
                continue
            if isinstance(item, Signals):
                self._signal(item)
            else:
                self._progress.take(item)

    def _signal(self, sig: Signals) -> None:
        if sig in _PASSED_ON:
            self._to_pass_on.append(sig)
            self._pass_on()
        elif self._story.user_signal is None:
            self._progress.user_stops(sig)
            self._ask(say.Close(death_sig=sig))
            self._stopped_s = time.monotonic()
        elif not self._story.killed and (sig != self._story.user_signal or self._is_later()):
            self._progress.user_kills(sig)
            self._ask(say.Close(death_sig=SIGKILL, timeout=0))

    def _is_later(self) -> bool:
        """Return whether enough time has passed since the first signal for this one to count as a second."""
        return time.monotonic() - self._stopped_s >= _ONE_SIGNAL_S

    def _pass_on(self) -> None:
        if self._started:
            signals, self._to_pass_on = self._to_pass_on, []
            for sig in signals:
                self._ask(say.Signal(sig=sig))

    # Messages

    def _introduce(self) -> None:
        options = self._options
        if self._console.terminal:
            what = shlex.join([*(["-m"] if options.module else []), options.program, *options.args])
            on = "1 rank" if options.nproc == 1 else f"{options.nproc} ranks"
            where = f", logs in {self._story.directory}" if self._story.directory else ", no logs are kept"
            self._console.note(f"{failure_screen.shortened(what, 60)} on {on}{where}")
        if ranks.limits_threads(options.nproc):
            self._console.note("each rank gets OMP_NUM_THREADS=1; set it to use more threads in each")

    # The end

    def _report(self, result: RunProcsResult, error: str | None = None) -> int:
        code = self._exit_code(result)
        self._keep_result(code, result, error)
        if result.outcome != "succeeded":
            self._console.show(failure_screen.lines(result, self._story, self._console.paint))
        return code

    def _exit_code(self, result: RunProcsResult) -> int:
        if result.outcome == "succeeded":
            return 0
        if self._story.waiting is not None and self._story.user_signal is not None:  # a pending restart was canceled
            return 128 + self._story.user_signal
        if self._story.waiting is not None or result.outcome == "timed_out":
            return _TIMED_OUT
        root = result.root_cause if result.outcome == "failed" else None
        if root is not None:
            code = result.failures[root].exitcode
            if failure_screen.stopped_by_us(root, code, self._story):  # it had raised an exception and was exiting
                return 1
            return 128 - code if code < 0 else code or 1
        return 128 + self._story.user_signal if self._story.user_signal is not None else 1

    def _no_result(self, code: int, text: str) -> int:
        self._keep_result(code, None, text)
        self._console.note(text)
        return code

    def _keep_result(self, code: int, result: RunProcsResult | None, error: str | None) -> None:
        if self._story.directory is None:
            return
        try:
            write_result(
                self._story.directory,
                self._options,
                run_id=self._run_id,
                exit_code=code,
                attempts=self._story.restarts + 1,
                result=result,
                error=error,
            )
        except OSError as e:
            self._console.note(f"no result.json: {_complaint(e)}")


def _bare(_role: str, _rank: int) -> str:
    return ""


def _error(reply: Reply[Any]) -> BaseException | None:
    """Return the exception of `reply`; None if it has a value or is pending."""
    if not reply.done():
        return None
    try:
        reply.get(timeout=0)
    except BaseException as error:
        return error
    return None


def _complaint(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or repr(error)


def _title(options: Options) -> str:
    if options.module:
        return options.program
    return os.path.splitext(os.path.basename(options.program))[0] or "run"
