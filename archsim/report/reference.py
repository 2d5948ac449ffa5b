"""The reference of every key of system, model, experiment, assumption and traffic files, generated from the specs."""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any

from archsim.base import errors, quantities
from archsim.base.fields import Spec
from archsim.base.files import write_text
from archsim.runs.columns import COLUMNS, DIES, LINKS, PAIRS, STEPS, TIMINGS, Column
from archsim.specs import config_files, experiment, policies, serving
from archsim.specs.assumptions import ASSUMPTIONS, OPEN, AssumptionsSpec, NamedSet, shipped_sets
from archsim.specs.explore import OBJECTIVES, ExploreSpec
from archsim.specs.model import ModelSpec
from archsim.specs.system import SystemSpec
from archsim.uncertainty.quantities import SHAPES
from archsim.workload.traffic_heads import TrafficStatistics

# ---- markdown
# The reference page: a list of keys for every mapping of every file.

Schema = Mapping[str, Any]
_HEAD = """# Reference of files

Which keys may a file have? This page is generated from the specs (`python -m archsim.report.reference`). A key stands
with its default (`ways: 2`), or in bold if it is **required**. Its values (`1–64` are integers) and its meaning follow.
Values with units are text, such as `80 GB`. For an editor that knows JSON Schema, name one of the schemas in the first
line of a file: `# yaml-language-server: $schema=docs/schemas/system.schema.json`.

`name` has letters, digits and . _ + -, and appears in tables and file names. `source` says where the numbers come from: a
datasheet, a paper, a measurement, or `assumed`. Pages print it beside the numbers, and no result depends on it.

A number may have a range beside its value, from which `archsim sure` draws: `{value: 1.5 TB/s, range: [1.35, 1.5]}`, with
`distribution`, `group` and `source` ([How sure is my answer?](sure.md)).
"""


# Definitions that are files, too.
_FILES = {"SystemSpec": "system", "ModelSpec": "model", "AssumptionsSpec": "assumptions"}
_DIMENSIONS = {each.name: each for each in quantities.DIMENSIONS if each is not quantities.FRACTION}
_SAID = ("name", "source")  # whose meaning the head says


def reference(schemas: Mapping[str, Schema]) -> str:
    """The page. schemas: file kind → its schema."""
    parts = [_HEAD]
    told: dict[str, Schema] = {name: {} for name in _FILES}
    for kind, schema in schemas.items():
        parts.append(_section(f"## {errors.capital(kind)} file", schema, told))
        for name, part in _reachable(schema):
            if name not in told and part.get("properties"):
                parts.append(_section(f"### {_named(name)}", part, told))
                told[name] = part["properties"]
    return "\n".join(parts)


def _section(heading: str, schema: Schema, told: Mapping[str, Schema]) -> str:
    return f"{heading}\n\n{schema.get('description', '').strip()}\n\n{_list(schema, told)}\n"


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


def _list(schema: Schema, told: Mapping[str, Schema]) -> str:
    """An item a key; keys of another mapping, and neighbours of one value and no meaning, share theirs."""
    keys, needed = dict(schema.get("properties", {})), schema.get("required", ())
    lines = []
    for name, others in told.items():
        if len(others) > 1 and others.items() <= keys.items():
            lines.append(f"- the keys of [{_named(name)}](#{_named(name).lower()})")
            keys = {key: entry for key, entry in keys.items() if key not in others}
    if set(ASSUMPTIONS) <= keys.keys():
        each = ", ".join(f"[`{_with_default(key, keys.pop(key))}`](assumptions.md#{key})" for key in ASSUMPTIONS)
        lines.append(f"- {each}")
    items = [_item(key, entry, key in needed) for key, entry in keys.items()]
    for told_alike, group in groupby(items, lambda item: item[1:]):
        names = [name for name, *_ in group]
        value, meaning = told_alike
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
        return f"[{_named(definition)}](#{_named(definition).lower()})"
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


# ---- results
# ``docs/results.md``: the columns of every file of results.

# ruff: noqa: E501  (tables of the page)

_DENOMINATOR = re.compile("[;,] empty (without (decode( steps)?|tokens)|for a run without time)")


