"""Deliberate defects of ours, patched into the observing process: each must turn the cases red that it concerns."""

import importlib
from pathlib import Path

from tests.compat.case import all_cases
from tests.compat.families import names

GANGS = ("function.", "binary.", "recorded.")
KILLED = (
    "function.fork.kill.",
    "function.fork.segv.",
    "function.fork.abort.",
    "binary.none.kill.",
    "binary.none.segv.",
)
EXITED = ("function.fork.exit3.", "function.fork.exit138.", "function.fork.hard5.", "binary.none.code7.")
RAISED = ("function.fork.raises.", "function.fork.raises-group.")
FAILED = (*KILLED, *EXITED, *RAISED, "binary.none.hup.", "recorded.none.raises.", "recorded.none.exit3.")
SUCCEEDED = (
    "function.fork.value.",
    "function.fork.none.",
    "function.fork.exit0.",
    "binary.none.value.",
    "recorded.none.value.",
)
STOPPED = ("function.fork.timeout.", "function.fork.close", "binary.none.timeout.", "binary.none.close")

DEFECTS = {}
"""Name to the function that patches it in, the beginnings of ids that must turn red, and which streams are shown."""


def _defect(*red, tee="none"):
    def register(function):
        DEFECTS[function.__name__] = function, red, tee
        return function

    return register


def apply(name):
    """Patch one in."""
    DEFECTS[name][0]()


def ids(name):
    """Return the ids that a defect must turn red: of gangs one a family, with its output in files."""
    _, red, tee = DEFECTS[name]
    gangs = {
        case.family: case.id
        for case in all_cases().values()
        if case.start_method in {"fork", "none"} and case.redirect == "all" and case.tee == tee and not case.extra
    }
    return [each for each in gangs.values() if each.startswith(red)] + [
        each for each in names() if each in red or each.startswith(tuple(r[:-1] for r in red if r.endswith("*")))
    ]


def _after(path, change):
    """Have `change` get what ``module:name`` or ``module:Class.name`` returned, and return in its place."""
    module, _, names = path.partition(":")
    owner = importlib.import_module(f"supervise.{module}")
    *classes, name = names.split(".")
    for each in classes:
        owner = getattr(owner, each)
    function = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: change(function(*args, **kwargs), *args))


def _of_result(change):
    """Have `change` change the result of a gang that has ended by itself."""

    def changed(result, *args):
        if result is not None:
            change(result)
        return result

    _after("_api.context:GangContext._wait", changed)


@_defect(*GANGS)
def path_of_a_log():
    """`stdouts` names another file."""

    def change(plan, *args):
        paths = plan.dest.stdouts
        paths.update({rank: path.replace("stdout.log", "stdout.txt") for rank, path in paths.items()})
        return plan

    _after("_api.context:first_attempt", change)


@_defect(*GANGS)
def byte_of_a_log():
    """One byte too many in a log."""

    def change(_, context):
        with Path(context.stdouts[0]).open("ab") as file:
            file.write(b"\n")

    _after("_api.context:GangContext.close", change)


@_defect(*GANGS)
def environment_variable():
    """A rank gets a variable that nobody asked for."""
    gang = importlib.import_module("supervise._api.context")
    first_attempt = gang.first_attempt

    def changed(*, envs, **given):
        more = {rank: {**env, "TORCHELASTIC_USE_AGENT_STORE": "True"} for rank, env in envs.items()}
        return first_attempt(envs=more, **given)

    gang.first_attempt = changed


@_defect(*FAILED)
def missing_failure():
    """`failures` lacks one."""
    _of_result(lambda result: result.failures and result.failures.pop(max(result.failures)))


@_defect(*FAILED, "failing.failure_w*", "failing.failure_by*", "failing.child_failed_error", "recording.child_failed")
def exit_code():
    """A failure has another exit code."""

    def change(_, failure):
        failure.exitcode += 1

    _after("result:ProcessFailure._fill", change)


@_defect(*EXITED, "recorded.none.exit3.", "failing.failure_without_record")
def message_text():
    """The usual text is another."""
    importlib.import_module("supervise.result")._NO_TRACEBACK += "."


@_defect(*KILLED, "failing.failure_by_a_signal")
def signal_text():
    """The text about a signal is another."""
    _after("result:ProcessFailure._signal_text", lambda text, *_: text.lower())


@_defect(*SUCCEEDED, "contexts.values*", "contexts.arguments*", "contexts.repeated*")
def return_value():
    """A rank's value is another."""
    _of_result(lambda result: result.return_values.update({0: "another"}))


@_defect(*SUCCEEDED, *STOPPED, "contexts.never_started")
def pids():
    """A rank is missing."""
    _after("_api.context:GangContext.pids", lambda found, *_: dict(list(found.items())[1:]) or None)


