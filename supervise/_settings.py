"""The table of settings: one row for each setting of a gang, of a role, of a restart policy and of a watchdog.

The following take their names, defaults, choices, checks and texts from the table: the check of a gang's settings,
`GangSpec`, the option parser of ``supervise run``, the keys of a gang file, ``supervise check``, the completion scripts
and the reference. Public signatures are written out; a test compares them with the table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from signal import SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any, Final, Literal, get_args

from supervise.errors import SpecError
from supervise.recording import repr_of, text_of

# The choices


Containment = Literal["group", "cgroup", "sweep"]
"""What happens to processes that leave the process groups of their ranks."""
HangAction = Literal["report", "fail"]
"""What follows a hang: a report only, or also the failure of the rank."""
KillMode = Literal["group", "mixed"]
"""Destination of the first signal of a stop: the process group of a rank, or only its own process."""
Readiness = str | Sequence[str]
"""When a rank is ready: ``exec``, ``notify``, ``exit``, a probe, or a list of conditions that must all be met."""
RestartKind = Literal["transient", "permanent", "temporary"]
"""After which end a rank or a child of a tree restarts: a failure, any end, or none."""
StartMethod = Literal["spawn", "fork", "forkserver"]
"""How the process of a function starts, in the terms of multiprocessing."""
StdinOfRole = Literal["null", "open", "inherit"]
"""The stdin of a rank: empty, without an end, or that of the host."""
Strategy = Literal["one_for_all", "one_for_one", "rest_for_one"]
"""Which other ranks or children the failure of one concerns: all, none, or those started after it."""


# Settings in seconds, and the default grace


GRACE_S = 30.0
"""The default grace: seconds from the first signal to SIGKILL."""
ENV_GRACE = "SUPERVISE_GRACE"
"""The environment variable with the default grace, for programs that use PyTorch's arguments and cannot pass one."""
WORDS = ("exec", "notify", "exit")
"""The conditions of readiness that are not probes."""
LONGEST_S = float(sys.maxsize)
"""The longest accepted time. Programs pass `sys.maxsize` for no limit; far longer times overflow as nanoseconds."""


def check_seconds(what: str, value: object, *, above_zero: bool = False, optional: bool = True) -> None:
    """Raise unless `value` is a number of seconds.

    Args:
        what: Name of the setting.
        value: Value of the setting.
        above_zero: Whether 0 is refused, as for settings that may be None.
        optional: Whether a setting above 0 may be None.

    Raises:
        SpecError: `value` is not valid; the text names the setting and the value.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 <= value <= LONGEST_S and (value > 0 or not above_zero):  # type: ignore[operator]
        return
    most = f" above 0{', or None' * optional}" if above_zero else ", 0 or more"
    end = f", at most {LONGEST_S}" if number and value > LONGEST_S else ""  # type: ignore[operator]
    raise SpecError(f"{what} is {repr_of(value)}; it is a number of seconds{most}{end}")


def usual_grace_s() -> float:
    """Return the default grace: the value of the environment variable, or 30 seconds.

    Raises:
        SpecError: The variable does not hold a number of seconds; the text names it and its value.
    """
    text = os.environ.get(ENV_GRACE)
    if not text:
        return GRACE_S
    try:
        value = float(text)
        check_seconds(ENV_GRACE, value)
    except (ValueError, SpecError):
        raise SpecError(f"the environment's {ENV_GRACE} is {text!r}; it is a number of seconds, 0 or more") from None
    return value


# The checks. Each returns the value as the gang uses it


_LONGEST = 80
_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`, whose import takes long."""
_LONGEST_PATH = 108
"""Size of the kernel's room for the path of a socket and a final NUL, in bytes."""
LEAST_LOG_BYTES = 64 * 1024
"""The smallest accepted bound of the size of a log."""
MOST_ADDRESSES = 16
"""Most sockets of a role. In its ranks, their descriptors have the numbers from 3 on."""


