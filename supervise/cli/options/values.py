"""The values of options: their parsers, the files they name, and the options that settings of the table describe."""

from __future__ import annotations

import argparse
import math
import os
import re
import stat
import sys
from functools import partial
from signal import SIGKILL, SIGSTOP, Signals
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from supervise import _settings
from supervise.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from _typeshed import SupportsWrite

    from supervise.logs import Std


_T = TypeVar("_T")
LARGEST_PORT = 65535
_MOST_DIGITS = 18
_MOST_RANKS = 1 << 16
"""The number of ranks of a gang whose roles are not known."""


def allowed_cpus() -> int:
    """Return the number of CPUs on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:  # a sandbox
        return os.cpu_count() or 1


def usable_cpus() -> int:
    """Return how many CPUs this process may use: of those it may run on, as many as its control group has quota for.

    A part of a CPU counts as one.
    """
    from supervise._process.containment.cgroup import cpu_quota

    return math.ceil(min(allowed_cpus(), cpu_quota()))


def _gpus() -> tuple[int, str]:
    """Return the number of GPUs that the ranks would see. The text is the reason if the number is 0."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        shown = [word.strip() for word in visible.split(",")]
        hidden = next((at for at, word in enumerate(shown) if not word or word.startswith("-")), len(shown))
        if not hidden:
            return 0, f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return 0, "the GPU library libnvidia-ml.so.1 finds no driver"
    except (OSError, AttributeError):
        return 0, "the GPU library libnvidia-ml.so.1 is not installed here"
    count = ctypes.c_uint()
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    nvml.nvmlShutdown()
    if failed or not count.value:
        return 0, "the GPU library libnvidia-ml.so.1 sees no GPU"
    return (count.value if visible is None else min(hidden, count.value)), ""


# Files that the user names on the command line: regular files, or pipes such as ``<(command)`` of a shell


_LARGEST_BYTES = 1 << 20


def text_of(path: str, name: str) -> str:
    r"""Return the text of a file. A line ends at ``\n`` or ``\r\n``; a byte-order mark at the beginning is removed.

    A named pipe without a writer is refused, since its open would wait for one. A pipe of a shell has a writer, or its
    content, as soon as the command starts.

    Args:
        path: The file.
        name: The path, as an error names it.

    Raises:
        argparse.ArgumentTypeError: The file cannot be read, is larger than 1 MiB, or is not UTF-8. The text says which.
    """
    why = f"it is larger than {_LARGEST_BYTES >> 20} MiB"
    try:
        with open(path, "rb", opener=open_without_wait) as file:
            content = file.read(_LARGEST_BYTES + 1)
            if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                why = "the pipe is empty, and no process writes to it"
            elif len(content) <= _LARGEST_BYTES:
                return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError:
        why = "it is not text in UTF-8"
    raise argparse.ArgumentTypeError(f"{name}: {why}")


