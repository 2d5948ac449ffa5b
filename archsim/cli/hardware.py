"""``archsim hardware area``: area and power of the decision hardware of every system, beside the published table II."""

import argparse
import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archsim.base.errors import ArchsimError, SpecError, did_you_mean
from archsim.base.files import refuse_foreign
from archsim.base.sums import sum
from archsim.cli import arguments
from archsim.cli.printing import console, grid, print_notes
from archsim.report.decision_cost import families, words
from archsim.runs.energy import NOMINAL as HEAT
from archsim.runs.energy import (
    Coefficients,
    SystemHardware,
    build_costs,
    carrier_note,
    full_load_told,
    full_load_w,
    heat_with,
    price_ranges,
)
from archsim.specs.decision import DecisionSpec
from archsim.specs.library import AXIS_UNREAD, MANIFEST, load_experiment
from archsim.specs.model import ModelSpec
from archsim.specs.system import SystemSpec
from archsim.studies.silicon import misfits, named_coefficients, needed_by, parse_design, published_design
from microarch.blocks.table_sizes import HardwareTable, Storage, TableDesign
from microarch.silicon.area import WAFER_MM2, AreaAndPower, Part, parts_of, total
from microarch.silicon.cost import CARRIER_MM2
from microarch.silicon.decision_area import decision_parts, design_of, global_clock_hz, speeds_part
from microarch.silicon.estimates import Estimate
from microarch.silicon.published_area import deviation, explanation, published_row, total_note
from microarch.silicon.technology import TECHNOLOGIES, Technology

# ---- area

_KIB, _MIB, _PPM = 2**10, 2**20, 1e6
COUNTED = (
    "Power is that of every port and every register working in every cycle. Logic between registers counts as further "
    "flip-flops in the parts of the Global CP and in the ATUs' order of use. Not counted are the logic of prediction "
    "tables and second registers, the wires and the clock tree."
)


