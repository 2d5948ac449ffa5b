"""The printed strings of pages, commands and studies speak the words of docs/glossary.md: no retired word is left."""

import re
from itertools import takewhile
from pathlib import Path

from support.source import pieces

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("archsim", "calibration", "microarch")
_PER = r"tokens?(/s)?|requests?|experts?|energy|time|J|W|GB|GiB|MB|kB|slots|ids|counts|state|one|most|spares?|blocks"
_UNIT = "token|device|step|user|second|request|rank|GPU|node|layer|die|bit|engine|iteration"
RETIRED = {
    r"\bworlds?\b": "samples",
    r"\bdrawn (machines|wafers|anew)\b": "sampled",
    r"\b(is|are|be|was|were|has) (not )?drawn\b": "sampled",
    r"\bdraws? of the traffic\b|\btheir draws\b|`archsim sure` draws\b": "samples",
    r"\bstands? (together|apart)\b|\bare apart\b|\bfar apart\b": "share a row, differ, outlier",
    r"\b(pay|pays|paying)\b": "is worth it",
    r"\bjudge[sd]?\b": "tested",
    r"\b(draw|drawing|draws) (\S+ ){0,2}(samples|wafers|requests|numbers)\b": "take, sample",
    r"\b(every|single) draw\b|\bdraws of\b": "samples",
    r"\bnot met\b": "not reproduced",
    rf"\b({_PER}) an? ({_UNIT})\b(?! (at|to|on|in|that|with|has) )": "per token, per device, per step",
    r"\b(was|were) asked for\b|\bWhat was asked\b": "requested",
    r"\b(is|are) not read\b(?! remotely)|\bdoes not read\b|\bread by no\b": "has no effect, is not supported",
    r"\bone design a level\b|\bmean .* of a level\b": "value",
    r"\b(same|every|more|\\{\\}) places?\b|\bEvery place\b": "configuration",
    r"\bproducts (in|before|with|twice)\b|\bmatrix products\b|\bgrouped product\b": "GEMMs",
    r"\b(fitted|measured) laws\b|\blaw of (another|the)\b|\b[Ll]aws (of|are|cover|alone|do not)\b": "fitted curves",
    r"\bof (its|their) own\b": "separate, or nothing",
    r"\bhangs? on\b": "depends on",
    r"\bpull over\b": "drag across",
    r"\bnot beyond (its|their) errors?\b": "within its error",
}
KEPT = ("laws of physics", "law of that topology", "no law of this level")  # of nature, and the key `law`


def test_no_printed_string_has_a_retired_word():
    """Strings that are no docstrings; of f-strings what stands outside of braces."""
    found = [
        (file, piece.line, re.sub(r"\{[^{}]*\}", "{}", piece.text))
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for piece in pieces(file.read_text("utf-8"))
        if piece.kind in ("string", "f-string") and " " in piece.text
    ]
    for file in sorted((ROOT / "archsim").rglob("*.j2")):
        plain = re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", " ", file.read_text("utf-8"))
        found += [(file, number, line) for number, line in enumerate(plain.splitlines(), 1)]
    for file in sorted((ROOT / "configs").glob("*.yaml")):  # their heads are what `archsim list experiments` prints
        head = takewhile(lambda line: line.startswith("#"), file.read_text("utf-8").splitlines())
        found += [(file, number, line) for number, line in enumerate(head, 1)]
    left = [
        f"{file.relative_to(ROOT)}:{line}: {match[0]!r}; say {instead}"
        for file, line, words in found
        for word, instead in RETIRED.items()
        if (match := re.search(word, words)) and not any(kept in words for kept in KEPT)
    ]
    assert len(found) > 8000 and left == []
