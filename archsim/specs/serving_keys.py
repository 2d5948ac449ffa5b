"""Keys of a deployment as they are typed after ``--set`` and ``--vary``: in full, by their last part, by the name of an
engine's flag, or a word that stands for several keys.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, get_args

from archsim.base import validation, yaml
from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import Spec
from archsim.base.quantities import describe
from archsim.model.checkpoints import PRECISIONS
from archsim.specs.deployment import ParallelSpec
from archsim.specs.overrides import put
from archsim.specs.policies import NEUTRAL, PRESETS
from archsim.specs.policy_axes import spread_policies
from archsim.specs.serving import ServeSpec
from archsim.specs.serving_terms import DRAFTS, INTERVAL, NAMES, OFFLOAD, REDUNDANT

CHECKPOINT = "checkpoint"  # of `precision`: what the name of a checkpoint says
# SGLang's --eplb-rebalance-num-iterations, after a placement by loads that were recorded before (its default is 1000).
EPLB: Mapping[str, Any] = MappingProxyType({"name": "eplb", "every_steps": 1000, "first_steps": 1})
# MoE layers that are simulated for it, and iterations after which tokens are sampled again, so that a comparison of
# three numbers takes less than a minute.
SAMPLED: Mapping[str, Any] = MappingProxyType({"layers": 2, "every": 2048})
# Parts whose keys may be named by their last part alone.
_PARTS = ("requests", "scheduler", "slo", "speculation", "parallel", "precision", "kv_store", "host")
# Words in place of sizes: over all devices of an engine. dp alone leaves experts as they are.
_LAYOUTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "parallel": ("tp", "ep", "dp"), "parallel.attention": ("tp", "dp"), "parallel.experts": ("tp", "ep"),
})  # fmt: skip
# Keys that need more than a number or true, with what to write.
_EXAMPLES: Mapping[str, str] = MappingProxyType({
    "faults": "[{at: 60 s, rank: 0, recovery: 30 s}]",
    "disaggregated": "{prefill: {parallel: {attention: {tp: 8}}}, decode: {parallel: {attention: {tp: 8}}}}",
})  # fmt: skip
# Ways in which requests come → what a file says beside them alone, which gives way to another.
_WAYS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "trace": ("arrivals", "input", "output", "prefixes", "sessions", "count"),
    "arrivals": ("concurrency", "start", "trace", "format", "time_unit", "hash_tokens", "speed"),
    "concurrency": ("arrivals",),
})  # fmt: skip


def put_key(tree: yaml.Tree, names: tuple[str, ...], value: Any, head: str, expand: Any) -> None:
    """As `archsim.specs.overrides.put`, the key by any of its names; requests come in the way that is put, no longer in
    that of the file; ways that are both put are left to be refused. Raises SpecError for a name of no key, and of
    several.
    """
    path = full_key(names, head, value)
    for keys, each in _parts_of(tree, path, value, head):
        if keys[0] == "requests" and len(keys) > 1 and keys[1] in _WAYS and isinstance(tree.data.get("requests"), dict):
            asked = {at[1] for at, place in tree.places.items() if at[0:1] == ("requests",) and at[1:]
                     and place.head.startswith("--set ")}  # fmt: skip
            for other in {*_WAYS[keys[1]]} - asked:
                tree.data["requests"].pop(other, None)
        for depth in range(1, len(keys)):  # a word in place of a mapping
            word = tree.find(keys[:depth])
            if isinstance(word, str) and (word == "none" or keys[:depth] == ("scheduler",)):
                own = {} if word == "none" else {"name": word}
                tree.graft(keys[:depth], yaml.Tree(own, {(): yaml.Place(head)}))
        put(tree, keys, each, head, expand)


def turn(key: str, value: Any = "") -> int:
    """When a key is put: a word for sizes of experts after those of attention, whose product they share (1), the system
    after all sizes, as a GPU stands for a machine with enough devices (2), and parts of the system after it (3).
    """
    first, *rest = (NAMES.get(key.strip(), key.strip())).split(".")
    if first == "system":
        return 3 if rest else 2
    return int(key.strip() in ("experts", "parallel.experts") and str(value).strip() in _LAYOUTS["parallel.experts"])


def replaces(axis: str, value: Any, key: str) -> bool:
    """Whether an axis, with such a value, replaces what is put at a key. Requests come in one way."""
    one, other = (full_key(tuple(at.split(".")), at, each).split(".") for at, each in ((axis, value), (key, None)))
    both = min(len(one), len(other))
    ways = {each[1] for each in (one, other) if each[0] == "requests" and len(each) > 1 and each[1] in _WAYS}
    return one[:both] == other[:both] or len(ways) == 2


def _parts_of(tree: yaml.Tree, path: str, value: Any, head: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if path == REDUNDANT:
        yield from _redundant(tree, value, head)
    elif path == INTERVAL:
        if not _eplb_of(tree):
            yield from _redundant(tree, _parallel_of(tree).sizes().ep, head)  # a slot a rank
        yield from _in_eplb(tree, "rebalancing", "every_steps", value)
    elif path == DRAFTS and value == 0:
        yield ("speculation",), "none"
    elif path == OFFLOAD and not isinstance(value, dict):
        if value is True:
            raise SpecError(f"{head}: how much of the host's memory? Give its capacity, such as 1TB, or none")
        yield (OFFLOAD,), "none" if value in (False, None, "none") else {"capacity": value}
    elif path == "speculation" and value in ("mtp", "ngram"):
        given = tree.data.get("speculation")
        yield ("speculation",), {"draft_tokens": 1} | (given if isinstance(given, dict) else {}) | {"method": value}
    elif path in _LAYOUTS and isinstance(value, str):
        if value not in _LAYOUTS[path]:
            raise SpecError(f"{head}: {path} is sizes or one of {', '.join(_LAYOUTS[path])}, not {value!r}")
        ranks = _ranks_of(tree, head, path != "parallel.attention" and value != "dp")
        if path != "parallel.experts":
            yield ("parallel", "attention"), {"tp" if value == "tp" else "dp": ranks}
        if path != "parallel.attention" and value != "dp":
            yield ("parallel", "experts"), {value: ranks}
    elif path in _EXAMPLES and isinstance(value, int | float):
        raise SpecError(f"{head}: {path} needs more than {describe(value)}. Write {path}={_EXAMPLES[path]}")
    elif path == "policies" and isinstance(value, str | dict):
        yield (path,), [value]
    elif path == "precision" and isinstance(value, str):
        given = tree.data.get("precision")
        yield ("precision",), {"kv": given["kv"]} if isinstance(given, dict) and "kv" in given else {}
        yield ("precision", CHECKPOINT), value
    elif path == "requests" and isinstance(value, str):
        yield ("requests", "trace"), value
    elif path == "requests.arrivals.rate" and isinstance(value, int | float) and not isinstance(value, bool):
        yield tuple(path.split(".")), f"{value}/s"
    elif path.removesuffix(".mean") in ("requests.input", "requests.output") and type(value) in (int, float):
        keys = tuple(path.removesuffix(".mean").split("."))
        given = each if isinstance(each := tree.find(keys), dict) else {}
        of = "fixed" if "fixed" in given and not path.endswith(".mean") else "mean"
        yield keys, {key: each for key, each in given.items() if key == "cv"} | {of: value}
    elif path == "system" and isinstance(value, str):
        yield (path,), _machine_of(tree, value)
    else:
        yield tuple(path.split(".")), value


def _machine_of(tree: yaml.Tree, gpu: str) -> str:
    """The smallest system of a GPU that has the devices of the file's engines; another name as it is."""
    from archsim.specs.library import machines_of_gpu, smallest_machine

    machines, count = machines_of_gpu(gpu), tree.data.get("instances", 1)
    if not machines or isinstance(tree.data.get("disaggregated"), dict) or not isinstance(count, int):
        return machines[-1] if machines else gpu
    return smallest_machine(machines, _parallel_of(tree).ranks * count)


