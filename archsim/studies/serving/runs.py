"""One run of a plan of ``archsim serve``: a deployment with its requests under one policy; its key, code and row."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, get_type_hints

from archsim.base.code_digest import DECIDING, digest_here
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.base.text.fields import Spec
from archsim.runs.run import KEY_DIGITS, code_of
from archsim.serving.measures import NO_NUMBER, PERCENTILES, Measures, Spread, number
from archsim.serving.serving import Deployment
from archsim.specs.loading.calibrations import calibration_digest
from archsim.specs.loading.config_files import search_folders
from archsim.specs.loading.serving import Serving
from archsim.specs.policies import RULE_TYPES
from archsim.specs.schedulers import is_function
from archsim.specs.serving import RoutingSpec
from archsim.workload import open_trace
from archsim.workload.generated.traffic_presets import preset_digest

# Of a file: what no run depends on, and what its parts and digests say without names and paths.
_BESIDE = {"search", "loads", "policies", "sweep", "system", "model", "assumptions"}
_OFFERED = ("requests.arrivals.rate", "requests.concurrency")  # axes that ``offered`` shows
_SERVING = (*DECIDING, "archsim/serving")
_HINTS = get_type_hints(Measures)
_KINDS = {int: INTEGER, float: REAL, str: TEXT}
SPREAD = ("mean", "std", *(f"p{each}" for each in PERCENTILES))


def _columns() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, kind in _HINTS.items():
        found |= {f"{name}_{each}_ms": REAL for each in SPREAD} if kind is Spread else {name: _KINDS[kind]}
    return found


MEASURES: Mapping[str, str] = _columns()
_OF_DEPLOYMENT = {"policy": TEXT, "offered": REAL, "devices": INTEGER, "kv_blocks": INTEGER}
COLUMNS: Mapping[str, str] = _OF_DEPLOYMENT | dict(MEASURES) | {"refused": TEXT}


@dataclass(frozen=True, eq=False)
class ServeRun:
    """``cells``: of its axes; ``point``: number among those of the plan; ``offered``: requests a second, or clients.

    ``whole``: all of its outcome is kept, not its measures alone.
    """

    serving: Serving
    cells: Mapping[str, Any]
    point: int
    offered: float
    whole: bool = False

    @cached_property
    def key(self) -> str:
        """12 hex digits: a digest of all that is served, on what and how."""
        serving = self.serving
        parts = [_text(each) for each in (serving.system, serving.model, serving.policy, serving.assumptions)]
        spec = serving.spec.model_dump(mode="json", by_alias=True, exclude=_BESIDE)
        for part in (spec["requests"], spec["routing"]):
            if isinstance(part, dict):
                part.pop("trace", None)
        files = [calibration_digest(serving.system.compute.calibration), _routing(serving), _trace(serving)]
        return hashlib.sha256(json.dumps([spec, *parts, *files], sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]

    @cached_property
    def code(self) -> str:
        """Digest of the code and the host constants that decide its numbers."""
        return hashlib.sha256(f"{_digest()} {code_of(self.functions)}".encode()).hexdigest()[:KEY_DIGITS]

    @property
    def own_code(self) -> bool:
        """Whether the shared cache of rows cannot serve it: functions of the user's take part, or more is kept."""
        return self.whole or bool(self.functions)

    @property
    def functions(self) -> tuple[str, ...]:
        scheduler, policy = self.serving.spec.scheduler.name, self.serving.policy
        rules = [rule.name for each in RULE_TYPES if (rule := getattr(policy, each)).is_function]
        return (*rules, *([scheduler] if is_function(scheduler) else []))

    @property
    def name(self) -> str:
        """``point 3: ep, 4 requests/s, scheduler.name sglang``."""
        what = "clients" if self.serving.spec.requests.concurrency else "requests/s"
        cells = [f"{path} {value}" for path, value in self.cells.items() if path not in _OFFERED]
        return ", ".join([self.serving.policy.name, f"{self.offered:g} {what}", *cells])

    def summary(self, row: Mapping[str, Any]) -> str:
        """Its result, for a line."""
        if row["refused"]:
            return f"refused: {row['refused']}"
        ttft, tpot = (_number(row[f"{name}_mean_ms"]) for name in ("ttft", "tpot"))
        return (
            f"goodput {row['goodput_per_s']:.3f} of {row['requests_per_s']:.3f} requests/s, "
            f"TTFT {number(ttft, ',.0f')} ms, TPOT {number(tpot, '.1f')} ms"
        )

    def row(self, measures: Measures | None, deployment: Deployment | None, refused: str = "") -> dict[str, Any]:
        """COLUMNS of it."""
        found: dict[str, Any] = {"policy": self.serving.policy.name, "offered": self.offered}
        found["devices"] = deployment.devices if deployment else None
        found["kv_blocks"] = deployment.prefill.pool.kv_blocks if deployment else None  # of a rank
        return found | flat(measures) | {"refused": refused}


def flat(measures: Measures | None) -> dict[str, Any]:
    """MEASURES of a run; empty where it was refused."""
    if measures is None:
        return dict.fromkeys(MEASURES)
    found: dict[str, Any] = {}
    for name, value in measures._asdict().items():
        if isinstance(value, Spread):
            each = (value.mean, value.std, *value.percentiles)
            found |= {f"{name}_{part}_ms": _known(ms) for part, ms in zip(SPREAD, each, strict=True)}
        else:
            found[name] = _known(value) if isinstance(value, float) else value
    return found


def _known(value: float) -> float | None:
    return None if value != value else value


def measures_of(row: Mapping[str, Any]) -> Measures:
    """The measures of a row that was not refused."""
    found = {
        name: Spread(*(_number(row[f"{name}_{each}_ms"]) for each in SPREAD[:2]),
                     tuple(_number(row[f"{name}_p{p}_ms"]) for p in PERCENTILES))
        if kind is Spread
        else _number(row[name])
        for name, kind in _HINTS.items()
    }
    return Measures(**found)


def _number(value: Any) -> Any:
    return NO_NUMBER if value is None else value


@lru_cache(maxsize=1)
def _digest() -> str:
    hosts = [folder / "hosts.yaml" for folder in search_folders("serving", None)]
    return digest_here(_SERVING) + "".join(each.read_text() for each in hosts if each.is_file())


def _text(spec: Spec) -> str:
    return spec.model_dump_json(by_alias=True)


def _routing(serving: Serving) -> str:
    if not isinstance(serving.spec.routing, RoutingSpec):
        return ""
    if serving.routed is not None:
        return open_trace(str(serving.routed), serving.model).digest
    like = serving.spec.routing.generated.preset_of(serving.model.name)
    return preset_digest(like) if like else ""


def _trace(serving: Serving) -> str:
    return hashlib.sha256(serving.trace.read_bytes()).hexdigest() if serving.trace else ""
