"""`ProcessFailure`, `ChildFailedError` and `RunProcsResult`: texts and fields that people's scripts read."""

import json
import socket
import time

from tests.compat.normal import Normal
from tests.compat.observe import failure_seen
from tests.compat.tell import family, outcome

RECORDS = {
    "usual": {"message": {"message": "E: x", "extraInfo": {"py_callstack": "T\n  t", "timestamp": "1700000000"}}},
    "integer": {"message": {"message": "E: x", "extraInfo": {"py_callstack": "T", "timestamp": 1700000000}}},
    "text": {"message": "only a text", "timestamp": 1700000001},
    "text-digits": {"message": "only a text", "timestamp": "1700000001"},
    "text-alone": {"message": "only a text"},
    "empty-text": {"message": "", "timestamp": 5},
    "no-stack": {"message": {"message": "E: x", "extraInfo": {"timestamp": "1700000000"}}},
    "no-message": {"message": {"extraInfo": {"timestamp": "1700000002"}}},
    "code": {"message": {"message": "E: x", "errorCode": 9, "extraInfo": {"py_callstack": "T", "timestamp": "1"}}},
    "unicode": {"message": {"message": "E: äöü", "extraInfo": {"py_callstack": "ü\n\nx", "timestamp": "1700000003"}}},
}


def _failures(lib, folder):
    make = lib.ProcessFailure
    for name, record in RECORDS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(record))
        yield name, make(local_rank=2, pid=4711, exitcode=1, error_file=str(path))
        yield f"{name}-killed", make(2, 4711, -11, str(path))


@family
def failure_with_record(lib, folder):
    normal = Normal(str(folder), {})
    return {name: [failure_seen(f, normal), f.timestamp] for name, f in _failures(lib, folder)}


def _without_record(lib, folder, codes):
    normal = Normal(str(folder), {})
    paths = (str(folder / "missing.json"), "", "<N/A>", str(folder), "/dev/null")
    return {f"{c} {path}": failure_seen(lib.ProcessFailure(0, 4711, c, path), normal) for c in codes for path in paths}


@family
def failure_without_record(lib, folder):
    return _without_record(lib, folder, (1, 0, 3, 255))


@family
def failure_by_a_signal(lib, folder):
    return _without_record(lib, folder, (-9, -11, -15, -64, -77))


@family
def failure_as_a_value(lib, folder):
    failure = next(f for name, f in _failures(lib, folder))
    other = next(f for name, f in _failures(lib, folder))
    import pickle

    return [
        failure == other,
        failure.timestamp_isoformat() == time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(1700000000)),
        repr(failure),
        vars(pickle.loads(pickle.dumps(failure))).keys() >= {"local_rank", "pid", "exitcode", "error_file", "message"},
        outcome(hash, failure)[:2],
    ]


def _without_measure(text):
    """Rules are as long as the longest line of a failure, which has the path of a folder and the name of the host."""
    lines = text.splitlines()
    rules = {line for line in lines if len(line) > 20 and len(set(line)) == 1}
    lengths = {60, *(len(line) for line in lines if line not in rules)}
    rules = {rule for rule in rules if len(rule) in lengths}
    return [f"{line[0]} rule" if line in rules else line.replace(socket.getfqdn(), "<host>") for line in lines]


@family
def child_failed_error(lib, folder):
    failures = dict(_failures(lib, folder))
    make = lib.errors.ChildFailedError
    chosen = {
        "one": {3: failures["usual"]},
        "two": {0: failures["usual"], 1: failures["integer"]},
        "first is late": {0: failures["unicode"], 7: failures["text"], 9: failures["usual-killed"]},
        "texts": {0: failures["text"], 1: failures["text-alone"], 2: failures["empty-text"]},
        "holes": {1: failures["no-stack"], 0: failures["no-message"]},
        "killed": {0: failures["text-killed"], 1: failures["code-killed"]},
    }
    seen = {}
    for name, which in chosen.items():
        for title in ("main", "a/very/long/path/to/a/script/that/is/longer/than/sixty/characters/train.py"):
            error = make(title, which)
            seen[f"{name} {title}"] = [
                _without_measure(str(error)),
                error.get_first_failure()[0],
                error.name,
                sorted(error.failures),
                _without_measure(error.format_msg(boarder_delim="*", section_delim="~")),
            ]
    return [seen, outcome(make, "main", {})[:2], type(make("x", chosen["one"])).__mro__[-3].__name__]


@family
def result(lib, folder):
    import dataclasses

    make = lib.RunProcsResult if hasattr(lib, "RunProcsResult") else lib.api.RunProcsResult
    failure = next(f for _, f in _failures(lib, folder))
    fields = ("return_values", "failures", "stdouts", "stderrs")
    return [
        {name: getattr(make(), name) for name in fields},
        [field.name for field in dataclasses.fields(make)][:4],
        make().is_failed(),
        make(failures={0: failure}).is_failed(),
        make({0: 1}, {}, {0: "a"}, {0: "b"}) == make(return_values={0: 1}, stdouts={0: "a"}, stderrs={0: "b"}),
        make() == make(return_values={0: 1}),
    ]
