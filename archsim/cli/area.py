"""``archsim hardware area``: area and power of the decision hardware of every system, beside the published table II."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from archsim.base.answer import Answer, Grid, Part
from archsim.base.errors import SpecError
from archsim.cli import arguments
from archsim.machine.decision import DecisionSpec
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.search.options import experiment_or_machine
from archsim.show import deciders
from archsim.show.deciders import families, words
from archsim.show.units import percent, significant
from archsim.specs.library import AXIS_UNREAD, MANIFEST
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign
from microarch.silicon.area import MW_PER_W, WAFER_MM2, AreaAndPower, parts_of, total
from microarch.silicon.area import Part as Block
from microarch.silicon.decision_area import decision_parts, design_of, global_clock_hz, speeds_part
from microarch.silicon.published_area import deviation, explanation, published_row, total_note
from microarch.silicon.table_designs import misfits, named_coefficients, needed_by, parse_design, published_design
from microarch.silicon.technology import TECHNOLOGIES, Technology

_KIB, _MIB, _PPM = 2**10, 2**20, 1e6
COUNTED = (
    "Power is that of every port and every register working in every cycle. Logic between registers counts as further "
    "flip-flops in the parts of the Global CP and in the ATUs' order of use. Not counted are the logic of prediction "
    "tables and second registers, the wires and the clock tree."
)


def add_area(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(
        parser,
        "The experiment, a system, or the folder of a report, to see what prediction cost and gained, too",
    )
    parser.add_argument(
        "--design",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Size the tables for this value, such as experts=1024 or ports=2. May be repeated.",
    )
    parser.add_argument(
        "--technology", choices=("n5", "scaled"), default="n5", help="Which coefficients to use (default: n5)."
    )
    parser.add_argument("--sources", action="store_true", help="Print every coefficient and its source.")


def run_area(args: argparse.Namespace) -> Answer:
    """Area and power. Raises SpecError for an unknown ``--design`` key, and for ``--set`` beside a report."""
    folder = Path(args.file) if Path(args.file).is_dir() else None
    if folder and args.overrides:
        raise SpecError(f"--set {args.overrides[0]}: {folder} is a report, whose runs are made; change its experiment")
    source = str(folder / MANIFEST) if folder else args.file
    experiment, chosen_model = experiment_or_machine(source, args.overrides)
    chosen, changes = TECHNOLOGIES[args.technology], parse_design(args.design)
    parts: list[Part] = []
    said: list[str] = []
    asks = any(policy.needs_speeds(part) for policy in experiment.policies for part in ("allocation", "rebalancing"))
    result: dict[str, Any] = {"technology": chosen.title, "systems": []}
    for system in experiment.systems:
        built = design_of(system, changes)
        found = (*decision_parts(system.decision, built, chosen), *([speeds_part(system, chosen)] if asks else []))
        each = [
            {"name": part.name, "copies": part.copies, "area_mm2": part.cost.area_mm2, "power_mw": part.cost.power_mw}
            for part in found
        ]
        said.append(_sentence(system, found, chosen))
        of_system = {"name": system.name, "answer": said[-1], "decided_by": words(system.decision), "parts": each}
        result["systems"].append(of_system)
        parts += _configured_parts(system, experiment.models, built, chosen, found)
        parts += _published_parts(system, published_design(system, changes), chosen)
    parts += [*_synthesised_parts(experiment.systems), _memories_table(experiment.systems[0])]
    if folder:
        parts.append(_worth_table(folder))
    if args.sources:
        parts.append(_sources_table(chosen))
    notes = [*filter(None, [chosen_model]), *(each for each in experiment.unread if AXIS_UNREAD in each)]
    return Answer([*said, *parts], notes, result)


def _sentence(system: SystemSpec, parts: Sequence[Block], technology: Technology) -> str:
    whole, largest = total(part.cost for part in parts), max(parts, key=lambda part: part.cost.area_mm2)
    share = largest.cost.area_mm2 / whole.area_mm2
    return (
        f"The decision hardware of {system.name} takes {significant(whole.area_mm2)} mm² in {technology.title}, "
        f"{_ppm(whole.area_mm2)} of a 300 mm wafer, and draws at most {significant(whole.power_mw / MW_PER_W)} W; "
        f"{largest.name} takes {percent(share)} of the area."
    )


def _ppm(area_mm2: float) -> str:
    return f"{_PPM * area_mm2 / WAFER_MM2:.3g} ppm"


def _configured_parts(
    system: SystemSpec,
    models: Sequence[ModelSpec],
    built: TableDesign,
    technology: Technology,
    parts: Sequence[Block],
) -> Iterator[Part]:
    """The hardware that the system's ``decision`` asks for, and a policy that sees speeds."""
    decision = system.decision
    clocks = f"{_ghz(built.clock_hz)} on the dies"
    if decision.executor in ("fsm", "firmware"):
        clocks += f", {_ghz(global_clock_hz(decision))} in the Global CP"
    title = f"{system.name}, decided by {words(decision)}: {_built_for(built)}; {technology.title}, {clocks}"
    yield _parts_table(title, parts)
    if decision.executor == "host":
        yield (
            "The host keeps the expert distribution table and the heatmaps in its own memory, so there is no Global CP "
            "on the wafer."
        )
    yield COUNTED
    for part in parts:
        if part.table is not None:
            layout = " + ".join(f"{name} {bits}" for name, bits in part.table.fields)
            yield f"Bits per entry, {part.name}: {layout}."
    yield _models_table(models, built, decision, technology)
    yield from misfits(models, built, decision.executor)


