"""The option, the command or the key that a mistyped or foreign word probably means."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_CUTOFF = 0.8
_SHORTEST_PREFIX = 3
_OF_OTHERS = {
    "-f": "--file",
    "--procfile": "--file",
    "-N": "--nnodes",
    "--name": "--run-id",
    "--scale": "--file gang.toml web=3",
    "--replicas": "-n",
    "--np": "-n",
    "--n": "-n",
    "--count": "-n",
    "-c": "-n",
    "-j": "-n",
    "--ntasks": "-n",
    "--num-procs": "-n",
    "--nprocs": "-n",
    "--processes": "-n",
    "--workers": "-n",
    "-e": "--env",
    "-x": "--env",
    "--genv": "--env",
    "--export": "--env",
    "-w": "--cwd",
    "-C": "--cwd",
    "--wdir": "--cwd",
    "--workdir": "--cwd",
    "--chdir": "--cwd",
    "--grace": "--shutdown-timeout",
    "--grace-period": "--shutdown-timeout",
    "--stop-timeout": "--shutdown-timeout",
    "--stop-grace-period": "--shutdown-timeout",
    "--kill-after": "--shutdown-timeout",
    "--time-limit": "--timeout",
    "--retries": "--max-restarts",
    "--restarts": "--max-restarts",
    "--nodes": "--nnodes",
    "--num-nodes": "--nnodes",
    "--host-rank": "--node-rank",
    "--machine-rank": "--node-rank",
    "-o": "--log-dir",
    "--output": "--log-dir",
    "--output-dir": "--log-dir",
    "--logs": "--log-dir",
    "--no-color": "--color never",
    "--no-log-prefix": "--no-prefix",
    "--silent": "-q",
    "--debug": "-v",
}
"""Option of another launcher to the option of supervise."""
_COMMANDS_OF_OTHERS = {
    **dict.fromkeys(("exec", "launch", "start", "up"), "run"),
    **dict.fromkeys(("ps", "list", "history"), "ls"),
    "log": "logs",
    **dict.fromkeys(("attach", "follow", "tail"), "logs -f"),
    **dict.fromkeys(("prune", "rm", "remove", "delete"), "clean"),
    **dict.fromkeys(("inspect", "describe", "info"), "show"),
    **dict.fromkeys(("monitor", "monit"), "top"),
    **dict.fromkeys(("down", "kill", "terminate", "cancel", "shutdown", "quit", "exit", "halt"), "stop"),
    **dict.fromkeys(("validate", "verify", "config", "lint"), "check"),
    "py-spy": "stacks",
    "version": "--version",
}
"""Command of another launcher or of a shell to the command of supervise, with its options."""
_OF_THE_MACHINE = ("halt", "init", "kexec", "poweroff", "reboot", "shutdown", "telinit")
"""Programs that stop the machine. They are never proposed."""
_COUNTS = (
    *("n", "nproc", "nproc-per-node", "replicas", "deploy", "scale", "numprocs", "numprocesses", "processes"),
    *("instances", "autostart"),
)
KEYS_OF_OTHERS = {
    **dict.fromkeys(_COUNTS, ("count",)),
    **dict.fromkeys(("cmd", "entrypoint", "exec", "exec-start", "program", "run"), ("command",)),
    **dict.fromkeys(("depends-on", "after", "requires", "priority"), ("needs",)),
    "healthcheck": ("ready", "alive"),
    **dict.fromkeys(("readiness-probe", "readiness"), ("ready",)),
    **dict.fromkeys(("liveness-probe", "liveness"), ("alive",)),
    "startsecs": ("ready",),
    **dict.fromkeys(("start-period", "timeout-start-sec"), ("ready-timeout",)),
    "interval": ("alive-interval",),
    "retries": ("alive-failures",),
    **dict.fromkeys(("stdin-open", "tty"), ("stdin",)),
    "environment": ("env",),
    "environment-file": ("env-file",),
    **dict.fromkeys(("working-dir", "working-directory", "workdir", "directory", "chdir"), ("cwd",)),
    **dict.fromkeys(("stop-grace-period", "stopwaitsecs", "timeout-stop-sec", "grace"), ("shutdown-timeout",)),
    **dict.fromkeys(("stopsignal", "kill-signal"), ("stop-signal",)),
    **dict.fromkeys(("stopasgroup", "killasgroup"), ("kill-mode",)),
    "exec-reload": ("reload-signal",),
    **dict.fromkeys(("autorestart", "restart-policy", "availability"), ("restart",)),
    **dict.fromkeys(("startretries", "start-limit-burst"), ("max-restarts",)),
    **dict.fromkeys(("restart-sec", "backoff-seconds"), ("backoff",)),
    "start-limit-interval-sec": ("restart-window",),
    **dict.fromkeys(("exitcodes", "success-exit-status"), ("success-exit-codes",)),
    "redirect-stderr": ("merge",),
    **dict.fromkeys(("stdout-logfile", "stderr-logfile", "standard-output", "log-location"), ("log-dir",)),
    **dict.fromkeys(("stdout-logfile-maxbytes", "stderr-logfile-maxbytes", "logging"), ("log-max-bytes",)),
}
"""Key of docker compose, systemd, supervisord or process-compose, with hyphens, to the keys that do its work."""
OF_CONTAINERS = ("image", "build", "container-name", "volumes", "networks", "ports", "expose")
"""Keys of docker compose without a counterpart here, with hyphens."""
RESTARTS_OF_OTHERS = {
    **dict.fromkeys(("always", "unless-stopped"), "; did you mean permanent?"),
    **dict.fromkeys(("on-failure", "unexpected"), "; did you mean transient?"),
    **dict.fromkeys(("no", "never"), "; did you mean temporary?"),
}
"""Kind of restart of docker compose, systemd or supervisord to a hint."""
TABLES_OF_OTHERS = ("role", "service", "services", "program", "programs", "process", "processes")
"""Tables of other files whose tables are roles here."""
_ROLE = re.compile(rb"^\s*\[roles\.", re.MULTILINE)
_HEAD_BYTES = 1 << 16
_OPERATOR = re.compile(r"[0-9&]?[|&;<>]+(?:&[0-9])?")
_QUOTED = re.compile(r"""\\.|'[^']*'|["](?:\\.|[^"\\])*["]""", re.DOTALL)
_EXPANDED = re.compile(r"\$[({A-Za-z_]|`|\*|[;&]$|^<|(?<![-=])>")