def open_without_wait(path: str, flags: int) -> int:
    """Open a file as an ``opener`` of `open` does, but never wait for the writer of a pipe."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    os.set_blocking(fd, True)
    return fd


# Parsers of option values
#
# Raises:
#     argparse.ArgumentTypeError: By each parser, if the value is not valid; the text has the accepted values.


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
"""Unit of a duration to its seconds. A unit precedes its own endings; every text ends in the last: ""."""
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([0-9]{1,15})([KMGT]?)(?:i?B)?"  # patterns are compiled at their first use, since few commands use them
_RANKS = "[0-9]+(?:-[0-9]+)?"
_NOT_A_ROLE = r"(?s)all|none|root-cause|-.*|\s.*|.*\s|.*[,=].*"
"""What options and commands do not take as the name of a role: their other values, a list, a count, an option."""
_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"


def worker_count(text: str, least: int = 1) -> int:
    """Return the number of ranks for a number, `least` or more, ``auto``, ``cpu`` or ``gpu``."""
    if text == "cpu":
        return usable_cpus()
    if text == "auto":
        return _gpus()[0] or usable_cpus()
    if text == "gpu":
        count, reason = _gpus()
        if not count:
            raise argparse.ArgumentTypeError(f"'gpu': {reason}; give a number, or cpu")
        return count
    if not is_count(text) or int(text) < least:
        mpirun = "; did you mean -n? (-np is mpirun's)" if text[:1] == "p" else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid number of ranks; give {least} or more, or auto, cpu or gpu{mpirun}"
        )
    return int(text)


def streams(text: str) -> Std | dict[int, Std]:
    """Return a choice of streams, one for all ranks or one per rank."""
    from supervise.logs import Std

    try:
        return Std.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid choice of streams; give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "or one per rank, such as 0:3,1:2"
        ) from None


def ranks_of(text: str, roles: Sequence[tuple[str, int]]) -> frozenset[int]:
    """Return the ranks in a list such as ``web,db.1,5-7``: all of a role, one by its role rank, and ranks by number.

    Args:
        text: The list.
        roles: Name and number of ranks of each role, in the order of the ranks; empty if they are not known.
    """
    of_role: dict[str, range] = {}
    nproc = 0
    for role, count in roles:
        of_role[role] = range(nproc, nproc + count)
        nproc += count
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} names no rank and no role; give some, such as 0,2")
    return frozenset(rank for word in words for rank in _ranks_of(word, of_role, nproc))


def _ranks_of(word: str, of_role: Mapping[str, range], nproc: int) -> range:
    """Return the ranks that one word of a list names."""
    low, dash, high = word.partition("-")
    if is_count(low) and (is_count(high) or not dash) and int(high or low) >= int(low):
        last = int(high or low)
        if last >= (nproc or _MOST_RANKS):
            raise argparse.ArgumentTypeError(f"rank {last} does not exist; the ranks are {span(nproc or _MOST_RANKS)}")
        return range(int(low), last + 1)
    if word in of_role:
        return of_role[word]
    role, _, number = word.rpartition(".")
    if role in of_role and is_count(number):
        if int(number) >= len(of_role[role]):
            there = span(len(of_role[role]))
            raise argparse.ArgumentTypeError(f"{word!r} does not exist; the role ranks of {role} are {there}")
        return of_role[role][int(number) : int(number) + 1]
    from supervise.cli.options import suggestions  # only here: it imports difflib

    there = f"the ranks are {span(nproc)}, the roles {', '.join(of_role)}" if of_role else "give numbers, such as 0,2"
    bare = word.rstrip("0123456789")  # "web0" and "web 0", as in prefixes and reports
    one = [f"{role}.{word.removeprefix(bare)}" for role in of_role if role == bare.rstrip(" -_") and bare != word]
    hint = suggestions.meant(word, one or of_role)
    raise argparse.ArgumentTypeError(f"{word!r} is not a rank or a role; {there}{hint}")


def span(nproc: int) -> str:
    """Return the local ranks of a gang, for messages."""
    return "0 only" if nproc == 1 else f"0 to {nproc - 1}"


def seconds(text: str) -> float:
    """Return the seconds of a duration, a number with an optional unit, 0 or more."""
    unit = next(filter(text.endswith, _UNITS))
    try:
        value = float(text.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        value = math.nan
    if not 0 <= value <= _settings.LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid duration; give seconds, or a unit, such as 0.5, 90s or 5m"
        )
    return value


def seconds_above_zero(why: str, text: str) -> float:
    """Return the seconds of a duration, more than 0; `why` is the text for 0."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError(why)
    return value


