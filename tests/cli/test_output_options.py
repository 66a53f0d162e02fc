"""Bounded logs, prefixes, filters, a console without a reader, and what ranks learn about the terminal."""

import ctypes
import json
import os
import re
import subprocess

import pytest

from tests.cli.command import SUPERVISE, Command, environment

BOUND = 1 << 16
FLOOD = "import os\nfor i in range(300): os.write(1, b'%05d ' % i + b'x' * 9993 + b'\\n')\nraise SystemExit(4)"


@pytest.fixture
def punches(supervise: Command) -> None:
    """Skip a test where the temporary files are on a file system without holes."""
    file = supervise.tmp_path / "probe"
    file.write_bytes(b"x" * 8192)
    with file.open("r+b") as probe:
        keep_size, punch_hole = 1, 2
        start, length = ctypes.c_int64(0), ctypes.c_int64(4096)
        if ctypes.CDLL(None, use_errno=True).fallocate64(probe.fileno(), keep_size | punch_hole, start, length):
            pytest.skip(f"no holes here: {os.strerror(ctypes.get_errno())}")
    file.unlink()


@pytest.mark.usefixtures("punches")
@pytest.mark.parametrize(
    "words", [(), ("-r", "3"), ("--merge",), ("--local-ranks-filter", "1", "-n", "2", "--keep-going")]
)
def test_a_log_keeps_its_newest_part(supervise: Command, words: tuple[str, ...]):
    """Whether it is shown or not: every line is shown, the size stays, the disk has the end, and one event says so."""
    done = supervise.run(*words, "--log-max-bytes", "64K", "--", "python3", "-c", FLOOD)
    assert done.returncode == 4
    if words in ((), ("--merge",)):
        assert [line.split()[0] for line in done.stdout.splitlines()] == [f"[default0]:{i:05d}" for i in range(300)]
    log = supervise.directory() / "attempt_0/0/stdout.log"
    found = log.stat()
    assert found.st_size == 300 * 10_000
    assert found.st_blocks * 512 <= BOUND + 4096
    assert log.read_bytes().endswith(b"00299 " + b"x" * 9993 + b"\n")
    events = map(json.loads, (supervise.directory() / "events.jsonl").read_text().splitlines())
    trimmed = [(event["path"], event["log_max_bytes"]) for event in events if event["event"] == "supervise.log.trimmed"]
    assert trimmed.count((str(log), BOUND)) == 1
    assert "hole" not in done.stderr


def test_a_size_is_checked(supervise: Command):
    """The error names the value and the accepted form."""
    assert "'10X' is not a valid size; give bytes" in supervise.run("--log-max-bytes", "10X", "true").stderr
    assert "'10K' is less than 64K" in supervise.run("--log-max-bytes", "10K", "true").stderr
    for size in ("65536", "10M", "1GiB", "2g"):
        assert supervise.run("--log-max-bytes", size, "true").returncode == 0


def test_the_template_of_prefixes(supervise: Command):
    """As an option, or as the variable that torchrun reads; the option wins, and --no-prefix over the variable."""
    name = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    template = "<${role_name} ${rank}/${local_rank}/${role_rank} $$other $5>"
    assert supervise.run("--log-line-prefix", template, "echo", "hi").stdout == "<default 0/0/0 $other $5>hi\n"
    hosts = ("-n", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1", "--local-ranks-filter", "1")
    script = "echo $RANK/$LOCAL_RANK/$ROLE_RANK"
    done = supervise.run(*hosts, "--log-line-prefix", template, "sh", "-c", script)
    assert done.stdout == "<default 3/1/3 $other $5>3/1/3\n"
    assert supervise.run("echo", "hi", **{name: "[${rank}] "}).stdout == "[0] hi\n"
    assert supervise.run("--log-line-prefix", "a:", "echo", "hi", **{name: "b:"}).stdout == "a:hi\n"
    assert supervise.run("--no-prefix", "echo", "hi", **{name: "b:"}).stdout == "hi\n"
    assert "omit it or --log-line-prefix" in supervise.run("--no-prefix", "--log-line-prefix", "a", "true").stderr


@pytest.mark.parametrize("where", ["option", "variable", "key"])
def test_an_unknown_placeholder_of_a_prefix_is_refused(supervise: Command, where: str):
    """With those that exist, and before the start."""
    template = "${rank} ${node}"
    (supervise.tmp_path / "gang.toml").write_text(
        f"log-line-prefix = '{template}'\n[roles.a]\ncommand = 'touch made'\n"
    )
    words = {"option": ("--log-line-prefix", template, "touch", "made"), "key": ("--file", "gang.toml")}
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template} if where == "variable" else {}
    done = supervise.refused("run", *words.get(where, ("touch", "made")), **env)
    assert done.returncode == 2
    known = "${role_name}, ${role_rank}, ${rank}, ${local_rank}, ${time}"
    source = "gang.toml: log-line-prefix" if where == "key" else [*env, "--log-line-prefix"][0]
    assert f"{source} has an unknown placeholder, ${{node}}; there are {known}, and $$ for a dollar sign" in done.stderr
    assert not (supervise.tmp_path / "made").exists()


