"""`record`: what a worker writes about its own death."""

import json
import os
import stat
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest

from supervise.errors import ChildFailedError
from supervise.recording import ErrorHandler, get_error_handler, record, record_uncaught
from supervise.result import ProcessFailure
from tests.patience import PATIENCE_S

VARIABLE = "TORCHELASTIC_ERROR_FILE"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The path of our own error file; faulthandler stays as pytest has set it."""
    monkeypatch.setattr("faulthandler.enable", lambda **_: None)
    path = tmp_path / "mine.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def fail(error):
    raise error


def recorded(path):
    return json.loads(path.read_bytes())["message"]


def test_an_exception_is_written_in_pytorchs_form_and_goes_on(mine):
    with pytest.raises(ValueError, match="boom"):
        record(fail)(ValueError("boom"))
    message = recorded(mine)
    assert list(message) == ["message", "extraInfo"]
    assert list(message["extraInfo"]) == ["py_callstack", "timestamp"]
    assert message["message"] == "ValueError: boom"
    callstack = message["extraInfo"]["py_callstack"]
    assert callstack.startswith("Traceback (most recent call last):\n")
    assert callstack.endswith("ValueError: boom\n")


def test_the_files_time_is_that_of_the_exception_in_nanoseconds(mine):
    before = time.time_ns()
    with pytest.raises(ValueError, match="boom"):
        record(fail)(ValueError("boom"))
    mtime_ns = mine.stat().st_mtime_ns
    assert before <= mtime_ns <= time.time_ns()
    assert recorded(mine)["extraInfo"]["timestamp"] == str(mtime_ns // 10**9)
    assert ProcessFailure(0, 1, 1, str(mine)).timestamp_ns == mtime_ns


def test_the_file_is_private_and_nothing_is_left_beside_it(mine):
    ErrorHandler().record_exception(ValueError("x"))
    assert mine.stat().st_mode & 0o777 == 0o600
    assert list(mine.parent.iterdir()) == [mine]


def test_a_reader_sees_a_whole_record_or_the_one_before(mine, system_call):
    ErrorHandler().record_exception(ValueError("first"))
    seen = []

    def look(replace, source, target, **folders):
        seen.append(recorded(mine)["message"])
        replace(source, target, **folders)

    system_call("replace", look)
    ErrorHandler().record_exception(ValueError("second"))
    assert seen == ["ValueError: first"]
    assert recorded(mine)["message"] == "ValueError: second"


def test_a_failed_write_leaves_nothing_and_only_warns(mine, system_call):
    def full(_replace, source, target, **folders):
        raise OSError(5, "Input/output error")

    system_call("replace", full)
    with pytest.warns(UserWarning, match="Unable to write error to file. OSError: .*Input/output"):
        ErrorHandler().record_exception(ValueError("x"))
    assert list(mine.parent.iterdir()) == []


def test_a_missing_folder_does_not_hide_the_exception(mine, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/proc/nonexistent/error.json")
    with pytest.warns(UserWarning, match="Unable to write"), pytest.raises(ValueError, match="boom"):
        record(fail)(ValueError("boom"))


def test_a_folder_that_takes_no_new_file_is_no_obstacle(mine, system_call):
    mine.touch()

    def refuse(real, path, flags, *args, **more):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, *args, **more)

    system_call("open", refuse)
    ErrorHandler().record_exception(ValueError("x"))
    assert recorded(mine)["message"] == "ValueError: x"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_replaced_and_what_it_leads_to_stays_as_it_is(mine, there):
    target = mine.with_name("target.json")
    if there:
        target.write_text("precious")
    mine.symlink_to(target)
    ErrorHandler().record_exception(ValueError("x"))
    assert not mine.is_symlink()
    assert recorded(mine)["message"] == "ValueError: x"
    assert (target.read_text() == "precious") if there else not target.exists()


def test_a_named_pipe_without_a_reader_is_not_waited_for(mine):
    os.mkfifo(mine)
    with pytest.warns(UserWarning, match="Unable to write error to file. OSError: .*No such device"):
        ErrorHandler().record_exception(ValueError("x"))


def test_a_device_is_written_to_and_not_replaced(monkeypatch, system_call):
    replaced = []
    system_call("replace", lambda _, *names: replaced.append(names))
    monkeypatch.setenv(VARIABLE, os.devnull)
    ErrorHandler().record_exception(ValueError("x"))
    assert replaced == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_link_of_another_user_to_a_named_pipe_is_not_followed(mine):
    """It is replaced, as a link to a file is."""
    pipe = mine.with_name("pipe")
    os.mkfifo(pipe)
    mine.symlink_to(pipe)
    os.chown(mine, 65534, 65534, follow_symlinks=False)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ErrorHandler().record_exception(ValueError("x"))
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert not mine.is_symlink()
    assert recorded(mine)["message"] == "ValueError: x"


def test_at_a_limit_of_file_sizes_an_empty_file_keeps_the_time(mine):
    """With the sticky bit, as on a full disk."""
    code = (
        "import resource\n"
        "from supervise.recording import ErrorHandler\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))\n"
        "ErrorHandler().record_exception(ValueError('x'))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=PATIENCE_S)
    found = mine.stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (0, 0o600 | stat.S_ISVTX)


@pytest.mark.parametrize("content", ["", '{"message": "the first"}'])
def test_an_uncaught_exception_replaces_an_empty_file_and_no_record(mine, content):
    """The program may have made the file; a record of it is better than one of the exit."""
    mine.write_text(content)
    record_uncaught(ValueError("x"), time.time_ns())
    found = mine.read_text()
    assert found == content if content else recorded(mine)["message"] == "ValueError: x"


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_there_is_no_file_and_no_error(mine, monkeypatch, value):
    monkeypatch.delenv(VARIABLE)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match="boom"):
        record(fail)(ValueError("boom"))
    assert list(mine.parent.iterdir()) == []


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class TextlessError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307


@pytest.mark.parametrize("cls", [UnprintableError, TextlessError])
def test_an_exception_that_cannot_be_printed_is_recorded(mine, cls):
    with pytest.raises(cls):
        record(fail)(cls())
    assert recorded(mine)["message"] == f"{cls.__name__}: <exception str() failed>"
    assert "in fail" in recorded(mine)["extraInfo"]["py_callstack"]


def test_a_traceback_that_cannot_be_formatted_is_recorded_by_its_frames(mine, monkeypatch):
    def refuse(*args, **kwargs):
        raise RecursionError

    monkeypatch.setattr("traceback.format_exception", refuse)
    with pytest.raises(ValueError, match="x"):
        record(fail)(ValueError("x"))
    callstack = recorded(mine)["extraInfo"]["py_callstack"]
    assert "in fail" in callstack
    assert "ValueError: x\n(the rest could not be printed: RecursionError)" in callstack


def test_any_text_can_be_recorded(mine):
    ErrorHandler().record_exception(ValueError("ö \udc80 \0 \U0001f600"))
    assert recorded(mine)["message"] == "ValueError: ö \udc80 \0 \U0001f600"


def test_the_return_value_and_the_name_are_kept(mine):
    def main(a: int, *, b: int) -> int:
        """Add."""
        return a + b

    assert record(main)(1, b=2) == 3
    assert (record(main).__name__, record(main).__doc__) == ("main", "Add.")
    assert not mine.exists()


def test_system_exit_with_zero_is_swallowed(mine):
    assert record(sys.exit)(0) is None


@pytest.mark.parametrize("error", [SystemExit(3), SystemExit("msg"), SystemExit(None), KeyboardInterrupt()])
def test_other_exits_pass_and_write_nothing(mine, error):
    with pytest.raises(type(error)):
        record(fail)(error)
    assert not mine.exists()


def child_failed(path, exitcode):
    return ChildFailedError("x", {4: ProcessFailure(0, 1, exitcode, str(path))})


def write_child(mine, content):
    path = mine.with_name("child.json")
    path.write_text(json.dumps(content))
    os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    return path


RECORD = {"message": {"message": "E: m", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}


@pytest.mark.parametrize("exitcode", [3, -11])
def test_a_child_failure_copies_the_childs_file_with_its_exit_code_and_time(mine, exitcode):
    path = write_child(mine, RECORD)
    with pytest.raises(ChildFailedError):
        record(fail)(child_failed(path, exitcode))
    assert json.loads(mine.read_bytes()) == {"message": {**RECORD["message"], "errorCode": exitcode}}
    assert mine.stat().st_mtime_ns == 1_700_000_000_123_456_789


@pytest.mark.parametrize(("content", "exitcode"), [(RECORD, 0), ({"message": "x", "timestamp": 5}, 3)])
def test_a_record_without_a_place_for_the_exit_code_is_copied_byte_for_byte(mine, content, exitcode):
    path = write_child(mine, content)
    with pytest.raises(ChildFailedError):
        record(fail)(child_failed(path, exitcode))
    assert mine.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("before", ["{torn", '{"message": "before"}'])
def test_a_file_in_the_way_is_logged_and_replaced(mine, caplog, before):
    mine.write_text(before)
    path = write_child(mine, RECORD)
    with pytest.raises(ChildFailedError):
        record(fail)(child_failed(path, 1))
    assert recorded(mine)["errorCode"] == 1
    assert "already exists and will be overwritten." in caplog.text


class OfPyTorch(Exception):  # noqa: N818 - stands for PyTorch's `ChildFailedError`
    """What `record` needs of it."""

    def __init__(self, path):
        self.failure = SimpleNamespace(error_file=str(path), exitcode=3)

    def get_first_failure(self):
        return 4, self.failure


@pytest.fixture
def of_pytorch(monkeypatch):
    home = SimpleNamespace(ChildFailedError=OfPyTorch)
    monkeypatch.setitem(sys.modules, "torch.distributed.elastic.multiprocessing.errors", home)


@pytest.mark.usefixtures("of_pytorch")
def test_a_child_failure_of_pytorch_copies_the_childs_file_too(mine):
    """`supervise.agent.launch` raises PyTorch's class."""
    error = OfPyTorch(write_child(mine, RECORD))
    with pytest.raises(OfPyTorch):
        record(fail)(error)
    assert recorded(mine) == {**RECORD["message"], "errorCode": 3}
    mine.unlink()
    record_uncaught(error, time.time_ns())
    assert recorded(mine) == {**RECORD["message"], "errorCode": 3}