def exit_codes(text: str) -> frozenset[int]:
    """Return the exit codes in a list such as ``0,3``; ``-9`` is signal 9."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    codes = {int(word) for word in words if is_count(word.removeprefix("-"))}
    if not words or len(codes) < len(set(words)) or not all(-65 < code < 256 for code in codes):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid list of exit codes; give numbers from 0 to 255, or -N for signal N, such as 0,3"
        )
    return frozenset(codes)


def number(what: str, least: int, text: str) -> int:
    """Return a number of something, `least` or more; `what` says what, and follows the value in the error."""
    if not is_count(text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return int(text)


def is_count(text: str) -> bool:
    """Return whether `text` is a number, 0 or more, of at most 18 digits."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def name(text: str) -> str:
    """Return a name that is safe in paths and lines."""
    if not text or not text.isprintable() or "/" in text or text.startswith("-"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name in paths and lines; give printable characters without '/', and no '-' first"
        )
    return text


def other_than(refused: str, why: str, text: str) -> str:
    """Return a text, which cannot be `refused`; `why` is the text of the error."""
    if text == refused:
        raise argparse.ArgumentTypeError(why)
    return text


def role_name(text: str) -> str:
    """Return the name of a role, which is not a rank in a list of ranks and roles."""
    if re.fullmatch(_RANKS, text):
        raise argparse.ArgumentTypeError(f"{text!r} is the number of a rank; give the role a name with a letter")
    if re.fullmatch(_NOT_A_ROLE, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} has another meaning where options and commands take roles; give a name other than all, none and"
            " root-cause, without ',' or '=', '-' at its start, or spaces at its ends"
        )
    return name(text)


def role_count(text: str) -> int:
    """Return the number of ranks of a role; 0 switches the role off."""
    return worker_count(text, 0)


def variable(text: str) -> tuple[str, str]:
    """Return the name and the value of an environment variable."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has no '='; give NAME=VALUE; the ranks inherit your environment")
    return variable_name(name), value


def variable_name(text: str) -> str:
    """Return the name of an environment variable."""
    if not re.fullmatch(_NAME, text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a variable; give letters, digits, '_', '.' and '-'"
        )
    return text


def existing_folder(text: str) -> str:
    """Return the path of a folder that exists."""
    if not os.path.isdir(text):
        what = "is not a folder" if os.path.exists(text) else "does not exist"
        raise argparse.ArgumentTypeError(f"{text!r} {what}; create it, or give another path")
    return text


def any_signal(text: str) -> Signals:
    """Return a signal by its name (``TERM``, ``SIGTERM``) or number."""
    name = text.strip().upper()
    try:
        return Signals(int(name)) if name.isdigit() else Signals[f"SIG{name.removeprefix('SIG')}"]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal; give a name, such as SIGTERM") from None


def signal_number(text: str) -> Signals:
    """Return a signal that a process can handle, by its name or number."""
    found = any_signal(text)
    if found in (SIGKILL, SIGSTOP):
        raise argparse.ArgumentTypeError(f"no process can handle {found.name}; give another signal, such as SIGTERM")
    return found


def signal_list(text: str) -> tuple[Signals, ...]:
    """Return the signals in a list such as ``SIGTERM,SIGINT``."""
    words = [word for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError(f"{text!r} names no signal; give names, such as SIGTERM,SIGINT")
    return tuple(dict.fromkeys(map(signal_number, words)))


def size(text: str) -> int:
    """Return the bytes of a size such as ``10M``."""
    found = re.fullmatch(_SIZE, text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; give bytes, or a number with K, M or G: 10M")
    size = int(found[1]) * _BYTES[found[2].upper()]
    if size < _settings.LEAST_LOG_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is less than {_settings.LEAST_LOG_BYTES >> 10}K, the least bound of a log"
        )
    return size


def texts(text: str) -> tuple[str, ...]:
    """Return the texts of a list such as ``apple,orange``; a double comma stands for a comma, as in torchrun."""
    found = tuple(item.replace("\0", ",") for item in text.replace(",,", "\0").split(","))
    if text and not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} has an empty text, which every line contains; give texts such as apple,orange"
        )
    return found if text else ()


def addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of a list such as ``tcp:127.0.0.1:8000,unix:app.sock``; a double comma is a comma."""
    try:
        return _settings.GANG["listen"].checked(texts(text))  # type: ignore[no-any-return]
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("listen: ")) from None


