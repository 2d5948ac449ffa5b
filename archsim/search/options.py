"""What is compared: sides as they are named, the limits that they share, and the requests that they serve."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base import config_files, errors, yaml
from archsim.base.verbs import caller_name
from archsim.machine.system import SystemSpec
from archsim.specs import library, references
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.file_kinds import EXPERIMENT, SERVE
from archsim.specs.policies import PRESETS

EQUALS = ("machines", "devices", "usd", "w", "mm2")
SYSTEM = "system"
# Where nothing is said: as a recommendation takes them (archsim.serving.answers.question).
PROMPT, OUTPUT = 1024.0, 512.0
_VERSION = re.compile(r"(?<=[\[,])\s*(\d+(?:\.\d+)+)\s*(?=[,\]])")  # an item that YAML may read as a number
_LISTED = re.compile(r"\[(?P<values>.*)\]\s*(?P<unit>[A-Za-z/%]*)", re.DOTALL)


class Requests(NamedTuple):
    """What is served: requests of equal length. Their prompts are computed where ``prompts``, else elsewhere."""

    prompt: float = PROMPT  # tokens
    output: float = OUTPUT  # tokens
    prompts: bool = False  # whether prompts count

    @property
    def context(self) -> int:
        """Tokens that a request holds on average while it decodes."""
        return round(self.prompt + self.output / 2)


class Side(NamedTuple):
    """A side as it was named. One of ``system`` and ``experiment`` is given, or neither for a deployment."""

    name: str  # of the machine, or of the file
    machines: int  # how many of them
    kind: str  # SYSTEM, or of `archsim.specs.file_kinds`
    source: Any  # name, path or mapping
    system: SystemSpec | None = None
    experiment: ExperimentSpec | None = None

    @property
    def label(self) -> str:
        """``8 gb200_nvl72``."""
        return f"{self.machines} {self.name}" if self.machines > 1 else self.name


def vary_of(texts: Sequence[str] | Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Key → its values, of ``KEY=[a, b]`` or ``KEY=[1, 2]TB/s``. Raises SpecError."""
    if isinstance(texts, Mapping):
        return {key: tuple(values) for key, values in texts.items()}
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, equals, given = text.partition("=")
        listed = _LISTED.fullmatch(given.strip())
        if not equals or not key.strip() or listed is None:
            raise errors.SpecError(f"--vary {text}: expected KEY=[value, value], such as d2d.bandwidth=[1,2,4]TB/s")
        given = listed["values"]
        if key.strip().endswith("version"):  # 0.10 is no number
            given = _VERSION.sub(r"'\1'", f"[{given}]")[1:-1]
        values = yaml.parse_value(f"[{given}]", f"--vary {text}")
        unit = f" {listed['unit']}" if listed["unit"] else ""
        found[key.strip()] = tuple(f"{value}{unit}" if unit else value for value in values)
        if len(values) < 2:
            raise errors.SpecError(f"--vary {text}: expected two values or more")
    return found


def side_of(given: Any, machine: bool) -> Side:
    """A side by its name: a system with an optional ``:N`` (of a GPU: so many GPUs), an experiment, a deployment or a
    report. ``machine``: a name that is both a system and an experiment is the system. Raises SpecError.
    """
    if isinstance(given, SystemSpec):
        return Side(given.name, 1, SYSTEM, given.model_dump(mode="json", by_alias=True), system=given)
    if isinstance(given, ExperimentSpec):
        return Side(given.name, 1, EXPERIMENT, given, experiment=given)
    name, count = _count_and_name(given) if isinstance(given, str) else (given, 1)
    systems = config_files.named_files("systems")
    is_named = isinstance(name, str) and not library.is_path(name) and not Path(name).exists()
    if is_named and name in config_files.named_files("") and not (machine and name in systems):
        return _of_file(name, count)
    if is_named:
        known = _system_named(str(name))
        if name == known or name == given:
            return _of_system(known, known, count)
        if machines := library.machines_of_gpu(str(name)):
            return _of_gpus(machines, count)
        raise errors.SpecError(
            f"{given}: write {known}:{count} for {count} machines of {load_system(known).dies} devices"
        )
    kind = library.kind_of_file(name)
    return _of_system(name, str(name), count) if kind == SYSTEM else _of_file(name, count)


