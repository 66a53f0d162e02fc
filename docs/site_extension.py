"""Two additions to Sphinx: links that work on GitHub and on the site, and lists of public names.

Some files outside of this folder, such as the README, are pages of the site. Their pages here have only the line
``<!-- file: PATH -->``, and the text of the file replaces it.
"""

from __future__ import annotations

import importlib
import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
PAGE_OF_FILE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
    "examples/corpus/README.md": "example-texts.md",
}
"""Files outside of `docs` to the pages of the site that show them."""

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")
_FILE_LINE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)


def insert_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the line of a file by its text, and make each link relative to the page of the site."""
    page = DOCS / f"{docname}.md"
    text = relocated(source[0], page.parent, page.parent)
    for name in _FILE_LINE.findall(text):
        app.env.note_dependency(str(ROOT / name))
        inserted = relocated((ROOT / name).read_text(encoding="utf-8"), (ROOT / name).parent, page.parent)
        text = text.replace(f"<!-- file: {name} -->", inserted)
    source[0] = text


def relocated(text: str, origin: Path, folder: Path) -> str:
    """Return Markdown with links that are relative to `folder` instead of `origin`; code blocks stay as they are."""

    def target(match: re.Match[str]) -> str:
        there = Path(os.path.normpath(origin / match[2]))
        shown_on = PAGE_OF_FILE.get(os.path.relpath(there, ROOT))
        return match[1] + os.path.relpath(DOCS / shown_on if shown_on else there, folder)

    parts = _FENCE.split(text)  # every second part is a code block
    return "".join(part if number % 2 else _LINK.sub(target, part) for number, part in enumerate(parts))


def keep_attribute_text(
    _app: Sphinx, what: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Make napoleon keep the first line of an attribute's docstring. It takes the text before a colon for a type."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment


class PublicNames(SphinxDirective):
    """The documentation of every name in ``supervise.__all__``, in sections: one for each public module or room.

    A name that is added to the package appears without a change here, if its home has a section below.
    """

    has_content = False
    sections: ClassVar[dict[str, tuple[str, ...]]] = {
        "Starts and contexts": ("_torch.start", "_api.base", "_torch.contexts", "_api."),
        "The actor of a gang": ("_gang.supervisor",),
        "Messages": ("messages",),
        "Results": ("result",),
        "Settings": ("roles", "restarts", "watchdog", "logs", "destinations", "_process.launch.numa"),
        "In a rank": ("notifying", "recording", "_process.launch.stack_signal"),
        "Stacks": ("stacks",),
        "Trees of actors": ("_tree.", "trees"),
        "Errors": ("errors",),
        "Other names": ("",),
    }
    """Heading to the beginnings of the homes of its names."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        import supervise

        homes = supervise._HOMES  # noqa: SLF001 - the order of the names
        rest = {name: home for home, names in homes.items() for name in names}
        lines: list[str] = []
        for title, beginnings in self.sections.items():
            names = [name for begin in beginnings for name, home in rest.items() if home.startswith(begin)]
            names = list(dict.fromkeys(names))
            rest = {name: home for name, home in rest.items() if name not in names}
            lines += [title, "-" * len(title), ""] if names else []
            for name in names:
                lines += _directive(getattr(supervise, name), f"supervise.{name}")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class SameNames(SphinxDirective):
    """A list of the names of a module whose documentation is elsewhere."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        module = importlib.import_module(self.arguments[0])
        lines = [f"* ``{module.__name__}.{name}``: :py:obj:`supervise.{name}`" for name in module.__all__]
        return self.parse_text_to_nodes("\n".join(lines))


def _directive(value: object, path: str) -> list[str]:
    if isinstance(value, type):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {path}", "   :members:", ""]
    return [f".. autofunction:: {path}" if callable(value) else f".. autodata:: {path}", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event handler and the directives."""
    app.connect("source-read", insert_files)
    app.connect("autodoc-process-docstring", keep_attribute_text, priority=400)  # before napoleon
    app.add_directive("public-names", PublicNames)
    app.add_directive("same-names", SameNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
