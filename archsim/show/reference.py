"""The reference of every key of system, model, experiment, assumption and traffic files, generated from the specs."""

# ruff: noqa: E501  (the head of the page)

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from archsim.base import config_files, errors, quantities
from archsim.base.files import write_text
from archsim.runs.results_page import results_page
from archsim.show.schema import FILES, schema_of, traffic_schema
from archsim.specs.assumptions import ASSUMPTIONS, shipped_sets

# The reference page: a list of keys for every mapping of every file.

Schema = Mapping[str, Any]
_HEAD = """# Reference of files

Which keys may a file have? This page is generated from the specs (`python -m archsim.show.reference`). A key stands
with its default (`ways: 2`), or in bold if it is **required**. Its values (`1–64` are integers) and its meaning follow.
Values with units are text, such as `80 GB`. For an editor that knows JSON Schema, name one of the schemas in the first
line of a file: `# yaml-language-server: $schema=docs/schemas/system.schema.json`.

`name` has letters, digits and . _ + -, and appears in tables and file names. `source` says where the numbers come from: a
datasheet, a paper, a measurement, or `assumed`. Pages print it beside the numbers, and no result depends on it.

A number may have a range beside its value, from which `archsim sure` samples: `{value: 1.5 TB/s, range: [1.35, 1.5]}`, with
`distribution`, `group` and `source` ([How sure is my answer?](sure.md)).
"""


# Definitions that are files, too.
_FILES = {"SystemSpec": "system", "ModelSpec": "model", "AssumptionsSpec": "assumptions"}
_DIMENSIONS = {each.name: each for each in quantities.DIMENSIONS if each is not quantities.FRACTION}
_SAID = ("name", "source")  # whose meaning the head says


def reference(schemas: Mapping[str, Schema]) -> str:
    parts = [_HEAD]
    shown: dict[str, Schema] = {name: {} for name in _FILES}
    for kind, schema in schemas.items():
        parts.append(_section(f"## {errors.capital(kind)} file", schema, shown))
        for name, part in _reachable(schema):
            if name not in shown and part.get("properties"):
                parts.append(_section(f"### {_title_of(name)}", part, shown))
                shown[name] = part["properties"]
    return "\n".join(parts)


def _section(heading: str, schema: Schema, shown: Mapping[str, Schema]) -> str:
    return f"{heading}\n\n{schema.get('description', '').strip()}\n\n{_list(schema, shown)}\n"


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


def _title_of(definition: str) -> str:
    """``HbmSpec`` → ``Hbm``."""
    return definition.removesuffix("Spec")


def _list(schema: Schema, shown: Mapping[str, Schema]) -> str:
    """An item a key; keys of another mapping, and neighbours of one value and no meaning, share theirs."""
    keys, needed = dict(schema.get("properties", {})), schema.get("required", ())
    lines = []
    for name, others in shown.items():
        if len(others) > 1 and others.items() <= keys.items():
            lines.append(f"- the keys of [{_title_of(name)}](#{_title_of(name).lower()})")
            keys = {key: entry for key, entry in keys.items() if key not in others}
    if set(ASSUMPTIONS) <= keys.keys():
        each = ", ".join(f"[`{_with_default(key, keys.pop(key))}`](assumptions.md#{key})" for key in ASSUMPTIONS)
        lines.append(f"- {each}")
    items = [_item(key, entry, key in needed) for key, entry in keys.items()]
    for same_sentence, group in groupby(items, lambda item: item[1:]):
        names = [name for name, *_ in group]
        value, meaning = same_sentence
        for some in [names] if not meaning else [[name] for name in names]:
            lines.append(f"- {', '.join(some)}: {'. '.join(filter(None, (value, meaning)))}".rstrip(".: "))
    return "\n".join(lines)


def _item(key: str, entry: Schema, needed: bool) -> tuple[str, str, str]:
    """(Key with its default, values, meaning)."""
    name, meaning = f"`{_with_default(key, entry)}`", "" if key in _SAID else entry.get("description", "").strip()
    kind = "" if isinstance(entry.get("default"), bool) else _kind(entry)
    if kind == "text" and meaning:
        kind = ""
    if kind.casefold() == f"[{key}](#{key})":  # the mapping of its name
        name, kind = f"[{name}](#{key})", ""
    return f"**{name}**" if needed else name, kind, meaning


