"""The lines of all logs in the order of time, from the sizes that the files of a run tell."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from supervise.cli.commands.logs import LogLines, LogTimes, logs_of
from tests.cli.command import Command
from tests.views.fake_run import BEGIN_S, event, read_run, write_run

LINES = 10
LINE_BYTES = 8


def a_run(path: Path, begins: dict[str, float], *, samples: Iterable[dict[str, Any]] = ()) -> Any:
    """Write a run; the log of key ``rank/stream`` grows evenly in 10 s from the given second on."""
    ranks = sorted({int(key.partition("/")[0]) for key in begins})
    write_run(path, len(ranks), [event("process.started", 0, rank, pid=1000 + rank) for rank in ranks])
    for key, begin in begins.items():
        file = path / "attempt_0" / f"{key}.log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key[0]}{key[-3:]} {number:02}\n" for number in range(LINES)))
        os.utime(file, (BEGIN_S + begin + 10, BEGIN_S + begin + 10))
    (path / "samples.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    return read_run(path)


def sampled(begins: dict[str, float], after_s: float) -> dict[str, Any]:
    """Return the sample of such a run."""

    def size(key: str) -> int:
        lines = int(min(max(after_s - begins.get(key, 1e9), 0), LINES))
        return lines * LINE_BYTES

    ranks = {key.partition("/")[0] for key in begins}
    rows = {
        rank: {
            "pid": 1000 + int(rank),
            "output_bytes": size(f"{rank}/stdout") + size(f"{rank}/stderr"),
            "stderr_bytes": size(f"{rank}/stderr"),
        }
        for rank in ranks
    }
    return {"time": BEGIN_S + after_s, "ranks": rows}


def told(run: Any, since_s: float | None = None) -> list[str]:
    """Return all lines in order; `since_s`: from this second after the start on."""
    reader = LogLines(LogTimes(run), None if since_s is None else BEGIN_S + since_s)
    blocks = list(reader.look(logs_of(run), BEGIN_S + 1000))
    assert [block.at_s for block in blocks] == sorted(block.at_s for block in blocks)
    return [line.decode() for block in blocks for line in block.lines]


def test_the_lines_of_all_logs_are_in_the_order_of_time(tmp_path: Path) -> None:
    """Each log grows in its own ten seconds; a second log of a rank has its own place in time."""
    begins = {"0/stdout": 40.0, "0/stderr": 0.0, "1/stdout": 20.0, "1/stderr": 60.0}
    run = a_run(tmp_path / "run", begins, samples=[sampled(begins, after_s) for after_s in range(5, 75, 5)])
    assert [line[:4] for line in told(run)[::LINES]] == ["0err", "1out", "0out", "1err"]
    assert told(run) == sorted(told(run), key=lambda line: (["0err", "1out", "0out", "1err"].index(line[:4]), line))


def test_lines_that_were_written_at_the_same_time_alternate(tmp_path: Path) -> None:
    """Without a sample, a log has grown evenly from the start of the life to its last byte."""
    assert told(a_run(tmp_path / "run", {"0/stdout": 0, "1/stdout": 0}))[:4] == [
        "0out 00",
        "1out 00",
        "0out 01",
        "1out 01",
    ]


@pytest.mark.parametrize(("since_s", "first"), [(0, "0out 00"), (7, "0out 05"), (25, "1out 05"), (35, None)])
def test_since_begins_at_the_last_known_size(tmp_path: Path, since_s: float, first: str | None) -> None:
    """No line of the wanted time is left out; of older ones, those of one interval of samples may come."""
    begins = {"0/stdout": 0.0, "1/stdout": 20.0}
    run = a_run(tmp_path / "run", begins, samples=[sampled(begins, after_s) for after_s in range(5, 35, 5)])
    assert next(iter(told(run, since_s)), None) == first


def test_since_leaves_out_the_rest_of_a_line(tmp_path: Path) -> None:
    """A sample may have come in the middle of a line, or at its end."""
    for size, first in ((LINE_BYTES * 3, "0out 03"), (LINE_BYTES * 3 + 1, "0out 04")):
        row = {"pid": 1000, "output_bytes": size, "stderr_bytes": 0}
        run = a_run(tmp_path / str(size), {"0/stdout": 0}, samples=[{"time": BEGIN_S + 3, "ranks": {"0": row}}])
        assert told(run, 4)[0] == first


def test_each_line_is_returned_once_while_logs_grow(tmp_path: Path) -> None:
    """A line that is complete later comes later, and so does a log that is new, after all of the life before."""
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    reader = LogLines(LogTimes(run), None)
    assert sum(len(block.lines) for block in reader.look(logs_of(run), BEGIN_S + 20)) == LINES
    with (tmp_path / "run/attempt_0/0/stdout.log").open("a") as file:
        file.write("torn")
        file.flush()
        assert [*reader.look(logs_of(run), BEGIN_S + 30)] == []
        file.write(" line\nrest")
    (tmp_path / "run/attempt_1/0").mkdir(parents=True)
    assert [block.lines for block in reader.look(logs_of(run), BEGIN_S + 40)] == [[b"torn line"]]
    (tmp_path / "run/attempt_1/0/stderr.log").write_text("new life\n")
    assert [block.lines for block in reader.look(logs_of(run), BEGIN_S + 50)] == [[b"rest"], [b"new life"]]
    assert [*reader.rests()] == []


def test_a_long_line_stays_whole_and_a_very_long_one_is_cut(tmp_path: Path) -> None:
    """As one of JSON with a few megabytes; but a file without newlines must not fill the memory."""
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    long, longer = 3 << 20, 9 << 20
    (tmp_path / "run/attempt_0/0/stdout.log").write_bytes(b"%b\n%b\n" % (b"x" * long, b"y" * longer))
    lengths = [len(line) for block in LogLines(LogTimes(run), None).look(logs_of(run), BEGIN_S) for line in block.lines]
    assert lengths[0] == long
    assert (len(lengths), sum(lengths)) == (3, long + longer)


def test_the_times_of_lines_that_come_while_logs_are_followed(tmp_path: Path) -> None:
    """A log that did not grow at the last look has grown since then, however long it was idle before."""
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    reader = LogLines(LogTimes(run), None)
    assert [block.within_s for block in reader.look(logs_of(run), BEGIN_S + 20)] == [10.0] * LINES
    assert [*reader.look(logs_of(run), BEGIN_S + 80)] == []
    log = tmp_path / "run/attempt_0/0/stdout.log"
    log.write_text(log.read_text() + "late\n")
    os.utime(log, (BEGIN_S + 80.1, BEGIN_S + 80.1))
    [block] = reader.look(logs_of(run), BEGIN_S + 80.2)
    assert (block.lines, round(block.at_s - BEGIN_S, 3), round(block.within_s, 3)) == ([b"late"], 80.1, 0.1)


def test_a_line_is_not_joined_across_the_part_of_a_log_that_was_removed(tmp_path: Path) -> None:
    """The oldest part of a log becomes a hole, which may begin before the place up to which the log was read.

    The end of a line is left out, and said to be.
    """
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    log, begin = tmp_path / "run/attempt_0/0/stdout.log", 1 << 20
    log.write_bytes(b"whole\ntorn ")
    told: list[str] = []
    reader = LogLines(LogTimes(run), None, told.append)
    assert [block.lines for block in reader.look(logs_of(run), BEGIN_S + 20)] == [[b"whole"]]
    with log.open("r+b") as file:
        file.truncate(0)
        file.seek(begin)
        file.write(b"end of another\nlast\n")
    seen = [line for block in reader.look(logs_of(run), BEGIN_S + 30) for line in block.lines]
    assert seen == [b"last"]
    assert told == [f"{log}: --log-max-bytes has removed {begin - 11} bytes that were not read"]


def test_the_removed_part_of_a_log_that_came_later_is_told_and_no_line_is_torn(tmp_path: Path) -> None:
    """A fast rank has written more than the bound before the next look."""
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    told: list[str] = []
    reader = LogLines(LogTimes(run), None, told.append)
    assert [*reader.look(logs_of(run), BEGIN_S + 20)]
    log, begin = tmp_path / "run/attempt_1/0/stdout.log", 1 << 20
    log.parent.mkdir(parents=True)
    with log.open("wb") as file:
        file.seek(begin)
        file.write(b"end of a line\nlast\n")
    with (tmp_path / "run/events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "supervise.log.trimmed", "path": str(log)}) + "\n")
    assert [line for block in reader.look(logs_of(run), BEGIN_S + 30) for line in block.lines] == [b"last"]
    assert told == [f"{log}: --log-max-bytes has removed {begin} bytes that were not read"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_is_truncated_or_replaced_is_read_from_its_beginning(tmp_path: Path, replaced: bool) -> None:
    run = a_run(tmp_path / "run", {"0/stdout": 0})
    log = tmp_path / "run/attempt_0/0/stdout.log"
    log.write_bytes(b"one\ntwo\ntor")
    told: list[str] = []
    reader = LogLines(LogTimes(run), None, told.append)
    assert [line for block in reader.look(logs_of(run), BEGIN_S + 20) for line in block.lines] == [b"one", b"two"]
    if replaced:
        log.rename(log.with_suffix(".old"))
    log.write_bytes(b"three\n")
    seen = [line for block in reader.look(logs_of(run), BEGIN_S + 30) for line in block.lines]
    assert seen == [b"three"]
    how = "replaced; its rank still writes to the old file, which is not shown any more"
    assert told == [f"{log} was {how if replaced else 'truncated; lines may be missing'}"]


def test_what_ranks_may_have_written_to_the_files_loses_no_line(tmp_path: Path) -> None:
    """Times and sizes that are not valid, or that fall, are left out."""
    bad = ["word", None, -1, 1e400, [], {"0": 3}]
    rows = [{"pid": 1000, "output_bytes": each, "stderr_bytes": 0} for each in (*bad, 70, 20)]
    samples = [{"time": each, "ranks": {"0": rows[0]}} for each in bad]
    samples += [{"time": BEGIN_S + number, "ranks": {"0": row, "x": row}} for number, row in enumerate(rows)]
    run = a_run(tmp_path / "run", {"0/stdout": 0}, samples=[*samples, {"time": 1, "ranks": []}])
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        for each in bad:
            lie = event("process.started", 0, 0, pid=each) | {"timestamp": each}
            file.write(f"{json.dumps(lie)}\n")
    assert len(told(run)) == LINES


def test_a_sample_that_falls_changes_no_time(tmp_path: Path) -> None:
    """Neither a smaller size nor an earlier time than that of the sample before."""
    good = {"time": BEGIN_S + 8, "ranks": {"0": {"pid": 1000, "output_bytes": 16, "stderr_bytes": 0}}}
    smaller = {"time": BEGIN_S + 9, "ranks": {"0": {"pid": 1000, "output_bytes": 8, "stderr_bytes": 0}}}
    earlier = {"time": BEGIN_S + 2, "ranks": {"0": {"pid": 1000, "output_bytes": 72, "stderr_bytes": 0}}}
    found = []
    for name, samples in (("good", [good]), ("bad", [good, smaller, earlier])):
        run = a_run(tmp_path / name, {"0/stdout": 0, "1/stdout": 0}, samples=samples)
        reader = LogLines(LogTimes(run), None)
        blocks = reader.look(logs_of(run), BEGIN_S + 1000)
        found.append([(block.at_s, block.log.rank, block.lines) for block in blocks])
    assert found[0] == found[1]


def test_the_command_shows_lines_in_order_and_as_json(supervise: Command, tmp_path: Path) -> None:
    """A JSON object a line has the time, the rank, the stream and the text."""
    begins = {"0/stdout": 20.0, "1/stderr": 0.0}
    a_run(tmp_path / "run", begins, samples=[sampled(begins, after_s) for after_s in (5, 10, 15, 25)])
    shown = supervise.supervise("logs", str(tmp_path / "run")).stdout.splitlines()
    assert (shown[0], shown[LINES]) == ("[trainer1]:1err 00", "[trainer0]:0out 00")
    done = supervise.supervise("logs", str(tmp_path / "run"), "--json", "--rank", "1")
    assert done.stderr == ""
    first = json.loads(done.stdout.splitlines()[0])
    assert first.pop("time") == pytest.approx(BEGIN_S + 1, abs=0.01)
    whose = {"local_rank": 1, "role": "trainer", "role_rank": 1, "attempt": 0}
    assert first == whose | {"schema_version": 1, "log_iostream": "stderr", "line": "1err 00"}
    assert len(done.stdout.splitlines()) == LINES


def test_what_a_line_rewrites_or_leaves_upwards_is_not_its_prefix(supervise: Command) -> None:
    """Behind a prefix or a time, a line is its last segment; one rank without them has its bytes."""
    raw = "\rp 10%\rp 100%\na\n\x1b[A\x1b[A\ra 2\x1b[K\nk\r\x1b[2Kerased\n\x1b[31mred\n"
    supervise.run("-n", "2", "-q", "--run-id", "bars", "printf", "%s", raw)
    lines = ["p 100%", "a", "a 2\x1b[K", "erased", "\x1b[31mred"]
    shown = supervise.supervise("logs", "bars").stdout.splitlines()
    assert sorted(shown) == sorted(f"[default{rank}]:{line}" for rank in (0, 1) for line in lines)
    assert supervise.supervise("logs", "bars", "0", "-t").stdout.partition("\n")[0].endswith(" p 100%")
    assert supervise.supervise("logs", "bars", "0").stdout == raw.replace("\r", "\n")  # by this reader


def test_a_last_line_without_a_newline_has_its_place_in_time(tmp_path: Path) -> None:
    """A rank that wrote it long before the others ended did not write it last."""
    begins: dict[str, float] = {"0/stderr": 0, "1/stdout": 20}
    run = a_run(tmp_path / "run", begins, samples=[sampled(begins, second) for second in range(31)])
    log = tmp_path / "run/attempt_0/0/stderr.log"
    log.write_text("open")
    os.utime(log, (BEGIN_S + 10, BEGIN_S + 10))
    reader = LogLines(LogTimes(run), None)
    lines = [line for block in reader.look(logs_of(run), BEGIN_S + 40, last=True) for line in block.lines]
    assert (lines[0], len(lines), [*reader.rests()]) == (b"open", LINES + 1, [])
