"""`record` and `ErrorHandler`."""
# ruff: noqa: PTH208 - paths are strings in the libraries, too

import json
import os

from tests.compat.tell import family, outcome

VARIABLE = "TORCHELASTIC_ERROR_FILE"


class Odd(BaseException):
    """Not an Exception."""


class UntoldError(Exception):
    """Its text cannot be had in the usual way."""

    def __str__(self):
        return "told late"


def _raiser(error):
    def main(*args, **kwargs):
        """Document."""
        raise error

    return main


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


@family
def exceptions(lib, folder):
    seen = {}
    errors = {
        "value": ValueError("x", 1),
        "plain": RuntimeError(),
        "custom": UntoldError("a"),
        "group": ExceptionGroup("g", [ValueError("a"), TypeError("b")]),
        "exit0": SystemExit(0),
        "exit3": SystemExit(3),
        "exit-none": SystemExit(),
        "exit-text": SystemExit("text"),
        "exit-false": SystemExit(False),
        "interrupt": KeyboardInterrupt(),
        "odd": Odd("o"),
        "stop": StopIteration(3),
    }
    for name, error in errors.items():
        path = folder / f"{name}.json"
        os.environ[VARIABLE] = str(path)
        seen[name] = [outcome(lib.errors.record(_raiser(error)), 1, a=2), _read(path)]
    return seen


@family
def no_variable(lib, folder):
    seen = []
    for value in (None, ""):
        os.environ.pop(VARIABLE, None)
        if value is not None:
            os.environ[VARIABLE] = value
        seen.append(outcome(lib.errors.record(_raiser(ValueError("x")))))
    return [seen, sorted(os.listdir(folder))]


@family
def file_replaced(lib, folder):
    path = folder / "error.json"
    os.environ[VARIABLE] = str(path)
    for text in ("older", "", '{"message": "a json"}'):
        path.write_text(text)
        outcome(lib.errors.record(_raiser(ValueError("newer"))))
    return _read(path)


@family
def wrapped(lib, folder):
    def main(a, b=2):
        """Document."""
        return a, b

    made = lib.errors.record(main)
    return [made.__name__, made.__doc__, made.__wrapped__ is main, made(1), made(1, b=5), outcome(made)]


@family
def own_handler(lib, folder):
    seen = []

    class Handler(lib.errors.ErrorHandler):
        def initialize(self):
            seen.append("initialize")

        def record_exception(self, e):
            seen.append(["record", type(e).__name__, str(e)])

        def dump_error_file(self, rootcause_error_file, error_code=0):
            seen.append(["dump", rootcause_error_file, error_code])

    for error in (ValueError("x"), SystemExit(0), SystemExit(2), KeyboardInterrupt(), _child(lib, folder)):
        seen.append(outcome(lib.errors.record(_raiser(error), Handler()))[:2])  # noqa: PERF401 - the handler appends, too
    return seen


def _child(lib, folder, text=None, exitcode=9):
    path = folder / "child.json"
    record = {"message": {"message": "E: c", "extraInfo": {"py_callstack": "T\n", "timestamp": "1700000000"}}, "k": [1]}
    path.write_text(json.dumps(record) if text is None else text)
    return lib.errors.ChildFailedError("job", {0: lib.errors.ProcessFailure(0, 1, exitcode, str(path))})


@family
def child_failed(lib, folder):
    seen = {}
    for name, text, code in (
        ("usual", None, 9),
        ("killed", None, -11),
        ("zero", None, 0),
        ("text", '{"message": "a text", "timestamp": 3}', 4),
        ("spaced", '{ "message":   "a text",\n "timestamp": 3}', 4),
    ):
        error = _child(lib, folder, text, code)
        for before in (None, "torn {", '{"message": "mine"}'):
            path = folder / f"{name}.{before is None}.json"
            if before is not None:
                path.write_text(before)
            os.environ[VARIABLE] = str(path)
            seen[f"{name} {before}"] = [outcome(lib.errors.record(_raiser(error)))[:2], path.read_text()]
    return seen


@family
def child_failed_without_file(lib, folder):
    os.environ[VARIABLE] = str(folder / "mine.json")
    error = lib.errors.ChildFailedError("job", {0: lib.errors.ProcessFailure(0, 1, 3, str(folder / "none.json"))})
    first = outcome(lib.errors.record(_raiser(error)))[:2]
    del os.environ[VARIABLE]
    return [first, outcome(lib.errors.record(_raiser(_child(lib, folder))))[:2], sorted(os.listdir(folder))]


@family
def handler_by_itself(lib, folder):
    handler = lib.errors.get_error_handler()
    os.environ[VARIABLE] = str(folder / "mine.json")
    try:
        raise OSError(2, "No such file", "gone")  # noqa: TRY301 - to be recorded
    except OSError as error:
        handler.record_exception(error)
    usual = _read(folder / "mine.json")
    handler._write_error_file(str(folder / "raw.json"), "raw text")
    record = {"message": {"message": "x"}}
    handler.override_error_code_in_rootcause_data("f", record, 7)
    plain = {"message": "x"}
    handler.override_error_code_in_rootcause_data("f", plain, 7)
    nothing = {"other": 1}
    handler.override_error_code_in_rootcause_data("f", nothing, 7)
    import faulthandler

    faulthandler.disable()
    handler.initialize()
    return [
        type(handler).__name__,
        usual,
        (folder / "raw.json").read_text(),
        record,
        plain,
        nothing,
        faulthandler.is_enabled(),
        handler._get_error_file_path(),
        outcome(handler.dump_error_file, str(folder / "missing.json"))[:2],
    ]