def results_page() -> str:
    parts, files = (
        [_RESULTS_HEAD],
        (
            ("results.csv, results.parquet", COLUMNS),
            ("dies.csv", DIES),
            ("links.csv", LINKS),
            ("pairs.csv", PAIRS),
            ("steps.parquet", STEPS),
            ("timings.csv", TIMINGS),
        ),
    )
    for title, columns in files:
        own = [each for each in columns if columns is COLUMNS or each not in COLUMNS]
        rows = [f"| `{each.name}` | {each.unit} | {_meaning(each)}{_used(each, columns)} |" for each in own]
        parts.append("\n".join([f"## {title}", "", "| column | unit | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _meaning(column: Column) -> str:
    """The meaning of a column as a cell. For a cause, it says where the causes are explained."""
    if column.name.startswith("bound_"):
        return "part of the critical path, by [cause](glossary.md#what-time-goes-to)"
    return _DENOMINATOR.sub("", column.meaning).replace("|", "\\|")


def _used(column: Column, columns: tuple[Column, ...]) -> str:
    """Name of the column as an objective of `explore:`, if it is one."""
    names = [name for name, (known, _) in OBJECTIVES.items() if known == column.name and columns is COLUMNS]
    return "".join(f" (objective `{name}`)" for name in names)


_RESULTS_HEAD = """\
# Results

What is in the files beside a page? `archsim sweep FILE` writes into the folder of its report:

| file | content |
|---|---|
| `results.csv`, `results.parquet` | one row for each run. With a `sweep:`, it begins with `point` and a column for every axis. |
| `dies.csv`, `links.csv`, `pairs.csv` | one row for every die, link and pair of dies of every run. They are left out above 1,000 runs and with `details: dropped`. Pairs are those of at most 32 dies. |
| `steps.parquet` | one row for every layer of every iteration, of runs of at most 12,000 such steps |
| `frames.json` | what dies and links did in each iteration, or in some together: tokens, HBM, arrays, links and queues, up to 16 of a run; a line for each run |
| `timings.csv` | how long each run took to simulate. Only this file differs between machines. |
| `manifest.yaml` | the full experiment. `archsim sweep manifest.yaml` reproduces the results. |
| `results.partial.csv` | while a sweep runs: the rows of finished runs, without speed-ups |

Pages and terminals show `tokens_per_s`, which has one definition under every set of assumptions and refers to all MoE layers of the model.
`throughput_tokens_per_s` refers to the layers that ran, and depends on the assumption [`throughput`](assumptions.md#throughput).

This prints the ten slowest steps of a run with what bound them, and the links that are most often the busiest:

```python
import pandas as pd

steps = pd.read_parquet("reports/dojo/steps.parquet")
one = steps[(steps.policy == "allo") & (steps.assumptions == "physical") & (steps.batch == 4096) & (steps.model == "deepseek-v3")]
slow = one.nlargest(10, "time_ns")
print(slow[["step", "layer", "time_ns", "bound_hbm_ns", "bound_compute_ns", "link_src", "link_dst", "link_bytes"]])
print(one.groupby(["link_src", "link_dst"]).size().nlargest(5))
```

The tables below come from `archsim/runs/columns.py` (`python -m archsim.report.reference`). A cell of a file is empty where its denominator is 0, as in a run without decode steps.
`dies.csv`, `links.csv`, `pairs.csv` and `steps.parquet` begin with `run`, `system`, `model`, `batch`, `policy` and `assumptions` of the run."""


# ---- comments
# The comment above each field of a spec: what the key means, written once, where it is declared.


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


# ---- schema
# JSON Schemas of the files, for editors: keys with meanings, types, ranges and defaults.
#
# They accept what archsim accepts as far as a schema can say it; rules between keys are left to ``archsim check``.

JsonSchema = dict[str, Any]
FILES: Mapping[str, type[Spec]] = {
    "system": SystemSpec,
    "model": ModelSpec,
    "experiment": experiment.ExperimentSpec,
    "assumptions": NamedSet,
    "serve": serving.ServeSpec,
}
# Written as text or a list as well: a name, `5x8`, `[0, 1]`.
_SHORT = {"MeshSpec": "string", "SidesSpec": "array", "TopologySpec": "string", "RuleSpec": "string",
          "BlockSpec": "string", "EdgeSpec": "array", "LayerSet": "array", "SchedulerSpec": "string"}  # fmt: skip
_SOURCE = (
    "Where the numbers come from: a datasheet, a paper, a configuration file, a measurement, or `assumed`. Pages "
    "print it; it is required, so that no number stands without an origin."
)
_NAME = "Letters, digits and . _ + -; result tables and file names use it."
_LIKE = "The name or path of another system: keys that are missing here are its."
_SWEEP = {
    "grid": "Axes, each with its values or a range; every combination is a point.",
    "zip": "Axes whose first values go together, then the second, and so on; several groups are a list.",
    "sample": "`{method, count, seed, over}`: points drawn from ranges.",
    "where": "Constraints such as `dies <= 64` or `hbm_capacity fits`; other points are dropped.",
}


def schema_of(kind: type[Spec], title: str, ranges: bool = True) -> JsonSchema:
    """The schema of a file. Keys of a mapping have their meaning as ``description``. ``ranges``: whether it says that a
    number may be a mapping with its range.
    """
    made = kind.model_json_schema(by_alias=True, mode="validation")
    classes = dict(_classes(kind))
    parts = {kind.__name__: made, **made.get("$defs", {})}
    for name, part in parts.items():
        _describe(part, classes[name])
    for name, shape in _SHORT.items():
        if name in parts:
            _refer(made, name, shape)
    if "FirmwareSpec" in parts:
        parts["FirmwareSpec"].pop("required", None)  # `core` gives the clock
    if kind is serving.ServeSpec:  # a scheduler's own parameters are keys, too
        parts["SchedulerSpec"]["additionalProperties"] = {"type": "number"}
        del parts["SchedulerSpec"]["properties"]["params"]
    if kind is SystemSpec:
        made["required"].remove("d2d")  # the innermost level may give it
    if kind is experiment.ExperimentSpec:
        _as_an_experiment(made)
    if ranges:
        made = deepcopy(made)  # its parts are shared with fields, and with _SHORT
        _allow_ranges(made)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": title}


_RANGED: JsonSchema = {
    "type": "object",
    "description": "A number with its range, from which `archsim sure` draws.",
    "properties": {
        "value": {"type": ["number", "string"]},
        "range": {"type": "array", "items": {"type": ["number", "string"]}, "minItems": 2, "maxItems": 2},
        "distribution": {"enum": list(SHAPES)},
        "group": {"type": "string", "description": "numbers of one group share their draws"},
        "source": {"type": "string"},
    },
    "required": ["value"],
    "additionalProperties": False,
}
_OF_SHAPE = ("type", "format", "minimum", "maximum", "anyOf")


def _allow_ranges(made: JsonSchema) -> None:
    """Let every number be a mapping with its range."""
    found = False
    for part in (made, *made.get("$defs", {}).values()):
        for value in part.get("properties", {}).values():
            if _is_ranged(value):
                own = {key: value.pop(key) for key in _OF_SHAPE if key in value}
                choices = own["anyOf"] if "anyOf" in own else [own]
                value["anyOf"] = [*choices, {"$ref": "#/$defs/Ranged"}]
                found = True
    if found:
        made.setdefault("$defs", {})["Ranged"] = _RANGED


def _is_ranged(value: JsonSchema) -> bool:
    names = {each.name for each in quantities.DIMENSIONS}
    plain = value.get("format") in names or value.get("type") == "number"
    return plain or any(_is_ranged(each) for each in value.get("anyOf", ()))


def traffic_schema() -> JsonSchema:
    """The schema of a file of statistics in ``configs/traffic``; those with ``tables`` are written by a fit."""
    about = "Generated routing from statistics or loads of a model; `archsim trace fit` writes others."
    return {**schema_of(TrafficStatistics, "traffic preset", ranges=False), "description": about}


def _classes(kind: type[Spec]) -> Iterator[tuple[str, type[Spec]]]:
    """Every spec, by name: a definition of a schema has the name of its class."""
    waiting = [Spec]
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        yield each.__name__, each


def _describe(part: JsonSchema, kind: type[Spec]) -> None:
    found = meanings(kind)
    by_key = {field.alias or name: found.get(name, "") for name, field in kind.model_fields.items()}
    if kind in (SystemSpec, ModelSpec):
        by_key |= {"name": _NAME, "source": _SOURCE}
    part["description"] = " ".join((kind.__doc__ or "").replace("``", "`").split())
    for key, entry in part["properties"].items():
        text = by_key.get(key, "")
        if issubclass(kind, AssumptionsSpec) and key in ASSUMPTIONS:
            text = "; ".join(f"{value}: {meaning}" for value, meaning in ASSUMPTIONS[key].items())
            if key not in OPEN:
                entry["enum"] = list(ASSUMPTIONS[key])
        if text:
            entry["description"] = text.replace("``", "`")
        if entry.get("title", "").replace(" ", "").lower() == key.replace("_", ""):
            del entry["title"]  # pydantic's, which only repeats the key


def _refer(node: Any, name: str, shape: str) -> None:
    """Let every reference to a definition accept its short form, too."""
    if isinstance(node, list):
        for each in node:
            _refer(each, name, shape)
    if not isinstance(node, dict):
        return
    for each in list(node.values()):
        _refer(each, name, shape)
    if node.get("$ref") == f"#/$defs/{name}":
        del node["$ref"]
        node["anyOf"] = [{"type": shape}, {"$ref": f"#/$defs/{name}"}]


def _as_an_experiment(made: JsonSchema) -> None:
    """References by name or path, systems like others, single values for lists, ``sweep`` and ``explore``."""
    defs, keys = made["$defs"], made["properties"]
    defs["SystemSpec"]["properties"]["like"] = {"type": "string", "description": _LIKE}
    defs["SystemSpec"]["required"] = ["name"]  # with like, a system has the other's keys
    for part in ("MeshSpec", "HbmSpec", "D2DSpec", "ComputeSpec"):
        defs[part].pop("required", None)
    defs["AssumptionsSpec"].pop("required", None)
    defs["PolicySpec"]["required"] = ["name"]
    defs["RuleSpec"]["additionalProperties"] = True  # its parameters
    del defs["RuleSpec"]["properties"]["params"]
    for rule in policies.RULE_TYPES:
        text = f"A rule ({', '.join(policies.RULES[rule])}) or your own `package.module:function`."
        defs["PolicySpec"]["properties"][rule]["description"] = text
    words = {
        "systems": "Names (`archsim list systems`), paths, mappings, or `{like: dojo, name: mine, ...}`.",
        "models": "Names (`archsim list models`), paths, or mappings.",
        "policies": f"Presets ({', '.join(policies.PRESETS)}), or mappings of rules.",
        "assumptions": "Sets (physical, published), paths, or `{set: physical, FIELD: VALUE}`. Default: physical.",
    }
    for key, text in words.items():
        one = {"anyOf": [{"type": "string"}, keys[key]["items"]]}
        keys[key] = {"description": text, "type": "array", "minItems": 1, "items": one}
    keys["assumptions"] = {"anyOf": [keys["assumptions"]["items"], keys["assumptions"]]} | {
        "description": words["assumptions"]
    }
    batch = defs["WorkloadSpec"]["properties"]["batch"]
    defs["WorkloadSpec"]["properties"]["batch"] = {
        "description": batch.get("description", ""), "anyOf": [batch["items"], {**batch}]
    }  # fmt: skip
    keys["sweep"] = {
        "description": "Keys that vary (docs/sweeps.md).",
        "type": "object",
        "additionalProperties": False,
        "properties": {key: {"description": text} for key, text in _SWEEP.items()},
    }
    explore = schema_of(ExploreSpec, "explore", ranges=False)
    explore["properties"]["event_runs"]["anyOf"].append({"type": "string"})  # a share, such as 15 %
    keys["explore"] = {key: value for key, value in explore.items() if key not in ("$schema", "title", "$defs")}
    made["required"] = [key for key in made["required"] if key in ("name", "workload")]
    defs["WorkloadSpec"]["required"] = ["trace"]


# ---- files
# The generated files: ``docs/reference.md``, ``docs/results.md`` and ``docs/schemas/*.schema.json``, and the items of
# ``docs/assumptions.md``.


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


def generated() -> dict[str, str]:
    """Path below ``docs`` → text."""
    schemas = {kind: schema_of(spec, kind) for kind, spec in FILES.items()} | {"traffic": traffic_schema()}
    plain = {kind: schema_of(spec, kind, ranges=False) for kind, spec in FILES.items()}
    told = {kind: plain.get(kind, schema) for kind, schema in schemas.items()}
    files = {
        f"schemas/{kind}.schema.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for kind, schema in schemas.items()
    }
    return {
        "reference.md": reference(told), "results.md": results_page(), "assumptions.md": assumptions_page(), **files,
    }  # fmt: skip


def write_reference(docs: Path) -> None:
    """Write all files below ``docs``."""
    for name, text in generated().items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(docs / name, text)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