def add_area(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(
        parser, "The experiment, or the folder of a report, to see what prediction cost and gained, too"
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


def run_area(args: argparse.Namespace) -> int:
    """Print area and power. Raises SpecError for an unknown ``--design`` key, and for ``--set`` beside a report."""
    folder = Path(args.file) if Path(args.file).is_dir() else None
    if folder and args.overrides:
        raise SpecError(f"--set {args.overrides[0]}: {folder} is a report, whose runs are made; change its experiment")
    experiment = load_experiment(folder / MANIFEST if folder else args.file, args.overrides)
    chosen, changes = TECHNOLOGIES[args.technology], parse_design(args.design)
    out = console()
    asks = any(policy.needs_speeds(part) for policy in experiment.policies for part in ("allocation", "rebalancing"))
    args.result = {"technology": chosen.title, "systems": []}
    for system in experiment.systems:
        built = design_of(system, changes)
        found = (*decision_parts(system.decision, built, chosen), *([speeds_part(system, chosen)] if asks else []))
        parts = [
            {"name": part.name, "copies": part.copies, "area_mm2": part.cost.area_mm2, "power_mw": part.cost.power_mw}
            for part in found
        ]
        args.result["systems"].append({"name": system.name, "decided_by": words(system.decision), "parts": parts})
        _print_configured(out, system, experiment.models, built, chosen, found)
        _print_published(out, system, published_design(system, changes), chosen)
    _print_synthesised(out, experiment.systems)
    out.print(_memories_table(experiment.systems[0]))
    if folder:
        out.print(_worth_table(folder))
    if args.sources:
        out.print(_sources_table(chosen))
    print_notes(each for each in experiment.unread if AXIS_UNREAD in each)
    return arguments.OK


def _print_configured(
    out,
    system: SystemSpec,
    models: Sequence[ModelSpec],
    built: TableDesign,
    technology: Technology,
    parts: Sequence[Part],
) -> None:
    """The hardware that the system's ``decision`` asks for, and a policy that sees speeds."""
    decision = system.decision
    clocks = f"{_ghz(built.clock_hz)} on the dies"
    if decision.executor in ("fsm", "firmware"):
        clocks += f", {_ghz(global_clock_hz(decision))} in the Global CP"
    out.print(
        _parts_table(
            f"{system.name}, decided by {words(decision)}: {_built_for(built)}; {technology.title}, {clocks}", parts
        )
    )
    if decision.executor == "host":
        out.print(
            "The host keeps the expert distribution table and the heatmaps in its own memory, so there is no Global CP "
            "on the wafer."
        )
    out.print(COUNTED, soft_wrap=True)
    for part in parts:
        if part.table is not None:
            layout = " + ".join(f"{name} {bits}" for name, bits in part.table.fields)
            out.print(f"Bits per entry, {part.name}: {layout}.", soft_wrap=True)
    out.print(_models_table(models, built, decision, technology))
    for line in misfits(models, built, decision.executor):
        out.print(line, soft_wrap=True)


def _print_published(out, system: SystemSpec, built: TableDesign, technology: Technology) -> None:
    """Table II row by row, beside this model with the published parameters."""
    parts = parts_of(built, technology)
    title = f"{system.name}, table II: published cores, {_built_for(built)}; {technology.title}, {_ghz(built.clock_hz)}"
    out.print(_parts_table(title, parts, built))
    for line in _notes(parts, built, technology):
        out.print(line, soft_wrap=True)


def _print_synthesised(out, systems: Sequence[SystemSpec]) -> None:
    """The components in RTL: analytical, synthesised and published area, and the clock that they reach; which systems
    ask for more.
    """
    from microarch.silicon.synthesised_area import clock_note, local_clock_note, side_by_side

    dies = systems[0].dies
    made = grid("component", title=f"in RTL (docs/rtl.md): cells of ASAP7, um²; {dies} dies in 5 nm, placed, mm²")
    for name in ("copies", "analytical um²", "synthesised um²", "ratio", "mm²", "table II mm²", "ns", "5 nm, wires"):
        made.add_column(name, justify="right")
    rows = side_by_side(dies)
    for row in rows:
        published = "–" if row.published_mm2 is None else f"{row.published_mm2:.4f}"
        said = f"{row.synthesised.area_um2:,.0f}{' (older source)' if row.stale else ''}"
        placed, path_ns = f"{row.placed_mm2:.4f}", f"{row.synthesised.delay_ps / 1000:.3f}"
        clock = f"{row.synthesised.clock_hz / 1e9:.2f} GHz"
        areas = f"{row.analytical_um2:,.0f}", said, f"{row.ratio:.2f}", placed, published
        made.add_row(row.component, str(row.copies), *areas, path_ns, clock)
    out.print(made)
    for row in rows:
        if row.reason:
            out.print(f"{row.component}: {row.reason}.", soft_wrap=True)
    for system in systems:
        decision = system.decision
        notes = (
            clock_note(system.name, decision.executor, decision.fsm.clock_hz),
            local_clock_note(system.name, decision.local_clock_hz),
        )
        for note in filter(None, notes):
            out.print(f"{note}.", soft_wrap=True)


def _memories_table(system: SystemSpec):
    """The SRAMs of the first system in every node: cells and macros, by the law of `microarch.silicon.area`."""
    from microarch.silicon.memory_area import CELL_UM2, LARGE, macro_factor, macro_mm2

    parts = [part for part in parts_of(design_of(system)) if part.table and part.table.storage is Storage.SRAM]
    title = f"SRAM of {system.name} by node, mm² of all copies: as a large array ({LARGE.value:g} × cells) to macro"
    made = grid("table", title=title)
    for name in ("bits", "copies", "macro factor", *CELL_UM2):
        made.add_column(name, justify="right")
    for part in parts:
        bits = part.table.bits if part.table else 0
        large = {node: bits * cell.value * LARGE.value / 1e6 for node, cell in CELL_UM2.items()}
        areas = [f"{part.copies * large[node]:.4f}–{part.copies * macro_mm2(bits, node):.4f}" for node in CELL_UM2]
        made.add_row(f"SRAM: {part.name}", f"{bits:,}", str(part.copies), f"{macro_factor(bits):.2f}", *areas)
    return made


def _worth_table(folder: Path):
    """What prediction cost in area and power beside what it was worth in time, in the runs of a report."""
    from archsim.report import decision_cost
    from archsim.report.tables import Report

    report = Report(folder)
    made = grid("system", "model", title=f"prediction in {report.name}: its cost in 5 nm, and its worth")
    for name in ("batch", "policy", "against", "area", "of wafer", "power", "HBM writes of copies", "throughput"):
        made.add_column(name, justify="right")
    found = [row for family in families(report) for row in decision_cost.rows(report, family)]
    for row in found:
        run, cost = row["run"], (row[name] for name in ("mm2", "ppm", "mw", "copies", "throughput"))
        made.add_row(run["system"], run["model"], f"{run['batch']:,}", run["policy"], row["against"], *cost)
    return made if found else f"{report.name}: no policy with prediction beside the same policy without"


def _built_for(built: TableDesign) -> str:
    return f"tables for {built.experts} experts, {built.layers} layers, {built.dies} dies"


def _ghz(clock_hz: float) -> str:
    return f"{clock_hz / 1e9:g} GHz"


def _parts_table(title: str, parts: Sequence[Part], published: TableDesign | None = None):
    """``published``: the design of the parts, if table II is shown beside them."""
    made = grid("part", "kept in", title=title)
    made.columns[0].no_wrap = True
    beside = ("table II mm²", "Δ", "table II mW", "Δ") if published else ()
    for name in ("entries", "bits", "size", "port", "copies", "mm²", "mW", "of wafer", *beside):
        made.add_column(name, justify="right")
    rows = [published_row(part, published) if published else None for part in parts]
    for part, row in zip(parts, rows, strict=True):
        cells = *_size_cells(part.table), str(part.copies), *_cost_cells(part.cost)
        made.add_row(part.name, *cells, *(_beside(part.cost, row) if published else ()))
    sum_of = total(part.cost for part in parts)
    compared = [row for part, row in zip(parts, rows, strict=True) if part.name != "heatmap"]
    known = [row for row in compared if row is not None]
    made.add_section()
    ends = _beside(sum_of, total(known) if len(known) == len(compared) else None) if published else ()
    made.add_row("sum of rows", *[""] * 6, *_cost_cells(sum_of), *ends)
    return made


def _size_cells(table: HardwareTable | None) -> tuple[str, ...]:
    if table is None:
        return ("",) * 5
    port = f"{table.ports} × {table.port_bits} bit"
    return table.storage.value, f"{table.entries:,}", str(table.bits_per_entry), _size(table.size_bytes), port


def _cost_cells(cost: AreaAndPower) -> tuple[str, ...]:
    if not cost.area_mm2:
        return ("–",) * 3
    return f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", f"{_PPM * cost.area_mm2 / WAFER_MM2:.3g} ppm"


def _beside(cost: AreaAndPower, row: AreaAndPower | None) -> tuple[str, ...]:
    if row is None:
        return ("–",) * 4
    area, power = deviation(cost.area_mm2, row.area_mm2), deviation(cost.power_mw, row.power_mw)
    return f"{row.area_mm2:.4f}", f"{area:+.1%}", f"{row.power_mw:.2f}", f"{power:+.1%}"


def _notes(parts: Sequence[Part], built: TableDesign, technology: Technology) -> Iterator[str]:
    yield from filter(None, (explanation(part, built, technology) for part in parts))
    yield total_note()
    others = [part.name for part in parts if part.name != "heatmap" and published_row(part, built) is None]
    if others:
        yield f"Not compared, as their size or clock differs from table II: {', '.join(others)}."


def _models_table(models: Iterable[ModelSpec], built: TableDesign, decision: DecisionSpec, technology: Technology):
    made = grid("model", title="the same tables, sized for one model")
    for name in ("experts", "MoE layers", "fits", "mm² of tables", "mW of tables", "heatmap in DRAM"):
        made.add_column(name, justify="right")
    for model in models:
        needed = needed_by(model, built)
        parts = [part for part in decision_parts(decision, needed, technology) if part.table is not None]
        cost = total(part.cost for part in parts)
        tables = [part.table for part in parts if part.table is not None]
        dram = next((_size(table.size_bytes) for table in tables if table.storage is Storage.DRAM), "–")
        fits = "no" if any(misfits([model], built, decision.executor)) else "yes"
        sizes = (f"{cost.area_mm2:.4f}", f"{cost.power_mw:.2f}", dram)
        made.add_row(model.name, str(model.experts), str(needed.layers), fits, *sizes)
    return made


def _sources_table(technology: Technology):
    made = grid("coefficient", "value", "range", "unit", "source", title="coefficients")
    for name, coefficient in named_coefficients(technology):
        between = " to ".join(f"{value:g}" for value in coefficient.between or ())
        made.add_row(name, f"{coefficient.value:g}", between, coefficient.unit, coefficient.source)
    return made


def _size(size_bytes: float) -> str:
    for unit, name in ((_MIB, "MB"), (_KIB, "KB")):
        if size_bytes >= unit / 2 and size_bytes >= _KIB:
            return f"{size_bytes / unit:.4g} {name}"
    return f"{size_bytes:g} B"


# ---- cost
# ``archsim hardware cost``: die area by block, machine price by part, and the coefficients behind them.

DECISIVE = 3  # coefficients that are named


def add_cost(parser: argparse.ArgumentParser) -> None:
    arguments.add_experiment(parser)
    parser.add_argument(
        "--coefficient",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Change a coefficient, such as wafer_usd=20000. May be repeated.",
    )
    parser.add_argument("--sources", action="store_true", help="Print every coefficient, its range and its source.")


def run_cost(args: argparse.Namespace) -> int:
    """Print area and price of every system. Raises SpecError for an unknown coefficient."""
    from archsim.report.units import interval

    experiment = load_experiment(args.file, args.overrides)
    given = arguments.named_numbers("--coefficient", args.coefficient)
    heat = HEAT.named()
    middle = Coefficients().changed({name: value for name, value in given.items() if name not in heat})
    limits = heat_with({name: value for name, value in given.items() if name in heat})
    ends = [middle.at("low"), middle.at("high")]
    out, args.result = console(), {}
    for system in experiment.systems:
        value, low, high = (build_costs(system, each) for each in (middle, *ends))
        bounds = {"value": value, "low": low, "high": high}
        args.result[system.name] = {name: {"area_mm2": each.area_mm2, "usd": each.usd} for name, each in bounds.items()}
        out.print(_table(f"{system.name}: one die, mm²", value.area_mm2, low.area_mm2, high.area_mm2))
        out.print(_carrier(value), soft_wrap=True)
        machines = (value, low, high)
        middle_w, low_w, high_w = (full_load_w(*each) for each in zip(machines, (middle, *ends), strict=True))
        full = "At full load (peak FLOP, HBM and links at once) it draws {} W ({} to {} W)."
        out.print(full.format(*interval(middle_w, low_w, high_w)))
        for line in full_load_told(system, limits):
            out.print(line, soft_wrap=True)
        title = f"{system.name}: {system.dies} dies, USD"
        out.print(_table(title, value.usd, low.usd, high.usd))
        out.print(_decisive(price_ranges(system, middle)), soft_wrap=True)
        print_notes(filter(None, [carrier_note(system.name, value.carrier_share)]))
    if args.sources:
        out.print(_sources("coefficients", middle.named()))
        out.print(_sources("coefficients of power and cooling", limits.named()))
    print_notes(each for each in experiment.unread if AXIS_UNREAD in each)
    return arguments.OK


def _carrier(machine: SystemHardware) -> str:
    pieces = f" Each die is made in {machine.pieces} pieces, which costs least." if machine.pieces > 1 else ""
    fit = "They fit on one." if machine.carriers == 1 else f"They are priced on {machine.carriers}."
    return (
        f"Dies ({machine.silicon_mm2:,.0f} mm²) and HBM take {machine.carrier_mm2 / CARRIER_MM2:.0%} of a carrier of "
        f"{CARRIER_MM2:,.0f} mm². {fit}{pieces}"
    )


def _decisive(ranges: Sequence[tuple[str, float, float]]) -> str:
    """The coefficients whose ranges change the price most."""
    from archsim.report.units import carried, listed

    each = listed(
        f"{name} ({carried(low, low, high)} to {carried(high, low, high)} USD)" for name, low, high in ranges[:DECISIVE]
    )
    return f"The price depends most on {each}. Each range is that of one coefficient from its low to its high end."


def _table(title: str, value: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float]):
    """Each value with as many digits as its range carries."""
    from archsim.report.units import interval

    made = grid("block", title=title, numbers=("value", "all coefficients low", "all high"))
    for name, number in value.items():
        made.add_row(name, *interval(number, low[name], high[name]))
    made.add_section()
    made.add_row("sum", *interval(sum(value.values()), sum(low.values()), sum(high.values())))
    return made


def _sources(title: str, known: Mapping[str, Estimate]):
    made = grid("coefficient", title=title, numbers=("value", "low", "high"))
    made.add_column("unit")
    made.add_column("source")
    for name, each in known.items():
        made.add_row(name, *(f"{number:.4g}" for number in (each.value, each.low, each.high)), each.unit, each.source)
    return made


# ---- blocks
# ``archsim hardware blocks``: tables, parameters and state diagrams of the hardware blocks.


def add_blocks(parser: arguments.Parser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Show only this block, such as pdu (default: all).")
    parser.add_argument("--diagram", metavar="FILE", help="Write the state diagram of the block to this file, as SVG.")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="Folder to write the diagrams of all blocks, or of BLOCK, to (default: nothing is written).",
    )
    parser.spelled_before("--diagram-dir", "--out")


def run_blocks(args: argparse.Namespace) -> int:
    """Print one block or all; write diagrams.

    Raises SpecError for an unknown block, and for ``--diagram`` without one.
    """
    from archsim.report.blocks import DIAGRAMS, diagram_of, full_text, known_block, overview, write_diagrams

    block = args.block and known_block(args.block)
    if args.diagram and block is None:
        raise SpecError("--diagram needs the name of a block; --out DIR writes all of them")
    if args.out:
        names = [block] if block else [*DIAGRAMS]
        write_diagrams(Path(args.out), names)
        print(f"{len(names)} {'diagram' if len(names) == 1 else 'diagrams'}: {args.out}")
    if args.diagram:
        Path(args.diagram).write_text(diagram_of(block), encoding="utf-8")
        print(f"diagram: {args.diagram}")
    text = full_text(block) if block else overview()
    args.result = {"block": block, "text": text}
    if not args.diagram and not args.out:
        print(text)
    return arguments.OK


# ---- arguments
# What the commands on RTL share: the extra that they need, blocks and parameters.


def benches() -> Mapping[str, Any]:
    """The table of blocks with their components. Raises ArchsimError without the extra ``rtl``."""
    from microarch.rtl import missing

    if (lacking := missing()) is not None:
        raise ArchsimError(lacking)
    from microarch.rtl.lockstep import BENCHES

    return BENCHES


def known_block(name: str) -> str:
    """The block, if it has a component. Raises SpecError."""
    if name not in benches():
        raise SpecError(f"no RTL of {name!r}{did_you_mean(name, benches())} (there is: {', '.join(benches())})")
    return name


def add_parameters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", dest="changes", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="Set a parameter of the component, such as lanes=4. With lanes=1,4, each value runs.",
    )  # fmt: skip


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="recorded", metavar="FILE",
        help="Take the stimulus from a run of this experiment, simulated with engine: interpreted.",
    )  # fmt: skip


