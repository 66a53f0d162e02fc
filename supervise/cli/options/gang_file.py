"""The programs of a run, one for all ranks or one for each role of a file; and the hosts of a run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import tomllib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from supervise._settings import ADDRESSES, CHOICE, FLAG, NAMES, PROBE, READINESS, Setting
from supervise.cli.options import suggestions, values
from supervise.cli.options.parts import COMMAND, Part, lacks, of_each_role, role_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


# Files of environment variables, as docker compose reads them: ``NAME=VALUE``, where a quoted value may have lines;
# ``NAME: VALUE``; or ``NAME``, whose value is that of this process's environment


_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_NAME = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*(?:[=:][ \t]*|(?P<alone>(?=\n|\Z)))")
_VALUE = re.compile(
    r"""(?:'(?P<raw>(?:[^'\\]|\\.)*)'|"(?P<escaped>(?:[^"\\]|\\.)*)")[^\S\n]*(?:#[^\n]*)?(?=\n|\Z)"""
    r"""|(?P<bare>(?!["'])[^\n]*)""",
    re.DOTALL,
)
_COMMENT = re.compile(r"[ \t]#")
_ESCAPE = re.compile(r"""\\([abfnrtv\\"'$])""")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read(path: str) -> dict[str, str]:
    r"""Return the variables of a file: name to value.

    Empty lines and lines that begin with ``#`` are skipped. The word ``export`` before a name is skipped, too. Quotes
    around a value are removed; the value between quotes may have several lines. In double quotes ``\n`` is a newline,
    and a backslash before a quote, ``$`` or another backslash is removed; in single quotes, one before a single quote
    is removed. In a value without quotes, text after `` #`` is a comment. ``$`` has no special meaning. A name
    alone has its value in this process's environment; if it has none there, the line is skipped.

    Raises:
        argparse.ArgumentTypeError: The file cannot be read, or has a line of another form; the text names both.
    """
    text = values.text_of(path, repr(path))
    found: dict[str, str] = {}
    at = next(_SPACE.finditer(text)).end()
    while at < len(text):
        name = _NAME.match(text, at)
        value = _VALUE.match(text, name.end()) if name is not None else None
        if name is None or value is None or "\0" in value[0]:
            number, line = text.count("\n", 0, at) + 1, text[at:].partition("\n")[0]
            why = " (a quote is not closed, or text follows it)" if name is not None and value is None else ""
            raise argparse.ArgumentTypeError(f"{path!r}, line {number}: {line[:80]!r} is not NAME=VALUE{why}")
        if name["alone"] is None:
            found[name[1]] = _text(value)
        elif name[1] in os.environ:
            found[name[1]] = os.environ[name[1]]
        at = next(_SPACE.finditer(text, value.end())).end()
    return found


def _text(value: re.Match[str]) -> str:
    """Return a value without quotes and comment."""
    if value["bare"] is not None:
        behind_equals = value.string[value.start() - 1 : value.end()]  # "A=#b" has no comment, and "A= #b" has one
        return _COMMENT.split(behind_equals, maxsplit=1)[0][1:].strip()
    if value["raw"] is not None:
        return re.sub(r"\\(.)", lambda found: "'" if found[1] == "'" else found[0], value["raw"], flags=re.DOTALL)
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), value["escaped"])


# Files that describe a gang: ``gang.toml``, and Procfiles


_T = TypeVar("_T")
_PROCESS = re.compile(r"([A-Za-z0-9_-]+)\s*:\s*(\S.*)")
_ROLE = re.compile(r"^\s*\[roles\.", re.MULTILINE)
"""The head of a role in TOML, which a Procfile cannot have: a pipe has no name that tells them apart."""
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_UNQUOTED = re.compile(r"Invalid value|Illegal character '\\n'|Expected newline")
_FOREIGN = (".yaml", ".yml", ".json")
_PATHS = ("log-dir", "env-file", "metrics")
"""Options whose values are paths, relative to the folder of the file."""
NO_FILE = "none"
"""The value of ``--env-file`` that leaves out the files before it."""
_WAYS = {"module": True, "run-path": True, "python": False}
"""The keys of a role, with their values, that say how its program runs. They exclude each other."""
_PORTS = 100
"""Distance between the ports of two processes of a Procfile, as with foreman."""
_NOT_IN_FILES = frozenset(
    ("nproc-per-node", "module", "no-python", "run-path", "role", "file", "help", "cwd", "env", "dry-run")
)
"""Options of the command line that a file cannot have: they have another form there, or concern a single run."""


