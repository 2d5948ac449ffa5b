"""What a message says, without its wording: file and line, key, and the values and names in the rest."""

import re

_LINE = re.compile(r"(\S+?\.ya?ml(?::\d+)?): (?:([\w.]+): )?(.*)")


def parts_of(message: str) -> list[tuple[str, str, list[str]]]:
    """(``file:line``, key or '', quoted names and numbers in their order), one for each line."""
    found = []
    for line in message.splitlines():
        match = _LINE.fullmatch(line)
        assert match, f"no file in {line!r}"
        found.append((match[1], match[2] or "", re.findall(r"'[^']*'|\d+", match[3])))
    return found