def _published_parts(system: SystemSpec, built: TableDesign, technology: Technology) -> Iterator[Part]:
    """Table II row by row, beside this model with the published parameters."""
    parts = parts_of(built, technology)
    title = f"{system.name}, table II: published cores, {_built_for(built)}; {technology.title}, {_ghz(built.clock_hz)}"
    yield _parts_table(title, parts, built)
    yield from _notes(parts, built, technology)


def _synthesised_parts(systems: Sequence[SystemSpec]) -> Iterator[Part]:
    """Components in RTL: analytical, synthesised and published area, their clock; systems that ask for more."""
    from microarch.silicon.synthesised_area import clock_note, local_clock_note, side_by_side

    dies = systems[0].dies
    rows, cells = side_by_side(dies), []
    for row in rows:
        published = "–" if row.published_mm2 is None else f"{row.published_mm2:.4f}"
        said = f"{row.synthesised.area_um2:,.0f}{' (older source)' if row.stale else ''}"
        placed, path_ns = f"{row.placed_mm2:.4f}", f"{row.synthesised.delay_ps / 1000:.3f}"
        clock = f"{row.synthesised.clock_hz / 1e9:.2f} GHz"
        areas = f"{row.analytical_um2:,.0f}", said, f"{row.ratio:.2f}", placed, published
        cells.append((row.component, str(row.copies), *areas, path_ns, clock))
    heads = ("copies", "analytical um²", "synthesised um²", "ratio", "mm²", "table II mm²", "ns", "5 nm, wires")
    title = f"in RTL (docs/rtl.md): cells of ASAP7, um²; {dies} dies in 5 nm, placed, mm²"
    yield Grid(("component",), cells, heads, title=title, wraps=True)
    yield from (f"{row.component}: {row.reason}." for row in rows if row.reason)
    for system in systems:
        decision = system.decision
        notes = (
            clock_note(system.name, decision.executor, decision.fsm.clock_hz),
            local_clock_note(system.name, decision.local_clock_hz),
        )
        yield from (f"{note}." for note in notes if note)


def _memories_table(system: SystemSpec) -> Grid:
    """The SRAMs of the first system in every node: cells and macros, by the law of `microarch.silicon.area`."""
    from microarch.silicon.memory_area import CELL_UM2, LARGE, macro_factor, macro_mm2

    parts = [part for part in parts_of(design_of(system)) if part.table and part.table.storage is Storage.SRAM]
    title = f"SRAM of {system.name} by node, mm² of all copies: as a large array ({LARGE.value:g} × cells) to macro"
    rows = []
    for part in parts:
        bits = part.table.bits if part.table else 0
        large = {node: bits * cell.value * LARGE.value / 1e6 for node, cell in CELL_UM2.items()}
        areas = [f"{part.copies * large[node]:.4f}–{part.copies * macro_mm2(bits, node):.4f}" for node in CELL_UM2]
        rows.append((f"SRAM: {part.name}", f"{bits:,}", str(part.copies), f"{macro_factor(bits):.2f}", *areas))
    return Grid(("table",), rows, ("bits", "copies", "macro factor", *CELL_UM2), title=title, wraps=True)


def _worth_table(folder: Path) -> Part:
    """What prediction cost in area and power beside what it was worth in time, in the runs of a report."""
    from archsim.show.report import Report

    report, rows = Report(folder), []
    for row in (row for family in families(report) for row in deciders.rows(report, family)):
        run, cost = row["run"], (row[name] for name in ("mm2", "ppm", "mw", "copies", "throughput"))
        rows.append((run["system"], run["model"], f"{run['batch']:,}", run["policy"], row["against"], *cost))
    if not rows:
        return f"{report.name}: no policy with prediction beside the same policy without"
    heads = ("batch", "policy", "against", "area", "of wafer", "power", "HBM writes of copies", "throughput")
    title = f"prediction in {report.name}: its cost in 5 nm, and its worth"
    return Grid(("system", "model"), rows, heads, title=title, wraps=True)


