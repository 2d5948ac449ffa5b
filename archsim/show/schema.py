"""JSON Schemas of the files, for editors; rules between keys are left to ``archsim check``."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from archsim.base import quantities
from archsim.base.fields import Spec
from archsim.base.uncertain import SHAPES
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs import experiment, policies, serving
from archsim.specs.assumptions import ASSUMPTIONS, OPEN, AssumptionsSpec, NamedSet
from archsim.specs.explore import ExploreSpec
from archsim.traffic.traffic_heads import TrafficStatistics

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
    "sample": "`{method, count, seed, over}`: points sampled from ranges.",
    "where": "Constraints such as `dies <= 64` or `hbm_capacity fits`; other points are dropped.",
}


def schema_of(kind: type[Spec], title: str, ranges: bool = True) -> JsonSchema:
    """The schema of a file, meanings as ``description``. ``ranges``: numbers may be mappings with their range."""
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
        made["required"].remove("hbm")  # a memory of its tiers may be it
        made["required"].remove("d2d")  # the innermost level may give it
    if kind is experiment.ExperimentSpec:
        _as_an_experiment(made)
    if ranges:
        made = deepcopy(made)  # its parts are shared with fields, and with _SHORT
        _allow_ranges(made)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": title}


_RANGED: JsonSchema = {
    "type": "object",
    "description": "A number with its range, from which `archsim sure` samples.",
    "properties": {
        "value": {"type": ["number", "string"]},
        "range": {"type": "array", "items": {"type": ["number", "string"]}, "minItems": 2, "maxItems": 2},
        "distribution": {"enum": list(SHAPES)},
        "group": {"type": "string", "description": "numbers of one group are sampled together"},
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
