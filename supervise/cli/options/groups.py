"""The parser of ``supervise run``, its options by group of the help, and the checks of each group."""

from __future__ import annotations

import argparse
import os
import re
from functools import cache, partial
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from supervise._settings import ADDRESSES, CHOICE, FLAG, GANG, POLICY, READINESS, WATCHDOG, Setting, with_options
from supervise.cli.options import values
from supervise.cli.options.parts import Hosts, Part, lacks, of_each_role
from supervise.cli.options.values import add_option, argument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from supervise.cli.options.gang_file import GangFile
    from supervise.logs import Std
    from supervise.restarts import RestartPolicy
    from supervise.watchdog import Watchdog


# The options of the settings, which the table of settings describes


def add_settings(group: argparse._ArgumentGroup, *options: str) -> None:
    """Add these options of a group; without `options`, those of the group that were not added yet."""
    known = group._option_string_actions  # noqa: SLF001 - argparse has no public list
    for row in with_options():
        if row.group == group.title and (row.option in options if options else row.option not in known):
            text = f"{row.sentence} ({row.usual})" if row.usual else row.sentence
            if row.kind is FLAG:
                add_option(group, row.option, action="store_true", help=text)
            elif row.kind is CHOICE:
                add_option(group, row.option, choices=row.choices, metavar=row.metavar or None, help=text)
            else:
                metavar, parse = values.OF_KIND[row.kind]
                action = {READINESS: "append", ADDRESSES: "extend"}.get(row.kind, "store")
                add_option(group, row.option, metavar=metavar, type=parse, action=action, help=text)


def given_values(found: argparse.Namespace, rows: Iterable[Setting]) -> dict[str, Any]:
    """Return the values of the command line: name of a setting to its value, for the settings that were given."""
    each = {row.name: getattr(found, row.dest) for row in rows if row.option}
    if len(each.get("ready") or ()) == 1:
        [each["ready"]] = each["ready"]
    return {name: value for name, value in each.items() if value is not None and value is not False}


def gang_settings(found: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the gang that have options: name to value, or to the default."""
    usual = {row.name: row.default for row in GANG.values() if row.option}
    if found.keep_going:
        usual["strategy"] = "one_for_one"
    return usual | given_values(found, GANG.values())


def told_settings(found: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the whole gang that differ from their defaults: key in a gang file to value."""
    each = {row: getattr(found, row.dest) for row in with_options() if row.role != "own"}
    return {row.key: value for row, value in each.items() if value is not None and value != row.default}


# The options of ``torchrun`` 2.13 that have no effect here or are refused, and the variables ``PET_*``


_WITHOUT_EFFECT = {
    "--rdzv-conf": "supervise run needs no rendezvous",
    "--monitor-interval": "the kernel reports each exit at once",
    "--event-log-handler": "the events are in events.jsonl of the run directory, with -v also on stderr",
}
"""Option to the reason why it has no effect; a message shows the reason."""
FLAGS = ("standalone", "module", "no-python", "run-path", "virtual-local-rank")
VALUES = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr", "role"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "monitor-interval", "event-log-handler", "start-method"),
    *(
        "max-restarts",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "duplicate-stdout-filters",
        "signals-to-handle",
        "shutdown-timeout",
    ),
    "duplicate-stderr-filters",
)
"""The options, without their dashes, for which torchrun reads a default from a variable ``PET_<NAME>``."""


def defaults(environ: Mapping[str, str]) -> list[str]:
    """Return the options that variables such as ``PET_NNODES`` give, in the form of arguments."""
    given = {name: environ.get(f"PET_{name.replace('-', '_').upper()}", "") for name in (*FLAGS, *VALUES)}
    return [
        *(f"--{name}" for name in FLAGS if given[name] and given[name].strip() != "0"),
        *(f"--{name}={given[name]}" for name in VALUES if given[name]),
    ]


def _add_torchrun_options(parser: argparse.ArgumentParser, what: argparse._ArgumentGroup) -> None:
    """Add the options, in both spellings of torchrun. The help shows only ``--start-method``, in the group `what`."""
    refused = "supervise run needs no rendezvous server; give --nnodes, --node-rank and --master-addr"
    plug_ins = "supervise run has no plug-ins for logs; pass logs_specs to supervise.start_processes"
    kinds = {
        "--rdzv-backend": partial(_one_of, ("static", "c10d"), refused),
        "--logs-specs": partial(_one_of, ("default",), plug_ins),
    }
    for name in ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--local-addr", "--logs-specs"):
        add_option(parser, name, type=kinds.get(name, str), help=argparse.SUPPRESS)
    parser.set_defaults(notes=[])
    add_option(
        what,
        "--start-method",
        dest="notes",
        action="append",
        type=_start_method,
        metavar="M",
        help="accepted for scripts of torchrun, without effect: it is for functions, and PROGRAM is executed",
    )
    for name, why in _WITHOUT_EFFECT.items():
        add_option(parser, name, dest="notes", action="append", type=partial(_note, name, why), help=argparse.SUPPRESS)