def _built_for(built: TableDesign) -> str:
    return f"tables for {built.experts} experts, {built.layers} layers, {built.dies} dies"


def _ghz(clock_hz: float) -> str:
    return f"{clock_hz / 1e9:g} GHz"


def _parts_table(title: str, parts: Sequence[Block], published: TableDesign | None = None) -> Grid:
    """``published``: the design of the parts, if table II is shown beside them."""
    beside = ("table II mm²", "Δ", "table II mW", "Δ") if published else ()
    rows = [published_row(part, published) if published else None for part in parts]
    shown: list[tuple[str, ...] | None] = []
    for part, row in zip(parts, rows, strict=True):
        cells = *_size_cells(part.table), str(part.copies), *_cost_cells(part.cost)
        shown.append((part.name, *cells, *(_beside(part.cost, row) if published else ())))
    sum_of = total(part.cost for part in parts)
    compared = [row for part, row in zip(parts, rows, strict=True) if part.name != "heatmap"]
    known = [row for row in compared if row is not None]
    ends = _beside(sum_of, total(known) if len(known) == len(compared) else None) if published else ()
    shown += [None, ("sum of rows", *[""] * 6, *_cost_cells(sum_of), *ends)]
    heads = ("entries", "bits", "size", "port", "copies", "mm²", "mW", "of wafer", *beside)
    return Grid(("part", "kept in"), shown, heads, title=title, wraps=True, unbroken=True)


def _size_cells(table: HardwareTable | None) -> tuple[str, ...]:
    if table is None:
        return ("",) * 5
    port = f"{table.ports} × {table.port_bits} bit"
    return table.storage.value, f"{table.entries:,}", str(table.bits_per_entry), _size(table.size_bytes), port


def _cost_cells(cost: AreaAndPower) -> tuple[str, ...]:
    if not cost.area_mm2:
        return ("–",) * 3
    return f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", _ppm(cost.area_mm2)


def _beside(cost: AreaAndPower, row: AreaAndPower | None) -> tuple[str, ...]:
    if row is None:
        return ("–",) * 4
    area, power = deviation(cost.area_mm2, row.area_mm2), deviation(cost.power_mw, row.power_mw)
    return f"{row.area_mm2:.4f}", f"{area:+.1%}", f"{row.power_mw:.2f}", f"{power:+.1%}"


def _notes(parts: Sequence[Block], built: TableDesign, technology: Technology) -> Iterator[str]:
    yield from filter(None, (explanation(part, built, technology) for part in parts))
    yield total_note()
    others = [part.name for part in parts if part.name != "heatmap" and published_row(part, built) is None]
    if others:
        yield f"Not compared, as their size or clock differs from table II: {', '.join(others)}."


def _models_table(
    models: Iterable[ModelSpec], built: TableDesign, decision: DecisionSpec, technology: Technology
) -> Grid:
    rows = []
    for model in models:
        needed = needed_by(model, built)
        parts = [part for part in decision_parts(decision, needed, technology) if part.table is not None]
        cost = total(part.cost for part in parts)
        tables = [part.table for part in parts if part.table is not None]
        dram = next((_size(table.size_bytes) for table in tables if table.storage is Storage.DRAM), "–")
        fits = "no" if any(misfits([model], built, decision.executor)) else "yes"
        sizes = (f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", dram)
        rows.append((model.name, str(model.experts), str(needed.layers), fits, *sizes))
    heads = ("experts", "MoE layers", "fits", "mm² of tables", "mW of tables", "heatmap in DRAM")
    return Grid(("model",), rows, heads, title="the same tables, sized for one model", wraps=True)


def _sources_table(technology: Technology) -> Grid:
    rows = [
        (name, f"{each.value:g}", " to ".join(f"{end:g}" for end in each.between or ()), each.unit, each.source)
        for name, each in named_coefficients(technology)
    ]
    return Grid(("coefficient", "value", "range", "unit", "source"), rows, title="coefficients", wraps=True)


def _size(size_bytes: float) -> str:
    for unit, name in ((_MIB, "MB"), (_KIB, "KB")):
        if size_bytes >= unit / 2 and size_bytes >= _KIB:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes:g} B"
