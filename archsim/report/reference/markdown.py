"""The reference page: a table of keys for every mapping of every file."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from archsim.specs.assumptions import ASSUMPTIONS

Schema = Mapping[str, Any]
_HEAD = """# Reference of files

Generated from the specs by `python -m archsim.report.reference`; a test compares. Values with units are text, such as
`80 GB`. `archsim check FILE` checks a file and names its line; `archsim new` writes a commented one. For an editor that
knows JSON Schema, name one of the schemas in the first line of a file:
`# yaml-language-server: $schema=docs/schemas/system.schema.json`.

`source` says where the numbers of a system, model or traffic file come from. It changes nothing that is simulated;
pages print it beside the numbers.
"""


# Definitions that are files, too.
_FILES = {"SystemSpec": "system", "ModelSpec": "model", "AssumptionsSpec": "assumptions"}


def reference(schemas: Mapping[str, Schema]) -> str:
    """The page. schemas: file kind → its schema."""
    parts, told = [_HEAD], set(_FILES)
    for kind, schema in schemas.items():
        parts.append(_section(f"## {kind[0].upper()}{kind[1:]} file", schema))
        for name, part in _reachable(schema):
            if name not in told and part.get("properties"):
                told.add(name)
                parts.append(_section(f"### {_named(name)}", part))
    return "\n".join(parts)


def _section(heading: str, schema: Schema) -> str:
    return f"{heading}\n\n{_text(schema.get('description', ''))}\n\n{_table(schema)}"


def _reachable(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The definitions in the order in which keys refer to them."""
    seen: dict[str, Schema] = {}

    def visit(node: Any) -> None:
        for name in _references(node):
            if name not in seen:
                seen[name] = schema["$defs"][name]
                visit(seen[name].get("properties", {}))

    visit(schema.get("properties", {}))
    yield from seen.items()


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for each in node.values():
            yield from _references(each)
    elif isinstance(node, list):
        for each in node:
            yield from _references(each)


def _named(definition: str) -> str:
    """``HbmSpec`` → ``Hbm``."""
    return definition.removesuffix("Spec")


def _table(schema: Schema) -> str:
    needed = schema.get("required", ())
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, entry in schema.get("properties", {}).items():
        default = "**required**" if key in needed else _default(entry)
        told = _text(entry.get("description", ""))
        if key in ASSUMPTIONS and told.startswith(f"{next(iter(ASSUMPTIONS[key]))}: "):
            told = f"[values](assumptions.md#{key})"
        lines.append(f"| `{key}` | {_kind(entry)} | {default} | {told} |")
    return "\n".join(lines) + "\n"


def _default(entry: Schema) -> str:
    value = entry.get("default")
    if value is None or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace('"', "")


def _kind(entry: Schema) -> str:
    """What a value may be, in words."""
    if "$ref" in entry:
        definition = entry["$ref"].rpartition("/")[2]
        if definition in _FILES:
            return f"[{_FILES[definition]}](#{_FILES[definition]}-file)"
        return f"[{_named(definition)}](#{_named(definition).lower()})"
    for union in ("anyOf", "oneOf"):
        if union in entry:
            return " or ".join(dict.fromkeys(_kind(each) for each in entry[union] if each.get("type") != "null"))
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "format" in entry:
        return f"{entry['format']}, {entry['title']}"
    types = entry.get("type", "any")
    first = next((each for each in types if each != "null"), "any") if isinstance(types, list) else types
    if first == "array":
        return f"list of {_kind(entry['items'])}" if "items" in entry else "list"
    words = {"integer": "integer", "number": "number", "string": "text", "object": "mapping", "boolean": "true, false"}
    ends = f" {entry['minimum']:,}–{entry['maximum']:,}" if "maximum" in entry else ""
    return f"{words.get(first, 'any')}{ends}"


def _text(text: str) -> str:
    return text.replace("|", "\\|").strip()
