"""MkDocs hook: replaces ``<!-- public names -->`` by one API entry for each name in ``archsim.__all__``.

Public names load lazily, so static analysis of ``archsim/__init__.py`` cannot see where they are defined; importing
them can.
"""

import archsim

MARKER = "<!-- public names -->"


def on_page_markdown(markdown: str, **_) -> str:
    """The page's Markdown with the marker expanded to mkdocstrings directives, in alphabetical order."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, "\n\n".join(_entry(name) for name in sorted(archsim.__all__, key=str.lower)))


def _entry(name: str) -> str:
    value = getattr(archsim, name)
    if not hasattr(value, "__module__"):
        return f"### `archsim.{name}`\n\nA constant of type `{type(value).__name__}`."
    return f'::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: "archsim.{name}"'