class GangFile:
    """The content of a file: options for the whole gang, and its roles."""

    def __init__(self, path: str) -> None:
        """Read a file. `words` checks its options, and `parts` checks its roles.

        Raises:
            argparse.ArgumentTypeError: The file cannot be read, or is not valid; the text names the file and the place.
        """
        self.path = path
        self.notes: list[str] = []
        """What is probably not as the user means it, after `parts`."""
        self._beside = "" if path.startswith("/dev/") else os.path.dirname(path)  # a pipe is in no folder of the user
        self._folder = os.path.abspath(self._beside)
        self._options: Mapping[str, bool] = {}
        if path.lower().endswith(_FOREIGN):
            raise self._error(
                "a gang file is TOML, and this is the name of a YAML or JSON file; write the roles into a gang.toml, or"
                " into a Procfile. A service of docker compose is a table [roles.NAME] with a command; its other keys"
                f" are here: {suggestions.keys_of_compose((*COMMAND, *role_settings()))}"
            )
        text = values.text_of(path, path)
        self.is_procfile: bool = not (path.lower().endswith(".toml") or _ROLE.search(text))
        self._whole: dict[str, Any] = self._procfile(text) if self.is_procfile else self._toml(text)
        self.roles: Mapping[str, Any] = self._whole.get("roles")  # type: ignore[assignment]  # checked here
        """Name of each role to its table."""
        if not isinstance(self.roles, dict) or not self.roles:
            foreign = next(filter(self._role_in, self._whole), None)
            if self.roles:
                raise self._error(
                    f"roles is {_in_toml(self.roles)}; give tables, such as [roles.trainer] with a command"
                )
            needed = "line NAME: COMMAND" if self.is_procfile else "table, such as [roles.trainer] with a command"
            raise self._error(f"it has no roles{self._meant(foreign) if foreign else f'; give at least one {needed}'}")

    def _toml(self, text: str) -> dict[str, Any]:
        try:
            found = tomllib.loads(text, parse_float=str)  # a variable such as 3.10 keeps its text
            has_nul = "\\x00" in repr(found).replace("\\\\", "")
        except tomllib.TOMLDecodeError as error:
            quotes = '; a text is between two quotes, such as command = "sleep 1"'
            raise self._error(f"{error}{quotes if _UNQUOTED.match(str(error)) else ''}") from None
        except ValueError:
            raise self._error("a number in it has more than 4300 digits") from None
        except RecursionError:
            raise self._error("its arrays or tables are nested too deeply") from None
        if has_nul:
            raise self._error("a text in it holds a NUL character, which no program can be given")
        return found

    def _procfile(self, text: str) -> dict[str, Any]:
        roles: dict[str, Any] = {}
        lines = enumerate(text.split("\n"), 1)
        for number, line in lines:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            while _CONTINUED.search(line):
                line = line[:-1] + next(lines, (0, ""))[1]  # noqa: PLW2901 - the rest of the line
            parts = _PROCESS.fullmatch(line.strip())
            if parts is None:
                hint = f"; to run it as a program: supervise run {self.path}" if self.path.endswith(".py") else ""
                if line.startswith("["):  # supervisord, circus, systemd
                    hint = (
                        "; the tables of other tools are [roles.NAME] with a command here, in a file such as gang.toml"
                    )
                raise self._error(f"line {number}: {line[:80]!r} is not NAME: COMMAND{hint}")
            if parts[1] in roles:
                raise self._error(f"line {number}: there are two processes {parts[1]!r}; give each its own name")
            roles[parts[1]] = {"command": ["sh", "-c", parts[2]]}
        return {"roles": roles}

    def _error(self, text: str) -> argparse.ArgumentTypeError:
        return argparse.ArgumentTypeError(f"{self.path}: {text}")

    @property
    def dotenv(self) -> str | None:
        """The file ``.env`` beside a Procfile; None if there is none."""
        path = os.path.join(self._beside, ".env")
        return path if self.is_procfile and os.path.isfile(path) else None

    # Options of the gang

    def words(self, known: Mapping[str, bool]) -> list[str]:
        """Return the options for the whole gang, in the form of arguments.

        Args:
            known: The options of the command line, and whether each is a flag.

        Raises:
            argparse.ArgumentTypeError: A key is not an option, or has a value of another kind.
        """
        words: list[str] = []
        self._options = known
        for name, value in self._spelled_once("", self._whole).items():
            if name in ("roles", "cwd"):
                continue
            if name == "env":
                words += [f"--env={each}={text}" for each, text in self._texts("env", value).items()]
            elif name == "env-file" and isinstance(value, list):
                words += [word for each in value for word in self._word(name, each)]
            elif f"--{name}" not in known or name in _NOT_IN_FILES:
                raise self._error(f"{name!r} is not a key{self._meant(name)}")
            else:
                words += self._word(name, value)
        return words

    def _spelled_once(self, where: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table whose keys have hyphens. A key may have underscores instead, but only one of the spellings."""
        given: dict[str, Any] = {}
        for key, value in table.items():
            name = key.replace("_", "-")
            if name in given:
                raise self._error(f"{where}{name!r} is given twice, with '-' and with '_'; remove one of the two lines")
            given[name] = value
        return given

    def _word(self, name: str, value: Any) -> list[str]:
        if self._options[f"--{name}"]:
            return [f"--{name}"] if self._flag(name, value) else []
        if name == "ready" and isinstance(value, list):
            return [f"--ready={each}" for each in value]
        if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
            value = ",".join(map(str, value))
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self._error(f"{name} is {_in_toml(value)}; give a text or a number")
        if name in _PATHS and value == "":
            raise self._error(f"{name} is ''; give a path, or omit the key")
        return [f"--{name}={self._path(str(value)) if name in _PATHS else value}"]

    def _path(self, text: str) -> str:
        return text if text in (os.devnull, NO_FILE) else os.path.join(self._folder, text)

    def _texts(self, what: str, value: Any) -> dict[str, str]:
        is_table = isinstance(value, dict)
        wrong = {name: each for name, each in value.items() if not isinstance(each, (str, int))} if is_table else value
        if wrong != {}:
            raise self._error(f'{what} is {_in_toml(wrong)}; give a table, such as {{ NAME = "value" }}')
        for name in value:
            self._checked(what, values.variable_name, name)
        return {name: _as_text(each) for name, each in value.items()}

    def _meant(self, name: str) -> str:
        """Return a hint for a key of the whole gang that does not exist, or ``""``."""
        if role := self._role_in(name):
            return f"; did you mean [roles.{role}] in place of [{name if role == name else f'{name}.{role}'}]?"
        keys = (*COMMAND, *role_settings())
        of_gang = {*(each for each in self._options if each[2:] not in _NOT_IN_FILES), "--env", "--cwd"}
        foreign = [f"--{each}" for each in suggestions.of_others(name)]
        meant = next((each for each in foreign if each in of_gang and each[2:] not in keys), "")
        if not foreign:
            meant = suggestions.option(f"--{name}", of_gang)
        if meant.startswith("--") and name not in keys:
            return f"; did you mean {meant[2:]!r}?"
        near = " or ".join(repr(each) for each in suggestions.keys(name, keys) if each != name)
        if near or name in keys:
            it = f"did you mean {near}? It" if near else "it"
            return f"; {it} belongs to a role: write it below a line such as [roles.trainer]"
        return "; the keys above [roles.NAME] are the options of supervise run --help, without their hyphens"

    def _role_in(self, name: str) -> str:
        """Return the role that an unknown table describes, as in ``[service.web]`` or ``[web]``; "" if it does not."""
        table = self._whole.get(name)
        if not isinstance(table, dict):
            return ""
        if name in suggestions.TABLES_OF_OTHERS or name.lower() == "roles" != name:
            return next(iter(table), "NAME")
        return name if "command" in table else ""

    def _meant_in_role(self, key: str, keys: Collection[str]) -> str:
        """Return what is wrong with a key of a role that does not exist, and a hint if there is one."""
        at_the_top = "belongs at the top of the file, above the first [roles.NAME]"
        if f"--{key}" in self._options and key not in _NOT_IN_FILES:
            return f"is a key of the whole gang; it {at_the_top}"
        if key in suggestions.OF_CONTAINERS:
            return "is not a key: ranks are programs, not containers; give a command"
        of_gang = [each for each in suggestions.of_others(key) if each not in keys and f"--{each}" in self._options]
        if of_gang:
            return f"is not a key; did you mean {of_gang[0]!r}? It {at_the_top}"
        meant = " or ".join(map(repr, suggestions.keys(key, keys)))
        return f"is not a key; {f'did you mean {meant}?' if meant else 'the keys are ' + ', '.join(keys)}"

    # Roles

    def parts(
        self, common: Mapping[str, str], settings: Mapping[str, Any], words: Sequence[str] = (), port: int | None = None
    ) -> tuple[Part, ...]:
        """Return the roles in their order, without those that are switched off.

        Args:
            common: Variables of all ranks: name to value.
            settings: The settings of the gang: name to value.
            words: The wanted roles as ``NAME`` or ``NAME=COUNT``, in lists with commas, too. What they need is added.
                If none is wanted, but roles are switched off by ``NAME=0``: all others.
            port: ``PORT`` of the first role; None to set none.

        Raises:
            argparse.ArgumentTypeError: A role is not valid, or does not exist; the text names the role and the key.
        """
        cwd = self._cwd("cwd", self._whole.get("cwd", "."), self._folder)
        usual = Part(role="", count=1, program="", env=dict(common), cwd=cwd, settings=of_each_role(settings))
        made = {name: self._part(name, table, usual) for name, table in self.roles.items()}
        for name in made:
            role, _, rank = name.rpartition(".")
            if role in made and values.is_count(rank):
                raise self._error(f"roles.{name}: it has the name of rank {rank} of role {role!r}; rename one of them")
        for number, part in enumerate(made.values()):
            part.port = None if port is None else port + _PORTS * number
            if part.port is not None and part.port > values.LARGEST_PORT:
                raise self._error(
                    f"{part.role}: its PORT would be {part.port}, {_PORTS} above that of the process before, and the"
                    f" largest port is {values.LARGEST_PORT}; give a smaller PORT to the first process"
                )
        return self._selected(made, words)

    def _selected(self, parts: Mapping[str, Part], words: Sequence[str]) -> tuple[Part, ...]:
        words = [each for word in words for each in word.split(",")]
        wanted = [self._wanted(parts, word) for word in words]
        if all(word.endswith("=0") for word in words):
            wanted = list(parts)
        for name in wanted:  # the list grows
            needs = parts[name].settings.get("needs") if parts[name].count else ()
            wanted += [each for each in needs or () if each in parts and each not in wanted]
        kept = [part for name, part in parts.items() if part.count and name in wanted]
        if not kept:
            raise self._error("every role is switched off by a count of 0; give at least one role a rank")
        if len(kept) < len(parts) and all(part.settings.get("service") for part in kept):
            names = ", ".join(part.role for part in kept)
            raise self._error(
                f"only services remain: {names}; add another role: services stop when all other roles have ended"
            )
        # A role that is switched off is replaced by something else. The needs of those left out still set the rule
        usual = None if all(part.settings.get("needs") is None for part in parts.values()) else ()
        for part in kept:
            if (needs := part.settings.get("needs", usual)) is not None:
                part.settings["needs"] = tuple(
                    each for each in _present(parts, needs) if each not in parts or each in wanted
                )
        return tuple(kept)

    def _wanted(self, parts: Mapping[str, Part], word: str) -> str:
        """Return the role that a word names, and set its number of ranks if the word has one."""
        name, equals, count = (word, "", "") if word in parts else word.rpartition("=")
        if name not in parts:
            if word.startswith("-"):
                raise self._error(f"{word!r} is after the names of roles; give options before them")
            meant = suggestions.meant(name or word, parts)
            what = f"it has no role {name or word!r}; its roles are {', '.join(parts)}"
            raise self._error(f"{what} (PROGRAM and --file exclude each other){meant}")
        if equals:
            parts[name].count = self._checked(f"{name}={count}", values.role_count, count)
        return name

    def _part(self, name: str, table: Any, usual: Part) -> Part:
        where = f"roles.{name if name.isprintable() else repr(name)}"
        if not isinstance(table, dict):
            raise self._error(f"{where} is {_in_toml(table)}; give a table with a command")
        given = self._spelled_once(f"{where}: ", table)
        rows = role_settings()
        keys = (*COMMAND, *rows)
        for key in given:
            if key not in keys:
                raise self._error(f"{where}: {key!r} {self._meant_in_role(key, keys)}")
        command = self._command(where, given.get("command"))
        settings = {row.name: self._setting(where, row, given[key]) for key, row in rows.items() if key in given}
        for key in given:
            if needed := lacks(key, usual.settings | settings):
                raise self._error(f"{where}: {key} needs {needed}")
        env_file = given.get("env-file", NO_FILE)
        ways = [f"{key} = {str(value).lower()}" for key, value in _WAYS.items() if given.get(key) is value]
        if len(ways) > 1:
            raise self._error(f"{where}: {' and '.join(ways)} exclude each other; omit one of them")
        return Part(
            role=self._checked(where, values.role_name, name),
            count=self._checked(f"{where}: count", values.role_count, _as_text(given.get("count", 1))),
            program=command[0],
            args=tuple(command[1:]),
            module=self._flag(f"{where}: module", given.get("module", False)),
            python=self._flag(f"{where}: python", given.get("python", True)),
            run_path=self._flag(f"{where}: run-path", given.get("run-path", False)),
            env=usual.env
            | self._of_files(f"{where}: env-file", env_file)
            | self._texts(f"{where}: env", given.get("env", {})),
            env_files=() if env_file == NO_FILE else (env_file,) if isinstance(env_file, str) else tuple(env_file),
            cwd=self._cwd(f"{where}: cwd", given.get("cwd", "."), usual.cwd or "."),
            settings=usual.settings | settings,
        )

    def _setting(self, where: str, row: Setting, value: Any) -> Any:
        """Return the value of a setting of a role."""
        what = f"{where}: {row.key}"
        if row.kind is FLAG:
            return self._flag(what, value)
        if row.kind is NAMES:
            return self._names(what, value)
        if row.kind in (PROBE, READINESS):
            return self._checked(where, partial(values.of_row, row), value)
        if row.kind is ADDRESSES and isinstance(value, list):
            value = ",".join(_as_text(each).replace(",", ",,") for each in value)
        if row.kind is not CHOICE:
            return self._checked(what, values.OF_KIND[row.kind][1], _as_text(value))
        if value not in row.choices:
            hint = suggestions.RESTARTS_OF_OTHERS.get(str(value), "") if row.key == "restart" else ""
            raise self._error(f"{what} is {_in_toml(value)}; give {', '.join(row.choices)}{hint}")
        return value

    def _names(self, what: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._error(f'{what} is {_in_toml(value)}; give a list of roles, such as ["store"], or [] for none')
        return tuple(value)

    def _command(self, where: str, value: Any) -> list[str]:
        try:
            words = shlex.split(value) if isinstance(value, str) else value
        except ValueError as error:
            raise self._error(
                f"{where}: command is {value!r}: {error}; close each quotation, and double a backslash at the end"
            ) from None
        if isinstance(value, str):
            self._check_shell(where, value)
        if isinstance(words, list):
            words = [str(word) if type(word) is int else word for word in words]
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words) or not words[0]:
            found = "is missing" if value is None else f"is {_in_toml(value)}"
            raise self._error(f'{where}: command {found}; give a text or a list, such as ["python", "train.py"]')
        return words

    def _of_files(self, what: str, value: Any) -> dict[str, str]:
        """Return the variables of the files of a role."""
        paths = [value] if isinstance(value, str) else value
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise self._error(f'{what} is {_in_toml(value)}; give a path, or a list of paths, such as ["web.env"]')
        found: dict[str, str] = {}
        for path in paths:
            found = {} if path == NO_FILE else found | self._checked(what, read, self._path(path))
        return found

    def _check_shell(self, where: str, text: str) -> None:
        """Refuse an operator of a shell, since no shell reads the command; note other words that only a shell expands.

        Raises:
            argparse.ArgumentTypeError: There is one.
        """
        import json

        word, is_sure = suggestions.of_a_shell(text)
        with_shell = f"for a shell, give command = {json.dumps(['sh', '-c', text], ensure_ascii=False)}"
        if is_sure:
            raise self._error(f"{where}: there is no shell here, so {word!r} would be an argument; {with_shell}")
        if word:
            self.notes.append(
                f"{self.path}: {where}: there is no shell here, so {word} is passed as it is; {with_shell}, or quote it"
            )

    def _cwd(self, what: str, value: Any, base: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._error(f"{what} is {_in_toml(value)}; give a path")
        return self._checked(what, values.existing_folder, os.path.normpath(os.path.join(base, value)))

    def _flag(self, what: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._error(f"{what} is {_in_toml(value)}; give true or false")
        return value

    def _checked(self, what: str, parse: Callable[[str], _T], text: str) -> _T:
        try:
            return parse(text)
        except argparse.ArgumentTypeError as error:
            raise self._error(f"{what}: {str(error).replace(repr(text), _in_toml(text))}") from None


def _in_toml(value: Any) -> str:
    """Return a value as a file spells it, for messages."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_in_toml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_toml, value))}]"
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _in_toml(value)


def _present(parts: Mapping[str, Part], needs: Iterable[str]) -> tuple[str, ...]:
    """Return needed roles; in place of one that is switched off, the roles that it needs itself."""
    found = list(needs)
    for name in found:  # the list grows
        if name in parts and not parts[name].count:
            found += [each for each in parts[name].settings.get("needs") or () if each not in found]
    return tuple([name for name in found if name not in parts or parts[name].count])