def _note(name: str, why: str, _text: str) -> str:
    return f"{name} has no effect: {why}"


def _start_method(text: str) -> str:
    methods = GANG["start_method"].choices
    if text not in methods:
        raise argparse.ArgumentTypeError(f"{text!r} is not a start method; give {', '.join(methods)}")
    return _note("--start-method", "it is for functions, and PROGRAM is executed", text)


def _one_of(accepted: Sequence[str], why: str, text: str) -> str:
    if text not in accepted:
        raise argparse.ArgumentTypeError(f"{text!r}: {why}")
    return text


# The options of ``supervise run`` about what runs: the number of ranks, the program, its environment and folder


ROLE = "default"
"""The default name of the ranks."""
_OF_SUPERVISE = {
    "MASTER_ADDR": "--master-addr",
    "MASTER_PORT": "--master-port",
    "ROLE_NAME": "--role",
    "TORCHELASTIC_RUN_ID": "--run-id",
    "TORCHELASTIC_MAX_RESTARTS": "--max-restarts",
} | dict.fromkeys(
    (
        "RANK",
        "LOCAL_RANK",
        "ROLE_RANK",
        "GROUP_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_ERROR_FILE",
    )
)
"""Variable that supervise sets in each rank to the option that chooses its value, or None."""


def parts(parser: Parser, found: argparse.Namespace) -> tuple[Part, ...]:
    """Return the parts of the run: PROGRAM, or the roles of a file.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    _check(parser, found)
    env = _environment(parser, found)
    settings = gang_settings(found)
    command = found.command[1:] if found.command[:1] == ["--"] else found.command
    if found.file is not None:
        port = _first_port(parser, found, env)
        made: tuple[Part, ...] = parser.checked(found.file.parts, env, settings, command, port)
        watched = found.file.is_procfile and found.stdin is None and sum(part.count for part in made) > 1
        for part in made:
            part.settings |= {"stdin": "open"} if watched else {}  # a watcher ends at the end of its stdin
            part.env |= dict(found.own_env)
            _check_names(parser, part.env, f"{found.file.path}: role {part.role!r}: ")
        return made
    if not command:
        parser.error("PROGRAM is missing; for example: supervise run -n 4 train.py")
    if not command[0]:
        parser.error("PROGRAM is empty; is a variable in your script unset?")
    ways = found.module or found.no_python or found.run_path or command[0].endswith(".py")
    if not ways and os.path.isfile(command[0]) and not os.access(command[0], os.X_OK):
        from supervise.cli.options import suggestions

        if suggestions.is_gang_file(command[0]):
            parser.checked(_gang_file, command[0])  # refuses a file of docker compose
            parser.error(f"{command[0]} is not a program; for its roles, give: supervise run --file {command[0]}")
    part = Part(
        role=found.role or ROLE,
        count=found.nproc_per_node or 1,
        program=command[0],
        args=tuple(command[1:]),
        module=found.module,
        python=not found.no_python,
        run_path=found.run_path,
        env=env,
        cwd=found.cwd,
        settings=of_each_role(settings),
    )
    return (part,)


def _first_port(parser: Parser, found: argparse.Namespace, env: Mapping[str, str]) -> int | None:
    """Return the ``PORT`` of the first process of a Procfile; None if supervise sets none.

    As with foreman, it is that of the file of variables, or of this process's environment; by default 5000.
    """
    if not found.file.is_procfile or "PORT" in dict(found.env):
        return None
    text = env.get("PORT") or os.environ.get("PORT") or "5000"
    where = "in the env file" if env.get("PORT") else "of the environment"
    return int(parser.checked(_port, text, before=f"PORT {where}: "))


def _check(parser: argparse.ArgumentParser, found: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if found.file is not None:
        for name, value in (
            ("-n", found.nproc_per_node),
            ("-m", found.module),
            ("--no-python", found.no_python),
            ("--run-path", found.run_path),
            ("--cwd", found.cwd),
        ):
            if value:
                parser.error(f"{name} and --file exclude each other; set it for each role in {found.file.path}")
        if found.role:
            parser.error(
                f"--role and --file exclude each other; give roles after the options: --file {found.file.path} web"
            )
    ways = [name for name in ("module", "no_python", "run_path") if getattr(found, name)]
    if ways[:2] == ["module", "no_python"]:
        parser.error("-m runs a module under Python, and --no-python does not use Python; omit one of them")
    if len(ways) > 1:
        parser.error(f"--run-path runs a file under Python; omit it or {'-m' if found.module else '--no-python'}")


def _environment(parser: Parser, found: argparse.Namespace) -> dict[str, str]:
    """Return the variables of ``--env-file`` and ``--env``: name to value. Those of ``--env`` take precedence."""
    given: dict[str, str] = {}
    files = found.env_file
    if not files and found.file is not None and (path := found.file.dotenv) is not None:
        files = [parser.checked(_env_file, path, after="; --env-file none leaves the file out")]
        found.notes = [*found.notes, f"the ranks get the variables of {path}; --env-file none leaves them out"]
        _check_names(parser, files[0] or (), f"{path!r}: ", "; --env-file none leaves the file out")
    for variables in files:
        given = {} if variables is None else given | variables
    given |= dict(found.env)
    _check_names(parser, given)
    return given


def _check_names(parser: argparse.ArgumentParser, given: Iterable[str], where: str = "", more: str = "") -> None:
    """Refuse variables that supervise sets itself. `where` has them, and `more` is what to do about it."""
    for name in given:
        if name in _OF_SUPERVISE:
            option = _OF_SUPERVISE[name]
            parser.error(
                f"{where}supervise sets {name} in each rank; {f'give {option}' if option else 'omit it'}{more}"
            )


def _gang_file(path: str) -> GangFile:
    from supervise.cli.options.gang_file import GangFile  # lazy: it imports a parser of TOML

    return GangFile(path)


def _env_file(path: str) -> dict[str, str] | None:
    from supervise.cli.options import gang_file

    return None if path == gang_file.NO_FILE else gang_file.read(path)


# The options of ``supervise run`` that name ranks or roles


def find_ranks(parser: Parser, found: argparse.Namespace, parts: Sequence[Part], hosts: int) -> None:
    """Replace the ranks and roles that options name by ranks.

    Args:
        parser: The parser, for errors.
        found: The parsed options.
        parts: The parts of the run on one host.
        hosts: Number of hosts of the engine.

    Raises:
        SystemExit: With code 2 after an error message.
    """

    def ranks(option: str, text: str, hosts: int = 1) -> frozenset[int]:
        roles = [(part.role, part.count * hosts) for part in parts]
        return parser.checked(values.ranks_of, text, roles, before=f"argument {option}: ")

    def rank(option: str, text: str, hosts: int = 1) -> int:
        if len(chosen := ranks(option, text, hosts)) > 1:
            such = f"{text}.0" if text in [part.role for part in parts] else min(chosen)
            parser.error(f"argument {option}: {text!r} is more than one rank; give one, such as {such}")
        return min(chosen)

    shown, code, stdin = found.local_ranks_filter, found.exit_code_from, found.stdin
    found.local_ranks_filter = ranks("--local-ranks-filter", shown) if shown else frozenset()
    found.exit_code_from = None if code in (None, "root-cause") else rank("--exit-code-from", code, hosts)
    found.stdin = stdin if stdin in (None, "all", "none") else rank("--stdin", stdin)


# The option of ``supervise run`` that chooses the rank that reads the stdin of supervise


Choice = int | Literal["all", "none"] | None
"""A rank, ``all`` or ``none``; None if the option was not given."""


def check_stdin(parser: argparse.ArgumentParser, found: argparse.Namespace, parts: Iterable[Part]) -> None:
    """Refuse another reader, copies of a terminal, and a stdin together with a gate.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    chosen, first = found.stdin, 0
    for part in parts if chosen is not None else ():
        own, ranks = part.settings.get("stdin"), range(first, first + part.count)
        first += part.count
        if own == "inherit" or (own == "open" and (chosen == "all" or chosen in ranks)):
            parser.error(f"--stdin and stdin = {own!r} of role {part.role!r} exclude each other; omit one of them")
    if chosen == "all" and os.isatty(0):
        parser.error(
            "--stdin all cannot copy a terminal, since a key stroke goes to one process only; give the terminal to one"
            " rank by --stdin 0, or redirect the input"
        )
    if chosen not in (None, "none") and found.gate:
        parser.error(f"--stdin {chosen} and --gate exclude each other: a gated program waits on its stdin; omit one")


