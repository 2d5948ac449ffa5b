"""Words of README.md and of the pages beside this file that are written by hand: ``python docs/words.py``.

Left out are pages that a program writes, and the parts of pages that it renews. Counted as ``wc -w`` does: the bars of
tables and the words of examples are words.
"""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
GENERATED = ("accuracy", "audit", "meshes", "reference", "results", "speed")
_ASSUMPTIONS = re.compile(r"(?m)^- `\w+`.*$")  # values of a field, from archsim/specs/assumptions.yaml
_RENEWED = re.compile(r"<!-- (coverage|rooms) -->.*<!-- end of \1 -->", re.S)


def words() -> dict[str, int]:
    """Name of a page -> its words by hand."""
    pages = [DOCS.parent / "README.md", *sorted(page for page in DOCS.glob("*.md") if page.stem not in GENERATED)]
    found = {}
    for page in pages:
        text = _RENEWED.sub("", page.read_text(encoding="utf-8"))
        found[page.stem] = len((_ASSUMPTIONS.sub("", text) if page.stem == "assumptions" else text).split())
    return found


if __name__ == "__main__":
    for name, count in sorted(words().items(), key=lambda each: each[1]):
        print(f"{count:7,} {name}")
    print(f"{sum(words().values()):7,} in {len(words())} pages")
