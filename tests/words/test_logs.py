"""Logs: which streams go where."""

import os
import pickle
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from supervise.destinations import LogsDest
from supervise.errors import SpecError
from supervise.logs import DefaultLogsSpecs, LogsSpecs, Std, to_map, validate_full_rank


def envs(nprocs: int, **first: str) -> dict[int, dict[str, str]]:
    made: dict[int, dict[str, str]] = {rank: {} for rank in range(nprocs)}
    made[0].update(first)
    return made


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("0", Std.NONE),
        ("3", Std.ALL),
        ("0:3", {0: Std.ALL}),
        ("0:3,1:0,2:1,3:2", {0: Std.ALL, 1: Std.NONE, 2: Std.OUT, 3: Std.ERR}),
        ("10:3,11:1", {10: Std.ALL, 11: Std.OUT}),
        ("1024:2", {1024: Std.ERR}),
    ],
)
def test_l6_a_choice_can_be_written_as_text(text, choice):
    assert Std.from_str(text) == choice


@pytest.mark.parametrize("text", ["", "4", "10", " 1", "0:4", "0:3,", ",0:3", "a:1", "0-3:1", "-1:1", "٣:1", "0:1;1:2"])
def test_another_text_is_an_error_that_says_what_is_accepted(text):
    with pytest.raises(ValueError, match="does not match: <") as caught:
        Std.from_str(text)
    assert str(caught.value) == rf"{text} does not match: <^[0123]$> or <^(\d+:[0123],)*(\d+:[0123])$>"


def test_a_choice_becomes_a_map_of_all_ranks():
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.OUT, 9: Std.ALL}, 2) == {0: Std.NONE, 1: Std.OUT}
    assert to_map(Std.ALL, 0) == {}


def test_ranks_that_are_missing_or_too_many_are_named():
    validate_full_rank({1: "", 0: ""}, 2, "args")
    with pytest.raises(RuntimeError) as caught:
        validate_full_rank({0: "", 2: ""}, 2, "args")
    assert isinstance(caught.value, SpecError)
    assert str(caught.value) == "args, local rank mapping mismatch, expected: {0, 1}, actual: {0, 2}"
    with pytest.raises(SpecError, match=r"expected: \{0\}, actual: \{0\.0\}"):
        validate_full_rank({0.0: ()}, 1, "args")  # type: ignore[dict-item]


def test_the_layout_is_pytorchs(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    mine = envs(2, TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT="4")
    dest = specs.reify(mine)
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("job_")
    assert specs._run_log_dir == str(run)
    attempt = f"{run}/attempt_4"
    assert dest == LogsDest(
        stdouts={0: f"{attempt}/0/stdout.log", 1: f"{attempt}/1/stdout.log"},
        stderrs={0: f"{attempt}/0/stderr.log", 1: f"{attempt}/1/stderr.log"},
        error_files={0: f"{attempt}/0/error.json", 1: f"{attempt}/1/error.json"},
        filtered_stdout=f"{attempt}/filtered_stdout.log",
        filtered_stderr=f"{attempt}/filtered_stderr.log",
    )
    assert mine[0]["TORCHELASTIC_ERROR_FILE"] == dest.error_files[0]
    assert mine[1] == {"TORCHELASTIC_ERROR_FILE": dest.error_files[1]}
    assert sorted([path.name for path in Path(attempt).iterdir()]) == ["0", "1"]


def test_without_names_the_run_has_pytorchs_default(tmp_path):
    DefaultLogsSpecs(str(tmp_path)).reify(envs(1))
    (run,) = tmp_path.iterdir()
    assert run.name.startswith("test_run_id_")
    assert [path.name for path in run.iterdir()] == ["attempt_0"]


def test_the_same_specs_give_the_same_paths_and_leave_files_alone(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL)
    dest = specs.reify(envs(2))
    for path in (dest.stdouts[0], dest.error_files[1], dest.filtered_stdout):
        Path(path).write_text("kept")
    assert specs.reify(envs(2)) == dest
    for path in (dest.stdouts[0], dest.error_files[1], dest.filtered_stdout):
        assert Path(path).read_text() == "kept"


def test_attempts_share_the_run(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    paths = [specs.reify(envs(1, TORCHELASTIC_RESTART_COUNT=str(n))).stdouts[0] for n in range(3)]
    assert {str(Path(path).parents[2]) for path in paths} == {specs._run_log_dir}
    assert len(set(paths)) == 3


def test_two_specs_do_not_meet(tmp_path):
    dests = [DefaultLogsSpecs(str(tmp_path), Std.OUT).reify(envs(1)) for _ in range(2)]
    assert dests[0].stdouts != dests[1].stdouts


def test_a_run_directory_that_was_removed_is_made_again(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.OUT)
    dest = specs.reify(envs(1))
    shutil.rmtree(specs._run_log_dir)
    assert specs.reify(envs(1)) == dest
    assert Path(dest.stdouts[0]).parent.is_dir()


def test_what_is_shown_is_also_written(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path), {0: Std.ERR}, {0: Std.OUT, 1: Std.ERR}).reify(envs(2))
    assert [bool(dest.stdouts[rank]) for rank in range(2)] == [True, False]
    assert [bool(dest.stderrs[rank]) for rank in range(2)] == [True, True]
    assert dest.tee_stdouts == {0: dest.stdouts[0]}
    assert dest.tee_stderrs == {1: dest.stderrs[1]}


def test_a_filtered_rank_is_written_but_not_shown(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT, local_ranks_filter={0}).reify(envs(2))
    assert dest.tee_stdouts == {0: dest.stdouts[0]}
    assert dest.stdouts[1].endswith("/1/stdout.log")
    assert dest.stderrs == {0: "", 1: os.devnull}
    everything = DefaultLogsSpecs(str(tmp_path), tee=Std.OUT, local_ranks_filter=set()).reify(envs(2))
    assert sorted(everything.tee_stdouts) == [0, 1]


def test_devnull_means_no_files(tmp_path):
    mine = envs(1)
    specs = DefaultLogsSpecs(os.devnull, Std.ALL, Std.ALL)
    assert specs.reify(mine) == LogsDest(
        stdouts={0: ""},
        stderrs={0: ""},
        tee_stdouts={0: os.devnull},
        tee_stderrs={0: os.devnull},
        error_files={0: os.devnull},
        filtered_stdout=f"{os.devnull}/filtered_stdout.log",
        filtered_stderr=f"{os.devnull}/filtered_stderr.log",
    )
    assert mine == {0: {"TORCHELASTIC_ERROR_FILE": ""}}
    assert specs.root_log_dir == os.devnull


def test_no_log_dir_is_a_private_temporary_one(temporary_folder):
    for nothing in (None, ""):
        root = Path(DefaultLogsSpecs(nothing).root_log_dir)
        assert root.parent == temporary_folder
        assert root.name.startswith("torchelastic_")
        assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_every_folder_that_we_make_is_private_and_others_stay_as_they_are(tmp_path):
    tmp_path.chmod(0o755)
    specs = DefaultLogsSpecs(str(tmp_path / "a" / "b"), Std.ALL)
    specs.reify(envs(2))
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(made) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_relative_log_dir_gives_paths_that_hold_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    specs = DefaultLogsSpecs("logs", Std.OUT)
    dest = specs.reify(envs(1))
    assert specs.root_log_dir == "logs"
    assert dest.stdouts[0].startswith(f"{tmp_path}/logs/")
    assert dest.error_files[0].startswith(f"{tmp_path}/logs/")


def test_names_with_separators_stay_inside_the_log_dir(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), Std.OUT)
    dest = specs.reify(envs(1, TORCHELASTIC_RUN_ID="../team/job", TORCHELASTIC_RESTART_COUNT="../../x"))
    assert os.path.realpath(dest.stdouts[0]).startswith(f"{os.path.realpath(tmp_path)}/logs/.._team_job_")