# The options of ``supervise run`` about the hosts of a run: one gang on each, started by hand or by a job manager


_PORT = 29500
"""Torchrun's port of rank 0 for several hosts."""


def hosts(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Hosts:
    """Return the hosts that the options describe.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    if found.engine == "ray":
        return _of_engine(parser, found)
    if found.standalone and found.nnodes > 1:
        parser.error(f"--standalone is one host, and --nnodes is {found.nnodes}; omit one of them")
    if found.node_rank is not None and found.node_rank >= found.nnodes:
        parser.error(f"--node-rank is {found.node_rank}; with --nnodes {found.nnodes} {_numbers(found.nnodes)}")
    if found.nnodes == 1:
        return Hosts(address=found.master_addr or found.local_addr, port=found.master_port)
    if found.node_rank is None:
        parser.error(f"--nnodes {found.nnodes} needs --node-rank, the number of this host; {_numbers(found.nnodes)}")
    address, port = _endpoint(parser, found.rdzv_endpoint)
    address = address or found.master_addr or (found.local_addr if found.node_rank == 0 else None)
    if address is None:
        parser.error(f"--nnodes {found.nnodes} needs --master-addr, the address of the host with --node-rank 0")
    return Hosts(
        count=found.nnodes, number=found.node_rank, address=address, port=port or found.master_port or str(_PORT)
    )


def _of_engine(parser: argparse.ArgumentParser, found: argparse.Namespace) -> Hosts:
    """Return one host: with an engine, this process supervises the ranks of all hosts."""
    excluded = "and --engine ray exclude each other:"
    chosen_by_ray = f"{excluded} Ray chooses the hosts, their order and GPUs"
    strategy, restart = gang_settings(found)["strategy"], found.restart
    for is_given, why in (
        (found.node_rank is not None, f"--node-rank {chosen_by_ray}"),
        (found.master_addr is not None, f"--master-addr {chosen_by_ray}"),
        (found.standalone, f"--standalone {chosen_by_ray}"),
        (found.numa_binding is not None, f"--numa-binding {chosen_by_ray}"),
        (found.virtual_local_rank, f"--virtual-local-rank {chosen_by_ray}"),
        (found.listen, f"--listen {excluded} the sockets belong to this machine"),
        (found.file is not None, f"--file {excluded} all ranks on Ray run one PROGRAM"),
        (
            strategy != GANG["strategy"].default,
            "a gang on Ray is all or nothing; omit --strategy and --keep-going, or --engine ray",
        ),
        (
            restart not in (None, POLICY["restart"].default),
            "a gang on Ray restarts as a whole after a failure; omit --restart, or --engine ray",
        ),
    ):
        if is_given:
            parser.error(why)
    return Hosts(port=found.master_port)


def _numbers(count: int) -> str:
    return "it is 0" if count == 1 else f"hosts are numbered from 0 to {count - 1}"


def _endpoint(parser: argparse.ArgumentParser, text: str | None) -> tuple[str | None, str | None]:
    """Return the address and the port of ``--rdzv-endpoint``."""
    if not text:
        return None, None
    address, _, port = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    address = address.removeprefix("[").removesuffix("]")
    import socket  # lazy: most runs have one host

    try:
        if not re.fullmatch(r"[\w.-]+", address):
            socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
        return address, _port(port) if port else None
    except (OSError, ValueError, argparse.ArgumentTypeError):
        parser.error(f"--rdzv-endpoint is {text!r}; give HOST:PORT of the host with --node-rank 0")


def _host_count(text: str) -> int:
    low, _, high = text.partition(":")
    if high and high != low:
        raise argparse.ArgumentTypeError(
            f"{text!r}: supervise run starts a fixed number of hosts; give one number, such as --nnodes {high}"
        )
    if not values.is_count(low) or not int(low):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts; give 1 or more")
    return int(low)


def _port(text: str) -> str:
    if not values.is_count(text) or not 0 < int(text) <= values.LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to {values.LARGEST_PORT}")
    return text


# The options of ``supervise run`` about output: which streams are written and shown, and how


TEMPLATE_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_PLACEHOLDER = re.compile(r"\$\$|\$([_a-z][_a-z0-9]*)|\$\{[^}]*\}?", re.ASCII | re.IGNORECASE)
"""What the user means as a placeholder, also if it lacks its second brace. Another ``$`` is text, as for torchrun."""
PLACEHOLDERS = {name: f"${{{name}}}" for name in ("role_name", "role_rank", "rank", "local_rank", "time")}
"""The placeholders of a prefix. That of the time is replaced when a line is shown."""


def check_output(
    parser: argparse.ArgumentParser,
    found: argparse.Namespace,
    nproc: int,
    redirects: Mapping[int, Std],
    tee: Mapping[int, Std],
) -> None:
    """Exit with an error message if options contradict each other or name a rank that does not exist.

    Args:
        parser: The parser, for errors.
        found: The parsed options.
        nproc: Number of ranks.
        redirects: Local rank to the streams that are only written, as `streams` returns them.
        tee: Local rank to the streams that are also shown.
    """
    for option, ranks in (
        ("--redirects", found.redirects if isinstance(found.redirects, dict) else ()),
        ("--tee", found.tee if isinstance(found.tee, dict) else ()),
    ):
        if beyond := sorted(rank for rank in ranks if rank >= nproc):
            parser.error(f"{option} names rank {beyond[0]}; with -n {nproc} the ranks are {values.span(nproc)}")
    _check_fileless(parser, found, fileless=not any((*redirects.values(), *tee.values())))
    if found.no_prefix and found.log_line_prefix is not None:
        parser.error("--no-prefix shows lines without a prefix; omit it or --log-line-prefix")
    source, template = template_of(found)
    if template is not None:
        words = {f"${{{word[1]}}}" if word[1] else word[0] for word in _PLACEHOLDER.finditer(template)}
        if unknown := sorted(words - {"$$", *PLACEHOLDERS.values()}):
            have = ", ".join(PLACEHOLDERS.values())
            parser.error(
                f"{source} has an unknown placeholder, {unknown[0]}; there are {have}, and $$ for a dollar sign"
            )
    if found.merge:
        _check_merge(parser, found, redirects, tee)


def template_of(found: argparse.Namespace) -> tuple[str, str | None]:
    """Return the option or the variable that gives the template of the prefix, and the template if there is one."""
    if found.log_line_prefix is not None:
        return "--log-line-prefix", found.log_line_prefix
    return TEMPLATE_VARIABLE, os.environ.get(TEMPLATE_VARIABLE) or None


def _check_fileless(parser: argparse.ArgumentParser, found: argparse.Namespace, *, fileless: bool) -> None:
    """Refuse options that need log files, if there are none: by `--log-dir /dev/null`, or by `-t` and `-r`."""
    why = f"--log-dir {os.devnull} keeps none" if found.log_dir == os.devnull else "-t and -r name no stream"
    for option, value, of_streams in (
        ("--redirects", found.redirects, True),
        ("--tee", found.tee, True),
        ("--local-ranks-filter", found.local_ranks_filter, True),
        ("--merge", found.merge, True),
        ("--log-max-bytes", found.log_max_bytes, False),
        ("--log-line-prefix", found.log_line_prefix, False),
        ("--duplicate-stdout-filters", found.duplicate_stdout_filters, False),
        ("--duplicate-stderr-filters", found.duplicate_stderr_filters, False),
        ("--output-timeout", found.output_timeout, False),
    ):
        given = any(value.values()) if isinstance(value, dict) else value
        if given and (found.log_dir == os.devnull or (fileless and not of_streams)):
            parser.error(f"{option} needs files, and {why}: ranks inherit both streams; omit one of them")


def _check_merge(
    parser: argparse.ArgumentParser, found: argparse.Namespace, redirects: Mapping[int, Std], tee: Mapping[int, Std]
) -> None:
    """Refuse `--merge` if a rank's streams have different destinations, or no file."""
    from supervise.logs import Std

    for rank in tee:
        if redirects[rank] | tee[rank] == Std.NONE:
            parser.error(f"--merge needs a file, and -t and -r name no stream of rank {rank}; omit one of them")
        if tee[rank] not in (Std.ALL, Std.NONE) or redirects[rank] | tee[rank] != Std.ALL:
            parser.error(
                f"--merge writes both streams of a rank to one file, and -t and -r treat those of rank {rank}"
                " differently; give 3 or 0 there, or omit --merge"
            )
    if found.duplicate_stderr_filters:
        parser.error("--merge leaves no stderr for --duplicate-stderr-filters; give --duplicate-stdout-filters")


def streams(
    redirects: Std | Mapping[int, Std] | None, tee: Std | Mapping[int, Std] | None, nproc: int
) -> tuple[dict[int, Std], dict[int, Std]]:
    """Return two mappings: the streams that are only written, and those that are also shown; see the help."""
    from supervise.logs import Std, to_map

    only = to_map(Std.NONE if redirects is None else redirects, nproc)
    if tee is not None:
        return only, to_map(tee, nproc)
    return only, {rank: Std.ALL & ~std for rank, std in only.items()}


_LOG_DIR_HELP = f"parent of the run directory (the folder of your runs); {os.devnull}: no files, no prefixes"


# The options of ``supervise run`` about the failure of a rank: strategy, restarts, exit codes


def policy(
    parser: argparse.ArgumentParser, found: argparse.Namespace, settings: Mapping[str, Any], parts: Iterable[Part]
) -> RestartPolicy | None:
    """Return the restart policy that the options describe; None without ``--max-restarts``, or if it is merely 0."""
    from supervise.errors import SpecError
    from supervise.restarts import RestartPolicy, check_disjoint

    if found.keep_going and (found.strategy or found.max_restarts):
        other = "--strategy" if found.strategy else "--max-restarts"
        parser.error(f"--keep-going is --strategy one_for_one without restarts; omit it or {other}")
    given = given_values(found, POLICY.values())
    if found.max_restarts is None:
        for name in given:
            parser.error(f"{POLICY[name].option} needs --max-restarts, such as --max-restarts 3")
        return None
    if given == {"max_restarts": 0} and not any(part.settings.get("restart") for part in parts):
        return None  # with a policy, a rank that may not restart would stop all ranks, whatever the strategy
    try:
        made = RestartPolicy(**given)
        check_disjoint(
            success_exit_codes=settings["success_exit_codes"],
            uncounted_exit_codes=made.uncounted_exit_codes,
            never_restart_exit_codes=made.never_restart_exit_codes,
        )
    except SpecError as error:
        parser.error(re.sub("([a-z]+_)+exit_codes", lambda name: f"--{name[0].replace('_', '-')}", str(error)))
    return made


# The options of ``supervise run`` about the health of a rank: readiness and the watchdog


def check_health(parser: argparse.ArgumentParser, found: argparse.Namespace, roles: Iterable[Part]) -> None:
    """Refuse options that need others.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    for option in ("--ready-timeout", "--alive", "--alive-interval", "--alive-timeout", "--alive-failures"):
        if getattr(found, option[2:].replace("-", "_")) is not None:
            needed = [lacks(option[2:], part.settings) for part in roles]
            if all(needed):
                parser.error(f"{option} needs --{needed[0]}")


def watchdog(parser: argparse.ArgumentParser, found: argparse.Namespace, roles: Iterable[Part]) -> Watchdog | None:
    """Return the watchdog that the options describe; None for the usual one, or for none.

    Raises:
        SystemExit: With code 2 after an error message.
    """
    from supervise.watchdog import Watchdog

    given = given_values(found, WATCHDOG.values())
    if given.keys() == {"action"} and not any(part.settings["alive"] for part in roles):
        parser.error("--on-hang needs --heartbeat-timeout, --output-timeout or --alive, such as --heartbeat-timeout 60")
    return Watchdog(**given) if given else None


# The groups of the help


def _groups() -> dict[str, tuple[values.Argument | str, ...]]:
    """Return title to options in their order: an option, names of options of settings, or "" for the other settings."""
    return {
        "what runs": (
            argument(
                "-n",
                "--nproc-per-node",
                type=values.worker_count,
                metavar="N",
                help="number of ranks (1); cpu or gpu: one per CPU or GPU; auto: one per GPU, or per CPU if there is no"
                " GPU",
            ),
            argument("-m", "--module", action="store_true", help="PROGRAM is a module, as in python -m"),
            argument("--no-python", action="store_true", help="execute PROGRAM directly, even if it ends in .py"),
            argument(
                "--run-path", action="store_true", help="run PROGRAM under this Python, whatever its name ends in"
            ),
            argument(
                "--env",
                action="append",
                default=[],
                metavar="K=V",
                type=values.variable,
                help="set an environment variable in each rank; may be repeated",
            ),
            argument(
                "--env-file",
                action="append",
                default=[],
                metavar="F",
                type=cache(_env_file),
                help="read variables from a file of lines K=V; --env takes precedence; none: leave out the files"
                " before",
            ),
            "--cwd --listen",
            argument(
                "--no-record",
                action="store_true",
                help="do not record uncaught exceptions of a Python PROGRAM",
            ),
            argument(
                "--run-id",
                metavar="ID",
                type=values.name,
                help="name of this run (the program's name and a random part)",
            ),
            argument(
                "--role",
                metavar="NAME",
                type=values.name,
                help=f'name of the ranks in prefixes and ROLE_NAME ("{ROLE}")',
            ),
            argument(
                "--file",
                metavar="FILE",
                type=cache(_gang_file),
                help="run the roles of a file, gang.toml or a Procfile: all, or those named after the options",
            ),
            argument(
                "--numa-binding",
                choices=("node", "socket", "exclusive", "core-complex"),
                help="bind each rank to the CPUs near its GPU",
            ),
            argument(
                "--virtual-local-rank",
                action="store_true",
                help="each rank has LOCAL_RANK=0 and sees only its own GPU, as device 0",
            ),
            argument(
                "--stdin",
                metavar="RANK",
                help="the rank that reads the stdin of supervise, and has the terminal; all: each rank gets a"
                " copy; none: no rank (the rank of -n 1; of several ranks none)",
            ),
        ),
        "hosts": (
            argument(
                "--nnodes",
                metavar="N",
                type=_host_count,
                default=1,
                help="number of hosts with -n ranks each; without an engine, each has a supervise run of its own (1)",
            ),
            argument(
                "--node-rank",
                metavar="R",
                type=partial(values.number, "the number of a host; give 0 or more", 0),
                help="number of this host, from 0",
            ),
            argument(
                "--master-addr",
                metavar="A",
                help="MASTER_ADDR: the address of host 0, on which rank 0 listens (one host: 127.0.0.1)",
            ),
            argument(
                "--master-port",
                metavar="P",
                type=_port,
                help=f"MASTER_PORT (one host: a free port; several: {_PORT})",
            ),
            argument(
                "--engine",
                choices=("local", "ray"),
                default="local",
                help="local: this host, and others by hand (local); ray: --nnodes hosts of the Ray cluster in"
                " RAY_ADDRESS",
            ),
            argument("--standalone", action="store_true", help="one host, as without the option"),
        ),
        "output": (
            argument(
                "--log-dir",
                metavar="DIR",
                type=partial(values.other_than, "", "'' is not a directory; omit the option for the default directory"),
                help=_LOG_DIR_HELP,
            ),
            argument(
                "-t",
                "--tee",
                metavar="SPEC",
                type=values.streams,
                help="streams to show and to write, see below (3)",
            ),
            argument(
                "-r",
                "--redirects",
                metavar="SPEC",
                type=values.streams,
                help="streams to write without showing them, see below",
            ),
            argument(
                "--merge",
                action="store_true",
                help="write the stderr of each rank to the file of its stdout, and show both there: in the order of the"
                " writes",
            ),
            argument(
                "--local-ranks-filter",
                metavar="0,2",
                help="show only these ranks or roles, such as 0,2 or web; log files are not affected",
            ),
            argument("--no-prefix", action="store_true", help="show lines without [ROLE RANK]:"),
            argument(
                "--log-line-prefix",
                metavar="TEMPLATE",
                help="prefix of shown lines, in which ${role_name}, ${role_rank}, ${rank}, ${local_rank} and"
                " ${time} are replaced"
                f" ({TEMPLATE_VARIABLE})",
            ),
            "",
            argument(
                "--color",
                choices=("auto", "always", "never"),
                default="auto",
                help="auto: color on a terminal unless NO_COLOR is set",
            ),
            argument(
                "--halt-on-broken-pipe",
                action="store_true",
                help="stop the run if the reader of the output is gone, as in a pipe to head; the exit code is"
                " then 141",
            ),
        ),
        "messages and result": (
            argument(
                "--exit-code-from",
                metavar="WHO",
                help="root-cause: exit with the code of the rank that failed first; a rank, such as 1 or web.1:"
                " with that of this rank (root-cause)",
            ),
            argument(
                "--summary",
                action=argparse.BooleanOptionalAction,
                default=False,
                help="end with a table of all ranks: exit code, time, CPU time, peak memory",
            ),
            argument(
                "--metrics",
                metavar="FILE",
                type=partial(
                    values.other_than, "-", "'-' is not a file; stdout has the output of the ranks, so give a path"
                ),
                help="write the numbers of the run to FILE at its end, in the text format of Prometheus",
            ),
            argument(
                "--dry-run",
                action="store_true",
                help="print the commands and variables of all ranks as shell lines, and run nothing",
            ),
            argument("-q", "--quiet", action="store_true", help="no messages of supervise except errors"),
            argument("-v", "--verbose", action="store_true", help="every event as a line on stderr"),
            argument(
                "--log-format",
                choices=("console", "json"),
                default="console",
                help="console: messages for people; json: every event as a JSON object on stderr, in place of the"
                " messages (console)",
            ),
        ),
        "the end": (
            "--shutdown-timeout --timeout --stop-signal",
            argument(
                "--signals-to-handle",
                metavar="LIST",
                type=values.signal_list,
                default=(SIGINT, SIGTERM, SIGHUP, SIGQUIT),
                help="signals that stop the run (SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
            ),
            "",
        ),
        "failure": (
            "--strategy",
            argument(
                "--keep-going",
                action="store_true",
                help="the failure of a rank stops no other rank",
            ),
            "--max-restarts --restart --restart-window --backoff",
            "",
        ),
        "health": ("",),
    }


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Add all options."""
    options = _groups()
    groups = {title: parser.add_argument_group(title) for title in options}
    for title, each in ((title, each) for title, group in options.items() for each in group):
        if isinstance(each, str):
            add_settings(groups[title], *each.split())
        else:
            add_option(groups[title], *each[0], **each[1])
    _add_torchrun_options(parser, groups["what runs"])


# The parser. This module imports little, so that ``--help`` is fast


_HELP_COLUMNS = 118

_formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=34, width=_HELP_COLUMNS)