def _with_default(key: str, entry: Schema) -> str:
    """The key as a file would have it: ``ways: 2``; one without a default alone."""
    value = entry.get("default")
    if value is None or value == [] or isinstance(value, dict):
        return key
    if entry.get("format") in _DIMENSIONS:
        return f"{key}: {quantities.format_quantity(value, _DIMENSIONS[entry['format']])}"
    return f"{key}: {json.dumps(value, ensure_ascii=False)}".replace('"', "").removesuffix(".0")


def _kind(entry: Schema) -> str:
    if "$ref" in entry:
        definition = entry["$ref"].rpartition("/")[2]
        if definition in _FILES:
            return f"[{_FILES[definition]}](#{_FILES[definition]}-file)"
        return f"[{_title_of(definition)}](#{_title_of(definition).lower()})"
    for union in ("anyOf", "oneOf"):
        if union in entry:
            return " or ".join(dict.fromkeys(_kind(each) for each in entry[union] if each.get("type") != "null"))
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "format" in entry:
        ends = re.sub(r"^(\d.*) to (?=\d)", r"\1–", entry["title"])
        return ends if ends[0].isdigit() else f"{entry['format']}, {ends}"
    types = entry.get("type", "any")
    first = next((each for each in types if each != "null"), "any") if isinstance(types, list) else types
    if first == "array":
        return f"list of {_kind(entry['items'])}" if "items" in entry else "list"
    words = {"integer": "", "number": "number", "string": "text", "object": "mapping", "boolean": "true, false"}
    ends = f" {entry['minimum']:,}–{entry['maximum']:,}" if "maximum" in entry else ""
    return f"{words.get(first, 'any')}{ends}".strip() or "integer"


# The generated files: ``docs/reference.md``, ``docs/results.md`` and ``docs/schemas/*.schema.json``, the items of
# ``docs/assumptions.md``, and the rooms of ``docs/architecture.md``.


def assumptions_page() -> str:
    """``docs/assumptions.md``: below the heading of every field its values, and behind them what the page has there."""
    head, *sections = (config_files.shipped_docs() / "assumptions.md").read_text(encoding="utf-8").split("\n## `")
    prose = {
        text.split("`")[0]: re.sub(r"(?m)^- `\w+`.*\n", "", text.partition("\n")[2]).strip("\n") for text in sections
    }
    for field, values in ASSUMPTIONS.items():
        head += f"\n## `{field}`\n\n"
        for value, meaning in values.items():
            sets = ", ".join(name for name, each in shipped_sets().items() if getattr(each, field) == value)
            head += f"- `{value}`{f' ({sets})' if sets else ''}: {meaning}\n"
        head += f"\n{prose[field]}\n" if prose.get(field) else ""
    return head


def architecture_page(docs: Path) -> str:
    """``docs/architecture.md`` with a row for every room: its question and its laws, as its ``__init__.py`` says."""
    rows = ["| room | what it answers | laws |", "|---|---|---|"]
    for package in ("archsim", "microarch", "calibration"):
        for file in sorted((docs.parent / package).rglob("__init__.py")):
            text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            if "\nLaws:\n" in text:
                question = " ".join(text.partition("\n\n")[0].split())
                laws = " ".join(text.partition("\nLaws:\n")[2].partition("\nJourney:")[0].split())
                where = file.parent.relative_to(docs.parent).as_posix()
                laws = re.sub(r" \(test_\w+\)", "", laws)
                rows.append(f"| `{where}/` | {question} | {laws} |")
    page = (docs / "architecture.md").read_text(encoding="utf-8")
    begin, rest = page.split("<!-- rooms -->\n")
    table = "".join(f"{row}\n" for row in rows)
    return f"{begin}<!-- rooms -->\n{table}<!-- end of rooms -->{rest.partition('<!-- end of rooms -->')[2]}"


def generate() -> dict[str, str]:
    """Path below ``docs`` → text."""
    schemas = {kind: schema_of(spec, kind) for kind, spec in FILES.items()} | {"traffic": traffic_schema()}
    plain = {kind: schema_of(spec, kind, ranges=False) for kind, spec in FILES.items()}
    described = {kind: plain.get(kind, schema) for kind, schema in schemas.items()}
    files = {
        f"schemas/{kind}.schema.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for kind, schema in schemas.items()
    }
    return {
        "reference.md": reference(described), "results.md": results_page(), "assumptions.md": assumptions_page(), **files,
    }  # fmt: skip


def write_reference(docs: Path) -> None:
    """Write all files below ``docs``."""
    for name, text in (generate() | {"architecture.md": architecture_page(docs)}).items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(docs / name, text)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