def recorded_in(file: str, block: str, events: int) -> Any:
    """``archsim.studies.bench_records.record_bench`` in the runs of an experiment."""
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator
    from archsim.specs.library import load_planned
    from archsim.studies.bench_records import record_bench

    selection = select(load_planned(file, []))
    runs = list(selection.maker.runs(map(selection.plan.point, selection.kept)))
    return record_bench(block, runs, Simulator(selection.maker.traces).replay, events)


def combinations(block: str, given: list[str], default: Mapping[str, tuple]) -> Iterator[dict[str, Any]]:
    """Every combination of the values that ``--set`` gives, else of the default. Raises SpecError for an unknown key
    or a value of another type.
    """
    shipped = benches()[block][1]
    fields = {each.name: getattr(shipped, each.name) for each in dataclasses.fields(shipped)}
    axes: dict[str, tuple] = dict(default)
    for each in given:
        key, _, values = each.partition("=")
        if key not in fields:
            raise SpecError(
                f"{block} has no parameter {key!r}{did_you_mean(key, fields)} (it has: {', '.join(fields)})"
            )
        axes[key] = tuple(_read(key, value, type(fields[key])) for value in values.split(","))
    for chosen in itertools.product(*axes.values()):
        yield dict(zip(axes, chosen, strict=True))