def test_an_uncaught_child_failure_without_a_childs_file_is_recorded_itself(mine):
    record_uncaught(child_failed("/proc/nonexistent", -9), time.time_ns())
    assert "Signal 9 (SIGKILL)" in recorded(mine)["message"]


def test_without_a_childs_file_nothing_is_written(mine):
    with pytest.raises(ChildFailedError):
        record(fail)(child_failed("/proc/nonexistent", 1))
    assert not mine.exists()


def test_a_torn_childs_file_makes_the_parents_own_record(mine):
    path = mine.with_name("child.json")
    path.write_text('{"message"')
    with pytest.raises(ChildFailedError):
        record(fail)(child_failed(path, 1))
    assert recorded(mine)["message"].startswith("ChildFailedError: ")
    assert "could not be read" in recorded(mine)["message"]


def test_a_childs_file_without_one_of_our_own_is_only_logged(mine, monkeypatch, caplog):
    path = write_child(mine, RECORD)
    monkeypatch.delenv(VARIABLE)
    ErrorHandler().dump_error_file(str(path))
    assert "no error file defined for parent" in caplog.text


@pytest.mark.parametrize(
    ("data", "after", "said"),
    [
        ({"message": {}}, {"message": {"errorCode": 5}}, ""),
        ({"message": "s"}, {"message": "s"}, "skipping error code override"),
        ({}, {}, "cannot override error code: 5"),
    ],
)
def test_the_exit_code_is_set_where_there_is_a_place_for_it(caplog, data, after, said):
    ErrorHandler().override_error_code_in_rootcause_data("rf", data, 5)
    assert data == after
    assert said in caplog.text


