"""A new setting is one row of the table, and a new choice is one word of a row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervise import DefaultLogsSpecs, SpecError
from supervise._gang.attempt import prepared
from supervise._hosts.plan import make_plan
from supervise._settings import CHOICE, COUNT, FLAG, GANG, SPAN, Kind, Setting
from supervise.cli.commands.check import check
from supervise.cli.options.groups import run_parser
from supervise.cli.options.options import parse
from tests.cli.make_completions import scripts
from tests.docs import make_reference

ROLE = "[roles.a]\ncommand = 'true'\n"
NEW: dict[str, tuple[Kind, Any, str, Any, str, Any, str, str]] = {
    "choice": (CHOICE, "calm", "'brisk'", "brisk", "x", "x", "it is one of calm, brisk", "pace brisk"),
    "seconds": (SPAN, 3.0, "'90s'", 90.0, "x", 0, "it is a number of seconds above 0", "pace 1 min 30 s"),
    "count": (COUNT, 1, "7", 7, "x", -1, "0 or more", "pace 7"),
    "flag": (FLAG, False, "true", True, "", "x", "give True or False", "pace"),
}
"""Kind to its row's kind and default, a value in a file and in Python, a wrong one on the line and in Python, the
remedy, and what `check` prints."""


@pytest.fixture(params=NEW)
def new(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a setting to the table; return its kind."""
    kind, default, *_ = NEW[request.param]
    choices = ("calm", "brisk") if kind is CHOICE else ()
    row = Setting(
        "pace",
        kind,
        default,
        "how hastily the gang walks",
        option="--pace",
        group="the end",
        choices=choices,
        each_host=True,
    )
    monkeypatch.setitem(GANG, "pace", row)
    return str(request.param)


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], str]:
    def write(line: str) -> str:
        (tmp_path / "gang.toml").write_text(f"{line}\n{ROLE}")
        return str(tmp_path / "gang.toml")

    return write


def test_a_new_setting_is_an_option_and_a_key(new: str, toml: Callable[[str], str], capsys: pytest.CaptureFixture[str]):
    """In the help, on the line, in a gang file and in `check`; the gang gets its value."""
    _, default, written, value, wrong, _, _, told = NEW[new]
    parser = run_parser()
    assert "--pace" in parser.format_help()
    assert "how hastily the gang walks" in parser.format_help()
    assert parse(["true"]).settings["pace"] == default
    on_the_line = ["--pace"] if value is True else ["--pace", written.strip("'")]
    assert parse([*on_the_line, "true"]).settings["pace"] == value
    assert parse(["--file", toml(f"pace = {written}")]).settings["pace"] == value
    assert check([toml(f"pace = {written}")]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(f"1 role, 1 rank, one_for_all, no restarts, {told}")
    if wrong:
        with pytest.raises(SystemExit):
            check([toml(f"pace = '{wrong}'")])
        assert "gang.toml: pace: " in capsys.readouterr().err


def test_a_new_setting_is_checked(new: str):
    """A wrong value is refused by the name of the setting, the value and the remedy, also on several hosts."""
    _, default, _, value, _, wrong, remedy, _ = NEW[new]
    gang: dict[str, Any] = {"name": "a", "entrypoint": "true", "args": {0: ()}, "logs_specs": DefaultLogsSpecs()}
    assert vars(prepared({**gang, "pace": value}))[GANG["pace"].field] == value
    assert vars(prepared(gang))[GANG["pace"].field] == default
    with pytest.raises(SpecError, match=f"^pace is {wrong!r}; .*{remedy}"):
        prepared({**gang, "pace": wrong})
    hosts: dict[str, Any] = {"name": "a", "entrypoint": "true", "nnodes": 2, "nproc_per_node": 1}
    assert make_plan(**hosts, settings={"pace": value}).settings == {"pace": value}
    with pytest.raises(SpecError, match=rf"^host 0 \(.*\): pace is {wrong!r}; .*{remedy}"):
        make_plan(**hosts, settings={"pace": wrong})


@pytest.mark.usefixtures("new")
def test_a_new_setting_is_completed_and_documented():
    """In the scripts of all shells, and in the tables of the reference."""
    assert [shell for shell, text in scripts().items() if "pace" not in text] == []
    made = make_reference.blocks()
    assert "how hastily the gang walks" in made["options"]
    assert "| `pace` |" in made["gang"]


@pytest.mark.parametrize("name", ["strategy", "kill_mode", "containment"])
def test_a_new_choice_is_one_word(
    name: str, toml: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Options, gang files, completion and the check of a gang take the choices from the table."""
    row = GANG[name]
    monkeypatch.setattr(row, "choices", (*row.choices, "novel"))
    assert parse([row.option, "novel", "true"]).settings[name] == "novel"
    assert parse(["--file", toml(f"{row.key} = 'novel'")]).settings[name] == "novel"
    assert "novel" in scripts()["bash"]
    assert "novel" in make_reference.blocks()["options"]
    assert row.checked("novel") == "novel"
    if row.role:
        path = Path(toml(""))
        path.write_text(f"{ROLE}{row.key} = 'novel'\n")
        [part] = parse(["--file", str(path)]).parts
        assert part.settings[name] == "novel"
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        parse([row.option, "novel", "true"])
    assert "invalid choice: 'novel'" in capsys.readouterr().err