@_defect(*RAISED, "recording.exceptions", "recording.own_handler", "recording.file_replaced", "recording.child_failed")
def record():
    """Nothing is recorded."""
    importlib.import_module("supervise.recording")._record = lambda *_: None


@_defect("function.fork.value.", "function.fork.raises.", "binary.none.value.", "binary.none.code7.", tee="all")
def shown_lines():
    """Shown lines have another prefix."""
    plan = importlib.import_module("supervise._gang.attempt")
    source = plan.Source
    plan.Source = lambda **given: source(**{**given, "prefix": given["prefix"] + b" "})


@_defect("words.layout*", "words.log_dir", "words.specs_compare", "words.dest_defaults")
def layout():
    """Another layout of logs, and other temporary folders."""
    logs = importlib.import_module("supervise.logs")
    logs._one_name = lambda text: f"x{text}"
    logs._TEMP_PREFIX = "other_"
    dest = importlib.import_module("supervise.destinations").LogsDest
    logs._no_files = lambda _: dest()
    logs.DefaultLogsSpecs.__repr__ = dest.__repr__ = lambda _: "something"


@_defect(
    "words.std*",
    "words.to_map",
    "words.full_rank",
    "words.signal*",
    "contexts.refused",
    "contexts.signals",
    "contexts.signals_of_the*",
)
def small_words():
    """`Std` reads backwards, and texts are others."""
    logs = importlib.import_module("supervise.logs")
    logs.Std.__repr__ = lambda _: "Std"
    logs.SpecError = lambda text: RuntimeError(text.upper())
    _after("_api.signals:_exception", lambda error, *_: type(error)(f"{error}!", error.sigval))


@_defect(
    "streams.redirected*",
    "streams.std_context",
    "streams.tails",
    "streams.tail_to*",
    "streams.tail_of*",
    "streams.one_file",
)
def streams():
    """Redirected and followed files are others."""
    for module in ("_torch.redirects", "elastic.redirects"):
        found = importlib.import_module(f"supervise.{module}")
        for name in ("redirect_stdout", "redirect_stderr", "redirect"):
            setattr(found, name, _elsewhere(getattr(found, name)))
    tail_log = importlib.import_module("supervise._api.tail_log")
    source = tail_log.Source
    tail_log.Source = lambda **given: source(**{**given, "prefix": b"?"})


@_defect(
    "recording.no_variable", "recording.wrapped", "recording.child_failed_without_file", "recording.handler_by_itself"
)
def swallowed():
    """`record` swallows every exception, and the handler forgets exit codes."""
    recording = importlib.import_module("supervise.recording")
    recording.record = lambda *_: lambda *_, **__: None
    recording.ErrorHandler.override_error_code_in_rootcause_data = lambda *_: None


@_defect("failing.failure_as_a_value", "failing.result", "contexts.own_layout", "contexts.multiprocessing_failures")
def parts():
    """A representation, a question, a prefix and a text."""
    result = importlib.import_module("supervise.result")
    result.ProcessFailure.__repr__ = lambda _: "failure"
    result.RunProcsResult.is_failed = lambda _: False
    shown_lines()
    spawn = importlib.import_module("supervise.multiprocessing.spawn")
    spawn.ProcessException.__str__ = lambda _: "another"


@_defect("streams.tail_never_started", "streams.tail_without_destination", "streams.tail_that_fails_says_so")
def tails():
    """A tail says nothing of itself."""
    tail_log = importlib.import_module("supervise._api.tail_log").TailLog
    tail_log.stopped = lambda _: False
    tail_log._failed = lambda *_: None


@_defect("contexts.polled", "contexts.wrapped", "contexts.handler", "contexts.signals_off_the_main_thread")
def contexts():
    """A poll finds something, values are others, and a handler has another rank."""
    gang = importlib.import_module("supervise._api.context").GangContext
    _of_result(lambda result: result.return_values.update({0: "another"}))
    gang._poll = lambda _: "something"
    _after("_torch.redirects:record", lambda function, *_: lambda *_: function and "another")
    _after(
        "_torch.subprocess_handler:SubprocessHandler.__init__",
        lambda _, handler, *__: vars(handler).update(local_rank_id=9),
    )


@_defect("replaced.*", "contexts.closed_programs_that_exit_cleanly")
def replacements():
    """What others put in place of ours is not used, a name is missing, and a clean exit is a failure."""
    importlib.import_module("supervise._torch.handlers").factory = lambda: None
    importlib.import_module("supervise._torch.contexts").PolledContext._closed_by_others = lambda _: False
    importlib.import_module("supervise._torch.contexts").MultiprocessContext._is_done = None
    importlib.import_module("supervise._core.verdict")._clean = lambda _: False


def _elsewhere(function):
    return lambda *args: function(*args[:-1], f"{args[-1]}.other")
