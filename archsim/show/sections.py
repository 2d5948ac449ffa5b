"""First sentences of a page and sections that are not figures: balancers, slow policies, copies, errors, sureness."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archsim.iteration.memory import memory_fit
from archsim.policies.placement import Placement, even_placement
from archsim.runs.engine_comparison import OUTSIDE, Compared, errors, outside, read_comparison
from archsim.runs.results import Row
from archsim.show.report import Panel, Report
from archsim.show.sample_figures import option_times
from archsim.show.units import percent, signed_percent

# What prediction did with copies of experts: bytes written, saved and evicted by every run; and runs whose copies
# exceed HBM capacity, under assumptions that do not bound them.


def copy_runs(report: Report) -> list[Row]:
    """The runs that wrote or held copies, in the order of places, batches and policies."""
    return [run for run in report.shown() if run["local_hbm_write_bytes"] or run["replicas_max_bytes_per_die"]]


@dataclass(frozen=True)
class Excess:
    """Runs of a place whose copies exceed capacity: the most bytes that a die stores, and the room beside its homes."""

    place: Panel
    policies: tuple[str, ...]
    most_bytes: float
    room_bytes: int


def beyond_memory(report: Report) -> Iterator[Excess]:
    """Every place with such runs where ``capacity`` is unbounded; elsewhere the engine enforces the bound."""
    for place in report.places():
        if report.assumptions[place.assumptions].capacity != "unbounded":
            continue
        room = _room_bytes(report, place)
        beyond = [run for run in report.at(place) if run["replicas_max_bytes_per_die"] > room]
        if beyond:
            policies = tuple(dict.fromkeys(run["policy"] for run in beyond))
            yield Excess(place, policies, max(run["replicas_max_bytes_per_die"] for run in beyond), room)


def _room_bytes(report: Report, place: Panel) -> int:
    """Room of a die with the fewest homes, experts spread evenly; 0 if the homes alone exceed capacity."""
    system, model = report.systems[place.system], report.models[place.model]
    placement = Placement.of_homes(even_placement(model.experts, system.dies), len(model.moe_layer_ids), system.dies)
    return max(0, int(memory_fit(system, model, report.assumptions[place.assumptions], placement).room_bytes.max()))


# The page section on the error of the analytical engine: the sample of an analytical sweep that the event engine
# repeated.


def engines_section(folder: Path) -> dict[str, Any] | None:
    kept = read_comparison(folder)
    if kept is None:
        return None
    compared, about = kept
    return {
        "runs": len(compared),
        **about,
        "limit": percent(OUTSIDE),
        "names": ERROR_NAMES,
        "sets": error_rows(compared),
        "outside": [(each.run, signed_percent(each.error), each.reason) for each in outside(compared)],
    }


ERROR_NAMES = ("runs", "median", "p95", "largest", "signed median", "rank correlation")


def error_rows(compared: Sequence[Compared]) -> list[list[str]]:
    """Assumption set and `ERROR_NAMES`, as text."""
    return [
        [
            row.group, str(row.cases), f"{row.median:.1%}", f"{row.p95:.1%}", f"{row.worst:.1%}",
            signed_percent(row.bias), "–" if row.rank != row.rank else f"{row.rank:.3f}",
        ]
        for row in errors(compared).itertuples()
    ]  # fmt: skip


# What `archsim sure`, or ``--samples``, left beside the results.


def sure_section(folder: Path) -> list[dict[str, Any]]:
    """For each place its name, its sentence, a picture and what to measure. Empty without samples."""
    file = folder / "sure.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    places = []
    for place in found["places"]:
        name = ", ".join(str(value) for value in place["of"].values())
        options = [
            (
                str(each.get("policy", each.get("option"))),
                (each["decode_ns_p05"], each["decode_ns_p50"], each["decode_ns_p95"]),
            )
            for each in place["options"]
        ]  # fmt: skip
        advice = place.get("advice") or [each["told"] for each in place["measure"]]
        places.append({"name": name, "told": place["told"], "chart": option_times(name, options), "measure": advice})
    return places