@pytest.mark.parametrize("template", ["${role-name} ", "a ${time", "${}", "$${rank} ${Rank}", "$name"])
def test_no_form_of_an_unknown_placeholder_is_shown_as_text(supervise: Command, template: str):
    """Nor one with a hyphen, without a name, or without its second brace."""
    done = supervise.refused("run", "--log-line-prefix", template, "true")
    meant = {"$name": "${name}", "$${rank} ${Rank}": "${Rank}"}.get(template, template.removeprefix("a ").strip())
    assert done.returncode == 2
    assert f"--log-line-prefix has an unknown placeholder, {meant}; there are ${{role_name}}, " in done.stderr


@pytest.mark.parametrize("words", [(), ("--merge",), ("--duplicate-stdout-filters", "a")])
def test_the_time_in_a_prefix_is_that_of_each_line(supervise: Command, words: tuple[str, ...]):
    """With milliseconds; a line that comes later has a later time."""
    script = "print('a', flush=True)\nprint('b')\nprint('c', end='')"
    done = supervise.run("--log-line-prefix", "${time} ${rank}: ", *words, "--", "python3", "-c", script)
    lines = done.stdout.splitlines()
    found = [re.fullmatch(r"(\d\d:\d\d:\d\d\.\d{3}) 0: ([abc])", line) for line in lines]
    assert [each and each[2] for each in found] == ["a", "b", "c"]
    times = [each[1] for each in found if each]
    assert times == sorted(times) or times[-1] < "00:01"  # midnight


def test_filtered_lines_are_also_in_one_file(supervise: Command):
    """Lines with one of the texts, of all ranks; a double comma is a comma."""
    words = ("--duplicate_stdout_filters", "apple,a,,b", "--duplicate-stderr-filters", "err", "-n", "2")
    done = supervise.run(*words, "--", "sh", "-c", "echo apple; echo pear; echo a,b; echo err >&2; echo no >&2")
    assert done.stdout.count("pear") == 2
    attempt = supervise.directory() / "attempt_0"
    lines = sorted((attempt / "filtered_stdout.log").read_text().splitlines())
    assert lines == sorted(f"[default{rank}]:{text}" for rank in range(2) for text in ("apple", "a,b"))
    assert (attempt / "filtered_stderr.log").read_text().count("err") == 2
    refused = supervise.run("--duplicate-stdout-filters", "a,", "true")
    assert "has an empty text, which every line contains" in refused.stderr


def test_a_filter_of_one_stream_takes_no_line_of_the_other_one(supervise: Command):
    """Also where both streams of the command lead to the same place."""
    words = ("--duplicate-stdout-filters", "mark", "--duplicate-stderr-filters", "mark", "--tee", "3")
    subprocess.run(
        [*SUPERVISE, "run", *words, "--", "sh", "-c", "echo mark out; echo mark err >&2"],
        env=environment(supervise.tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    attempt = supervise.directory() / "attempt_0"
    found = {name: (attempt / f"filtered_{name}.log").read_text() for name in ("stdout", "stderr")}
    assert found == {"stdout": "[default0]:mark out\n", "stderr": "[default0]:mark err\n"}


def test_without_a_reader_the_run_is_stopped_on_request(supervise: Command):
    """--halt-on-broken-pipe: the ranks get SIGTERM and their time; the exit code is that of SIGPIPE in a shell."""
    loop = "trap 'echo polite >&2; exit 0' TERM; while echo hi; do sleep 0.01; done"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*SUPERVISE, "run", "--halt-on-broken-pipe", "--", "sh", "-c", loop],
            env=environment(supervise.tmp_path),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write)
    assert done.returncode == 128 + 13
    assert "supervise: stopped: no program reads the output (--halt-on-broken-pipe)" in done.stderr
    assert "polite" in done.stderr
    assert "is gone" not in done.stderr
    assert json.loads((supervise.directory() / "result.json").read_text())["exit_code"] == 141


def test_ranks_learn_that_a_terminal_shows_them(supervise: Command):
    """Its size without the prefix, and color unless it is unwanted; what the user has set stays, in a pipe nothing."""
    show = ("--", "sh", "-c", 'echo "<$FORCE_COLOR $TTY_INTERACTIVE $COLUMNS $LINES>"')
    for words, env, expected in (
        ((), {}, "<1 0 89 40>"),
        (("--color", "never"), {}, "<  89 40>"),
        ((), {"NO_COLOR": "1"}, "<  89 40>"),
        ((), {"COLUMNS": "7", "FORCE_COLOR": "3"}, "<3 0 7 40>"),
        (("--no-prefix",), {}, "<1 0 100 40>"),
    ):
        with supervise.on_terminal(*words, *show, **env) as terminal:
            assert expected in terminal.end()[1]
    assert supervise.run("--no-prefix", *show).stdout == "<   >\n"