_USAGE = """\
supervise run [OPTIONS] [--] PROGRAM [ARGS...]
       supervise run [OPTIONS] --file FILE [ROLE[=N]...]"""

_DESCRIPTION = """\
Run PROGRAM as several ranks on this machine, as one gang: if a rank fails,
supervise stops the others and exits with the exit code of the first failure.
Options end at PROGRAM; later words are the arguments of PROGRAM.

A path that ends in .py (or a module, with -m) runs under this Python. Any other
PROGRAM is executed directly.
"""

_BRIEF = """\
supervise run -n 4 train.py --lr 0.1        4 ranks of a Python file
supervise run -n auto -m mypackage.train    a rank for each GPU, or for each CPU
supervise run -n 8 --no-prefix -- ./worker  any program; output without prefixes
supervise run --file gang.toml              the roles of a file or Procfile

  -n N|auto|cpu|gpu        number of ranks (1)
  -m                       PROGRAM is a module, as in python -m
  --file FILE              run the roles of a file: gang.toml, or a Procfile
  --env K=V, --env-file F  set variables in each rank
  --cwd DIR                working directory of the ranks
  --max-restarts N         restart after a failure, up to N times (0)
  --keep-going             the failure of a rank stops no other rank
  --timeout DUR            stop the run after this time, such as 90s, 5m or 2h
  --shutdown-timeout DUR   time from the first signal to SIGKILL (30)
  --log-dir DIR            parent of the run directory (the folder of your runs)
  --no-prefix, --merge     no prefix before lines; both streams in one file
  --stdin RANK|all|none    the rank that reads the stdin of supervise
  --summary, --dry-run     a table of ranks at the end; only print the commands
  -q, -v                   fewer or more messages

Every option: supervise run --help. Exit code: that of the first failure.
"""

