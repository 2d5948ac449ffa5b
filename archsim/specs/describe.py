"""Specs as plain text, for ``archsim list`` and ``archsim check``."""

import textwrap
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from archsim.base import config_files, errors, fields, quantities, yaml
from archsim.laws.calibration_sections import with_sections
from archsim.machine.fabric import LinkSpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs import assumptions, library, policies
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.file_kinds import SPECS
from archsim.specs.plan import SweepPlan
from archsim.specs.rules import NamedChoice, Parameter, Text
from archsim.specs.serving_files import Serving

_WIDTH = 116
_OPENING_WIDTH = 72  # of what an experiment asks, beside its name and file


def listing(what: str) -> str:
    return LISTINGS[what]()


def summary(spec: fields.Spec) -> str:
    """The content of a valid file in one line; for a system, also its links, and what a model's memory holds."""
    if isinstance(spec, SystemSpec):
        nodes = [f"  {_nodes(spec)}"] if _nodes(spec) else []
        return "\n".join([f"ok, a valid system: {_count(spec.dies, 'die')}, {spec.shape}", *nodes, *_links(spec)])
    if isinstance(spec, ModelSpec):
        return f"ok, a valid model\n  {_memory(spec)}"
    if not isinstance(spec, ExperimentSpec):
        return f"ok, a valid {next(name for name, kind in SPECS.items() if kind is type(spec))}"
    counts = {
        "system": len(spec.systems),
        "model": len(spec.models),
        "batch": len(spec.workload.batch),
        "policy": len(spec.policies),
        "assumption set": len(spec.assumptions),
    }
    runs = 1
    for each in counts.values():
        runs *= each
    counted = f"ok, {' × '.join(_count(number, noun) for noun, number in counts.items())} = {_count(runs, 'run')}"
    whole = any(each.memory == "all" for each in spec.assumptions)
    traffic = spec.workload.trace
    if not isinstance(traffic, str) and traffic.synthetic.like is not None and traffic.synthetic.prompt_tokens is None:
        counted += "\n  Requests begin with a prefill of the preset's length. `prompt_tokens: 0` leaves it out."
    lacking = [model for model in spec.models if whole and model.missing_geometry]
    return "\n".join([counted, *(f"  {model.name}: {_memory(model)}" for model in lacking)])


def summary_of_serving(serving: Serving) -> str:
    """The content of a valid file of ``archsim serve`` in two lines."""
    spec = serving.spec
    pools = spec.pools
    devices, engines = sum(pool.instances * pool.parallel.devices for pool in pools), _count(spec.instances, "engine")
    if spec.disaggregated != "none":
        before = f"{pools[0].instances} engines that prefill, " if len(pools) > 1 else ""
        engines = f"{before}{pools[-1].instances} that decode"
    given = spec.requests
    asked = (
        f"the requests of {serving.trace}"
        if serving.trace
        else (f"{given.arrivals.rate:g} requests/s" if given.arrivals else f"{given.concurrency} clients")
    )
    names = ", ".join(policy.name for policy in serving.policies)
    experts = f"experts from traffic under {names}" if serving.has_traffic else f"routing: {spec.routing}"
    serve = "serves" if engines.startswith("1 ") and len(pools) == 1 else "serve"
    return (
        f"ok, a valid deployment of {serving.model.name} on {serving.system.name}\n"
        f"  {engines} on {_count(devices, 'device')} {serve} {asked}, with scheduler {spec.scheduler.name} and "
        f"{experts}."
    )


def _memory(model: ModelSpec) -> str:
    if model.missing_geometry:
        lacking = ", ".join(model.missing_geometry)
        return f"Only its experts are counted in memory, as the file does not give {lacking}."
    kept, every = model.kept_bytes_per_token() / 1e3, model.kv_bytes_per_token() / 1e3
    parts = [
        f"{model.all_weights / 1e9:,.1f} billion parameters ({model.active_weights / 1e9:,.1f} used per token)",
        f"KV cache of {kept:,.1f} kB per token in BF16" if kept or every == kept else "",
        f"{every - kept:,.1f} kB per token of layers with a window" if every > kept else "",
        f"{model.state_bytes / 1e6:,.1f} MB of state per request" if model.state_bytes else "",
    ]
    lines = [", ".join(part for part in parts if part), *(f"approximate: {each}" for each in model.approximate)]
    return "\n  ".join(lines)


