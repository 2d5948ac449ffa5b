"""The printed strings of pages, commands and studies speak the words of docs/glossary.md: no retired word is left."""

import ast
import io
import re
import tokenize
from pathlib import Path

from support.source import parsed

ROOT = Path(__file__).resolve().parents[1] / "archsim"
ROOMS = ("cli", "report", "studies", "uncertainty")
RETIRED = {
    r"\bworlds?\b": "samples",
    r"\bdrawn (machines|wafers)\b": "sampled",
    r"\b(numbers?|requests|points) (that )?(were|are|was) drawn\b": "sampled",
    r"\bstands? (together|apart)\b": "share a row, differ from",
    r"\bpays (nowhere|everywhere|above|below|with|in)\b": "is worth it",
    r"\bjudged\b": "tested",
    r"\b(energy|time|tokens/s|J|GB|kB|experts|output) a (token|device|step|user)\b": "per token, per device, per step",
    r"\b(was|were) asked for\b|\bWhat was asked\b": "requested",
    r"\b(is|are) not read: ": "has no effect",
    r"\bone design a level\b|\bmean .* of a level\b": "value",
}


def printed(text: str, tree) -> list[tuple[int, str]]:
    """(Line, words) of the strings of a module that are no docstrings; of f-strings what stands outside of braces."""
    docs = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    kinds = (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    of = [each for each in tokens if each.type in kinds and each.start not in docs and " " in each.string]
    return [(each.start[0], re.sub(r"\{[^{}]*\}", "{}", each.string)) for each in of]


def test_no_printed_string_has_a_retired_word():
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    found = [(file, *each) for file, tree in parsed(files).items() for each in printed(file.read_text("utf-8"), tree)]
    for file in sorted(ROOT.rglob("*.j2")):
        plain = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", " ", file.read_text("utf-8"))
        found += [(file, number, line) for number, line in enumerate(plain.splitlines(), 1)]
    left = [
        f"{file.relative_to(ROOT)}:{line}: {match[0]!r}; say {instead}"
        for file, line, words in found
        for word, instead in RETIRED.items()
        if (match := re.search(word, words))
    ]
    assert len(found) > 3000 and left == []
