"""The page of ``supervise report``, parsed."""

from html.parser import HTMLParser
from pathlib import Path

from tests.cli.command import Command
from tests.cli.test_run_commands import until

VOID = {"meta"}


class Page(HTMLParser):
    """A page that was parsed; it fails if an element is not closed, or the page asks for anything elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        assert tag not in ("script", "iframe", "link", "img", "object", "form")
        assert not {"src", "href", "action", "onload", "onclick"} & dict(attrs).keys()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.data.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.data).split())

    def labels(self) -> list[str]:
        """Return the figures as a screen reader tells them."""
        return [str(attrs["aria-label"]) for tag, attrs in self.attributes if tag == "svg" and "aria-label" in attrs]

    def bars(self) -> list[str]:
        """Return the bars as a screen reader tells them."""
        return [
            str(attrs["aria-label"]) for tag, attrs in self.attributes if tag == "svg" and attrs.get("class") == "bar"
        ]


def page_of(supervise: Command, name: str, *words: str) -> Page:
    """Return the page about a run."""
    done = supervise.supervise("report", name, *words)
    assert (done.returncode, done.stderr) == (0, "")
    path = Path(done.stdout.rstrip("\n"))
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text(encoding="utf-8")
    assert "url(" not in text
    assert "@import" not in text
    return Page(text)


def until_all_have_started(supervise: Command) -> None:
    """Return when the events of a run have the start of every rank: a rank writes before they do."""
    until(lambda: any("gang.started" in path.read_text() for path in supervise.tmp_path.glob("runs/*_*/events.jsonl")))
