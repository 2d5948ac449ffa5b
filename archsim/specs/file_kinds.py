"""Recognises the kind of a file by its keys, and says where each kind belongs."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from archsim.base import errors, fields, validation
from archsim.laws.tables import CalibrationSpec
from archsim.machine.fabric_calibrations import FabricFile
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.assumptions import NamedSet
from archsim.specs.axes import SWEEP_KEY
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.explore import EXPLORE_KEY
from archsim.specs.papers import PaperSpec
from archsim.specs.uncertainty import UncertaintySpec

EXPERIMENT, TRAFFIC, SERVE = "experiment", "traffic preset", "deployment"
# Kind → class; traffic files have none here, as archsim.traffic reads them, nor deployments, which name others.
SPECS: MappingProxyType[str, type[fields.Spec]] = MappingProxyType(
    {
        EXPERIMENT: ExperimentSpec,
        "system": SystemSpec,
        "model": ModelSpec,
        "assumption set": NamedSet,
        "calibration": CalibrationSpec,
        "calibration of a fabric": FabricFile,
        "paper": PaperSpec,
        "file of widths": UncertaintySpec,
    }
)
EXPERIMENT_KEYS = (*validation.keys_of(ExperimentSpec), SWEEP_KEY, EXPLORE_KEY)
# Keys common to all files of configs/traffic, and keys of its three variants.
_TRAFFIC_KEYS = (
    "name",
    "source",
    "groups",
    "top_groups",
    "tables",
    "tasks",
    "kinds",
    "kind_spread",
    "taste_size",
    "weights",
    "prompt_tokens",
    "subjects",
    "spread",
    "published",
    "settled_after",
)
_BELONGS = MappingProxyType(
    {
        EXPERIMENT: "`archsim sweep` takes it",
        SERVE: "`archsim serve` takes it",
        "system": "an experiment names it under `systems:`",
        "model": "an experiment names it under `models:`",
        "assumption set": "an experiment names it under `assumptions:`",
        "paper": "`archsim compare --papers` takes it",
        "file of widths": "`archsim sure` takes it, as configs/uncertainty/widths.yaml",
        "calibration": "a system names it under `compute.calibration`",
        "calibration of a fabric": "`archsim calibrate --validate --mesh --with` and `archsim run --law` take it",
        TRAFFIC: "an experiment names it as `workload: {trace: {synthetic: {like: NAME}}}`",
    }
)


def kind_of(data: Mapping[str, Any]) -> str:
    """The kind that shares most keys with ``data``; in a tie, an experiment."""
    if set(data) <= set(EXPERIMENT_KEYS):
        return EXPERIMENT
    known = _keys_of_kinds()
    return max(known, key=lambda kind: len(set(data) & set(known[kind])))


def guess_note(label: object, data: Mapping[str, Any]) -> str:
    """As which kind a file with keys of several kinds is read, to follow what is wrong with it; '' for others."""
    kind, known = kind_of(data), _keys_of_kinds()
    shared = {name: [key for key in data if key in keys] for name, keys in known.items()}
    if set().union(*shared.values()) <= set(shared[kind]):
        return ""
    as_much = [name for name, keys in shared.items() if len(keys) == len(shared[kind]) and name != kind]
    tie = f" (as many as with {_a(as_much[0])})" if as_much else ""
    keys = ", ".join(shared[kind])
    return f"\n{label}: it is read as {_a(kind)}, with which it shares the keys {keys}{tie}; {_BELONGS[kind]}"


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _keys_of_kinds() -> dict[str, Sequence[str]]:
    from archsim.specs.serving import ServeSpec

    known: dict[str, Sequence[str]] = {name: validation.keys_of(kind) for name, kind in SPECS.items()}
    known["system"] = (*known["system"], "like")
    return known | {EXPERIMENT: EXPERIMENT_KEYS, TRAFFIC: _TRAFFIC_KEYS, SERVE: validation.keys_of(ServeSpec)}


def refuse_other_kinds(path: object, data: Mapping[str, Any], expected: str = EXPERIMENT) -> None:
    """Raise SpecError if a file is not of the ``expected`` kind but of another."""
    kind = kind_of(data)
    if kind != expected and (kind != EXPERIMENT or len(set(data) & set(EXPERIMENT_KEYS)) > 2):
        raise errors.SpecError(f"{path}: this is {_a(kind)}; {_BELONGS[kind]}")
