"""MkDocs hook: replaces ``<!-- public names -->`` by one API entry for each name in ``archsim.__all__``, and
``<!-- changelog -->`` by ``CHANGELOG.md``, whose links begin in the folder above.

Public names load lazily, so static analysis of ``archsim/__init__.py`` cannot see where they are defined; importing
them can.
"""

from pathlib import Path

import archsim

MARKER, CHANGELOG = "<!-- public names -->", "<!-- changelog -->"


def on_page_markdown(markdown: str, **_) -> str:
    """The page's Markdown with markers expanded: to mkdocstrings directives, in alphabetical order,
    and the changelog.
    """
    if CHANGELOG in markdown:
        changes = Path(__file__).parents[2] / "CHANGELOG.md"
        return markdown.replace(CHANGELOG, changes.read_text(encoding="utf-8").replace("](docs/", "]("))
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n\n".join(_entry(name) for name in sorted(archsim.__all__, key=str.lower)))


def _entry(name: str) -> str:
    value = getattr(archsim, name)
    if not hasattr(value, "__module__"):
        return f"### `archsim.{name}`\n\nA constant of type `{type(value).__name__}`."
    return f'::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: "archsim.{name}"'