def _nodes(system: SystemSpec) -> str:
    levels = () if system.fabric is None else system.fabric.levels
    if len(levels) != 2 or levels[1].kind != "switch" or levels[0].kind != "switch":
        return ""
    nodes, size = levels[1].size, levels[0].size
    nics = f"{nodes * size} NICs, one per GPU" if levels[1].per == "gpu" else f"{nodes} shared NICs, one per node"
    return f"{_count(nodes, 'node')} of {size} GPUs, with {nodes * size} ports inside nodes and {nics}"


def _links(system: SystemSpec) -> list[str]:
    """One line per level or link class; for a list of edges, only what they have in common."""
    if system.fabric is not None:
        sizes = [f"{level.text}{f' per {level.per}' if level.per else ''}" for level in system.fabric.levels]
        links = [_link(system, level) for level in system.fabric.levels]
        return [f"  level {n}, {size}: {link}" for n, (size, link) in enumerate(zip(sizes, links, strict=True))]
    if system.topology.is_function:
        return []
    links = [_link(system, each) for each in system.topology.classes]
    if len(set(links)) == 1:
        return [f"  links: {links[0]}"]
    return [f"  {name}: {link}" for name, link in zip(system.topology.class_names, links, strict=True)]


def _link(system: SystemSpec, own: LinkSpec) -> str:
    bandwidth = system.d2d.bandwidth_bytes_per_s if own.bandwidth_bytes_per_s is None else own.bandwidth_bytes_per_s
    latency_ns = system.d2d.hop_latency_ns if own.hop_latency_ns is None else own.hop_latency_ns
    law = f", law {own.law}" if own.law else ""
    latency = quantities.format_quantity(latency_ns, quantities.TIME).replace("us", "µs")
    return f"{quantities.format_quantity(bandwidth, quantities.BANDWIDTH)}, {latency} per link{law}"


def summary_of_sweep(plan: SweepPlan) -> str:
    """The content of a valid sweep, in one line."""
    constraints = len(plan.sweep.where)
    where = f", before {_count(constraints, 'constraint')}" if constraints else ""
    axes = len(plan.sweep.axes)
    return f"ok, a sweep over {axes} {'axis' if axes == 1 else 'axes'}: {plan.combinations:,} points{where}"