_EPILOG = """\
destination of output:
  By default the stdout and stderr of every rank are shown, each line after the
  prefix [ROLE RANK]:, and written to the run directory. To change that:
    -t SPEC    these streams are shown and written; the others are inherited
               from supervise: no prefix, no file
    -r SPEC    these streams are only written; the others are shown and
               written, as by default
    both       -t streams are shown and written, -r streams are only written,
               the others are inherited from supervise
  SPEC is 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one per rank, such
  as 0:3,1:2 (0 for the other ranks). With --log-dir /dev/null there are no
  files: ranks inherit both streams, and lines have no prefix.
  Only ranks write to the stdout of supervise.

exit code:
  the exit code of the rank that failed first (128+N: signal N killed it); 0:
  all ranks succeeded; 128+N: signal N stopped supervise; 124: --timeout; 126:
  PROGRAM is not executable; 127: PROGRAM is not found; 2: wrong usage

signals:
  The first Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) is passed on to the ranks,
  which have --shutdown-timeout to exit; the second kills them at once.
  SIGUSR1 and SIGUSR2 are passed on. Ctrl-Z suspends the ranks and supervise.
  A rank that reads the terminal has it until it ends: Ctrl-C goes to that rank,
  and its end by Ctrl-C stops the run.

durations (DUR):
  seconds, or a number with a unit: 500ms, 90s, 5m, 2h, 1d

examples:
  supervise run -n 4 train.py --lr 0.1
  supervise run -n auto -m mypackage.train
  supervise run -n 8 --no-prefix -- ./worker --verbose
"""


