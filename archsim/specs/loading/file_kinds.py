"""What kind of file a mapping is, told by its keys; and where each kind belongs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from archsim.base.errors import SpecError
from archsim.specs.assumptions import NamedSet
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.sweeps.axes import SWEEP_KEY
from archsim.specs.sweeps.explore import EXPLORE_KEY
from archsim.specs.text.fields import Spec
from archsim.specs.text.validation import keys_of
from calibration.laws.tables import CalibrationSpec

EXPERIMENT, TRAFFIC = "experiment", "traffic preset"
# Kind → its class; files of traffic have none here, as archsim.workload reads them.
SPECS: MappingProxyType[str, type[Spec]] = MappingProxyType(
    {EXPERIMENT: ExperimentSpec, "system": SystemSpec, "model": ModelSpec, "assumption set": NamedSet, "calibration": CalibrationSpec}
)
EXPERIMENT_KEYS = (*keys_of(ExperimentSpec), SWEEP_KEY, EXPLORE_KEY)
# Keys that every file of configs/traffic has, and those of the two sorts of it.
_TRAFFIC_KEYS = ("name", "source", "groups", "top_groups", "tables", "tasks", "kinds", "kind_spread", "taste_size", "weights", "prompt_tokens")
_KEYS = MappingProxyType({name: keys_of(kind) for name, kind in SPECS.items()} | {EXPERIMENT: EXPERIMENT_KEYS, TRAFFIC: _TRAFFIC_KEYS})
_BELONGS = MappingProxyType(
    {
        "system": "an experiment names it under `systems:`",
        "model": "an experiment names it under `models:`",
        "assumption set": "an experiment names it under `assumptions:`",
        "calibration": "a system names it under `compute.calibration`",
        TRAFFIC: "an experiment names it as `workload: {trace: {synthetic: {like: NAME}}}`",
    }
)


def kind_of(data: Mapping[str, Any]) -> str:
    """The kind that has most of the keys; of several, an experiment."""
    return max(_KEYS, key=lambda kind: len(set(data) & set(_KEYS[kind])))


def refuse_other_kinds(path: object, data: Mapping[str, Any]) -> None:
    """Raises SpecError if a file is no experiment but one of the other kinds."""
    kind = kind_of(data)
    if kind != EXPERIMENT:
        article = "an" if kind[0] in "aeiou" else "a"
        raise SpecError(f"{path}: this is {article} {kind}; {_BELONGS[kind]}")
