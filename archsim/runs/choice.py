"""One combination of an experiment, by the names of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from archsim.base.errors import ArchsimError, did_you_mean
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.policies import PRESETS

_KEYS = {"system": "systems", "model": "models", "policy": "policies", "batch size": "workload.batch",
         "assumption set": "assumptions"}  # fmt: skip


def choose(
    experiment: ExperimentSpec,
    *,
    system: str | None = None,
    model: str | None = None,
    policy: str | None = None,
    batch: int | None = None,
    assumptions: str | None = None,
    **unknown: object,
) -> ExperimentSpec:
    """The experiment with one entry of each list: the named one, else the first. Raises ArchsimError for an unknown
    name, TypeError for an unknown keyword, which callers pass on from users.
    """
    for name in unknown:
        known = ("system", "model", "policy", "batch", "assumptions")
        raise TypeError(f"unexpected keyword {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})")
    workload = experiment.workload
    one_batch = _one("batch size", workload.batch, batch, lambda each: each)
    return experiment.model_copy(
        update={
            "systems": (_one("system", experiment.systems, system),),
            "models": (_one("model", experiment.models, model),),
            "policies": (_one("policy", experiment.policies, policy),),
            "assumptions": (_one("assumption set", experiment.assumptions, assumptions, lambda each: each.label),),
            "workload": workload.model_copy(update={"batch": (one_batch,)}),
        }
    )


def _one(kind: str, items: Sequence, wanted, name_of: Callable = attrgetter("name")):
    if wanted is None:
        return items[0]
    names = [name_of(item) for item in items]
    if wanted not in names:
        hint = "" if isinstance(wanted, int) or wanted in PRESETS else did_you_mean(wanted, names)
        raise ArchsimError(
            f"{kind} {wanted!r} is not in the experiment{hint} (it has: {', '.join(map(str, names))}; "
            f"--set {_KEYS[kind]}=[…] changes that)"
        )
    return items[names.index(wanted)]
