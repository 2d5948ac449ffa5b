"""An HTML page, parsed for tests."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "wbr", "input"}


class Page(HTMLParser):
    """Checks that elements are closed in order; collects text, tags with attributes, and the rows of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, text):
        self.text += text
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += text

    def row(self, *begin: str) -> list[str]:
        """The first table row whose cells start with these texts."""
        return next(
            row for row in self.rows if all(cell.startswith(text) for cell, text in zip(row, begin, strict=False))
        )


def whole_report(folder: Path) -> str:
    """All pages of a report folder, one after the other, as HTML."""
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(Path(folder).glob("*.html")))


def text_of_report(folder: Path) -> str:
    """What a reader sees on all pages of a report folder, without links and other tags."""
    return "\n".join(Page(file.read_text(encoding="utf-8")).text for file in sorted(Path(folder).glob("*.html")))