def shown(value: object) -> str:
    """Return the representation of a value for an error message, cut to 80 characters."""
    text = repr_of(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _name(setting: Setting, value: object) -> object:
    """Check a name, which must be text that can be written in the prefix of shown lines and in events."""
    if not isinstance(value, str):
        raise SpecError(f"{setting.name} is {shown(value)}; give a text, such as {text_of(value)!r}")
    if "\0" in value:
        raise SpecError(f"{setting.name} is {shown(value)}; leave out the NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpecError(
            f"{setting.name} is {shown(value)}, which UTF-8 cannot encode; leave out the surrogates"
        ) from None
    return value


def _such(fits: Callable[[Any], bool], advice: str) -> Callable[[Setting, Any], Any]:
    """Return a check that accepts each value that `fits`, unchanged."""

    def check(setting: Setting, value: object) -> object:
        if not fits(value):
            raise SpecError(f"{setting.name} is {shown(value)}; {advice}")
        return value

    return check


def is_whole(value: object, least: int, most: float = sys.maxsize) -> bool:
    """Return whether a value is a whole number in a range. A bool is not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _makes_paths(value: object) -> bool:
    """Return whether an object has a method `reify`, so that specifications of PyTorch are accepted."""
    return not isinstance(value, type) and callable(getattr(value, "reify", None))


def _is_called_at_once(value: object) -> bool:
    """Return whether a value is callable, and not an async function, whose call does nothing."""
    return callable(value) and not getattr(getattr(value, "__code__", None), "co_flags", 0) & _CO_COROUTINE


def _choice(setting: Setting, value: object) -> object:
    if value not in setting.choices:
        raise SpecError(f"{setting.name} is {shown(value)}; it is one of {', '.join(setting.choices)}")
    return value


def _seconds(setting: Setting, value: object) -> object:
    check_seconds(setting.name, value, above_zero=setting.kind is not SECONDS, optional=setting.default is None)
    return value


def _exit_codes(setting: Setting, value: object) -> object:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        codes = [code for code in value if is_whole(code, -64, 255)]
        if len(codes) == len(value):
            return frozenset(codes)
    raise SpecError(f"{setting.name} is {shown(value)}; give a set of exit codes: 0 to 255, or -N for signal N")


def _texts(setting: Setting, value: object) -> tuple[str, ...]:
    """Check a list of texts. A bare string is refused, although its items are strings."""
    is_list = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    if not is_list or not all(isinstance(each, str) for each in value):  # type: ignore[attr-defined]
        such = list(map(text_of, value)) if is_list else [text_of(value)]  # type: ignore[call-overload]
        raise SpecError(f"{setting.name} is {shown(value)}; give a list of texts, such as {shown(such)}")
    return tuple(value)  # type: ignore[arg-type]


def address_of(text: str) -> tuple[str, int] | str:
    """Return the host and the port of ``tcp:[HOST:]PORT``, or the path of ``unix:PATH``.

    Raises:
        SpecError: The text is neither; it has the accepted forms. An abstract name is refused, because every user of
            the machine can take it between two runs.
    """
    kind, _, rest = text.partition(":")
    fits = 0 < len(os.fsencode(rest)) < _LONGEST_PATH
    if kind == "unix" and fits and "\0" not in rest and "${" not in rest and rest[-1] != "/" and rest[0] != "@":
        return rest
    host, colon, port = rest.rpartition(":")
    bare = host[1:-1] if host[:1] + host[-1:] == "[]" else "" if {":", "/"} & {*host} else host
    if kind == "tcp" and port.isascii() and port.isdigit() and int(port[:6]) < 1 << 16 and (bare or not colon):
        return bare or "127.0.0.1", int(port)
    such = f"tcp:HOST:PORT, such as tcp:127.0.0.1:8000, or unix:PATH, of less than {_LONGEST_PATH} bytes"
    why = "; it has no variables, because the ranks share it" if "${" in text else ""
    why = "; an abstract name is for probes" if rest[:1] == "@" else why
    raise SpecError(f"{shown(text)} is not an address{why}; give {such}")


def _addresses(setting: Setting, value: object) -> object:
    """Check a list of addresses to listen on."""
    listed = _texts(setting, value)
    try:
        for text in listed:
            address_of(text)
    except SpecError as error:
        raise SpecError(f"{setting.name}: {error}") from None
    if len(listed) > MOST_ADDRESSES:
        raise SpecError(f"{setting.name} has {len(listed)} addresses; give at most {MOST_ADDRESSES}")
    return listed


def _prefixes(setting: Setting, value: object) -> object:
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{setting.name} is {shown(value)}; give a mapping of local rank to text, such as {{0: 'zero: '}}"
        )
    for rank, prefix in value.items():
        if not isinstance(prefix, str):
            raise SpecError(f"rank {rank}: its {setting.name} is {shown(prefix)}; give a text")
    return value


def _folder(setting: Setting, value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise SpecError(f"{setting.name} is {shown(value)}; give the path of a folder, or None")
    path = os.fsdecode(value)
    if "\0" in path or not os.path.isdir(path):
        raise SpecError(f"{setting.name} is {path!r}, where there is no folder; make it first, or give another one")
    return path


def _signal(setting: Setting, value: object) -> object:
    """Check a signal that a process can handle."""
    found = None
    if isinstance(value, int) and not isinstance(value, bool) and value in set(Signals):
        found = Signals(value)
    if found is None or found in (SIGKILL, SIGSTOP):
        raise SpecError(f"{setting.name} is {shown(value)}; give a signal that a process can handle, such as SIGINT")
    return found


def _readiness(setting: Setting, value: object) -> object:
    """Check a condition of readiness, or a list of conditions."""
    given = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else []
    if not given or not all(isinstance(each, str) for each in given):
        raise SpecError(f"{setting.name} is {shown(value)}; give a text or a list of texts, such as 'tcp:8000'")
    if "exit" in given and len(given) > 1:
        raise SpecError(
            f"{setting.name} is {shown(value)}; give exit alone, because a rank that has ended cannot be probed"
        )
    for each in given:
        if each not in WORDS:
            _check_probe(setting, each, "" if ":" in each else f"it is one of {', '.join(WORDS)}; ")
    return value


def _probe(setting: Setting, value: object) -> object:
    if not isinstance(value, str) or value.startswith("log:"):
        raise SpecError(f"{setting.name} is {shown(value)}; give one probe other than log:, such as 'tcp:8000'")
    _check_probe(setting, value)
    return value


def conditions(ready: Readiness) -> tuple[str, ...]:
    """Return the conditions of a value of ``ready``, in addition to a running process."""
    return tuple(each for each in ([ready] if isinstance(ready, str) else ready) if each != "exec")


def _check_probe(setting: Setting, text: str, before: str = "") -> None:
    from supervise import _probes  # lazy: most gangs have no probe

    try:
        _probes.parse(text)
    except ValueError as error:
        raise SpecError(f"{setting.name} is {shown(text)}; {before}{error}") from None


def _later(_setting: Setting, value: object) -> object:
    """Accept any value: `_gang.validation` checks it together with other settings, or for each rank."""
    return value


# The kinds of values, and the rows


class Kind:
    """A kind of values: its type, its unit and its check. The command line knows how a kind is written as text."""

    __slots__ = ("check", "type", "unit")

    def __init__(self, type_: str, check: Callable[[Setting, Any], Any] = _later, unit: str = "") -> None:
        self.type: str = type_
        self.check: Callable[[Setting, Any], Any] = check
        self.unit: str = unit


FLAG = Kind("bool", _such(lambda value: isinstance(value, bool), "give True or False"))
CHOICE = Kind("str", _choice)
SECONDS = Kind("float", _seconds, "s")
SPAN = Kind("float", _seconds, "s")
"""Seconds above 0."""
TIME_LIMIT = Kind("float", _seconds, "s")
"""Seconds above 0, after which the run ends."""
COUNT = Kind("int", _such(lambda value: is_whole(value, 0), "it is a number of restarts, 0 or more"))
TIMES = Kind("int", _such(lambda value: is_whole(value, 1), "it is a number of times, 1 or more"))
"""A count, 1 or more."""
EXIT_CODES = Kind("set of int", _exit_codes)
SIZE = Kind(
    "int",
    _such(
        lambda value: is_whole(value, LEAST_LOG_BYTES, float("inf")),
        f"give at least {LEAST_LOG_BYTES} bytes, or None for no bound",
    ),
    "bytes",
)
TEXTS = Kind("list of str", _texts)
ADDRESSES = Kind("list of str", _addresses)
FOLDER = Kind("path", _folder)
SIGNAL = Kind("Signals", _signal)
NAMES = Kind("list of str", _texts)
"""Names of roles."""
READINESS = Kind("str or list of str", _readiness)
PROBE = Kind("str", _probe)
LOGS_SPECS = Kind(
    "LogsSpecs", _such(_makes_paths, "give a LogsSpecs, such as DefaultLogsSpecs('logs', redirects=Std.ALL)")
)
FUNCTION_OF_EVENTS = Kind(
    "callable", _such(_is_called_at_once, "give a function of one argument, the event, which is not async, or None")
)

REQUIRED: Final[Any] = ...
"""The default of a setting that has none."""


class Setting:
    """One row of the table."""

    __slots__ = (
        *("argument", "choices", "default", "dest", "each_host", "field", "group", "key", "kind", "metavar"),
        *("name", "option", "role", "sentence", "usual"),
    )

    def __init__(
        self,
        name: str,
        kind: Kind,
        default: Any,
        sentence: str,
        *,
        option: str = "",
        group: str = "",
        choices: tuple[str, ...] = (),
        metavar: str = "",
        usual: str | None = None,
        role: Literal["", "own", "inherited"] = "",
        each_host: bool = False,
        argument: bool = True,
    ) -> None:
        """Describe a setting.

        Args:
            name: Name of the argument or the field in Python.
            kind: The kind of its values.
            default: The default in Python.
            sentence: What it sets, as the help of the option and the reference show it.
            option: Option of ``supervise run``. The key in a gang file is the option without its dashes.
            group: Title of the group of the help that shows the option.
            choices: The accepted values of a choice.
            metavar: Placeholder of the value in the help; by default that of the kind, or the choices.
            usual: The default, as the help shows it; by default derived from `default`.
            role: ``own``: if the gang has roles, each of them has its own value. ``inherited``: a role may replace the
                value of the gang.
            each_host: Whether each host of a gang over several hosts applies the setting to its own ranks.
            argument: Whether `Supervisor` has an argument of this name.
        """
        self.name = name
        self.kind = kind
        self.default = default
        self.sentence = sentence
        self.option = option
        self.group = group
        self.choices = choices
        self.metavar = metavar
        self.usual: str = _as_text(kind, default) if usual is None else usual
        self.role = role
        self.each_host = each_host
        self.argument = argument
        self.key: str = option.removeprefix("--") or name.removesuffix("_s").replace("_", "-")
        """The key in a gang file. In the table of a role, a setting without an option has one, too."""
        self.dest: str = self.key.replace("-", "_")
        """The name of the option's value in the parsed command line."""
        self.field: str = f"{name}_s" if kind.unit == "s" and not name.endswith("_s") else name
        """The name of the field of `GangSpec`: that of the argument, with the suffix ``_s`` for seconds."""

    def checked(self, value: Any) -> Any:
        """Return a value as the gang uses it.

        Raises:
            SpecError: The value is not valid; the text names the setting, the value and the remedy.
        """
        return value if value is self.default else self.kind.check(self, value)


def _as_text(kind: Kind, default: Any) -> str:
    if kind.unit == "s" and default is not None:
        return f"{default:g}"
    if kind is EXIT_CODES:
        return ",".join(map(str, sorted(default)))
    return str(default) if kind is CHOICE and default else ""


# The table


_OUTPUT, _END, _FAILURE, _HEALTH = "output", "the end", "failure", "health"


def _rows(*rows: Setting) -> dict[str, Setting]:
    return {row.name: row for row in rows}


GANG: Final = _rows(
    Setting("name", Kind("str", _name), REQUIRED, "name of the gang, for the prefix of shown lines and for events"),
    Setting("entrypoint", Kind("callable or str"), None, "function that every rank calls, or a program", role="own"),
    Setting("args", Kind("mapping"), None, "rank to its arguments", role="own"),
    Setting("envs", Kind("mapping"), None, "rank to variables added to the environment"),
    Setting("roles", Kind("list of Role"), None, "the roles, if not all ranks run the same"),
    Setting(
        "start_method",
        CHOICE,
        "spawn",
        "how the process of a function starts",
        choices=get_args(StartMethod),
        role="own",
        each_host=True,
    ),
    Setting(
        "cwd",
        FOLDER,
        None,
        "working directory of the ranks; a relative path of PROGRAM is relative to it",
        option="--cwd",
        group="what runs",
        role="own",
        each_host=True,
    ),
    Setting(
        "listen",
        ADDRESSES,
        (),
        "sockets that the ranks share and that outlive restarts, such as tcp:127.0.0.1:8000 or unix:run/app.sock:"
        " descriptors from 3 on, counted by LISTEN_FDS",
        option="--listen",
        group="what runs",
        role="own",
    ),
    Setting(
        "numa_options",
        Kind("NumaOptions"),
        None,
        "binding of each rank to the CPUs near its GPU; see --numa-binding",
        argument=False,
    ),
    Setting("logs_specs", LOGS_SPECS, None, "where output goes"),
    Setting("log_line_prefixes", Kind("mapping", _prefixes), None, "rank to the prefix of its shown lines"),
    Setting(
        "log_max_bytes",
        SIZE,
        None,
        "remove the oldest part of a log from the disk when it is larger, such as 10M or 1G; at least 64K",
        option="--log-max-bytes",
        group=_OUTPUT,
        usual="no bound",
        each_host=True,
    ),
    *(
        Setting(
            f"duplicate_{stream}_filters",
            TEXTS,
            None,
            f"also write shown lines of {stream} that contain one of these texts to filtered_{stream}.log",
            option=f"--duplicate-{stream}-filters",
            group=_OUTPUT,
            each_host=True,
        )
        for stream in ("stdout", "stderr")
    ),
    Setting("event_sink", FUNCTION_OF_EVENTS, None, "function that is called with every event"),
    Setting(
        "grace",
        SECONDS,
        GRACE_S,
        "time from the first signal to SIGKILL, for every kind of stop",
        option="--shutdown-timeout",
        group=_END,
        role="inherited",
        each_host=True,
    ),
    Setting(
        "timeout",
        TIME_LIMIT,
        None,
        "stop the run after this time, restarts included; the exit code is then 124",
        option="--timeout",
        group=_END,
    ),
    Setting(
        "stop_signal",
        SIGNAL,
        SIGTERM,
        "the first signal of every stop",
        option="--stop-signal",
        group=_END,
        usual="SIGTERM; if a signal stops supervise, that signal",
        role="inherited",
        each_host=True,
        argument=False,
    ),
    Setting(
        "reload_signal",
        SIGNAL,
        None,
        "the signal with which supervise reload makes ranks read their configuration again, such as HUP",
        option="--reload-signal",
        group=_END,
        usual="none: it restarts them",
        role="inherited",
        argument=False,
    ),
    Setting(
        "containment",
        CHOICE,
        "group",
        "treatment of processes that leave the group of their rank: group: report them; cgroup: keep them"
        " in a control group and end them (needs a writable cgroup v2 tree); sweep: find and end them",
        option="--containment",
        group=_END,
        choices=get_args(Containment),
        role="inherited",
        each_host=True,
    ),
    Setting(
        "kill_mode",
        CHOICE,
        "group",
        "destination of the first signal of a stop: group: the process group of each rank; mixed: only its own"
        " process, which then stops those that it has started. SIGKILL goes to the group",
        option="--kill-mode",
        group=_END,
        choices=get_args(KillMode),
        role="inherited",
        each_host=True,
    ),
    Setting(
        "gate",
        FLAG,
        False,
        "hold each program until its lifeline is armed, so that the program ends even if supervise is killed during"
        " the start",
        option="--gate",
        group=_END,
    ),
    Setting(
        "strategy",
        CHOICE,
        "one_for_all",
        "which ranks the failure of a rank stops or, with --max-restarts, restarts: one_for_all: all ranks;"
        " one_for_one: only the failed rank; rest_for_one: it and the ranks above it",
        option="--strategy",
        group=_FAILURE,
        choices=get_args(Strategy),
        metavar="S",
        each_host=True,
    ),
    Setting("restart_policy", Kind("RestartPolicy"), None, "when and how often ranks are restarted"),
    Setting(
        "success_exit_codes",
        EXIT_CODES,
        frozenset({0}),
        "exit codes that are a success, such as 0,3",
        option="--success-exit-codes",
        group=_FAILURE,
        each_host=True,
    ),
    Setting(
        "ready",
        READINESS,
        "exec",
        "a rank is ready: exec: when its process runs; notify: when it reports so by supervise.notify, systemd-notify"
        " or another sender of READY=1; exit: when it has succeeded, so that the roles after it start; or when a probe"
        " succeeds: tcp:[HOST:]PORT, unix:PATH, http://..., file:PATH, log:REGEX, exec:COMMAND; several"
        " (--ready again, or a list in a file): when all are met",
        option="--ready",
        group=_HEALTH,
        choices=WORDS,
        usual="exec",
        role="own",
        each_host=True,
    ),
    Setting(
        "ready_timeout_s",
        SPAN,
        60.0,
        "time from the launch of a rank until it must be ready",
        option="--ready-timeout",
        group=_HEALTH,
        role="own",
        each_host=True,
    ),
    Setting(
        "alive",
        PROBE,
        None,
        "a ready rank counts as hung if this probe fails several times in a row; any probe but log:",
        option="--alive",
        group=_HEALTH,
        role="own",
        each_host=True,
    ),
    Setting(
        "alive_interval_s",
        SPAN,
        10.0,
        "time between two tries of --alive",
        option="--alive-interval",
        group=_HEALTH,
        role="own",
        each_host=True,
    ),
    Setting(
        "alive_timeout_s",
        SPAN,
        5.0,
        "a probe, also of --ready, fails if it does not answer within DUR",
        option="--alive-timeout",
        group=_HEALTH,
        role="own",
        each_host=True,
    ),
    Setting(
        "alive_failures",
        TIMES,
        3,
        "number of failures of --alive in a row after which a rank counts as hung",
        option="--alive-failures",
        group=_HEALTH,
        usual="3",
        role="own",
        each_host=True,
    ),
    Setting("watchdog", Kind("Watchdog"), None, "when a rank counts as hung", each_host=True),
    Setting("control", Kind("path"), None, "path of a socket file that accepts commands of other processes"),
    Setting("rank_variables", FLAG, False, "whether each rank gets torchrun's variables, such as RANK"),
    Setting(
        "hold_returned",
        FLAG,
        False,
        "whether the process of a function that has returned stays alive until all have returned",
    ),
)
"""The settings of a gang: the arguments of `Supervisor`, and two that only some calls have."""

OF_ROLES: Final = _rows(
    Setting(
        "needs",
        NAMES,
        None,
        "the roles that must be ready before this one starts, and that are stopped after it; [] for none",
        usual="the role before; none if another role has needs",
    ),
    Setting(
        "restart",
        CHOICE,
        None,
        "after which end a rank restarts; needs --max-restarts",
        choices=get_args(RestartKind),
    ),
    Setting(
        "service",
        FLAG,
        False,
        "the ranks serve the other roles, and are stopped when all ranks of the other roles have ended",
    ),
    Setting(
        "stdin",
        CHOICE,
        "null",
        "stdin of each rank: null: empty; open: no input and no EOF, for programs that exit at EOF;"
        " inherit: that of supervise, for one rank",
        choices=get_args(StdinOfRole),
    ),
)
"""The settings that only roles have. Those that a gang without roles has, too, are the rows of `GANG` with `role`."""

POLICY: Final = _rows(
    Setting(
        "max_restarts",
        COUNT,
        3,
        "when a rank fails, restart the ranks that --strategy names, up to N times",
        option="--max-restarts",
        group=_FAILURE,
        usual="0",
    ),
    Setting(
        "restart",
        CHOICE,
        "transient",
        "restart a rank after: transient: a failure; permanent: every end; temporary: never",
        option="--restart",
        group=_FAILURE,
        choices=get_args(RestartKind),
        metavar="KIND",
    ),
    Setting(
        "within_s",
        SPAN,
        None,
        "count only the restarts of the last DUR",
        option="--restart-window",
        group=_FAILURE,
        usual="all",
    ),
    Setting(
        "backoff",
        SECONDS,
        1.0,
        "delay before the first restart; it doubles with each consecutive restart, up to a minute; a longer DUR stays"
        " constant",
        option="--backoff",
        group=_FAILURE,
    ),
    Setting(
        "uncounted_exit_codes",
        EXIT_CODES,
        frozenset(),
        "exit codes whose restarts do not count toward --max-restarts, such as 75",
        option="--uncounted-exit-codes",
        group=_FAILURE,
    ),
    Setting(
        "never_restart_exit_codes",
        EXIT_CODES,
        frozenset(),
        "exit codes after which the run ends at once",
        option="--never-restart-exit-codes",
        group=_FAILURE,
    ),
)
"""The fields of `RestartPolicy`."""

WATCHDOG: Final = _rows(
    Setting(
        "heartbeat_timeout_s",
        SPAN,
        None,
        "a rank counts as hung if it sends no heartbeat or higher step for DUR, once it is ready; with --ready exec,"
        " once it has sent one",
        option="--heartbeat-timeout",
        group=_HEALTH,
    ),
    Setting(
        "output_timeout_s",
        SPAN,
        None,
        "a rank counts as hung if it writes nothing for DUR, once it is ready or has written something",
        option="--output-timeout",
        group=_HEALTH,
    ),
    Setting(
        "action",
        CHOICE,
        "report",
        "reaction to a hang, also to one that --alive finds: report: a message and the stacks of all ranks; fail:"
        " the rank also fails",
        option="--on-hang",
        group=_HEALTH,
        choices=get_args(HangAction),
        metavar="WHAT",
    ),
    Setting("stacks", FLAG, True, "whether the report of a hang has the stacks of all ranks"),
)
"""The fields of `Watchdog`."""


def of_roles() -> Iterator[Setting]:
    """Yield the settings of a role that are checked when the role is made, or by their key in a gang file."""
    yield from (row for row in GANG.values() if row.role and row.kind.check is not _later)
    yield from OF_ROLES.values()


def with_options() -> Iterator[Setting]:
    """Yield the settings with options of ``supervise run``."""
    for table in (GANG, POLICY, WATCHDOG):
        yield from (row for row in table.values() if row.option)