def _check_shell(name: str, text: str) -> None:
    """Refuse an operator of a shell in the command of a probe."""
    import shlex  # lazy, as the next one: few runs have such a probe

    from supervise.cli.options import suggestions

    word, is_sure = suggestions.of_a_shell(text)
    if is_sure:
        why = f"there is no shell here, so {word!r} would be an argument"
        with_shell = f"give exec:sh -c {shlex.quote(text.removeprefix('exec:'))}"
        raise argparse.ArgumentTypeError(f"{name} is {_settings.shown(text)}; {why}; {with_shell}")


def of_row(row: _settings.Setting, value: Any) -> Any:
    """Return the value of a probe, or of a readiness, whose text needs no other form.

    Raises:
        argparse.ArgumentTypeError: It is not valid, or a command in it is meant for a shell.
    """
    try:
        found = row.checked(value)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    for text in [value] if isinstance(value, str) else value:
        if text.startswith("exec:"):
            _check_shell(row.name, text)
    return found


OF_KIND: Mapping[_settings.Kind, tuple[str, Callable[[str], Any]]] = {
    _settings.SECONDS: ("DUR", seconds),
    _settings.SPAN: (
        "DUR",
        partial(seconds_above_zero, "the duration must be more than 0; omit the option for the default"),
    ),
    _settings.TIME_LIMIT: (
        "DUR",
        partial(seconds_above_zero, "0 would stop the run at once; omit the option for no limit"),
    ),
    _settings.COUNT: ("N", partial(number, "a valid number of restarts; give 0 or more", 0)),
    _settings.EXIT_CODES: ("LIST", exit_codes),
    _settings.SIZE: ("SIZE", size),
    _settings.TEXTS: ("LIST", texts),
    _settings.ADDRESSES: ("LIST", addresses),
    _settings.FOLDER: ("DIR", existing_folder),
    _settings.SIGNAL: ("SIG", signal_number),
    _settings.READINESS: ("WHEN", partial(of_row, _settings.GANG["ready"])),
    _settings.PROBE: ("PROBE", partial(of_row, _settings.GANG["alive"])),
    _settings.TIMES: ("N", partial(number, "a valid number of times; give 1 or more", 1)),
}
"""Kind of a setting to the placeholder of its value in the help, and to the parser of the value's text."""


# What the parsers of all commands have in common, and the addition of an option


class CommandParser(argparse.ArgumentParser):
    """A parser with error messages of two lines."""

    def error(self, message: str) -> NoReturn:
        """Print an error message and exit with code 2."""
        from supervise._printable import below_itself

        print(f"{self.prog}: {below_itself(message)}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(2)

    def checked(self, parse: Callable[..., _T], *given: Any, before: str = "", after: str = "") -> _T:
        """Return the result of a parser of values; if it refuses them, exit with its text as the error message.

        Args:
            parse: The parser.
            *given: Its arguments.
            before: What precedes the text.
            after: What follows the text.
        """
        try:
            return parse(*given)
        except argparse.ArgumentTypeError as error:
            self.error(f"{before}{error}{after}")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Print a help; argparse ignores the error of a stdout that takes no output."""
        print(message, end="", file=file)


Argument = tuple[tuple[str, ...], dict[str, Any]]
"""The names of an argument or an option, and the keywords of `add_argument`."""


def argument(*names: str, **how: Any) -> Argument:
    """Return an argument or an option for a table of them."""
    return names, how


def add_option(group: argparse._ActionsContainer, *names: str, **settings: Any) -> None:
    """Add an option; ``--long_name`` is a hidden alias of each ``--long-name``."""
    added = group.add_argument(*names, **settings)
    spelled = [f"--{name[2:].replace('-', '_')}" for name in names if "-" in name[2:]]
    if spelled:
        hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS, "dest": added.dest}
        group.add_argument(*spelled, **settings | hidden)