def _count(number: int, noun: str) -> str:
    plural = {"batch": "batches", "policy": "policies"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


def _systems() -> str:
    rows: list[tuple[str, ...]] = [("name", "dies", "HBM", "capacity", "D2D", "NIC", "compute", "dtype", "file")]
    for name, file in config_files.named_files("systems").items():
        system = library.load_system(name)
        rows.append(
            (
                name,
                system.shape,
                quantities.format_quantity(system.hbm.bandwidth_bytes_per_s, quantities.BANDWIDTH),
                quantities.format_quantity(system.hbm.capacity_bytes, quantities.SIZE),
                quantities.format_quantity(system.d2d.bandwidth_bytes_per_s, quantities.BANDWIDTH),
                _nic(system),
                quantities.format_quantity(system.compute.peak_flop_per_s, quantities.COMPUTE),
                system.compute.dtype,
                config_files.display(file),
            )
        )
    return errors.align(rows)


def _nic(system: SystemSpec) -> str:
    if not _nodes(system) or system.fabric is None:
        return ""
    outer = system.fabric.levels[1]
    bandwidth = system.d2d.bandwidth_bytes_per_s if outer.bandwidth_bytes_per_s is None else outer.bandwidth_bytes_per_s
    return f"{quantities.format_quantity(bandwidth, quantities.BANDWIDTH)} a {'GPU' if outer.per == 'gpu' else 'node'}"


def _models() -> str:
    rows: list[tuple[str, ...]] = [("name", "MoE layers", "hidden", "expert FFN", "experts", "top-k", "shared", "file")]
    for name, file in config_files.named_files("models").items():
        model = library.load_model(name)
        layers = f"{len(model.moe_layer_ids)} of {model.layers}"
        shape = (model.hidden, model.expert_ffn, model.experts, model.top_k, model.shared_experts)
        rows.append((name, layers, *map(str, shape), config_files.display(file)))
    return errors.align(rows)


def _policies() -> str:
    presets = errors.align([("name", "meaning"), *policies.PRESET_MEANINGS.items()])
    parts = errors.align([("name", "parts"), *((name, _parts(preset)) for name, preset in policies.PRESETS.items())])
    rules = (
        "These are the rules, with their parameters and defaults. Your own function is named package.module:function."
    )
    lines = [presets, "", parts, "", rules]
    for rule_type in policies.RULE_TYPES:
        lines += ["", f"{rule_type}:"]
        for name, rule in policies.RULES[rule_type].items():
            lines.append(f"  {name}: {rule.meaning}")
            lines += [f"      {key}: {_default(parameter)}" for key, parameter in rule.parameters.items()]
    return "\n".join(lines)


def _parts(preset: Mapping[str, str]) -> str:
    """The rules of a preset: placement and allocation, and others where they do something."""
    always = "placement", "allocation"
    return ", ".join(
        f"{part} {rule}" for part, rule in preset.items() if part in always or rule != policies.NEUTRAL[part]
    )


def _default(parameter: Parameter | NamedChoice | Text) -> str:
    if isinstance(parameter, NamedChoice) and parameter.default is not None:
        return f"{parameter.default} ({' | '.join(parameter.names)}: {parameter.meaning})"
    return parameter.meaning if parameter.default is None else f"{parameter.default} ({parameter.meaning})"


def _assumptions() -> str:
    lines = [
        "These are the fields and their values, with [the named sets that use them]. Any field can be set separately:",
        "    assumptions: {set: physical, contention: reserved}",
    ]
    for field, values in assumptions.ASSUMPTIONS.items():
        lines += ["", f"{field}:"]
        for value, meaning in values.items():
            sets = [name for name, each in assumptions.shipped_sets().items() if getattr(each, field) == value]
            label = f"  {value}{' [' + ', '.join(sets) + ']' if sets else ''}: "
            lines.append(textwrap.fill(label + meaning, _WIDTH, subsequent_indent=" " * 6))
    return "\n".join(lines)


def _calibrations() -> str:
    rows: list[tuple[str, ...]] = [("name", "tables", "file")]
    for name, file in config_files.named_files("calibrations").items():
        data = with_sections(yaml.read_yaml(file), file.parent, numbers=False).data
        tables = {key: len(value) for key, value in data.items() if isinstance(value, list)}
        rows.append((name, ", ".join(f"{key} {count}" for key, count in tables.items()), config_files.display(file)))
    return errors.align(rows)


def _experiments() -> str:
    rows: list[tuple[str, ...]] = [("name", "file", "what it asks")]
    for name, file in config_files.named_files("").items():
        first, *others = textwrap.wrap(_opening(file), _OPENING_WIDTH) or [""]
        rows += [(name, config_files.display(file), first), *(("", "", line) for line in others)]
    return errors.align(rows)


def _opening(file: Path) -> str:
    """The first sentence of the comment that a file begins with, on one line."""
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    sentence = " ".join(line.lstrip("# ") for line in lines).split(". ")[0].rstrip(".")
    return " ".join(sentence.split())


def _traffic() -> str:
    rows: list[tuple[str, ...]] = [("name", "made of", "licence of what it was fitted to", "file")]
    for name, file in config_files.named_files("traffic").items():
        head = yaml.read_yaml(file).data
        recorded = "tables" in head or "subjects" in head
        basis = "a recorded trace" if recorded else "recorded loads" if "loads" in head else "statistics"
        rows.append((name, basis, head.get("licence", "not stated"), config_files.display(file)))
    return errors.align(rows)


LISTINGS = {
    "experiments": _experiments, "systems": _systems, "models": _models, "policies": _policies,
    "assumptions": _assumptions, "calibrations": _calibrations, "traffic": _traffic,
}  # fmt: skip