def _count_and_name(text: str) -> tuple[str, int]:
    name, colon, number = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, 1
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise errors.SpecError(f"{text}: expected NAME:N with a number of machines, such as gb200_nvl72:8")
    return name, int(number)


def _system_named(name: str) -> str:
    """A shipped machine by its name, or by that of its GPU: the smallest machine of this GPU."""
    known = config_files.named_files("systems")
    if name in known:
        return name
    if of_gpu := library.machines_of_gpu(name):
        return of_gpu[0]
    if name in PRESETS:
        raise errors.SpecError(f"{name!r} is a policy, not an experiment. Name one in which to compare it: --in dojo")
    if name in config_files.named_files("models"):
        raise errors.SpecError(f"{name} is a model, which is no side: {caller_name('model')} {name}")
    near = [each for each in known if name.lower() in each.split("_")]
    if len(near) == 1:
        return near[0]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else errors.did_you_mean(name, known)
    raise errors.SpecError(
        f"{name}: no file, experiment or system of this name{hint} (archsim list systems names those that ship)"
    )


def _of_gpus(machines: Sequence[str], gpus: int) -> Side:
    """The smallest machine with so many GPUs, or a part of it, or several of the largest. SpecError for neither."""
    from archsim.serving.expert_groups import part_of

    name = library.smallest_machine(machines, gpus)
    system = load_system(name)
    several, rest = divmod(gpus, system.dies)
    if not rest:
        return Side(name, several, SYSTEM, name, system=system)
    if not several:
        try:
            part = part_of(system, gpus).model_copy(update={"name": f"{name}_{gpus}"})
            return Side(part.name, 1, SYSTEM, part.model_dump(mode="json", by_alias=True), system=part)
        except errors.SpecError:
            pass  # no part that its links join as they join all of it
    sizes = [load_system(each).dies for each in machines]
    size = max((each for each in sizes if each <= gpus), default=system.dies)
    least = gpus // size * size
    near = [f"{each}" for each in (least, least + size) if each]
    raise errors.SpecError(f"{gpus} GPUs are no part of {name}, nor whole machines. Give {' or '.join(near)} of them")


def _of_system(source: Any, label: str, count: int) -> Side:
    system = load_system(source)
    return Side(system.name, count, SYSTEM, source, system=system)


def load_system(source: Any, overrides: Sequence[str] = ()) -> SystemSpec:
    """A machine by name, file or mapping, with ``key=value`` of its own. Raises SpecError."""
    at = [f"systems.0.{text.removeprefix('system.')}" for text in overrides]
    return experiment_with(at, systems=[str(source) if isinstance(source, Path) else source]).systems[0]


def experiment_with(overrides: Sequence[str] = (), **parts: Any) -> ExperimentSpec:
    """A small experiment with some keys given, as if in their files. Raises SpecError."""
    tree: dict[str, Any] = {
        "name": "compared", "systems": ["dojo"], "models": ["olmoe-1b-7b"],
        "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 1}, "policies": ["ep"],
        "assumptions": "physical",
    }  # fmt: skip
    return library.load_experiment(tree | parts, overrides)


def is_system(source: str) -> bool:
    names = config_files.named_files
    alone = source in names("systems") and source not in names("")
    return alone or (references.is_path(source) and library.kind_of_file(source) == SYSTEM)


FIRST = "deepseek-v3"  # that decodes on a machine alone, where it fits
# How a machine alone runs: requests of a die, and where attention's weights are; the first way in which a model fits.
WAYS = ((64, "replicated"), (64, "sharded"), (16, "sharded"), (4, "sharded"), (1, "sharded"))