def _read(key: str, value: str, kind: type) -> int | bool:
    if kind is bool and value in ("true", "false"):
        return value == "true"
    if kind is int and value.isascii() and value.isdigit():
        return int(value)
    raise SpecError(f"{key}={value}: expected {'true or false' if kind is bool else 'a whole number'}")


def parameters_of(block: str, changes: Mapping[str, Any]) -> Any:
    """The shipped parameters with ``changes``. Raises SpecError for what cannot be built."""
    try:
        return dataclasses.replace(benches()[block][1], **changes)
    except ValueError as error:
        raise SpecError(f"{block}: {error}") from None


def built(block: str, changes: Mapping[str, Any]) -> Any:
    """The component. Raises SpecError for parameters that cannot be built."""
    return benches()[block][0].component(parameters_of(block, changes))


# ---- energy
# ``archsim hardware rtl energy``: what a component's registers and clock take, by its activity on a stimulus.

COLUMNS = (
    "cycles", "bits", "clocked", "toggled", "fJ/cycle free", "gated", "pJ/event free", "gated", "GHz", "5 nm, mW free",
    "gated",
)  # fmt: skip


def add_rtl_energy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")
    parser.add_argument(
        "--events",
        type=arguments.positive,
        default=300,
        metavar="N",
        help="How many events its stimulus has (default: 300).",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random stimulus (default: 0).")
    add_run(parser)


def run_rtl_energy(args: argparse.Namespace) -> int:
    """Print activity and energy. Raises SpecError for an unknown block, or where a component differs from its table."""
    made = grid("component", title="registers and clock, cells of ASAP7; logic, wires and memories are not counted")
    for name in COLUMNS:
        made.add_column(name, justify="right")
    args.result = {"columns": COLUMNS, "rows": {}}
    for block in [known_block(args.block)] if args.block else benches():
        row = _row(block, args)
        args.result["rows"][block] = row
        made.add_row(block, *row)
    console().print(made)
    return arguments.OK


def _row(block: str, args: argparse.Namespace) -> list[str]:
    from microarch.rtl.activity import Watched
    from microarch.rtl.lockstep import lockstep
    from microarch.silicon.switching import energy_of
    from microarch.silicon.synthesised_area import side_by_side

    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    watched: list[Any] = []

    def component(parameters):
        watched.append(Watched(benches()[block][0].component(parameters)))
        return watched[0]

    changes, given = (of_run.changes, of_run.given) if of_run else ({}, None)
    found = lockstep(block, args.events, args.seed, changes, component, given)
    if found.difference:
        raise SpecError(f"{block}: {found.difference}")
    beside = next(row for row in side_by_side(1) if row.component == block)
    activity, at_hz = watched[0].activity, beside.synthesised.clock_hz
    clocked, toggled = (n / activity.cycles / activity.bits for n in (activity.clocked, activity.toggled))
    flops = beside.synthesised.flip_flops  # of the shipped parameters, whose bits do the same share
    energy = energy_of(beside.synthesised, clocked * flops, toggled * flops, at_hz)
    a_cycle = [energy.free + energy.changes + energy.leakage, energy.gated + energy.changes + energy.leakage]
    of_event = [fj * activity.cycles / found.events / 1e3 for fj in a_cycle]
    return [
        f"{activity.cycles:,}", f"{activity.bits:,}", f"{clocked:.1%}", f"{toggled:.1%}",
        *(f"{fj:,.0f}" for fj in a_cycle), *(f"{pj:,.2f}" for pj in of_event), f"{at_hz / 1e9:.2f}",
        *(f"{energy.mw(at_hz, gated):.2f}" for gated in (False, True)),
    ]  # fmt: skip


# ---- export
# ``archsim hardware rtl export``: a component as Verilog, with a test bench that checks itself and timing constraints.


def add_rtl_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", metavar="BLOCK", help="The component: allocator, select, sorter, pdu, atu or heatmap.")
    parser.add_argument(
        "--events", type=arguments.positive, default=100, metavar="N",
        help="How many random events to add after the corner cases (default: 100).",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="Seed of the stimulus (default: 0).")
    parser.add_argument("--liberty", nargs="+", default=[], metavar="FILE", help="Cell library, as .lib or .lib.xz.")
    arguments.add_out(parser, "Folder to write the files to (default: BLOCK-rtl in the current folder).")
    add_run(parser)
    add_parameters(parser)


def run_rtl_export(args: argparse.Namespace) -> int:
    """Print what was written, and how to run it. Raises SpecError for an unknown block or parameters that cannot be
    built, and ArchsimError without the extra ``rtl`` or for a library that is not there.
    """
    from microarch.rtl import missing

    block = known_block(args.block)
    benches()
    if (lacking := missing("pyosys")) is not None:
        raise ArchsimError(lacking)
    from microarch.rtl.export import export, write
    from microarch.silicon.liberty import find_libraries, read_libraries

    several = list(combinations(block, args.changes, {}))
    if len(several) > 1:
        raise SpecError(f"--set: expected one value of each parameter, got {len(several)} combinations")
    paths, lacking = find_libraries(args.liberty)
    if lacking and args.liberty:
        raise ArchsimError(lacking)
    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    changes = (of_run.changes if of_run else {}) | several[0]
    parameters_of(block, changes)
    library = None if lacking else read_libraries(paths)
    made = export(block, args.events, args.seed, changes, of_run and of_run.given, library)
    folder = Path(args.out or f"{block}-rtl")
    refuse_foreign(folder)
    write(made, folder)
    args.result = {"folder": str(folder), "files": list(made.files), "events": made.events, "cycles": made.cycles}
    print(f"{block}: {made.events:,} events in {made.cycles:,} cycles; in {folder}: {', '.join(made.files)}")
    if made.timing is None:
        print("no netlist, and no arrival of addresses in the constraints: they need a cell library (--liberty)")
    else:
        print(f"longest path of the netlist by archsim: {made.timing.delay_ps:,.1f} ps")
    print("to simulate it, in that folder:")
    print(f"  iverilog -g2012 -o {block}_tb.vvp {block}.v {block}_tb.v && vvp -n {block}_tb.vvp")
    return arguments.OK


# ---- formal
# ``archsim hardware rtl formal``: invariants of the components by induction.


def add_rtl_formal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")


def run_rtl_formal(args: argparse.Namespace) -> int:
    """Print what was proved of every component, at which size. Raises SpecError for a block without a claim and
    ArchsimError without the extra ``rtl``.
    """
    from microarch.rtl import missing

    benches()
    if (lacking := missing("pyosys")) is not None:
        raise ArchsimError(lacking)
    from microarch.rtl.formal import PROPERTIES, prove

    if args.block and args.block not in PROPERTIES:
        raise SpecError(f"nothing is claimed of {args.block!r} (of: {', '.join(PROPERTIES)})")
    failed, args.result = 0, []
    for block in [args.block] if args.block else PROPERTIES:
        for changes in PROPERTIES[block].SIZES:
            proof = prove(block, changes)
            said = " ".join(f"{key}={value}" for key, value in changes.items())
            told = f"proved by induction over {proof.steps} steps" if proof.proved else "not proved"
            args.result.append({"block": block, "parameters": changes, "claim": proof.claim, "proved": proof.proved})
            print(f"{block} {said}: {proof.claim}: {told}", flush=True)
            if not proof.proved:
                print(f"  {proof.counterexample}")
            failed += not proof.proved
    return arguments.DIFFERS if failed else arguments.OK


# ---- lockstep
# ``archsim hardware rtl lockstep``: a component beside its table, on random or recorded stimulus.

NAMED = 5  # of what a stimulus did not cover
LANES = {"allocator": {"lanes": (1, 4, 8, 16)}}  # that run where none are given


def add_rtl_lockstep(parser: arguments.Parser) -> None:
    parser.add_argument("block", metavar="BLOCK", help="The component: allocator, select, sorter, pdu, atu or heatmap.")
    parser.add_argument(
        "--events", type=arguments.positive, default=1000, metavar="N",
        help="The least number of random blocks of tokens, cycles, look-ups or words to add after the corner cases "
        "(default: 1000).",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="Seed of the stimulus (default: 0).")
    parser.spelled_before("--blocks", "--events")
    parser.add_argument(
        "--lanes", metavar="N[,N]", help="Lanes of the allocator, as with --set lanes=N (default: 1,4,8,16)."
    )
    add_run(parser)
    add_parameters(parser)


def run_rtl_lockstep(args: argparse.Namespace) -> int:
    """Print what was compared, by parameters, and the first difference of each. Raises SpecError for an unknown block
    or parameter.
    """
    block, differences, args.result = known_block(args.block), 0, []
    given = [*args.changes, *([f"lanes={args.lanes}"] if args.lanes else [])]
    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    if of_run:
        print(f"{block}: {len(of_run.given):,} recorded in {of_run.run}")
    for changes in combinations(block, given, LANES.get(block, {})):
        changes = (of_run.changes if of_run else {}) | changes
        parameters_of(block, changes)
        from microarch.rtl.lockstep import lockstep

        found = lockstep(block, args.events, args.seed, changes, given=of_run and of_run.given, cover=True)
        said = " ".join(f"{key}={value}" for key, value in changes.items())
        args.result.append(
            {"block": block, "parameters": changes, "events": found.events, "cycles": found.cycles,
             "differences": found.differences, "missed": list(found.coverage.missed)}
        )  # fmt: skip
        print(
            f"{block} {said}{' ' if said else ''}seed {args.seed}: {found.events:,} events, {found.cycles:,} cycles, "
            f"{found.differences} differences; covered {found.coverage}",
            flush=True,
        )
        if missed := found.coverage.missed:
            more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
            print(f"  not covered: {'; '.join(missed[:NAMED])}{more}")
        if found.difference:
            print(f"  {found.difference}")
        differences += found.differences
    return arguments.DIFFERS if differences else arguments.OK


# ---- synth
# ``archsim hardware rtl synth``: components in cells of a library, beside the analytical model.


def add_rtl_synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")
    parser.add_argument("--liberty", nargs="+", default=[], metavar="FILE", help="Cell library, as .lib or .lib.xz.")
    parser.add_argument(
        "--out", metavar="DIR", help="Folder to write a JSON file for each component to (default: nothing is written)."
    )
    add_parameters(parser)


def run_rtl_synth(args: argparse.Namespace) -> int:
    """Print area, delay and energy of every component. Raises ArchsimError without a library or the extra ``rtl``."""
    blocks = [known_block(args.block)] if args.block else list(benches())
    from microarch.rtl import missing
    from microarch.silicon.liberty import find_libraries, read_libraries
    from microarch.silicon.synthesis import as_json, synthesise

    paths, lacking = find_libraries(args.liberty)
    if lacking := missing("pyosys") or lacking:
        raise ArchsimError(lacking)
    library = read_libraries(paths)
    made = grid("component", title="cells of the library, without wires")
    columns = (
        "parameters",
        "flip-flops",
        "gated",
        "cells",
        "um²",
        "sequential um²",
        "ns",
        "memories at once",
        "logic ns",
        "abc ns",
        "fJ/cycle",
    )
    for name in columns:
        made.add_column(name, justify="right")
    args.result = []
    for block in blocks:
        for changes in combinations(block, args.changes if args.block else [], {}):
            component = built(block, changes)
            found = synthesise(block, component, Path(inspect.getfile(type(component))), library)
            args.result.append(found)
            if args.out:
                folder = Path(args.out)
                folder.mkdir(parents=True, exist_ok=True)
                name = "-".join([block, *(f"{key}{value}" for key, value in changes.items())])
                (folder / f"{name}.json").write_text(as_json(found), encoding="utf-8")
            said = " ".join(f"{key}={value}" for key, value in found.parameters.items())
            made.add_row(
                block, said, f"{found.flip_flops:,}", f"{found.gated_flip_flops:,}", f"{found.cells:,}",
                f"{found.area_um2:,.0f}", f"{found.sequential_um2:,.1f}", f"{found.delay_ps / 1000:.3f}",
                f"{found.cells_ps / 1000:.3f}", f"{found.logic_ps / 1000:.3f}", f"{found.abc_logic_ps / 1000:.3f}",
                f"{found.free_running_fj:,.0f}",
            )  # fmt: skip
    console().print(made)
    return arguments.OK
