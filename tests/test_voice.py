"""The language of the package and its documents: ten patterns that hide the subject or that no field uses."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATTERNS = {
    r"\b(somebody|someone|anybody|nobody|everybody|whoever)\b": "name the subject: the caller, the process, the kernel",
    r"(?<!there )(?<!There )\b(is|are|was) no (?!(longer|more|less|worse|slower)\b)": "write 'is not a ...'",
    r"\b(again|twice) is (harmless|as once)\b": "write 'idempotent'",
    r'"""Have ': "begin with what the function does: 'Make', 'Ask', 'Record'",
    r"\bto be had\b": "write 'available'",
    r"\b(anew|lest|for ever|for want of)\b": "write 'again', 'so that ... not', 'forever', 'for lack of'",
    r"\btheirs\b": "name the owner",
    r"\bmakes? no sense\b": "write 'is not valid', and what is",
    r"\bwe got\b": "name the receiver: 'supervise received', 'stopped by SIGINT'",
    (
        r"\b(signal|cancel|label|model|travel)l(ed|ing)\b(?!\()|\b(behaviour|colour|favour|honour|neighbour|licence|defence"
        r"|catalogue|(organ|recogn|serial|normal|initial|real)is(e|ed|es|ing))\w*"
    ): "use American spelling",
}
"""Pattern to advice. `CONTRIBUTING.md` has the same list."""

NOT_YET: tuple[str, ...] = ()
"""Folders that are exempt until their texts are edited."""

_QUOTED = re.compile(r"`[^`]*`")


def findings(text: str) -> list[tuple[int, str, str]]:
    """Return line number, phrase and advice of each hit. Text between backquotes does not count."""
    return [
        (number, found[0], advice)
        for number, line in enumerate(text.splitlines(), 1)
        for pattern, advice in PATTERNS.items()
        if (found := re.search(pattern, _QUOTED.sub("``", line)))
    ]


def sources() -> list[Path]:
    """Return every module of the package and every document."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/*.py"),
        *ROOT.glob("supervise/**/*.py"),
    ]
    return [path for path in sorted(found) if not str(path.relative_to(ROOT)).startswith(NOT_YET)]


def test_no_text_has_one_of_the_ten_patterns():
    """Each hit is listed with file, line, phrase and advice."""
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {phrase!r}: {advice}"
        for path in sources()
        for number, phrase, advice in findings(path.read_text())
    ]
    assert not hits, "\n" + "\n".join(hits)


@pytest.mark.parametrize(
    "line",
    [
        "Whoever waits, and nobody else.",
        "'p' is no number of ranks",
        "Close it; again is harmless.",
        '    """Have a fork say what it was for."""',
        "no thread is to be had",
        "the whole gang is started anew",
        "the rest is theirs",
        "a number makes no sense",
        "stopped: we got SIGINT",
        "the group is signalled",
    ],
)
def test_each_pattern_finds_its_example(line: str):
    """A pattern that finds nothing would make the test above pass without effect."""
    assert len(findings(line)) >= 1


@pytest.mark.parametrize(
    "line", ["there is no rank", "it is no longer shown", "`future.cancelled()`", "the signaled group"]
)
def test_plain_sentences_pass(line: str):
    """What resembles a pattern and is plain English has no finding."""
    assert findings(line) == []
