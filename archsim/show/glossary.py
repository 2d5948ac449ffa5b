"""The glossary as a page beside a report, and links from the words of a page to it."""

import re
from functools import lru_cache
from html import escape

from archsim.base import config_files

FILE = "glossary.html"
_ROW = re.compile(r"^(?:- (?P<item>\*\*.+?\*\*): (?P<meaning>.*)|\| (?P<words>\*\*.+?\*\*[^|]*?) \|(?P<rest>.*)\|)$")
_BOLD, _CODE = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"`([^`]+)`")
_EMPHASIS = re.compile(r"\*([^*]+)\*")
# Elements in which nothing is linked, and those whose text is.
_SKIPPED = ("a", "svg", "script", "style", "code", "pre", "button", "title", "h1", "h2", "h3", "h4", "summary", "nav")
_TOKEN = re.compile(r"<[^>]*>|[^<]+")
_TAG = re.compile(r"<(/?)([a-zA-Z0-9]+)")
_COMMON = (
    "run", "step", "point", "device", "request", "record", "link", "piece", "law", "study", "floor", "flow", "copy",
    "node", "move", "block", "message", "axis", "scenario", "variant", "system", "HBM",
)  # fmt: skip


@lru_cache(maxsize=1)
def glossary_sections() -> tuple[tuple[str, tuple[tuple[tuple[str, ...], str], ...]], ...]:
    """(heading, ((words, meaning as HTML), …)) of docs/glossary.md."""
    found: list[tuple[str, list]] = []
    for line in (config_files.shipped_docs() / "glossary.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            found.append((line[3:], []))
        elif (row := _ROW.match(line)) and found:
            bold = _BOLD.findall(row["item"] or row["words"])
            words = tuple(word.strip("` ") for part in bold for word in part.split(", "))
            found[-1][1].append((words, _html((row["meaning"] or row["rest"]).strip())))
    return tuple((heading, tuple(rows)) for heading, rows in found if rows)


def anchor(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


@lru_cache(maxsize=1)
def _words() -> tuple[re.Pattern[str], dict[str, str]]:
    """(Pattern of all words and their plurals, lower-case word → anchor)."""
    anchors = {word.lower(): anchor(words[0]) for _, rows in glossary_sections() for words, _ in rows for word in words}
    anchors = {word: name for word, name in anchors.items() if len(word) > 2 and word not in _COMMON}
    longest = sorted(anchors, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest))})(s?)(?![\w-])", re.IGNORECASE), anchors


def link_words(page: str) -> str:
    """The page, with the first use of every word of the glossary in each section a link to its meaning."""
    pattern, anchors = _words()
    out: list[str] = []
    seen: set[str] = set()
    stack: list[str] = []
    depth = 0
    for token in _TOKEN.findall(page):
        tag = _TAG.match(token)
        if tag is None:
            out.append(token if depth or not stack else pattern.sub(lambda found: _link(found, anchors, seen), token))
            continue
        name = tag[2].lower()
        if name == "section" and not tag[1]:
            seen.clear()
        if name in _SKIPPED and not token.endswith("/>"):
            depth += -1 if tag[1] else 1
        if name in ("p", "th", "dt", "li"):
            stack = stack[:-1] if tag[1] else [*stack, name]
        out.append(token)
    return "".join(out)


def _link(found: re.Match[str], anchors: dict[str, str], seen: set[str]) -> str:
    to = anchors.get(found[1].lower())
    if to is None or to in seen:
        return found[0]
    seen.add(to)
    return f'<a class="term" href="{FILE}#{to}">{found[0]}</a>'


def _html(text: str) -> str:
    cells = " · ".join(part.strip() for part in text.split("|"))
    return _EMPHASIS.sub(r"<em>\1</em>", _CODE.sub(r"<code>\1</code>", escape(cells, quote=False)))
