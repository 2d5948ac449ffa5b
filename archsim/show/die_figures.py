"""Figures of single dies, links and steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from archsim.base import sums, tables, units
from archsim.machine.built import AsBuilt, places_of
from archsim.machine.system import SystemSpec
from archsim.runs import calibration_notes, plan
from archsim.runs.results import Row
from archsim.show import figures
from archsim.show.die_map import DieMap
from archsim.show.layout import map_width, nodes_of
from archsim.show.maps import Idle, MapMoment, MappedRun, die_map, ends_text
from archsim.show.plots import MatrixFigure, PlotAxis, Points
from archsim.show.report import Panel, Report
from archsim.show.tables import BOUNDS
from archsim.show.units import BYTE_UNITS, TIME_UNITS, factor, percent, significant, unit_of, with_unit


def maps(report: Report) -> list[DieMap]:
    found = []
    for name, system in report.systems.items():
        runs = [run for place in report.places() if place.system == name for run in _largest(report, place)]
        if not runs:
            continue
        built = plan.with_areas(system).built
        placed = []
        for run in runs:
            dies = report.dies[run["run"]].rows
            idle: list[Idle] = []
            if built is not None and len(dies) == len(built.living):
                idle = idle_sites(system, built)
            else:
                dies = tuple({**die, "site": None} for die in dies)
            chosen = {name: run[name] for name in ("assumptions", "model", "batch", "policy")}
            kept, frames = report.steps.get(run["run"]), report.frames.get(run["run"], {})
            moments = _moments(kept, len(dies), frames.get("last")) if kept is not None else []
            shown = frames if moments and len(runs) * len(moments) * len(dies) <= figures.MOST_SHOWN_IN_FRAMES else {}
            placed.append(MappedRun(chosen, dies, report.links_of(run), moments, shown))
        placed.sort(key=lambda run: not run.chosen["assumptions"].startswith(figures.FIRST))
        found.append(die_map(f"Where is {name} busy?", placed, map_width(system), nodes_of(system), idle))
    return found


def _moments(kept: tables.Table, dies: int, ends: Sequence[int] | None) -> list[MapMoment]:
    """The slowest step of every iteration, or of some together. ends: the last iteration of each moment, if known."""
    step, time_ns = kept.column("step"), kept.column("time_ns")
    if ends is None:
        iterations = np.unique(step)
        ends = [int(each[-1]) for each in np.array_split(iterations, min(len(iterations), figures.MOST_MOMENTS))]
    found, first = [], 0
    for last in ends:
        own, begin = np.flatnonzero((step >= first) & (step <= last)), first
        first = last + 1
        if not len(own):
            return []  # frames of other steps than these
        at = int(own[np.argmax(time_ns[own])])
        cell = {"layer": int(kept.column("layer")[at])} | _sentence(kept, at, dies)
        more = "".join(f"; {name} {cell[name]}" for name in ("die", "link") if name in cell)
        src, dst = (_known(kept, name, at) for name in ("link_src", "link_dst"))
        die = _known(kept, "die", at) if "die" in cell else None
        link = None if src is None or dst is None else (int(src), int(dst))
        text = f"{cell['tip']} in layer {cell['layer']}, {cell['cause']}{more}"
        found.append(MapMoment(text, None if die is None else int(die), link, begin, last))
    return found


def busiest(report: Report, assumptions: str) -> list[tuple[str, str]]:
    """(Policy, its busiest die and link in words) of the first place of an assumption set, at the largest batch."""
    place = next((each for each in report.places() if each.assumptions == assumptions), None)
    found = []
    for run in _largest(report, place) if place else ():
        hot = max(report.dies[run["run"]], key=lambda die: max(die["hbm_utilisation"], die["compute_utilisation"]))
        hbm, compute = percent(hot["hbm_utilisation"]), percent(hot["compute_utilisation"])
        words = f"die {hot['die']}: HBM {hbm}, compute {compute}"
        if links := report.links_of(run):
            link = max(links, key=lambda each: each["utilisation"])
            words += f"; link {ends_text(link)}: {percent(link['utilisation'])}"
        found.append((run["policy"], words))
    return found


def idle_sites(system: SystemSpec, built: AsBuilt) -> list[Idle]:
    """Dies of a wafer that the machine does not use."""
    places = places_of(system)
    if places is None:
        return []
    at = [(int(x), int(y)) for x, y in zip(*places, strict=True)]
    named = ((built.dead, "dead"), (built.idle, "spare"))
    return [Idle(site, *at[site], why) for sites, why in named for site in sites]


def pairs(report: Report) -> MatrixFigure | None:
    runs = [run for place in report.places() for run in _largest(report, place) if run["run"] in report.pairs]
    cells: list[dict[str, Any]] = []
    for run in runs:
        largest = {
            name: max((row[name] or 0 for row in report.pairs[run["run"]].rows), default=0) for name in figures.MOVED
        }
        rows, of_run = report.pairs[run["run"]].rows, figures.run_names(run, several=False)
        first = {name: next((at for at, row in enumerate(rows) if row[name]), len(rows)) for name in figures.MOVED}
        own = [
            of_run | {"src": row["src"], "dst": row["dst"], "share": 100.0 * row[name] / largest[name], "kind": kind}
            | {"tip": with_unit(row[name], BYTE_UNITS)}
            for name, kind in sorted(figures.MOVED.items(), key=lambda each: first[each[0]])
            for row in rows
            if row[name]
        ]  # fmt: skip
        if cells and len(cells) + len(own) > figures.MOST_CELLS:
            break
        cells += own
    if not cells:
        return None
    return MatrixFigure(
        name="pairs", question="What moved between which dies?", rows=cells, x=PlotAxis("dst", "to die"),
        y=PlotAxis("src", "from die"),
        value=PlotAxis("share", "bytes over the run, % of the largest of this kind", low=0.0, high=100.0),
        panel="kind", square=True, filters=figures.filters_of(cells, one=True, policy=True),
        tips=(("kind", "what"), ("src", "from die"), ("dst", "to die"), ("tip", "bytes"), ("policy", "policy")),
    )  # fmt: skip


def roofline(report: Report) -> Points | None:
    """Dies by phase under the roof of their system, at the largest batch."""
    marks: list[dict[str, Any]] = []
    roofs: list[dict[str, Any]] = []
    for place in report.places():
        own = [mark for run in _largest(report, place) for mark in _marks(report, run)]
        if not own:
            continue
        die = calibration_notes.die_of(report.systems[place.system])
        ridge = die.peak_flop_per_s / die.hbm_bytes_per_s
        xs = [ridge, *(mark["flop_per_byte"] for mark in own)]
        ends = min(xs) / 1.5, max(xs) * 1.5
        of_place = {name: own[0][name] for name in ("assumptions", "system", "model", "batch", "place")}
        line = f"{len(roofs)}"
        for x in (ends[0], ridge, ends[1]):
            tflop = min(x * die.hbm_bytes_per_s, die.peak_flop_per_s) / 1e12
            roofs.append(of_place | {"line": line, "flop_per_byte": x, "tflop_per_s": tflop})
        marks += own
    if not marks:
        return None
    return Points(
        name="roofline",
        question="How near do dies come to what their HBM and compute array allow?",
        rows=marks,
        curves=roofs,
        panel="place",
        x=PlotAxis("flop_per_byte", "FLOP per byte of HBM", "~s", log=True),
        y=PlotAxis("tflop_per_s", "TFLOP/s of a die", "~s", log=True),
        shape="phase",
        colours=figures.policy_colours(report.policies),
        size=28,
        filters=figures.filters_of(marks),
        zero=False,
        tips=(
            ("policy", "policy"),
            ("phase", "phase"),
            ("die", "die"),
            ("tip", "TFLOP/s"),
            ("intensity", "FLOP/byte"),
        ),
    )


def _marks(report: Report, run: Row) -> list[dict[str, Any]]:
    if not run["expert_tokens"] or not run["flop"]:
        return []
    marks = []
    for phase in ("prefill", "decode"):
        took_s = run[f"{phase}_ns"] / units.NS_PER_S
        for die in report.dies[run["run"]] if took_s else ():
            done = die[f"{phase}_tokens"] * (run["flop"] / run["expert_tokens"])
            if done and (n_bytes := die[f"{phase}_hbm_bytes"]):
                rate, per_byte = done / took_s / 1e12, done / n_bytes
                texts = {"tip": significant(rate), "intensity": significant(per_byte)}
                mark = {"phase": phase, "die": die["die"], "flop_per_byte": per_byte, "tflop_per_s": rate} | texts
                marks.append(figures.run_names(run, several=False) | mark)
    return marks


def steps(report: Report) -> MatrixFigure | None:
    """Time of every layer in every iteration at the largest batch; the slowest step of a cell gives its cause."""
    runs = [run for place in report.places() for run in _largest(report, place) if run["run"] in report.steps]
    layers = sums.sum(len(np.unique(report.steps[run["run"]].column("layer"))) for run in runs)
    cells: list[dict[str, Any]] = []
    for run in runs:
        of_run = figures.run_names(run, several=False) | {"place": run["policy"]}
        kept, most_columns = report.steps[run["run"]], max(4, figures.MOST_CELLS // layers)
        cells += [of_run | cell for cell in _cells(kept, len(report.dies[run["run"]]), most_columns)]
    if not cells:
        return None
    worth, unit = unit_of([cell["ns"] for cell in cells], TIME_UNITS)
    cells = [cell | {"time": cell["ns"] / worth} for cell in cells]
    for cell in cells:
        del cell["ns"]
    return MatrixFigure(
        name="steps",
        question="Which layer-steps are slow, and why?",
        rows=cells,
        x=PlotAxis("iteration", "iteration"),
        y=PlotAxis("layer", "layer"),
        value=PlotAxis("time", f"time of the layer-step, {unit}", low=0.0, high=max(cell["time"] for cell in cells)),
        panel="place",
        filters=figures.filters_of(cells, one=True),
        sums={"cause": tuple(BOUNDS.values()), "kind": tuple(name for _, name in figures.TRAFFIC.values())},
        tall_px=min(240, 26 + 12 * len({cell["layer"] for cell in cells})),
        tips=(
            ("policy", "policy"),
            ("iteration", "iteration"),
            ("layer", "layer"),
            ("tip", "slowest layer-step"),
            ("cause", "cause"),
            ("link", "busiest link"),
            ("die", "most loaded die"),
            ("expert", "most loaded expert"),
        ),
    )


def _cells(kept: tables.Table, dies: int, most_columns: int) -> list[dict[str, Any]]:
    """A cell a layer and iteration; of ``n`` that share one, the slowest, with ns by cause and bytes by kind of all."""
    iterations, column = np.unique(kept.column("step"), return_inverse=True)
    layers, time_ns = kept.column("layer"), kept.column("time_ns")
    shared = -(-len(iterations) // min(most_columns, 40))
    slowest: dict[tuple[int, int], int] = {}
    for at in np.argsort(time_ns, kind="stable"):
        slowest[int(layers[at]), int(column[at]) // shared] = int(at)
    number = {cell: order for order, cell in enumerate(slowest)}
    cell_of = [number[int(layer), int(at) // shared] for layer, at in zip(layers, column, strict=True)]
    counted = {"cause_sums": tuple(f"{name}_ns" for name in BOUNDS), "kind_sums": figures.STEP_TRAFFIC}
    sums_of = {
        field: np.stack([np.bincount(cell_of, np.nan_to_num(kept.column(name).astype(float))) for name in names], 1)
        for field, names in counted.items()
    }
    return [
        {"layer": layer, "iteration": int(iterations[group * shared]), "ns": float(time_ns[at])}
        | {"n": len(iterations[group * shared : (group + 1) * shared])}
        | {name: [int(float(f"{each:.4g}")) for each in of[number[layer, group]]] for name, of in sums_of.items()}
        | _sentence(kept, at, dies)
        for (layer, group), at in sorted(slowest.items())
    ]


def _known(kept: tables.Table, name: str, at: int) -> float | None:
    value = kept.column(name)[at]
    return None if np.isnan(value) else float(value)


def _sentence(kept: tables.Table, at: int, dies: int) -> dict[str, str]:
    """One step in words: its time, causes, link, die and expert, where they are known."""
    of = partial(_known, kept, at=at)
    ns = of("time_ns") or 0.0
    shares = sorted(
        ((round(100 * (of(f"{column}_ns") or 0.0) / ns) if ns else 0, name) for column, name in BOUNDS.items()),
        reverse=True,
    )
    texts = {"tip": f"iteration {of('step'):.0f}: {with_unit(ns, TIME_UNITS)}"}
    texts["cause"] = (
        ", ".join(f"{name} {share} %" for share, name in shares if share >= figures.LEAST) or "not recorded"
    )
    src, dst, tokens, most = of("link_src"), of("link_dst"), of("tokens"), of("die_tokens")
    if src is not None and dst is not None:
        texts["link"] = (
            f"{src:.0f} → {dst:.0f}, busy {100 * (of('link_busy_ns') or 0.0) / ns:.0f} %, "
            f"{with_unit(of('link_bytes') or 0.0, BYTE_UNITS)}"
        )
    if tokens and most is not None and of("die") is not None:
        texts["die"] = f"{of('die'):.0f}, {factor(most * dies / tokens)} the mean load"
        if of("expert") is not None:
            texts["expert"] = f"{of('expert'):.0f}, {100 * (of('expert_tokens') or 0.0) / tokens:.0f} % of all tokens"
    return texts


def _largest(report: Report, place: Panel) -> list[Row]:
    runs = report.at(place)
    most = max(run["batch"] for run in runs)
    return [run for run in runs if run["batch"] == most]