def experiment_or_machine(
    source: str, overrides: Sequence[str] = (), named: str | None = None
) -> tuple[ExperimentSpec, str]:
    """An experiment and ''; or for a system, by name or file, with overrides of the system: one that decodes on it, and
    how its model was chosen: ``named``, else FIRST, else the largest that ships and fits, in the first of WAYS in which
    one does; where none does, the smallest, with memory left out. Raises SpecError.
    """
    if not is_system(source):
        return library.load_experiment(source, overrides), ""
    system = load_system(source, [each.removeprefix("systems.0.") for each in overrides])
    free = " No dispatch or combine of its GPU was measured, so these take links alone." * _lacks_transfers(system)
    begin = f"{system.name} is a machine alone, so "
    if named:
        references.resolve("models", named, yaml.Place(f"--model {named}"), None)
    models = (named,) if named else _models_by_size()
    for model, way in _fitting(system, models):
        how = f"{way[0]} requests per die and attention {way[1]}"
        why = "" if model in (FIRST, named) else f": {FIRST} does not fit, and it is the largest that ships and does"
        return _decoding(system, [model], way), f"{begin}{model} decodes on it, with {how}{why}.{free}"
    model = models[-1]
    least = model if named else "no model that ships"
    why = f"{least} {'does not fit' if named else 'fits'} on its dies without a pipeline, so memory is left out"
    return _decoding(system, [model], capacity="unbounded"), f"{begin}{model} decodes on it: {why}.{free}"


def largest_model(systems: Sequence[SystemSpec]) -> str:
    """FIRST where it fits on each of the machines, else the largest that ships and does; FIRST where none does."""
    models = _models_by_size()
    return next((each for each in models if all(any(_fitting(system, [each])) for system in systems)), FIRST)


def _fitting(system: SystemSpec, models: Sequence[str]) -> Iterator[tuple[str, tuple[int, str]]]:
    """Models that fit on a machine, each with the way of WAYS; the first way first."""
    from archsim.runs.plan import RunMaker, plan_of
    from archsim.runs.point_measures import PartMeasures
    from archsim.specs.plan import Dropped

    measures = PartMeasures(RunMaker().contexts)
    for way in WAYS:
        for point in plan_of(_decoding(system, models, way)).points({}, Dropped()):
            if measures.fits(point):
                yield point.model.name, way


def _decoding(
    system: SystemSpec, models: Sequence[str], way: tuple[int, str] = WAYS[0], **assumed: str
) -> ExperimentSpec:
    if _lacks_transfers(system):
        assumed["transfer_software"] = "free"
    given = {
        "trace": {"synthetic": {"like": "model", "prompt_tokens": 0, "decode_steps": 1}},
        "batch": way[0] * system.dies, "context": round(PROMPT), "attention_weights": way[1],
    }  # fmt: skip
    assumptions = {"set": "physical", **assumed} if assumed else "physical"
    made = experiment_with(models=list(models), workload=given, assumptions=assumptions)
    return made.model_copy(update={"name": system.name, "systems": (system,)})


def _lacks_transfers(system: SystemSpec) -> bool:
    """Whether no dispatch and combine of a GPU was measured that this machine could take."""
    from archsim.engine.transfer_kernels import KERNELS, has_kernels

    return system.launch == "gpu" and not has_kernels(system, KERNELS["per_rank"])


@lru_cache(maxsize=1)
def _models_by_size() -> tuple[str, ...]:
    """Those that ship with traffic of their own: FIRST, then the largest."""
    traffic = config_files.named_files("traffic")
    names = [name for name in config_files.named_files("models") if name in traffic and name != FIRST]
    models = experiment_with(models=names).models
    size = {name: each.all_weights for name, each in zip(names, models, strict=True)}
    return (FIRST, *sorted(size, key=lambda name: -size[name]))


def _of_file(source: Any, count: int) -> Side:
    label = source.get("name", "a mapping") if isinstance(source, Mapping) else Path(str(source)).stem
    if library.kind_of_file(source) == SERVE:
        return Side(label, count, SERVE, source)
    return Side(label, count, EXPERIMENT, source, experiment=library.load_experiment(source))
