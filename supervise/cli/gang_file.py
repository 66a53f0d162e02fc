"""Files that describe a gang: ``gang.toml``, and Procfiles."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import tomllib
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from supervise.cli import given_file, option_values, suggestions
from supervise.cli.parts import Part
from supervise.restarts import RestartKind
from supervise.roles import Readiness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_T = TypeVar("_T")
_PROCESS = re.compile(r"([A-Za-z0-9_-]+)\s*:\s*(\S.*)")
_LARGEST_BYTES = 1 << 20
_PATHS = ("log-dir", "env-file", "metrics")
"""Options whose values are paths, relative to the folder of the file."""
_NOT_IN_FILES = frozenset(
    ("nproc-per-node", "module", "no-python", "run-path", "role", "file", "help", "cwd", "env", "dry-run")
)
"""Options of the command line that a file cannot have: they have another form there, or concern a single run."""
_OF_ROLE = (
    *("command", "count", "module", "python", "run-path", "env", "cwd"),
    *("ready", "ready-timeout", "restart", "service"),
)


class GangFile:
    """The content of a file: options for the whole gang, and its roles."""

    def __init__(self, path: str) -> None:
        """Read a file. `words` checks its options, and `parts` checks its roles.

        Raises:
            argparse.ArgumentTypeError: The file cannot be read, or is not valid; the text names the file and the place.
        """
        self.path = path
        self._folder = os.path.dirname(os.path.abspath(path))
        try:
            content = given_file.read(path, _LARGEST_BYTES)
            if len(content) > _LARGEST_BYTES:
                raise self._error(f"it is larger than {_LARGEST_BYTES >> 20} MiB")
            text = content.decode()
        except OSError as error:
            raise self._error(error.strerror or str(error)) from None
        except UnicodeDecodeError:
            raise self._error("it is not text in UTF-8") from None
        self._whole: dict[str, Any] = self._toml(text) if path.endswith(".toml") else self._procfile(text)
        if not isinstance(self._whole.get("roles"), dict) or not self._whole["roles"]:
            raise self._error("it has no roles; give at least one table, such as [roles.trainer] with a command")

    def _toml(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._error(str(error)) from None

    def _procfile(self, text: str) -> dict[str, Any]:
        roles: dict[str, Any] = {}
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            parts = _PROCESS.fullmatch(stripped)
            if parts is None:
                raise self._error(f"line {number}: {line[:80]!r} is not NAME: COMMAND")
            if parts[1] in roles:
                raise self._error(f"line {number}: there are two processes {parts[1]!r}; give each its own name")
            roles[parts[1]] = {"command": ["sh", "-c", parts[2]]}
        return {"roles": roles}

    def _error(self, text: str) -> argparse.ArgumentTypeError:
        return argparse.ArgumentTypeError(f"{self.path}: {text}")

    # Options of the gang

    def words(self, known: Collection[str]) -> list[str]:
        """Return the options for the whole gang, in the form of arguments.

        Args:
            known: The options of the command line.

        Raises:
            argparse.ArgumentTypeError: A key is not an option, or has a value of another kind.
        """
        words: list[str] = []
        for key, value in self._whole.items():
            name = key.replace("_", "-")
            if key == "roles" or name == "cwd":
                continue
            if name == "env":
                words += [f"--env={each}={text}" for each, text in self._texts("env", value).items()]
            elif f"--{name}" not in known or name in _NOT_IN_FILES:
                raise self._error(f"{key!r} is not a key{_hint(name, known)}")
            else:
                words += self._word(name, value)
        return words

    def _word(self, name: str, value: Any) -> list[str]:
        if isinstance(value, bool):
            return [f"--{name}"] if value else []
        if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
            value = ",".join(map(str, value))
        if not isinstance(value, (str, int, float)):
            raise self._error(f"{name} is {value!r}; give a text, a number, true or false")
        return [f"--{name}={self._path(str(value)) if name in _PATHS else value}"]

    def _path(self, text: str) -> str:
        return text if text == os.devnull else os.path.join(self._folder, text)

    def _texts(self, what: str, value: Any) -> dict[str, str]:
        if not isinstance(value, dict) or not all(isinstance(each, (str, int, float)) for each in value.values()):
            raise self._error(f'{what} is {value!r}; give a table, such as {{ NAME = "value" }}')
        return {name: str(each) for name, each in value.items()}

    # Roles

    def parts(self, common: Mapping[str, str], ready: Readiness, ready_timeout_s: float) -> tuple[Part, ...]:
        """Return the roles in their order.

        Args:
            common: Variables of all ranks: name to value.
            ready: When a rank is ready, if its role does not define it.
            ready_timeout_s: Seconds until a rank must be ready, if its role does not define it.

        Raises:
            argparse.ArgumentTypeError: A role is not valid; the text names the role and the key.
        """
        cwd = self._cwd("cwd", self._whole.get("cwd", "."), self._folder)
        usual = Part(
            role="", count=1, program="", env=dict(common), cwd=cwd, ready=ready, ready_timeout_s=ready_timeout_s
        )
        return tuple(self._part(name, table, usual) for name, table in self._whole["roles"].items())

    def _part(self, name: str, table: Any, usual: Part) -> Part:
        where = f"roles.{name}"
        if not isinstance(table, dict):
            raise self._error(f"{where} is {table!r}; give a table with a command")
        given = {key.replace("_", "-"): value for key, value in table.items()}
        for key in given:
            if key not in _OF_ROLE:
                raise self._error(f"{where}: {key!r} is not a key{_hint(key, [f'--{each}' for each in _OF_ROLE])}")
        command = self._command(where, given.get("command"))
        timeout_s = usual.ready_timeout_s
        if "ready-timeout" in given:
            timeout_s = self._checked(f"{where}: ready-timeout", option_values.span_s, str(given["ready-timeout"]))
        return Part(
            role=self._checked(where, option_values.name, name),
            count=self._checked(f"{where}: count", option_values.worker_count, str(given.get("count", 1))),
            program=command[0],
            args=tuple(command[1:]),
            module=self._flag(where, given, "module", default=False),
            python=self._flag(where, given, "python", default=True),
            run_path=self._flag(where, given, "run-path", default=False),
            env=usual.env | self._variables(where, given.get("env", {})),
            cwd=self._cwd(f"{where}: cwd", given.get("cwd", "."), usual.cwd or "."),
            ready=self._one_of(where, given, "ready", get_args(Readiness), usual.ready),
            ready_timeout_s=timeout_s,
            restart=self._one_of(where, given, "restart", get_args(RestartKind), None),
            service=self._flag(where, given, "service", default=False),
        )

    def _command(self, where: str, value: Any) -> list[str]:
        try:
            words = shlex.split(value) if isinstance(value, str) else value
        except ValueError as error:
            raise self._error(f"{where}: command is {value!r}: {error}") from None
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words) or not words[0]:
            raise self._error(f'{where}: command is {value!r}; give a text or a list, such as ["python", "train.py"]')
        return words

    def _variables(self, where: str, value: Any) -> dict[str, str]:
        given = self._texts(f"{where}: env", value)
        for name, text in given.items():
            self._checked(f"{where}: env", option_values.variable, f"{name}={text}")
        return given

    def _cwd(self, what: str, value: Any, base: str) -> str:
        if not isinstance(value, str):
            raise self._error(f"{what} is {value!r}; give a path")
        return self._checked(what, option_values.existing_folder, os.path.normpath(os.path.join(base, value)))

    def _flag(self, where: str, given: Mapping[str, Any], key: str, *, default: bool) -> bool:
        value = given.get(key, default)
        if not isinstance(value, bool):
            raise self._error(f"{where}: {key} is {value!r}; give true or false")
        return value

    def _one_of(self, where: str, given: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: Any) -> Any:
        if key in given and given[key] not in allowed:
            raise self._error(f"{where}: {key} is {given[key]!r}; give {', '.join(allowed)}")
        return given.get(key, default)

    def _checked(self, what: str, parse: Callable[[str], _T], text: str) -> _T:
        try:
            return parse(text)
        except argparse.ArgumentTypeError as error:
            raise self._error(f"{what}: {error}") from None


def _hint(name: str, known: Collection[str]) -> str:
    meant = suggestions.option(f"--{name}", known).removeprefix("--")
    return f"; did you mean {meant!r}?" if meant and meant not in _NOT_IN_FILES else ""