def option(word: str, known: Iterable[str]) -> str:
    """Return the option that is probably meant, or ``""``.

    Args:
        word: An option as the user gave it, perhaps as ``--option=value``.
        known: The options.
    """
    name = word.partition("=")[0]
    known = list(known)
    if (foreign := _OF_OTHERS.get(name, "")) and foreign.split()[0] in known:
        return foreign
    return _close(name.replace("_", "-").lower(), [each for each in known if each.startswith("--")])


def instead_of(word: str, known: Iterable[str], following: str = "") -> str:
    """Return a hint for an option that `supervise run` does not have: ``; did you mean --file?``, or ``""``.

    Args:
        word: As for `option`.
        known: The options.
        following: The word after it.
    """
    if word in ("-d", "--detach", "--daemon", "--background") and not os.path.isdir(following):
        return "; a run stays in the foreground: end the line with & to go on meanwhile, and stop it by: supervise stop"
    meant = "--cwd" if word == "-d" else option(word, known)
    return f"; did you mean {meant}?" if meant else ""


def command(words: Sequence[str], known: Sequence[str]) -> list[str]:  # noqa: PLR0911 - one return per kind of word
    """Return the command line that is probably meant, without ``supervise``; empty if none is known.

    Args:
        words: The command line; the first word is not a command.
        known: The commands.
    """
    first, rest = words[0], list(words[1:])
    if first == "kill" and len(rest) == 3 and rest[0] in ("-s", "--signal"):
        return ["signal", rest[2], rest[1]]
    foreign = _COMMANDS_OF_OTHERS.get(first, "").split()
    if first in ("start", "up") and not (rest and os.path.exists(rest[0])):
        return ["run", "--file", "gang.toml"]
    if foreign == ["run"]:
        return _run_line(rest)
    if foreign:  # its options are not those of supervise
        run = [word for word in rest[-1:] if not word.startswith("-")]
        return [*(["status"] if foreign == ["ls"] and run else foreign), *run]
    if first == "scale":
        return ["run", "--file", "gang.toml", *(rest or ["web=3"])]
    if first.startswith("-"):  # options without a command
        meant = _close(first, ["--help", "--version"])
        return [meant] if meant else ["run", _OF_OTHERS.get(first, first), *rest] if rest else []
    line = _run_line(words)
    if line or first in _OF_THE_MACHINE:
        return line if rest or _is_path(first) else []  # a lone word in PATH may be a command of another tool
    near = _near(first, [each for each in known if each[0] == first[:1]])  # "port" is not "report"
    if near == "clean" and not _close(first, [near]):  # it removes runs: no guess
        near = ""
    return [near, *rest] if near else []