def test_a_handler_of_ones_own_is_used(mine):
    calls = []

    class Mine(ErrorHandler):
        def initialize(self) -> None:
            calls.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            calls.append(repr(e))

    with pytest.raises(ValueError, match="boom"):
        record(fail, Mine())(ValueError("boom"))
    assert calls == ["initialize", "ValueError('boom')"]
    assert type(get_error_handler()) is ErrorHandler


def test_initialize_enables_faulthandler(monkeypatch):
    calls = []
    monkeypatch.setattr("faulthandler.enable", lambda **options: calls.append(options))
    ErrorHandler().initialize()
    assert calls == [{"all_threads": True}]


def test_initialize_only_warns_where_it_cannot(monkeypatch):
    def refuse(**_):
        raise RuntimeError("sys.stderr is None")

    monkeypatch.setattr("faulthandler.enable", refuse)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ErrorHandler().initialize()
    assert [str(w.message) for w in seen] == ["Unable to enable fault handler. RuntimeError: sys.stderr is None"]
    assert seen[0].filename == __file__


def test_a_warning_that_is_an_error_does_not_end_the_rank(mine, monkeypatch):
    """Python runs with -W error, or stderr is closed."""

    def refuse(**_):
        raise RuntimeError("sys.stderr is None")

    monkeypatch.setattr("faulthandler.enable", refuse)
    monkeypatch.setenv(VARIABLE, "/proc/nonexistent/error.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ErrorHandler().initialize()
        ErrorHandler().record_exception(ValueError("x"))


def test_importing_and_decorating_costs_a_worker_nothing_heavy():
    program = (
        "import sys; before = set(sys.modules)\n"
        "import supervise.recording\n"
        "heavy = {'json', 'traceback', 'tempfile', 'logging', 'typing', 'dataclasses', 'pathlib', 're', 'pykka'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "[]"


def test_a_subclass_may_write_the_file_itself(monkeypatch, tmp_path):
    """The method has PyTorch's arguments, so that an override of it works."""
    written = []

    class Mine(ErrorHandler):
        def _write_error_file(self, file_path, error_msg):
            written.append((file_path, error_msg))

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    Mine().record_exception(ValueError("no"))
    assert written[0][0] == str(tmp_path / "error.json")
    assert "ValueError: no" in written[0][1]
