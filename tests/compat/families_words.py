"""`Std`, `to_map`, layouts of logs, and what is refused."""

import os

from tests.compat.tell import family, outcome

STRINGS = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "-1",
    "",
    "a",
    " 1",
    "1\n",
    "0:3",
    "0:3,1:0,2:1,3:2",
    "0:3,",
    "0:4",
    "0:3;1:2",
    "0:1,0:2",
)


@family
def std_from_str(lib, folder):
    def told(text):
        try:
            found = lib.Std.from_str(text)
        except ValueError as error:
            return ["ValueError", str(error).partition("<")[0]]  # the pattern itself: differs.std_of_rank_ten
        return {k: repr(v) for k, v in found.items()} if isinstance(found, dict) else repr(found)

    return {text: told(text) for text in STRINGS}


@family
def std_members(lib, folder):
    std = lib.Std
    return [
        [(each.name, each.value) for each in std],
        repr(std.OUT | std.ERR),
        repr(std.ALL & std.ERR),
        std.OUT in std.ALL,
        repr(std(0)),
        outcome(std, 8),
    ]


@family
def to_map(lib, folder):
    std = lib.Std
    return [
        repr(lib.to_map(std.OUT, 2)),
        repr(lib.to_map({1: std.OUT}, 2)),
        repr(lib.to_map({0: std.ALL, 5: std.OUT}, 3)),
        repr(lib.to_map(std.ALL, 0)),
        outcome(lib.to_map, None, 2),
        outcome(lib.to_map, 3, 2),
    ]


@family
def full_rank(lib, folder):
    check = lib.api._validate_full_rank
    return [
        outcome(check, keys, n, "args")
        for keys, n in (({0: 1}, 1), ({}, 0), ({1: 1}, 1), ({0: 1}, 2), ({0: 1, 5: 1}, 1))
    ]


@family
def dest_defaults(lib, folder):
    return [vars(lib.LogsDest()), repr(lib.LogsDest({0: "a"})), lib.LogsDest() == lib.LogsDest()]


def _choices(std):
    return {
        "none": std.NONE,
        "out": std.OUT,
        "err": std.ERR,
        "all": std.ALL,
        "map": {0: std.OUT, 2: std.ALL},
    }


@family
def layout(lib, folder):
    seen = {}
    choices = _choices(lib.Std)
    for redirect in choices:
        for tee in choices:
            for shown in (None, set(), {1}):
                name = f"{redirect}.{tee}.{shown}"
                envs = {rank: {"X": "1"} for rank in range(3)}
                specs = lib.DefaultLogsSpecs(
                    str(folder / "logs"), redirects=choices[redirect], tee=choices[tee], local_ranks_filter=shown
                )
                seen[name] = [vars(specs.reify(envs)), envs]
    return seen


@family
def layout_of_attempts(lib, folder):
    specs = lib.DefaultLogsSpecs(str(folder / "logs"), redirects=lib.Std.ALL)
    seen = []
    for extra in ({}, {}, {"TORCHELASTIC_RESTART_COUNT": "3"}, {"TORCHELASTIC_RUN_ID": "late"}):
        dest = specs.reify({0: dict(extra)})
        seen.append([dest.stdouts, dest.error_files, dest.filtered_stdout])
    other = lib.DefaultLogsSpecs(str(folder / "logs")).reify({0: {"TORCHELASTIC_RUN_ID": "my_job"}, 1: {}})
    return [*seen, other.error_files, sorted(str(path) for path in (folder / "logs").rglob("*"))]


@family
def layout_of_devnull(lib, folder):
    envs = {0: {"TORCHELASTIC_ERROR_FILE": "old"}, 1: {}}
    dest = lib.DefaultLogsSpecs(os.devnull, redirects=lib.Std.ALL, tee=lib.Std.OUT).reify(envs)
    return [vars(dest), envs]


@family
def layout_without_ranks(lib, folder):
    return outcome(lambda: vars(lib.DefaultLogsSpecs(str(folder / "logs")).reify({})))


@family
def log_dir(lib, folder):
    (folder / "file").write_text("x")
    os.environ["TMPDIR"] = str(folder)
    import tempfile

    tempfile.tempdir = None
    made = lib.DefaultLogsSpecs()
    return [
        outcome(lib.DefaultLogsSpecs, str(folder / "file")),
        outcome(lambda: lib.DefaultLogsSpecs(str(folder / "a/b/c")).root_log_dir),
        (folder / "a/b/c").is_dir(),
        made.root_log_dir.rpartition("torchelastic_")[0],
        len(made.root_log_dir.rpartition("torchelastic_")[2]),
        (folder / "file").read_text(),
    ]


@family
def specs_compare(lib, folder):
    make, std = lib.DefaultLogsSpecs, lib.Std
    path = str(folder / "logs")
    return [
        repr(make(path, std.OUT, {0: std.ERR}, {1})),
        make(path) == make(path),
        make(path) == make(path, std.OUT),
        make(path) == make(path, std.NONE, std.OUT),
        make(path) == make(path, local_ranks_filter={0}),
        make(path) == "x",
        outcome(hash, make(path)),
        outcome(lib.LogsSpecs, path)[:2],
    ]


@family
def signal_exception(lib, folder):
    import signal

    error = lib.SignalException("text", signal.SIGTERM)
    named = lib.SignalException(msg="text", sigval=signal.SIGINT)
    handler = lib.api._terminate_process_handler
    told = outcome(handler, signal.SIGHUP, None)
    return [
        str(error),
        error.args,
        repr(error.sigval),
        repr(named.sigval),
        isinstance(error, Exception),
        [str(part).replace(str(os.getpid()), "<pid>") for part in told],
        repr(lib.api._get_default_signal()),
        repr(lib.api._get_kill_signal()),
    ]
