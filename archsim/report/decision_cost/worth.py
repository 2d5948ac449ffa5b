"""What prediction costs in area and power, beside what it is worth in time: a policy that predicts, and the one that
differs from it in that alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from archsim.report.data import Place, Report
from archsim.report.decision_cost.deciders import NEED_NO_ALLOCATOR, Family, words
from archsim.report.units import BYTE_UNITS, percent, scaled, significant
from archsim.specs.machine.system import SystemSpec
from microarch.silicon.area_power import WAFER_MM2
from microarch.silicon.decision_area import added_cost

THROUGHPUT = "throughput_tokens_per_s"
PPM = 1e6


def rows(report: Report, family: Family) -> Iterator[dict[str, Any]]:
    """Every run of a policy that predicts, on every system of the family, beside that of its counterpart."""
    pairs = list(_pairs(report.experiment["policies"]))
    for name, system in family.systems.items():
        for label in report.compared():
            for model in report.models:
                for run in report.at(Place(label, name, model)):
                    for policy, plain in pairs:
                        other = report.find(replace(run.place, system=name), run.batch, plain["name"])
                        if run.policy == policy["name"] and other is not None and other.get(THROUGHPUT):
                            yield _row(run, other, system, policy)


def _pairs(policies: list[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(a policy that predicts, the same without)."""
    for policy in policies:
        for other in policies:
            alike = all(policy[part] == other[part] for part in policy if part not in ("name", "prediction"))
            if alike and policy["prediction"]["name"] != "none" == other["prediction"]["name"]:
                yield policy, other


def _row(run, other, system: SystemSpec, policy: Mapping[str, Any]) -> dict[str, Any]:
    allocates = policy["allocation"]["name"] not in NEED_NO_ALLOCATOR
    added = added_cost(system, allocates, predicts=True).minus(added_cost(system, allocates, predicts=False))
    copied, gain = run["local_hbm_write_bytes"], run[THROUGHPUT] / other[THROUGHPUT]
    return {
        "run": run, "against": other.policy, "who": words(system.decision),
        "mm2": f"{significant(added.area_mm2, 2)} mm²",
        "ppm": f"{significant(added.area_mm2 / WAFER_MM2 * PPM, 2)} ppm",
        "mw": f"{significant(added.power_mw, 2)} mW",
        "copies": scaled(copied, BYTE_UNITS) if copied else "none",
        "throughput": percent(gain, 1), "gains": gain > 1.0,
    }
