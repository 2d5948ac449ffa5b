"""The report page: one self-contained HTML file, built from the files of a report folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from archsim.base.files import write_text
from archsim.machine import fabric
from archsim.machine.system import SystemSpec
from archsim.runs import calibration_notes, notes, results, traffic_notes
from archsim.show import answers, balancers, decision_cost, die_figures, figures, sections, slower, tables
from archsim.show.deciders import deciders
from archsim.show.glossary import FILE, anchor, glossary_sections, link_words
from archsim.show.rendering import render
from archsim.show.report import Report
from archsim.show.sections import beyond_memory, copy_runs
from archsim.show.units import BYTE_UNITS, TIME_UNITS, factor, plain_factor, with_unit
from archsim.specs import policies, unread

PAGES = ("index.html", "results.html", "assumptions.html", "files.html", FILE)  # beside the results


def write_report(folder: Path) -> Path:
    """Write the pages of a report's folder atomically; returns ``index.html``. Raises as `Report`."""
    folder = Path(folder)
    for name, text in render_all(Report(folder)).items():
        write_text(folder / name, text)
    return folder / PAGES[0]


def render_all(report: Report) -> dict[str, str]:
    """File → page: the answers, then all results, the assumptions, files and machines, and the glossary."""
    filters: dict[str, Callable[..., Any]] = {
        "written": _written, "factor": factor, "plain_factor": plain_factor, "shape": shape_of,
        "bytes": lambda value: with_unit(value, BYTE_UNITS), "time": lambda value: with_unit(value, TIME_UNITS),
        "anchor": anchor, "given": lambda spec, key: spec.model_dump(mode="json", by_alias=True)[key],
    }  # fmt: skip
    context = _context(report)
    templates = {name: "page.html.j2" if name == PAGES[0] else f"{name}.j2" for name in PAGES}
    return {
        name: render(template, context, filters, finish=str if name == FILE else link_words)
        for name, template in templates.items()
    }


def _context(report: Report) -> dict[str, Any]:
    headers, rows = tables.results(report)
    runs, layers = report.shown(), report.layers()
    drawn = {name: figures.of_runs(name, runs) for name in figures.OF_RUNS}
    pictures = [
        each for name in ("iteration", "gain", "speedup", "throughput", "energy") if (each := drawn[name]) is not None
    ]
    systems = report.systems.values()
    return {
        "report": report,
        "layers": results.layer_counts(layers),
        "parts": results.in_part(layers),
        "planned": report.experiment.runs,
        "overview": tables.overview(report),
        "notes": notes.result_notes(
            report.runs, [(system.name, calibration_notes.die_of(system)) for system in systems]
        )
        + traffic_notes.traffic_notes(report.experiment.workload)
        + notes.system_notes(systems)
        + list(unread.recorded_unread(report.made)),
        "assumptions": tables.assumptions(report),
        "origins": tables.origins(report),
        "close": tables.CLOSE,
        "ties": tables.ties(report),
        "decisions": decision_cost.section(report),
        "engines": sections.engines_section(report.folder),
        "sure": sections.sure_section(report.folder),
        "hidden_percent": decision_cost.HIDDEN_PERCENT,
        "deciders": deciders(report),
        "policies": [
            (name, policies.PRESET_MEANINGS.get(name, "a policy of the experiment")) for name in report.policies
        ],
        "sentences": answers.sentences(report),
        "glossary": glossary_sections(),
        "picture": next(iter(pictures), None),
        "compared": pictures[1:],
        "hops": drawn["hops"],
        "traffic": drawn["traffic"],
        "bounds": drawn["limits"],
        "path": drawn["critical_path"],
        "imbalance": drawn["load"],
        "replicas": drawn["copies"],
        "copied": copy_runs(report),
        "beyond_memory": list(beyond_memory(report)),
        "maps": die_figures.maps(report),
        "busiest": die_figures.busiest(report, answers.headline(report)),
        "roofline": die_figures.roofline(report),
        "steps": die_figures.steps(report),
        "pairs": die_figures.pairs(report),
        "balancers": balancers.balancers_section(runs),
        "slower": slower.slower_section(runs, report.experiment.policies, report.assumptions),
        "has_pairs": bool(report.pairs),
        "has_steps": bool(report.steps),
        "headers": headers,
        "rows": rows,
    }


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_written(each)}" for key, each in value.items())
    return ", ".join(map(_written, value)) if isinstance(value, list) else str(value)


def shape_of(system: SystemSpec) -> str:
    """Dies and links: ``5 × 5``, ``5 × 5, torus``, ``4 × 8 switch``."""
    if system.fabric is not None:
        return system.fabric.shape
    size = f"{system.mesh.x} × {system.mesh.y}" if system.mesh is not None else f"{system.topology.dies}"
    return size if system.topology == fabric.TopologySpec() else f"{size}, {system.topology.name}"
