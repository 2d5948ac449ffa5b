"""Reads a file of ``archsim serve`` with the system and the model that it names."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base import errors, validation, yaml
from archsim.machine.system import SystemSpec
from archsim.model.checkpoints import dtypes_in, precision_named
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.deployment import Precision, PrecisionSpec
from archsim.specs.file_kinds import SERVE, refuse_other_kinds
from archsim.specs.library import Source, folder_of, label_of, manifest_blamed, take_facts, tree_of
from archsim.specs.overrides import apply_overrides
from archsim.specs.policies import PolicySpec, RuleSpec
from archsim.specs.policy_axes import spread_policies
from archsim.specs.recipes import multiplies, with_recipe
from archsim.specs.references import DEFAULT_ASSUMPTIONS, find_traffic, folders_around, resolve
from archsim.specs.serving import AxesSpec, RoutingSpec, ServeSpec
from archsim.specs.serving_keys import precision_word, put_key, turn
from archsim.specs.unread import WrittenKeys, recorded_unread, unread_of_serving

DEFAULT_POLICY = "ep"
EXPERTS_SIDE = "experts"  # of decodes whose experts are on devices of their own


class DeployedMachine(NamedTuple):
    """The machine of one side of a deployment. ``assumptions`` are those of its engine, where routing comes from
    traffic.
    """

    system: SystemSpec
    assumptions: AssumptionsSpec


class Serving(NamedTuple):
    """A file of ``archsim serve``, read."""

    spec: ServeSpec  # what it says
    system: SystemSpec  # the machine
    model: ModelSpec  # the model
    trace: Path | None  # its requests, found; None where they are drawn
    policies: tuple[PolicySpec, ...]  # all that it names
    policy: PolicySpec  # the one of them that is served
    assumptions: AssumptionsSpec  # of the engine behind routing from traffic
    routed: Path | None = None  # recorded routing, found
    axes: Mapping[str, tuple[Any, ...]] = MappingProxyType({})  # key of the file → values, of its ``sweep:``
    given: Mapping[str, Any] = MappingProxyType({})  # the file with what it names, for a manifest
    unread: tuple[str, ...] = ()  # a sentence for each key that it gives and does not read (`archsim.specs.unread`)
    machines: Mapping[str, DeployedMachine] = MappingProxyType({})  # side → its machine, where it names one of its own
    recipe: tuple[str, ...] = ()  # what it leaves open, as the engine is started, in words (`with_recipe`)
    # Side ('' of one engine) → field of `archsim.iteration.constants.Host` → factor on it, where laws are off.
    off: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    side: str = ""  # for which it was asked (`on`)
    axes_at: str = ""  # where its ``sweep:`` is written

    def on(self, side: str) -> "Serving":
        """The file for one side: with that side's machine, where it names one."""
        found, own = self.machines.get(side), self if self.side == side else self._replace(side=side)
        return own if found is None else own._replace(system=found.system, assumptions=found.assumptions)

    def __repr__(self) -> str:
        axes = f", axes {', '.join(self.axes)}" if self.axes else ""
        names = ", ".join(policy.name for policy in self.policies)
        return f"Serving({self.model.name} on {self.system.name}, scheduler {self.spec.scheduler.name}, {names}{axes})"

    @property
    def precision(self) -> Precision:
        """As the machine multiplies it."""
        return multiplies(self.spec.precision.dtypes(self.system.compute.dtype, self.model), self.system)

    @property
    def has_traffic(self) -> bool:
        return isinstance(self.spec.routing, RoutingSpec)


def load_serving(source: Source, overrides: Sequence[str] = (), cell: Mapping[str, Any] | None = None) -> Serving:
    """A deployment and its traffic, after ``key.path=value`` overrides. ``cell``: values of its axes; None: the first
    of each. Raises SpecError.
    """
    with manifest_blamed(source):
        return _load_serving(source, overrides, cell)