def read(words: Sequence[str], command: str = "run") -> tuple[Parser, argparse.Namespace]:
    """Parse arguments. Those in the file of ``--file`` come first. Return the parser, for errors, and the values.

    Args:
        words: The arguments after the command.
        command: The command that is named in error messages.

    Raises:
        SystemExit: With code 2 after an error message, or 0 after the help.
    """
    parser = run_parser()
    parser.prog = f"supervise {command}"
    parser.defaults = defaults(os.environ)
    found, unknown = parser.parse_known_args([*parser.defaults, *words])
    if found.file is not None:
        given = parser.checked(found.file.words, known_options(parser))
        for name in ("listen", "ready"):
            if getattr(found, name):  # otherwise the list of the file would go on
                given = [word for word in given if not word.startswith(f"--{name}=")]
        own_env = found.env
        parser.source = found.file.path  # the other arguments have been parsed before
        found, unknown = parser.parse_known_args([*parser.defaults, *given, *words])
        on_line = {word.partition("=")[0].replace("_", "-") for word in words}
        parser.keys = {word.partition("=")[0] for word in given} - on_line
        found.own_env = own_env
    if unknown:
        from supervise.cli.options import suggestions

        meant = suggestions.instead_of(unknown[0], known_options(parser), "".join(found.command[:1]))
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return parser, found


