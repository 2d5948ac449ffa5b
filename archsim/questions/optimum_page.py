"""The page of ``archsim why --bound``: distance of every policy from the bound, worst steps beside their relaxation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from archsim.base import files
from archsim.questions.optimum import Measured, table_of
from archsim.questions.optimum_distances import KINDS, StepDistance
from archsim.runs import columns, results
from archsim.show import maps, rendering
from archsim.show.die_map import DieMap
from archsim.show.units import TIME_UNITS, listing, percent, with_unit
from microarch.fabric.fabric import Fabric

NAMES = {"hbm": "HBM", "compute": "compute", "link": "links"}  # of resources, in sentences
CLOSE = 0.005  # share of the bound: policies this close to the nearest are named with it
NO_FASTER = 1.001  # times as fast; what is nearer to 1 reads as 1×
MOST_SHOWN = 24  # worst steps that are drawn


def write_optimum(found: list[Measured], name: str, folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write ``index.html`` and ``optimum.csv``; returns the page's path. ``notes``: on what the runs do not read."""
    files.own_folder(folder)
    table_of(found).write_csv(folder / "optimum.csv")
    files.write_text(folder / "index.html", render(found, name, notes))
    return folder / "index.html"


def render(found: list[Measured], name: str, notes: Sequence[str] = ()) -> str:
    worst = sorted(found, key=lambda each: -each.worst.distance)[:MOST_SHOWN]
    context = {
        "notes": notes, "name": name, "sentences": sentences(found), "layers": results.layer_counts(_layers(found)),
        "rows": [_row(each) for each in found], "short": list(answers(found)),
        "worst": [_picture(each) for each in worst],
    }  # fmt: skip
    return rendering.render("optimum.html.j2", context)


def sentences(found: list[Measured]) -> list[str]:
    ordered = sorted(found, key=lambda each: each.summary()[0])
    several = {"Nearest to": ordered[0], "Farthest from": ordered[-1]}
    ends = several if len(ordered) > 1 else {"Compared with": ordered[0]}
    said = []
    for which, each in ends.items():
        parts = listing(f"{percent(share, 1)} by {part}" for part, share in each.parts.items())
        said.append(
            f"{which} the bound is {each.run.policy.name} ({_place(each)}). Its layer-steps take "
            f"{percent(each.summary()[0], 1)} longer than the bound: {parts}."
        )
    return said


def _layers(found: list[Measured]) -> results.Layers:
    rows = [{"model": each.run.model.name, "layers": len(each.layer_ids)} for each in found]
    return results.layers_that_ran(rows, {each.run.model.name: len(each.run.model.moe_layer_ids) for each in found})


def _place(each: Measured) -> str:
    run = each.run
    return f"{run.model.name} on {run.system.name}, batch {run.batch:,}, under {run.assumptions.label}"


def answers(found: list[Measured]) -> Iterator[tuple[str, str]]:
    """(system, model, batch and assumptions; gain over the policy nearest to the bound, its parts, farthest policy)."""
    for place in dict.fromkeys(map(_place, found)):
        here = [each for each in found if _place(each) == place]
        means = sorted((each.summary()[0], each.run.policy.name) for each in here)
        least, most = means[0][0], means[-1]
        near = [name for mean, name in means if mean <= least + CLOSE]
        parts = next(each for each in here if each.run.policy.name == means[0][1]).parts
        largest = max(parts, key=lambda part: parts[part])
        if 1 + least < NO_FASTER:
            said = f"no allocation is faster than {' or '.join(near)}."
        else:
            far = [step.distance for each in here if each.run.policy.name == means[0][1] for step in each.steps]
            low, high = (1 + float(np.quantile(far, share)) for share in (0.05, 0.95))
            spread = f" ({low:.3g}× to {high:.3g}× in 90 % of layer-steps)" if len(far) > 1 else ""
            said = f"no allocation is more than {1 + least:.3g}× as fast as {' or '.join(near)}{spread}."
            said += f" Most of that distance is {largest}." if least > CLOSE else ""
        worst = f" Farthest from the bound is {most[1]}, {1 + most[0]:.3g}×." if most[0] > least + CLOSE else ""
        yield place, f"{said}{worst}"


def _row(each: Measured) -> dict:
    run, steps = each.run, each.steps
    by = Counter(step.bound_by for step in steps)
    plan = float(np.mean([step.plan_ns / step.bound.ns - 1 for step in steps]))
    bare = float(np.mean([step.step_ns / step.bound.ns - 1 for step in steps]))
    return {
        "system": run.system.name, "model": run.model.name, "batch": run.batch, "assumptions": run.assumptions.label,
        "policy": run.policy.name, "numbers": [(value, percent(value, 1)) for value in (*each.summary(), bare, plan)],
        "worst": each.name_of(each.worst), "steps": len(steps),
        "by": ", ".join(f"{NAMES[kind]} {percent(by[kind] / len(steps))}" for kind in KINDS if by[kind]),
    }  # fmt: skip


def _picture(each: Measured) -> dict:
    worst = each.worst
    bound, plan, step, decision = (
        with_unit(ns, TIME_UNITS) for ns in (worst.bound.ns, worst.plan_ns, worst.step_ns, worst.exposed_ns)
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
        "map": _map(each.fabric, worst),
    }


def _map(fabric: Fabric, step: StepDistance) -> DieMap:
    plans = (("the policy's plan", step.loads_ns), ("the relaxation's plan", step.bound.loads_ns))
    placed = [maps.MappedRun({"plan": name}, *_loads(fabric, loads_ns / step.bound.ns)) for name, loads_ns in plans]
    return maps.die_map("How loaded are dies and links, in percent of the bound?", placed)


def _loads(fabric: Fabric, use: np.ndarray) -> tuple[Sequence[results.Row], Sequence[results.Row]]:
    """Rows of the tables of dies and links: where each is, and how much of the bound it is used."""
    dies = fabric.dies
    x: list[int | None] = [None] * fabric.nodes
    y = x
    if fabric.node_x is not None and fabric.node_y is not None:
        x, y = fabric.node_x.tolist(), fabric.node_y.tolist()
    both_ways = len(use) - 2 * dies < fabric.links
    names = np.unique(fabric.link_edge, return_index=True)[1] if both_ways else np.arange(fabric.links)
    ends = zip(fabric.link_src[names].tolist(), fabric.link_dst[names].tolist(), use[2 * dies :].tolist(), strict=True)
    links = [
        {"src": src, "dst": dst, "src_x": x[src], "src_y": y[src], "dst_x": x[dst], "dst_y": y[dst]}
        | {"direction": maps.BOTH_WAYS if both_ways else "one way", "utilisation": part}
        for src, dst, part in ends
    ]
    return [
        dict.fromkeys(columns.DIE_COLUMNS)
        | {"die": die, "x": x[die], "y": y[die]}
        | {"hbm_utilisation": float(use[die]), "compute_utilisation": float(use[dies + die])}
        for die in range(dies)
    ], links
