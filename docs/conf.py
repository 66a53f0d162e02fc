"""Settings of Sphinx for the documentation site: ``sphinx-build -W docs docs/_build/html``. Nothing is downloaded."""

import sys
from importlib import metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # for `site_extension`

project = "supervise"
author = copyright = "The supervise authors"  # noqa: A001 - the name of Sphinx
release = metadata.version("supervise-gang")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_extension"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

# Markdown as GitHub shows it: headings have anchors with GitHub's names, and tables and code blocks are those of GFM.
myst_heading_anchors = 6
suppress_warnings = [
    "myst.header",  # the included files begin with their own level of headings
]

# The reference is made from docstrings, which are Google-style with Markdown's single backquotes around names.
default_role = "py:obj"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["ray", "torch"]  # extras, which a build of the documentation does not need
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

# Every reference must resolve. The exceptions:
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),  # the role of all backquotes in docstrings; the text may also be code or a name of PyTorch
    ("py:.*", r"(?!supervise\b)[\w.]+\.[\w.]+"),  # names of other packages: their inventories would be downloaded
    ("py:class", r"[\w\[]+"),  # bare names in signatures, which only type checkers import
    ("py:class", r"supervise\.(.+\.)?_.+|supervise\.testing\.M"),  # private types in signatures
]

html_theme = "furo"
html_title = "supervise"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(DOCS / "scorer.js")  # Sphinx takes a relative path from the current directory
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "github-dark"