def _load_serving(source: Source, overrides: Sequence[str], cell: Mapping[str, Any] | None) -> Serving:
    tree, folder = tree_of(source), folder_of(source)
    made = take_facts(tree)
    refuse_other_kinds(label_of(source), tree.data, SERVE)
    texts = sorted(overrides, key=lambda text: turn(*text.partition("=")[::2]))
    first: yaml.Keys = ("systems", 0)

    def expand(keys: yaml.Keys) -> None:  # keys of a machine that is named
        if keys[-1] == "system" and isinstance(name := tree.get(keys), str):
            found = resolve("systems", name, tree.place(keys), folder)
            places = {each[2:]: place for each, place in found.places.items() if each[:2] == first}
            tree.graft(keys, yaml.Tree(found.get(first), places))

    apply_overrides(tree, texts, expand, put_key)
    spread_policies(tree)
    _find_traffic(tree, folder)
    given = deepcopy(tree.data)
    axes = validation.validate(AxesSpec, tree, ("sweep",)).axes if tree.data.get("sweep") is not None else {}
    chosen = cell or {path: values[0] for path, values in axes.items()}
    for path, value in sorted(chosen.items(), key=lambda each: turn(*each)):
        head = f"{tree.place(('sweep',))}: {path}: {value}"
        put_key(tree, tuple(path.split(".")), deepcopy(value), head, expand)
    if chosen:  # for its sizes a GPU may be another machine, whose parts are put again
        last = max(1, *map(turn, chosen))
        apply_overrides(tree, [text for text in texts if turn(text.partition("=")[0]) > last], expand, put_key)
    word = precision_word(tree)
    written = WrittenKeys.of(tree, made is not None)
    _find_traffic(tree, folder)
    spec = validation.validate(ServeSpec, tree)
    machine = resolve("systems", spec.system, tree.place(("system",)), folder)
    machine.places |= {first + keys[1:]: place for keys, place in tree.places.items() if keys[:1] == ("system",)}
    system = validation.validate(SystemSpec, machine, first)
    model = validation.validate(ModelSpec, resolve("models", spec.model, tree.place(("model",)), folder), ("models", 0))
    if precision := _named_precision(spec, model, word):
        spec = spec.model_copy(update={"precision": precision})
        if not {"model", "precision"} & set(axes):
            given["precision"] = precision.model_dump(mode="json", exclude_none=True)
    policies = tuple(
        validation.validate(PolicySpec, resolve("policies", each, tree.place(("policies",)), folder), ("policies", 0))
        for each in spec.policies
    )
    if isinstance(spec.routing, RoutingSpec):
        policies = tuple(_pad_slots(each, spec, model, system) for each in policies)
    spec, recipe = with_recipe(spec, system, model)
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise errors.SpecError(f"{tree.place(('policies',))}: two have the same name: {', '.join(names)}")
    if not isinstance(spec.routing, RoutingSpec) and names != [DEFAULT_POLICY]:
        raise errors.SpecError(
            f"{tree.place(('policies',))}: {', '.join(names)} need routing from traffic: give routing: "
            f"{{like: model}}; with routing: {spec.routing} no expert is more popular than another"
        )
    if not isinstance(spec.routing, RoutingSpec) and (others := set(spec.assumptions or {}) - {"overlap"}):
        raise errors.SpecError(
            f"{tree.place(('assumptions',))}: {', '.join(sorted(map(str, others)))}: are of routing from "
            "traffic: give routing: {like: model}, or leave them out; overlap alone goes with other routings"
        )
    if isinstance(spec.routing, RoutingSpec) and not any(path.startswith("policies") for path in axes):
        for at, policy in enumerate(policies):  # of an axis, points that cannot run are rows that say why
            refuse_unserved(policy, tree.place(("policies", at)))
    if isinstance(spec.routing, RoutingSpec) and model.experts == 1:
        raise errors.SpecError(f"{tree.place(('routing',))}: {model.name} has no experts. Give routing: uniform")
    set_ = resolve("assumptions", _assumptions(spec, system), tree.place(("assumptions",)), folder)
    assumptions = validation.validate(AssumptionsSpec, set_, ("assumptions", 0))
    machines = {}
    for side, keys, name in _other_systems(spec):
        found = resolve("systems", name, tree.place(keys), folder)
        other = validation.validate(SystemSpec, found, ("systems", 0))
        own = resolve("assumptions", _assumptions(spec, other), tree.place(("assumptions",)), folder)
        machines[side] = DeployedMachine(other, validation.validate(AssumptionsSpec, own, ("assumptions", 0)))
        there: Any = given
        for key in keys[:-1]:
            there = there.get(key) if isinstance(there, dict) else None
        if isinstance(there, dict) and keys[-1] in there:  # else an axis names it
            there[keys[-1]] = found.get(first)
    files = {
        (kind, *keys[2:])
        for kind, found in (("system", machine), ("assumptions", set_))
        for keys in WrittenKeys(frozenset(), made is not None).with_files(found).keys
        if len(keys) > 2
    }
    unread = unread_of_serving(spec, system, model, assumptions, policies, written.keys | files)
    routed = spec.routing.trace if isinstance(spec.routing, RoutingSpec) else None
    requests = _found(spec.requests.trace, tree, ("requests", "trace"), folder, Path.is_file)
    recorded = _found(routed, tree, ("routing", "trace"), folder, Path.exists)
    for keys, file in ((("requests", "trace"), requests), (("routing", "trace"), recorded)):
        if file is not None and keys[0] in given and isinstance(given[keys[0]], dict):
            given[keys[0]][keys[1]] = str(file.absolute())
    named = {kind: resolve(f"{kind}s", given[kind], tree.place((kind,)), folder) for kind in ("system", "model")}
    given |= {kind: found.get((f"{kind}s", 0)) for kind, found in named.items()}
    if "policies" in given:
        place = tree.place(("policies",))
        given["policies"] = [
            resolve("policies", each, place, folder).get(("policies", 0)) for each in given["policies"]
        ]
    return Serving(
        spec=spec, system=system, model=model, trace=requests, policies=policies, policy=policies[0],
        assumptions=assumptions, routed=recorded, axes=MappingProxyType(axes), given=given,
        unread=tuple(dict.fromkeys((*recorded_unread(made), *unread))), machines=MappingProxyType(machines),
        recipe=recipe,
        axes_at=str(tree.place(("sweep",))),
    )  # fmt: skip


