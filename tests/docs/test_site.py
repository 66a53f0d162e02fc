"""The documentation site builds without warnings and without a network, and its links lead somewhere."""

import ast
import fcntl
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import supervise
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

pytestmark = [pytest.mark.stress, pytest.mark.timeout(10 * PATIENCE_S)]  # a build takes 10 seconds
pytest.importorskip("sphinx", reason="the tools of the documentation are not installed for this Python")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site by the documented command, once for all workers, with another folder for its files."""
    base = tmp_path_factory.getbasetemp()
    built = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    built.mkdir(exist_ok=True)
    with (built / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (built / "is_built").exists():
            _build(built)
            (built / "is_built").touch()
    return built / "html"


def _build(built: Path) -> None:
    command = _documented_command().replace("sphinx-build", f"{sys.executable} -m sphinx", 1)
    assert command.endswith("docs docs/_build/html"), command
    command = command.replace("docs/_build/html", f"{built}/html") + f" -q -d {built}/doctrees"
    unreachable = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "all")}
    done = subprocess.run(
        command.split(),
        cwd=ROOT,
        env=os.environ | unreachable,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=9 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip()


def _documented_command() -> str:
    found = re.search(r"^\$ (sphinx-build -W .*?) *(#.*)?$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert found is not None, "CONTRIBUTING.md has no command that builds the site"
    assert (
        f'"$bin/{found[1].split()[0]}" {found[1].split(maxsplit=1)[1].split(" docs/_build")[0]}'
        in (ROOT / ".ci/run").read_text()
    )
    return found[1]


class _Page(HTMLParser):
    """The links and anchors of a page, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if tag in {"img", "link", "script"} and values.get("rel") not in {"search", "index", "next", "prev"}:
            self.loaded |= {values[key] for key in ("src", "href") if key in values}


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(site: Path):
    """Links from Markdown, from docstrings and from the navigation; loaded files are part of the site."""
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    broken = []
    for path, page in pages.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                broken += [f"{path.relative_to(site)} loads {link}"] if link in page.loaded else []
                continue
            there = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            known = there in pages and (not parts.fragment or unquote(parts.fragment) in pages[there].anchors)
            if not known and (there in pages or not there.exists()):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken, "\n".join(sorted(broken))


def test_every_page_is_in_the_navigation(site: Path):
    """Pages of `docs` and those files of the project that have a page; the start page links all of them."""
    start = _Page(site / "index.html")
    expected = {str(path.relative_to(DOCS).with_suffix(".html")) for path in DOCS.rglob("*.md")} - {"index.html"}
    assert not sorted(expected - {link.partition("#")[0] for link in start.links})


def test_the_search_knows_every_page_and_the_words_on_it(site: Path):
    """The index that the search of the site loads, without a server: pages, words of texts, names of the API."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    expected = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    assert set(index["docnames"]) == expected
    stem = "kubernet"  # of Kubernetes; the value is a number or a list
    found = {index["docnames"][number] for kind in ("terms", "titleterms") for number in _numbers(index[kind][stem])}
    assert {"start/operator", "reference/command-line"} <= found
    assert "Watchdog" in {row[-1] for row in index["objects"]["supervise"]}


def test_the_search_finds_each_error_text(site: Path):
    """A page has the three most distinctive words of each message, by the rules of the search: stems, no stop words.

    What follows a semicolon in a message is its remedy.
    """
    from sphinx.search.en import SearchEnglish

    language = SearchEnglish({})
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages: dict[str, set[int]] = {}
    for kind in ("terms", "titleterms"):
        for stem, found in index[kind].items():
            pages.setdefault(stem, set()).update(_numbers(found))
    messages = sorted(_messages())
    assert len(messages) > 350
    missing = []
    for message in messages:
        written = {
            word.lower() for word in re.findall(r"[^\W\d]\w*", re.sub(r"%\S+|\.\.\.", " ", message.partition(";")[0]))
        }
        stems = {language.stem(word) for word in written - language.stopwords if len(word) > 2} - language.stopwords
        rare = sorted(stems, key=lambda stem: (len(pages.get(stem, ())), stem))[:3]
        if len(stems) > 1 and not set.intersection(*(pages.get(stem, set()) for stem in rare)):
            missing.append(f"{message!r} has {', '.join(rare)}")
    assert not missing, "write these on docs/troubleshooting.md:\n" + "\n".join(missing)


COMPLAINTS = re.compile(
    r"\w*(Error|Refusal|Crashed|Trouble|Stopped|Exit)|_?(error|warn(ing)?|fail|refuse\w*|complain|exception)"
)
"""What is called with an error text: exceptions, methods of parsers and loggers, functions that refuse."""


def _messages() -> set[str]:
    """Return the texts with at least three words that such a call in the package gets, with ``...`` for each value."""
    found = set()
    for module in (ROOT / "supervise").rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            texts = [_text(argument) for argument in call.args] if COMPLAINTS.fullmatch(name) else []
            found |= {text for text in texts if len(re.findall(r"[a-z]{2,}", text)) > 2 and " " in text}
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "..." for part in node.values)
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body)} {_text(node.orelse)}"
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


def _numbers(found: int | list[int]) -> list[int]:
    return found if isinstance(found, list) else [found]


def test_every_public_name_has_its_documentation(site: Path):
    """Names of every public ``__all__``, in the inventory of the site."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, path: f"{base}{path}")
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    expected = {f"supervise.{name}" for name in supervise.__all__}
    package = ROOT / "supervise"
    for module in [*package.glob("[a-z]*.py"), *package.glob("[a-z]*/__init__.py")]:
        dotted = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        expected |= {f"{dotted}.{name}" for name in _listed(module)}
    expected.remove("supervise.cli.main")  # a command, not a function for programs
    missing = {name for name in expected - known if f"supervise.{name.rpartition('.')[2]}" not in known}
    assert not sorted(missing), "write a page of these modules in docs/reference/api"


def _listed(module: Path) -> list[str]:
    """Return the names of ``__all__`` without importing the module, since some need extras."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value) if isinstance(node.value, ast.List) else []
    return []


def test_a_broken_link_fails_the_build(tmp_path: Path):
    """The settings of the site make a missing heading an error."""
    for name in ("conf.py", "site_extension.py", "scorer.js"):
        (tmp_path / name).write_text((DOCS / name).read_text())
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/site.css").touch()
    (tmp_path / "index.md").write_text("# Start\n\n[no such heading](#nowhere)\n")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", tmp_path, tmp_path / "html"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    assert "nowhere" in done.stderr