@pytest.mark.parametrize("inside", ["", "/logs", "/logs/deeper"])
def test_l8_a_file_in_place_of_the_log_dir_is_named(tmp_path, inside):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError) as caught:
        DefaultLogsSpecs(f"{file}{inside}")
    assert str(caught.value) == f"log_dir: {file} is a file"


def test_l8_what_is_no_folder_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotADirectoryError, match=r"log_dir: .*/pipe is not a directory"):
        DefaultLogsSpecs(str(tmp_path / "pipe"))


@pytest.fixture
def read_only_dir():
    """A folder that we may look into but not write to, also where the tests run as root."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield path
    if user == 0:
        os.seteuid(0)
    path.rmdir()


def test_l8_a_log_dir_that_cannot_be_written_to_is_named(read_only_dir):
    with pytest.raises(PermissionError) as caught:
        DefaultLogsSpecs(str(read_only_dir))
    assert caught.value.filename == str(read_only_dir)


def test_l8_a_log_dir_that_cannot_be_made_is_named(read_only_dir):
    with pytest.raises(PermissionError) as caught:
        DefaultLogsSpecs(str(read_only_dir / "logs"))
    assert caught.value.filename == str(read_only_dir / "logs")


def test_l8_a_log_dir_that_was_closed_to_us_later_is_named(tmp_path, system_call):
    specs = DefaultLogsSpecs(str(tmp_path))

    def refuse(_mkdir, name, mode, *, dir_fd):
        raise PermissionError(13, "Permission denied", name)

    system_call("mkdir", refuse)
    with pytest.raises(PermissionError) as caught:
        specs.reify(envs(1))
    assert caught.value.filename == str(tmp_path)


def test_environments_that_miss_a_rank_make_nothing(tmp_path):
    with pytest.raises(SpecError, match="envs, local rank mapping mismatch"):
        DefaultLogsSpecs(str(tmp_path)).reify({1: {}})
    assert list(tmp_path.iterdir()) == []


def test_no_environments_are_no_destinations(tmp_path):
    dest = DefaultLogsSpecs(str(tmp_path)).reify({})
    assert (dest.stdouts, dest.error_files) == ({}, {})
    assert dest.filtered_stdout.endswith("/attempt_0/filtered_stdout.log")


def test_specs_show_and_compare_what_was_asked_for(tmp_path):
    specs = DefaultLogsSpecs(str(tmp_path), Std.ALL, {0: Std.OUT}, {0})
    assert repr(specs) == (
        f"DefaultLogsSpecs(root_log_dir={tmp_path}, redirects=3, tee={{0: <Std.OUT: 1>}}, local_ranks_filter={{0}})"
    )
    same = DefaultLogsSpecs(str(tmp_path), Std.ALL, {0: Std.OUT}, {0})
    same.reify(envs(1))
    assert specs == same
    assert pickle.loads(pickle.dumps(specs)) == specs
    assert specs != DefaultLogsSpecs(str(tmp_path), Std.OUT, {0: Std.OUT}, {0})
    assert specs != "specs"
    with pytest.raises(TypeError, match="unhashable"):
        hash(specs)


def test_a_layout_of_ones_own_is_a_subclass():
    class Mine(LogsSpecs):
        def reify(self, envs):
            return LogsDest()

        @property
        def root_log_dir(self) -> str:
            return str(self._root_log_dir)

    assert Mine("x").root_log_dir == "x"
    assert Mine()._redirects == Std.NONE
    with pytest.raises(TypeError, match="abstract"):
        LogsSpecs()  # type: ignore[abstract]