class Parser(values.CommandParser):
    """The parser of ``supervise run``. Its errors name the source of the arguments."""

    defaults: Sequence[str] = ()
    """Arguments from variables ``PET_*``."""
    source: str = ""
    """Path of the gang file."""
    keys: Collection[str] | None = None
    """The options that the gang file has. None while they are parsed; an error is then about one of them."""

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        import shutil  # only here, because argparse makes a formatter for each option

        width = min(_HELP_COLUMNS, shutil.get_terminal_size((_HELP_COLUMNS, 40)).columns)
        self.formatter_class: Any = partial(_formatter, width=width)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print an error message and exit with code 2."""
        import shlex

        if message.startswith("argument --restart: invalid choice"):
            from supervise.cli.options import suggestions

            message += suggestions.RESTARTS_OF_OTHERS.get(message.split("'")[1], "")
        first = re.search("--[a-z][a-z-]*", message)
        if self.source and (self.keys is None or (first is not None and first[0] in self.keys)):
            known = self._option_string_actions
            message = re.sub("^argument (?:.*?/)?(?=--)", "", message)
            key = re.compile("""'[^']*'|"[^"]*"|--([a-z-]+)""")  # not in a value
            message = key.sub(lambda found: found[1] if found[0] in known else found[0], message)
            message = f"{self.source}: {message}"
        given = f"\nThe environment gives {shlex.join(self.defaults)} (PET_*)." if self.defaults else ""
        super().error(message.removeprefix("argument --file: ") + given)  # the text begins with the file


def run_parser() -> Parser:
    """Return the parser, which has not read any arguments yet."""
    parser = Parser(
        prog="supervise run",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "-h", action="version", version=_BRIEF, help="show examples and the options that most runs need"
    )
    parser.add_argument("--help", action="help", help="show this text")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    add_groups(parser)
    return parser


def known_options(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Return the options of the help, and whether each is a flag."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)  # noqa: SLF001 - argparse has no public list
    return {name: action.nargs == 0 for action in shown for name in action.option_strings}
