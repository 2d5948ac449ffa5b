"""The comment above each field of a spec: what the key means, written once, where it is declared."""

import ast
import inspect
import textwrap

from archsim.base.text.fields import Spec


def meanings(kind: type[Spec]) -> dict[str, str]:
    """Field → its comment on one line; fields without one are left out. Those of base classes come first."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if isinstance(owner, type) and issubclass(owner, Spec) and owner is not Spec:
            found |= _own(owner)
    return found


def _own(kind: type[Spec]) -> dict[str, str]:
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if text := _above(lines, node.lineno - 1):
                found[node.target.id] = text
    return found


def _above(lines: list[str], index: int) -> str:
    """The comment that ends on the line before ``index``."""
    above: list[str] = []
    while index > 0 and lines[index - 1].strip().startswith("#"):
        index -= 1
        above.insert(0, lines[index].strip().lstrip("# "))
    return " ".join(above)