def _is_path(word: str) -> bool:
    return os.sep in word or "." in word or os.path.exists(word) or is_gang_file(word)


def _run_line(words: Sequence[str]) -> list[str]:
    """Return the line that runs a program or a file of roles; empty if the first word is surely neither."""
    import shutil

    if not words or words[0] in _OF_THE_MACHINE or not (_is_path(words[0]) or shutil.which(words[0])):
        return []
    return ["run", *(["--file"] if is_gang_file(words[0]) else []), *words]


def is_gang_file(path: str) -> bool:
    """Return whether a path, perhaps of a missing file, is that of a file of roles and not of a program."""
    name = os.path.basename(path).lower()
    like = name.endswith((".toml", ".yaml", ".yml")) or name.partition(".")[0] == "procfile"
    if os.path.isdir(path) or os.access(path, os.X_OK):
        return False
    if not like and os.access(path, os.R_OK) and os.path.isfile(path):
        with open(path, "rb") as file:
            like = _ROLE.search(file.read(_HEAD_BYTES)) is not None
    return like


def keys(word: str, known: Iterable[str]) -> list[str]:
    """Return the keys of a role that a key of another file probably means.

    Args:
        word: The key, with hyphens.
        known: The keys of a role.
    """
    known = list(known)
    if foreign := of_others(word):
        return [key for key in foreign if key in known]
    near = option(f"--{word}", [f"--{key}" for key in known]).removeprefix("--")
    return [near] if near else []


def of_others(word: str) -> tuple[str, ...]:
    """Return the keys, of a role or of the gang, that do the work of a key of another tool; `word` has hyphens."""
    return KEYS_OF_OTHERS.get(re.sub("(?<=[a-z])(?=[A-Z])", "-", word).lower(), ())  # ExecStart, as systemd writes it


def keys_of_compose(known: Iterable[str]) -> str:
    """Return how the keys of a service of docker compose are named here: ``replicas: count, ...``."""
    known = list(known)
    of_compose = ("replicas", "environment", "working-dir", "depends-on", "healthcheck", "stop-grace-period")
    pairs = [(each.replace("-", "_"), " or ".join(keys(each, known))) for each in of_compose]
    return ", ".join(f"{each}: {meant}" for each, meant in pairs if meant)


def of_a_shell(text: str) -> tuple[str, bool]:
    """Return the first word of a command that only a shell would interpret, and whether it surely is one.

    Quoted and escaped parts do not count. An operator alone, such as ``|`` or ``>``, is surely one; ``*.csv`` and
    ``$(date)`` may be meant as they are. The word is ``""`` if there is none.
    """
    words = _QUOTED.sub("x", text).split()
    sure = next((word for word in words if _OPERATOR.fullmatch(word)), "")
    return sure or next((word for word in words if _EXPANDED.search(word)), ""), bool(sure)


def meant(word: str, known: Iterable[str]) -> str:
    """Return the question after a name that does not exist: ``; did you mean 'web'?``, or ``""``."""
    near = _near(word, known)
    return f"; did you mean {near!r}?" if near else ""


def _near(word: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word.lower(), list(known), 1, 0.6)), "")


def _close(word: str, known: list[str]) -> str:
    """Return a known word close to `word`: with other hyphens, a longer end or a typing mistake; ``""`` if none is."""
    bare = {each.replace("-", ""): each for each in known}
    short = word.replace("-", "")
    if short in bare:
        return bare[short]
    begun = [each for each in known if each.startswith(word)]
    if len(begun) == 1 and len(short) >= _SHORTEST_PREFIX:
        return begun[0]
    return next(iter(difflib.get_close_matches(word, known, 1, _CUTOFF)), "")