def _ranks_of(tree: yaml.Tree, head: str, replaced: bool) -> int:
    """Devices of an engine, over which a word such as tp spreads. ``replaced``: the sizes of experts are, and may be
    those of another number of ranks. Raises SpecError where sides have their own.
    """
    if isinstance(tree.data.get("disaggregated"), dict):
        raise SpecError(f"{head}: each side of disaggregated has its own sizes. Give disaggregated.decode.parallel")
    if replaced and isinstance(tree.data.get("parallel"), dict):
        tree.data["parallel"].pop("experts", None)
    return _parallel_of(tree).ranks


def _parallel_of(tree: yaml.Tree, side: yaml.Keys = ()) -> ParallelSpec:
    keys = (*side, "parallel")
    return ParallelSpec() if tree.find(keys) is None else validation.validate(ParallelSpec, tree, keys)


def _redundant(tree: yaml.Tree, value: Any, head: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """EPLB with so many slots beyond one for each expert, over all ranks of an engine, under routing from traffic: that
    which is there, or one that replaces all policies; 0: none of these.
    """
    sides: list[yaml.Keys] = [()]
    if isinstance(tree.data.get("disaggregated"), dict):
        sides = [("disaggregated", side) for side in ("prefill", "decode")]
        sides = [side for side in sides if isinstance(tree.find(side), dict)]
    every = [_parallel_of(tree, side).sizes().ep for side in sides]
    ranks = every[0] if every else 1
    if value and (len(set(every)) > 1 or any(isinstance(tree.find((*side, "experts_on")), dict) for side in sides)):
        raise SpecError(
            f"{head}: ranks of the sides of disaggregated share experts differently. Give slots beside them: policies: "
            "[{name: eplb, placement: {name: redundant, slots: 2}, allocation: even}]"
        )
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value % ranks:
        fits = ", ".join(str(each * ranks) for each in range(4))
        raise SpecError(f"{head}: {ranks} ranks share redundant experts equally: expected a number such as {fits}")
    if not isinstance(tree.data.get("routing"), dict):
        yield ("routing",), {"like": "model"} | dict(SAMPLED)
    if not _eplb_of(tree):
        eplb = {"name": "eplb", "placement": "redundant", "allocation": "even", "rebalancing": dict(EPLB)}
        yield ("policies",), [eplb if value else "ep"]
    yield from _in_eplb(tree, "placement", "slots", value // ranks)


def _eplb_of(tree: yaml.Tree) -> dict[int, dict[str, Any]]:
    """Policies with EPLB, by their number in the list, each with the rules of its preset."""
    spread_policies(tree)
    given, found = tree.data.get("policies"), {}
    for at, each in enumerate(given if isinstance(given, list) else ()):
        own = each if isinstance(each, dict) else {"name": each, "preset": each}
        rules = {**PRESETS.get(str(own.get("preset")), NEUTRAL), **own}
        rule = rules["rebalancing"]
        if (rule.get("name") if isinstance(rule, dict) else rule) in ("eplb", "async_eplb"):
            found[at] = rules
    return found


def _in_eplb(tree: yaml.Tree, part: str, parameter: str, value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for at, rules in _eplb_of(tree).items():
        keys = ("policies", str(at))
        if not isinstance(tree.get(("policies", at)), dict):
            yield keys, {"name": rules["name"], "preset": rules["preset"]}
        rule = rules[part]
        yield (*keys, part), (rule if isinstance(rule, dict) else {"name": rule}) | {parameter: value}


def full_key(names: tuple[str, ...], head: str, value: Any = None) -> str:
    """The key in full; its ``value`` may decide which. Raises SpecError."""
    if names == ("experts",) and value in _LAYOUTS["parallel"]:
        return "parallel.experts"
    path, known = ".".join(names), _roots()
    lower = path.replace("-", "_").lower()
    if names[0] in known:
        named = NAMES.get(names[-1], "")
        return named if len(names) == 2 and path not in _paths() and named.startswith(f"{names[0]}.") else path
    if lower in (REDUNDANT, INTERVAL, *NAMES):
        return NAMES.get(lower, lower)
    if lower in ("speculative_num_draft_tokens", "num_draft_tokens"):
        raise SpecError(f"{head}: {path} counts the verified token, too. Give speculative_num_steps, one less")
    found = [each for each in _paths() if each.split(".")[-1] == names[0].replace("-", "_")]
    if len(found) > 1:
        raise SpecError(f"{head}: {names[0]} may be {' or '.join(found)}. Give one of them")
    if found:
        return ".".join([*found, *names[1:]])
    short = [*known, REDUNDANT, INTERVAL, *NAMES, *(each.split(".")[-1] for each in _paths())]
    raise SpecError(
        f"{head}: a deployment has no key {path!r}{did_you_mean(names[-1], short) or did_you_mean(names[0], short)} "
        f"(known: {', '.join(known)}; what they hold by its last part alone, such as max_num_seqs or prefix_caching; "
        f"and {REDUNDANT}, {INTERVAL}, rate, users, drafts)"
    )


@lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in ServeSpec.model_fields.items())


@lru_cache(maxsize=1)
def _paths() -> tuple[str, ...]:
    return tuple(each for part in _PARTS for each in _below(ServeSpec.model_fields[part].annotation, part))


def _below(annotation: Any, prefix: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        for name, field in annotation.model_fields.items():
            path = f"{prefix}.{field.alias or name}"
            yield path
            yield from _below(field.annotation, path)
    elif not str(annotation).startswith("tuple"):
        for each in get_args(annotation):
            yield from _below(each, prefix)


def precision_word(tree: yaml.Tree) -> str:
    """Takes the precision of a checkpoint, from which dtypes follow, out of ``precision: fp8``; '' where there is none.
    Beside ``kv`` it is at CHECKPOINT. Raises SpecError for an unknown one.
    """
    given = tree.data.get("precision")
    word = given.get(CHECKPOINT) if isinstance(given, dict) else given
    if not isinstance(word, str):
        return ""
    if word not in PRECISIONS.values():
        known = list(dict.fromkeys(PRECISIONS.values()))
        where = tree.place(("precision", CHECKPOINT) if isinstance(given, dict) else ("precision",))
        raise SpecError(f"{where}: unknown precision {word!r}{did_you_mean(word, known)} (known: {', '.join(known)})")
    others = {key: each for key, each in given.items() if key != CHECKPOINT} if isinstance(given, dict) else {}
    tree.graft(("precision",), yaml.Tree(others, {(): tree.place(("precision",))}))
    return word
