"""Every quantity that a file may hold, by the specs' own list, and small files in which each of them is written."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from archsim.api import EXAMPLE
from archsim.base.fields import Spec, dimension_of_field
from archsim.base.quantities import as_written
from archsim.base.yaml import dump_yaml
from archsim.machine.system import SystemSpec

Key = tuple[str, ...]


def quantity_keys(kind: type[Spec], above: Key = (), inside: tuple = ()) -> Iterator[Key]:
    """The path of every number below a spec that may have a range; of the items of a list, that of the first."""
    for name, info in kind.model_fields.items():
        key = (*above, info.alias or name)
        if dimension_of_field(info) is not None:
            yield key
        for listed, each in _specs(info.annotation):
            if each not in inside:
                yield from quantity_keys(each, (*key, "0") if listed else key, (*inside, each))


def _specs(kind: Any, listed: bool = False) -> Iterator[tuple[bool, type[Spec]]]:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, Spec):
        yield listed, kind
    for each in get_args(kind):
        yield from _specs(each, listed or get_origin(kind) not in (Annotated, Union, None) and not _is_union(kind))


def _is_union(kind: Any) -> bool:
    return type(kind).__name__ == "UnionType"


def held(n_bytes):
    """A block that holds no slice."""
    return 0.0 * n_bytes


SYSTEM = EXAMPLE["systems"][0] | {"name": "die4", "llc": {}, "decision": {"firmware": {}, "host": {}, "fsm": {}}}
# Above, which key it is below → what a system needs for it.
_LINK = {"bandwidth": "200 GB/s", "hop_latency": "200 ns"}
OF_SYSTEM: dict[str, dict[str, Any]] = {
    "topology": {
        "mesh": "3x3",
        "topology": {"name": "torus"} | {each: dict(_LINK) for each in ("horizontal", "vertical", "wrap")},
    },
    "topology.edges": {
        "topology": {"name": "edges", "edges": [{"dies": [0, 1]} | _LINK, [1, 2], [2, 3]]},
    },
    "fabric": {"mesh": None, "fabric": {"levels": [{"ring": 4} | _LINK]}},
    "d2d.copies": {
        "d2d": {"bandwidth": "200 GB/s", "copies": {
            "from_bytes": "0", "latency_ns": "1000", "ns_per_byte": "0.01", "bandwidth": "200 GB/s",
        }},
    },
    "blocks": {"blocks": [{"name": "support.forms:held", "bandwidth": "4 TB/s"}]},
    "dies_as_built": {
        "dies_as_built": {"speed": {"sigma": 0.02, "radial": 0.04, "hbm": {"sigma": 0.02, "radial": 0.04}}},
    },
    "links_as_built": {"links_as_built": {"degraded": [{"link": [0, 1], "bandwidth": 0.8}]}},
    "drawn": {
        "drawn": {"defects_per_cm2": 0.0002, "cluster": 2.0, "link_failure": 0.0002, "die_area": "100 mm2",
                  "core_area": "40 mm2"},
    },
    "power": {"power": {"limit": "90 kW", "die_limit": "20 kW"}},
    "cooling": {
        "cooling": {"coolant": "30 C", "resistance": "0.02 K/W per die", "limit": "104 C", "hbm_limit": "94 C"},
    },
}  # fmt: skip
# Of those that a file leaves out, what is written.
PLAIN: dict[str, Any] = {
    "compute.clock": "1.8 GHz",
    "decision.host.time": "4 us",
    "d2d.measured_factor": 1.0,
    **{f"compute.kernels.{each}": 1.0 for each in ("permute", "quantise", "finalise", "multiply", "single")},
}


def system_with(key: Key) -> dict[str, Any]:
    """A small system that has a value at ``key``, as text with its unit or as a number."""
    dotted, system = ".".join(key), deepcopy(SYSTEM)
    above = max((each for each in OF_SYSTEM if dotted.startswith(f"{each}.")), key=len, default=None)
    system |= deepcopy(OF_SYSTEM.get(above, {}))
    system = {part: each for part, each in system.items() if each is not None}
    if value_at(system, key) is None:
        written = SystemSpec.model_validate(system).model_dump(mode="json", by_alias=True)
        put(system, key, PLAIN.get(dotted, value_at(written, key)))
    return system


def value_at(tree: Any, key: Key) -> Any:
    for each in key:
        tree = tree[int(each)] if isinstance(tree, list) else tree.get(each) if isinstance(tree, dict) else None
    return tree


def put(tree: Any, key: Key, value: Any) -> None:
    assert value is not None, key
    below = reduce(lambda of, each: of[int(each)] if isinstance(of, list) else of.setdefault(each, {}), key[:-1], tree)
    below[key[-1]] = value


SYSTEM_KEYS = tuple(quantity_keys(SystemSpec))
EXPERIMENT = dict(EXAMPLE) | {
    "name": "forms",
    "models": [EXAMPLE["models"][0] | {"layers": 2, "moe_layers": {"first": 1, "last": 1}}],
    "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 8, "context": 0, "decode_steps": 1},
    "policies": ["allo", "allo+pred"],
}


def ranged(plain: Any) -> dict[str, Any]:
    """The value with a range below it, in its unit."""
    number = as_written(plain).number if isinstance(plain, str) else plain
    return {"value": plain, "range": [number / 2, number]}


def half(plain: Any) -> Any:
    """Another plausible value."""
    written = as_written(plain) if isinstance(plain, str) else None
    return plain / 2 if written is None else f"{written.number / 2:g} {written.unit}"


WRITTEN: dict[str, Callable[[Any], Any]] = {
    "plain": lambda plain: plain,
    "value": lambda plain: {"value": plain},
    "range": ranged,
    "source": lambda plain: {"value": plain, "source": "a datasheet"},
    "all": lambda plain: ranged(plain) | {"distribution": "triangular", "group": "parts", "source": "a datasheet"},
}
# In a file of the system's own; from the file that it is like; in place of that file's; by --set; as the first of two
# values of an axis, plain and with a range.
ELSEWHERE = ("file", "like", "over", "set", "axis", "ranges")
FORMS = (*WRITTEN, *ELSEWHERE)


def write_experiment(folder: Path, key: Key, form: str) -> list[str]:
    """Write ``e.yaml``, whose system has a number at ``key`` in a form; returns what a command needs beside it."""
    whole, system = deepcopy(EXPERIMENT), system_with(key)
    dotted, plain, added = ".".join(key), value_at(system, key), []
    if form in WRITTEN:
        put(system, key, WRITTEN[form](plain))
    elif form == "set":
        added = ["--set", f"systems.0.{dotted}={dump_yaml(ranged(plain), flow=True)}"]
    elif form in ("axis", "ranges"):
        first, second = (ranged(plain), {"value": half(plain)}) if form == "ranges" else (plain, half(plain))
        whole["sweep"] = {"grid": {f"system.{dotted}": [first, second]}}
    else:
        base = deepcopy(system)
        put(base, key, WRITTEN["all"](half(plain)) if form == "over" else ranged(plain))
        (folder / "base.yaml").write_text(dump_yaml(base), encoding="utf-8")
        system = {"like": "./base.yaml", "name": system["name"]}
        if form == "over":
            at = key.index("0") if "0" in key else len(key) - 1
            put(
                system,
                (*key[:at], key[at]) if at == len(key) - 1 else key[:at],
                {"value": plain} if at == len(key) - 1 else value_at(system_with(key), key[:at]),
            )
    whole["systems"] = ["base.yaml" if form == "file" else system]
    (folder / "e.yaml").write_text(dump_yaml(whole), encoding="utf-8")
    return added
