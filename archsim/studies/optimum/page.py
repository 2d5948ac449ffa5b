"""The page of ``archsim optimum``: distance of every policy from the bound.

Worst steps beside the relaxation's plan.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archsim.base.files import own_folder, write_text
from archsim.base.tables import INTEGER, REAL, TEXT, Table
from archsim.report import layers
from archsim.report.data import Die, Link
from archsim.report.draw.fabric_map import colour_bar, fabric_map, scale_css
from archsim.report.rendering import rendered
from archsim.report.units import TIME_UNITS, percent, scaled
from archsim.runs.results import layers_that_ran
from archsim.studies.optimum.distances import KINDS, StepDistance
from microarch.fabric.fabric import Fabric

NAMES = {"hbm": "HBM", "compute": "compute", "link": "links"}  # of resources, in sentences
CLOSE = 0.005  # share of the bound: policies this close to the nearest are named with it
MOST_SHOWN = 24  # worst steps that are drawn
COLUMNS = {
    **dict.fromkeys(("system", "model"), TEXT),
    "batch": INTEGER,
    "assumptions": TEXT,
    "policy": TEXT,
    "iteration": INTEGER,
    "layer": INTEGER,
    **dict.fromkeys(("bound_ns", "plan_ns", "step_ns", "exposed_ns", "distance"), REAL),
    **dict.fromkeys(("allocation", "waiting", "decision"), REAL),
    **dict.fromkeys(("bound_by", "plan_by"), TEXT),
}


@dataclass(frozen=True)
class Measured:
    """The bounded steps of one run.

    ``run``: ``archsim.runs.run.Run``; ``layer_ids``: the model's numbering of its MoE layers.
    """

    run: object
    layer_ids: np.ndarray
    fabric: Fabric
    steps: tuple[StepDistance, ...]

    def summary(self) -> tuple[float, float, float]:
        """Distance from the bound: mean, 95th percentile and worst step."""
        far = [each.distance for each in self.steps]
        return float(np.mean(far)), float(np.percentile(far, 95)), float(max(far))

    @property
    def parts(self) -> dict[str, float]:
        """Mean of what the distance is made of, see ``StepDistance.parts``."""
        every = [each.parts for each in self.steps]
        return {name: float(np.mean([parts[name] for parts in every])) for name in every[0]}

    @property
    def worst(self) -> StepDistance:
        return max(self.steps, key=lambda each: each.distance)

    def name_of(self, step: StepDistance) -> str:
        return f"iteration {step.step}, layer {int(self.layer_ids[step.layer])}"


def write_optimum(found: list[Measured], name: str, folder: Path) -> Path:
    """Write ``index.html`` and ``optimum.csv``; returns the path of the page. Equal results give equal bytes."""
    own_folder(folder)
    table_of(found).write_csv(folder / "optimum.csv")
    write_text(folder / "index.html", render(found, name))
    return folder / "index.html"


def table_of(found: list[Measured]) -> Table:
    """One row per bounded step; ``distance``: step plus decision above the bound, 0.1 is 10 %."""
    rows = []
    for each in found:
        run = each.run
        for step in each.steps:
            values = (
                run.system.name, run.model.name, run.batch, run.assumptions.label, run.policy.name, step.step,
                int(each.layer_ids[step.layer]), step.bound.ns, step.plan_ns, float(step.step_ns),
                float(step.exposed_ns), float(step.distance), *step.parts.values(), step.bound_by, step.plan_by,
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return Table(COLUMNS, tuple(rows))


def render(found: list[Measured], name: str) -> str:
    worst = sorted(found, key=lambda each: -each.worst.distance)[:MOST_SHOWN]
    context = {
        "name": name, "sentences": sentences(found), "layers": layers.told(_layers(found)),
        "rows": [_row(each) for each in found], "short": list(_short(found)),
        "worst": [_picture(each) for each in worst], "colour_bar": colour_bar(), "light": scale_css(dark=False),
        "dark": scale_css(dark=True),
    }
    return rendered("optimum.html.j2", context)


def sentences(found: list[Measured]) -> list[str]:
    """The runs nearest to and farthest from the bound, and what their distances are made of."""
    ordered = sorted(found, key=lambda each: each.summary()[0])
    ends = (
        {"Nearest to": ordered[0], "Farthest from": ordered[-1]} if len(ordered) > 1 else {"Distance from": ordered[0]}
    )
    said = []
    for name, each in ends.items():
        parts = ", ".join(f"{part} {percent(share, 1)}" for part, share in each.parts.items())
        where = f"{name} the bound: {each.run.policy.name}, {_place(each)}"
        said.append(f"{where}: {percent(each.summary()[0], 1)} above it, of which {parts}.")
    return said


def _layers(found: list[Measured]) -> layers.Parts:
    rows = [{"model": each.run.model.name, "layers": len(each.layer_ids)} for each in found]
    return layers_that_ran(rows, {each.run.model.name: len(each.run.model.moe_layer_ids) for each in found})


def _place(each: Measured) -> str:
    run = each.run
    return f"{run.model.name} on {run.system.name}, batch {run.batch:,}, under {run.assumptions.label}"


def _short(found: list[Measured]) -> Iterator[tuple[str, str]]:
    """(system, model, batch and assumptions; the policies nearest to and farthest from the bound, by their mean)."""
    for place in dict.fromkeys(map(_place, found)):
        means = sorted((each.summary()[0], each.run.policy.name) for each in found if _place(each) == place)
        least, most = means[0][0], means[-1]
        near = [name for mean, name in means if mean <= least + CLOSE]
        far = f"; farthest {most[1]}, {percent(most[0], 1)}" if most[0] > least + CLOSE else ""
        yield place, f"nearest {', '.join(near)}, {percent(least, 1)} above the bound on average{far}."


def _row(each: Measured) -> dict:
    run, steps = each.run, each.steps
    by = Counter(step.bound_by for step in steps)
    plan = float(np.mean([step.plan_ns / step.bound.ns - 1 for step in steps]))
    bare = float(np.mean([step.step_ns / step.bound.ns - 1 for step in steps]))
    return {
        "system": run.system.name, "model": run.model.name, "batch": run.batch, "assumptions": run.assumptions.label,
        "policy": run.policy.name,
        "numbers": [(value, percent(value, 1)) for value in (*each.summary(), bare, plan)],
        "worst": each.name_of(each.worst), "steps": len(steps),
        "by": ", ".join(f"{NAMES[kind]} {percent(by[kind] / len(steps))}" for kind in KINDS if by[kind]),
    }


def _picture(each: Measured) -> dict:
    worst = each.worst
    bound, plan, step, decision = (
        scaled(ns, TIME_UNITS) for ns in (worst.bound.ns, worst.plan_ns, worst.step_ns, worst.exposed_ns)
    )
    return {
        "heading": (
            f"{_place(each)}, {each.run.policy.name}: {each.name_of(worst)}, {percent(worst.distance, 1)} above the "
            f"bound"
        ),
        "times": (
            f"Bound {bound} (by {NAMES[worst.bound_by]}); fullest resource of the plan {plan} "
            f"({NAMES[worst.plan_by]}); step {step}; decision exposed {decision}."
        ),
        "maps": [
            ("the policy's plan", _map(each.fabric, worst, worst.loads_ns)),
            ("the relaxation's plan", _map(each.fabric, worst, worst.bound.loads_ns)),
        ],
    }


def _map(fabric: Fabric, step: StepDistance, loads_ns: np.ndarray) -> str:
    """Loads as shares of the bound."""
    use, dies = loads_ns / step.bound.ns, fabric.dies
    at = (
        [None] * fabric.nodes
        if fabric.node_x is None
        else list(zip(fabric.node_x.tolist(), fabric.node_y.tolist(), strict=True))
    )
    both_ways = len(use) - 2 * dies < fabric.links
    names = np.unique(fabric.link_edge, return_index=True)[1] if both_ways else np.arange(fabric.links)
    links = tuple(
        Link(src, dst, at[src], at[dst], both_ways, float(part))
        for src, dst, part in zip(
            fabric.link_src[names].tolist(), fabric.link_dst[names].tolist(), use[2 * dies :], strict=True
        )
    )
    return fabric_map(
        tuple(
            Die(die, *(at[die] or (None, None)), float(use[die]), float(use[dies + die]), 0.0) for die in range(dies)
        ),
        links,
        "Load of every die's HBM and compute array and of every link, in % of the bound",
    )
