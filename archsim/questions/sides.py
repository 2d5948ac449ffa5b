"""What the two names of a comparison mean: experiments, or policies and systems of one experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from archsim.base import errors
from archsim.base.config_files import named_files
from archsim.runs import choice
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import Source, load_experiment, load_system
from archsim.specs.policies import PRESETS


def load_side(source: Source | ExperimentSpec, overrides: Sequence[str]) -> ExperimentSpec:
    """The experiment. Raises SpecError."""
    return source if isinstance(source, ExperimentSpec) else load_experiment(source, overrides)


def name_of(source: Source | ExperimentSpec) -> str:
    """What a page calls a side."""
    if isinstance(source, ExperimentSpec):
        return source.name
    return str(source.get("name", "a mapping")) if isinstance(source, Mapping) else str(source)


def side_of(
    name: Source | ExperimentSpec, inside: ExperimentSpec | None, overrides: Sequence[str], chosen: Mapping[str, Any]
) -> ExperimentSpec:
    """The one combination that ``name`` means: a policy or system of the experiment ``inside``, or an experiment.
    ``chosen``: arguments of `choose`. Raises ArchsimError for neither, and as loading files.
    """
    if inside is None:
        _refuse_parts(name)
        return choice.choose(load_side(name, overrides), **chosen)
    if not isinstance(name, str):
        raise errors.ArchsimError(f"{name!r}: inside an experiment, give the name of one of its policies, or a system")
    policies, systems = ([each.name for each in parts] for parts in (inside.policies, inside.systems))
    if name in policies:
        return choice.choose(inside, **{**chosen, "policy": name})
    if name in systems:
        return choice.choose(inside, **{**chosen, "system": name})
    if name in named_files("systems") or name.endswith((".yaml", ".yml")):
        alone = inside.model_copy(update={"systems": (load_system(name),)})
        return choice.choose(alone, **{**chosen, "system": None})
    hint = "" if name in PRESETS else errors.did_you_mean(name, [*policies, *systems, *named_files("systems")])
    raise errors.ArchsimError(
        f"{name!r} is neither a policy of {inside.name} (it has {', '.join(policies)}; --set policies=[…] changes "
        f"that) nor a system (archsim list systems){hint}"
    )


def _refuse_parts(name: Source | ExperimentSpec) -> None:
    if not isinstance(name, str) or name in named_files(""):
        return
    kind = "policy" if name in PRESETS else "system" if name in named_files("systems") else None
    if kind:
        raise errors.SpecError(f"{name!r} is a {kind}, not an experiment. Name one in which to compare it: --in dojo")
