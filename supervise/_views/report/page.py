"""The page: one HTML document that needs no other file. Its policy forbids scripts and requests."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from supervise._logs.files import last_lines
from supervise._opening import read_regular
from supervise._printable import one_line
from supervise._views.failed_ranks import why_failed
from supervise._views.report.curves import curves
from supervise._views.report.markup import Row, block, hatched, table, text, unbroken
from supervise._views.report.timeline import Timeline, shown_end
from supervise._views.wording import event_time_s, seconds, size, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervise._views.recorded_run import RecordedRun
    from supervise._views.report.history import History, RankHistory

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MOST_LOGS = 12
_MOST_LINES = 20
_MOST_INCIDENTS = 500
_STACKS_BYTES = 256 << 10
_LONGEST_LINE = 160
_MOST_LAST_LINES = 2_000
_MOST_ROWS = 5_000
_GOES_ON = ("running", "unknown", "killed")
"""The states of runs without a result."""


def page(run: RecordedRun, history: History, *, program: str, version: str) -> str:
    """Return the page.

    Args:
        run: The run.
        history: Its history.
        program: What it ran, as text.
        version: Version of supervise.
    """
    sections = [
        ("What happened", _story(run, history)),
        ("Timeline", Timeline(history).markup()),
        ("What the ranks used", _used(history)),
        ("Restarts, hangs and losses", _incidents(history)),
        ("Stacks", "".join(_stacks(run, history))),
        ("Last lines", _logs(run, history)),
        ("All ranks", _table(run, history)),
    ]
    body = "".join(
        f'<section aria-labelledby="s{index}"><h2 id="s{index}">{title}</h2>{content}</section>'
        for index, (title, content) in enumerate(sections)
        if content
    )
    title = f"{one_line(run.name)}: {run.state}"
    with open(os.path.join(os.path.dirname(__file__), "page.css"), encoding="utf-8") as file:
        style = file.read()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{style}</style></head><body>"
        f"{_head(run, history, program)}<main>{body}</main>"
        f"<footer>Written by supervise {text(version)} at {now}, from the files in "
        f"<code>{text(run.path)}</code></footer>"
        "</body></html>\n"
    )


def _head(run: RecordedRun, history: History, program: str) -> str:
    state = run.state if run.state.isascii() and run.state.replace("_", "").isalpha() else "unknown"
    code = run.result.get("exit_code")
    duration = seconds(history.end_s - history.begin_s) + (" until now" if run.state == "running" else "")
    restarts = sum(max(0, rank.count - 1) for rank in history.ranks.values())
    facts = [
        ("ranks", f"{len(history.ranks)} on {run.place}"),
        ("started", "-" if run.started is None else shown_time(run.started)),
        ("duration", duration),
        ("exit code", "-" if code is None else str(code)),
        ("restarted processes", str(restarts)),
    ]
    cells = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    failed = len(history.failed.events) if run.state in _GOES_ON else 0
    badge = f' <span class="state failed">{failed} rank{"s" if failed > 1 else ""} failed</span>' if failed else ""
    badges = f'<span class="state {state}">{text(run.state.replace("_", " "))}</span>{badge}'
    return (
        f"<header><h1>{text(run.name)} {badges}</h1>"
        '<dl class="facts"><div class="wide-fact"><dt>program</dt>'
        f"<dd><code>{text(program)}</code></dd></div>{cells}</dl></header>"
    )


def _story(run: RecordedRun, history: History) -> str:
    report = run.result.get("report")
    if isinstance(report, list) and report:
        return f"{_stop(history)}{_lines(map(str, report))}"
    if run.state == "killed":
        told = "<p>supervise was killed before it could write a result. The ends of the ranks are not known.</p>"
    elif run.state == "unknown":
        told = "<p>supervise may still run on another host. This is what its files say until now.</p>"
    else:
        told = ""
    return told + _stop(history) + _failed(run, history)


def _stop(history: History) -> str:
    """Return when the run was stopped; "" if it was not stopped, or was stopped only because a rank had failed."""
    at_s, reason = history.stop or (0.0, "")
    why = {"close": "Stopped on request", "timeout": "Stopped at its timeout"}.get(reason)
    return "" if why is None else _moment(history, why, at_s)


def _moment(history: History, what: str, at_s: float, more: str = "") -> str:
    at = shown_time(datetime.fromtimestamp(at_s, UTC))
    after = seconds(max(0.0, at_s - history.begin_s))
    return f"<p><b>{text(what)}</b> at {text(at)}, {text(after)} after the start{text(more)}.</p>"


def _failed(run: RecordedRun, history: History) -> str:
    """Return why a rank of a run without a result has failed; "" if no rank has."""
    events = history.failed.events
    first = history.failed.first
    if first is None:
        return ""
    lines = why_failed(run, events[first])
    others = [rank for rank in events if rank != first]
    goes_on = "; the run goes on" if run.state == "running" else ""
    told = _moment(history, f"Rank {first} failed", event_time_s(events[first]["timestamp"]), goes_on)
    return told + _lines([*lines, "", f"{spans(others)} failed later"] if others else lines)


def _lines(lines: Iterable[str]) -> str:
    return f'<pre class="story" tabindex="0">{block(chr(10).join(lines))}</pre>'


def shown_time(at: datetime) -> str:
    """Return a time in the zone of this machine."""
    local = at.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S} {'UTC' if not local.utcoffset() else f'{local:%z}'}"


def _used(history: History) -> str:
    drawn = curves(history)
    if not drawn:
        return ""
    note = '<p class="note">Hatched: the time after the last sample.</p>' if hatched(history.unsampled) else ""
    return f'<div class="curves">{drawn}</div>{note}'


def _incidents(history: History) -> str:
    shown = history.incidents[:_MOST_INCIDENTS]
    rows = [Row((text(seconds(max(0.0, mark.at_s - history.begin_s))), text(mark.text))) for mark in shown]
    more = len(history.incidents) - len(shown) + history.more_incidents
    note = f'<p class="note">{more} later ones are left out.</p>' if more else ""
    return table("Time since the start", ("after", "what"), rows, numeric=frozenset({"after"})) + note if rows else ""


def _stacks(run: RecordedRun, history: History) -> Iterator[str]:
    for path, places in history.stacks:
        yield f'<pre tabindex="0">{block(chr(10).join(places))}</pre>'
        name = os.path.basename(path)
        try:
            content = read_regular(os.path.join(run.path, name), _STACKS_BYTES)[0].decode(errors="replace")
        except (OSError, ValueError) as error:
            why = text(getattr(error, "strerror", None) or error)
            yield f'<p class="note"><code>{text(name)}</code> cannot be shown: {why}</p>'
            continue
        yield f"<details><summary>All threads, from <code>{text(name)}</code></summary>"
        yield f'<pre tabindex="0">{block(content)}</pre></details>'


def _logs(run: RecordedRun, history: History) -> str:
    """Return the last lines of the logs of some ranks: those that failed first, or the first ranks if none failed."""
    logs = run.logs()
    order = sorted(history.ranks.values(), key=lambda rank: (_unimportance(history, rank), rank.rank))
    failed = [rank for rank in order if _unimportance(history, rank) < 3]
    parts = []
    for rank in (failed or order)[:_MOST_LOGS]:
        for path in reversed(logs.get(rank.rank, [])):
            if lines := last_lines(path, _MOST_LINES).strip("\n"):
                where = text(os.path.relpath(path, run.path))
                parts.append(f'<h3>Rank {rank.rank}, <code>{where}</code></h3><pre tabindex="0">{block(lines)}</pre>')
    if len(failed) > _MOST_LOGS:
        parts.append(f'<p class="note">{len(failed) - _MOST_LOGS} more ranks failed.</p>')
    return "".join(parts)


def _unimportance(history: History, rank: RankHistory) -> int:
    if rank.rank == history.root_cause:
        return 0
    life = rank.life
    if life is None:
        return 3
    return 1 if life.ending == "failed" else 2 if any(mark.kind == "hung" for mark in life.marks) else 3


def _table(run: RecordedRun, history: History) -> str:
    """Return the table of all ranks. The failed ranks come first."""
    logs = run.logs()
    order = sorted(history.ranks.values(), key=lambda rank: (_unimportance(history, rank), rank.rank))
    rows = [_rank_row(history, rank, logs.get(rank.rank, [])) for rank in order[:_MOST_ROWS]]
    role = ("role",) if history.several_roles else ()
    heads = ("rank", *role, "pid", "lives", "end", "ran", "CPU", "peak memory", "step", "last line")
    caption = "Times and processes of the last life of each rank; ranks that failed are first"
    left = len(history.ranks) - len(rows)
    note = f'<p class="note">{left} more ranks are left out.</p>' if left else ""
    numeric = frozenset({"rank", "pid", "lives", "ran", "CPU", "peak memory", "step"})
    return table(caption, heads, rows, numeric=numeric) + note


def _rank_row(history: History, rank: RankHistory, logs: list[str]) -> Row:
    life = rank.life
    role = (text(rank.title),) if history.several_roles else ()
    if life is None:
        return Row((str(rank.rank), *role, "-", "-", "not started", "-", "-", "-", "-", ""))
    to_s = history.end_s if life.ended_s is None else life.ended_s
    cause = ", root cause" if rank.rank == history.root_cause else ""
    peak = max([life.max_rss_bytes or 0, *(point.rss_bytes for point in rank.points)])
    step = next((point.step for point in reversed(rank.points) if point.step is not None), None)
    sampled_s = rank.points[-1].cpu_s if rank.points and rank.points[-1].pid == life.pid else None
    cpu_s = sampled_s if life.cpu_s is None else life.cpu_s
    line = "" if rank.rank >= _MOST_LAST_LINES else _last_line(logs)
    cells = (
        str(rank.rank),
        *role,
        str(life.pid),
        str(rank.count),
        unbroken(shown_end(life, hangs=rank.hangs) + cause),
        text(seconds(max(0.0, to_s - life.started_s))),
        "-" if cpu_s is None else text(seconds(cpu_s)),
        text(size(peak)) if peak else "-",
        "-" if step is None else str(step),
        f"<code>{text(line)}</code>" if line else "",
    )
    return Row(cells, f"end-{life.ending}")


def _last_line(paths: list[str]) -> str:
    """Return the last line of the log that was written last."""
    newest = ""
    newest_s = -1.0
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if found.st_size and found.st_mtime > newest_s:
            newest, newest_s = path, found.st_mtime
    line = one_line(last_lines(newest, 1)) if newest else ""
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 4]} ..."