def _named_precision(spec: ServeSpec, model: ModelSpec, word: str) -> PrecisionSpec | None:
    """What ``precision: WORD`` says, or the name of the checkpoint where the file does not say it."""
    precision, own = word or precision_named(spec.model, model.name), spec.precision
    if precision is None or own.products is not None or own.experts is not None:
        return None
    products, experts = dtypes_in(precision, model.experts > 1)
    kept = model.kept_in(str(spec.model), products) if own.bf16 is None else own.bf16
    return own.model_copy(update={"products": products, "experts": experts, "bf16": kept})


def refuse_unserved(policy: PolicySpec, place: yaml.Place | str = "policies") -> None:
    """Raise SpecError for rules that need more than tokens as they are drawn. ``place``: where the policy is named."""
    if policy.sees_routing:
        part = "allocation" if policy.needs_routing("allocation") else "rebalancing"
        raise errors.SpecError(
            f"{place}: {policy.name}: {part}: {getattr(policy, part).name} needs the routing of single tokens, which "
            "serving does not keep. Leave this policy to a sweep (archsim sweep), which runs it step by step"
        )
    for rule_type, why in (
        ("prediction", "predicts from the steps before"),
        ("replication", "follows the paths of tokens"),
        ("shared", "moves shared experts, which run with the dense layers here"),
    ):
        rule = getattr(policy, rule_type)
        served = {"prediction": ("none",), "replication": ("none", "libra"), "shared": ("local",)}[rule_type]
        if rule.name not in served and not (rule.name == "lina" and rule.params["accuracy"]):
            with_accuracy = ", or {name: lina, accuracy: 0.4}" if rule.name == "lina" else ""
            raise errors.SpecError(
                f"{place}: {policy.name}: {rule_type}: {rule.name} {why}. Give {rule_type}: {' or '.join(served)}"
                f"{with_accuracy}, or leave this policy to a sweep (archsim sweep), which runs it step by step"
            )


def _find_traffic(tree: yaml.Tree, folder: Path | None) -> None:
    for keys in (("routing", "like"), ("routing", "synthetic", "like")):
        find_traffic(tree, keys, folder)


def _other_systems(spec: ServeSpec) -> list[tuple[str, tuple[str, ...], Any]]:
    """(side, keys, value) of every machine that a side names."""
    sides = [(name, ("disaggregated", name), side) for name, side in spec.sides.items() if name]
    found: list[tuple[str, tuple[str, ...], Any]] = [
        (name, (*keys, "system"), side.system) for name, keys, side in sides if side.system is not None
    ]
    if (apart := spec.experts_on) is not None:
        found.append((EXPERTS_SIDE, ("disaggregated", "decode", "experts_on", "system"), apart.system))
    return found


# Where they do, on GPUs; elsewhere the set `physical` as it is. Memory is that of serving, which knows its KV.
OF_GPUS = {
    "execution": "expert_parallel", "gemm": "grouped", "transfer_software": "charged", "capacity": "unbounded",
    "weights": "routed",
}  # fmt: skip


OF_WAFERS = {"capacity": "unbounded", "weights": "routed"}


def _pad_slots(policy: PolicySpec, spec: ServeSpec, model: ModelSpec, system: SystemSpec) -> PolicySpec:
    """With empty slots where ranks of GPUs do not divide the experts, as kernels run as many on each."""
    uneven = any(model.experts % pool.parallel.sizes().ep for pool in spec.pools)
    if policy.placement.name != "linear" or not uneven or system.launch != "gpu":
        return policy
    return policy.model_copy(update={"placement": RuleSpec(name="padded")})


def _assumptions(spec: ServeSpec, system: SystemSpec):
    if isinstance(spec.assumptions, str):
        return spec.assumptions
    of_kind = OF_GPUS if system.launch == "gpu" else OF_WAFERS
    return {"set": DEFAULT_ASSUMPTIONS} | of_kind | (spec.assumptions or {})


def _found(
    name: str | None, tree: yaml.Tree, keys: yaml.Keys, folder: Path | None, is_there: Callable[[Path], bool]
) -> Path | None:
    """``is_there``: recorded routing may be a folder."""
    if name is None:
        return None
    places = [Path(name), *(each / name for each in folders_around(folder))]
    found = next((path for path in places if is_there(path)), None)
    if found is None:
        raise errors.SpecError(f"{tree.place(keys)}: no such file: {name!r}")
    return found
