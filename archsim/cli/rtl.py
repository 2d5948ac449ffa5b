"""``archsim hardware rtl``: checks components in RTL, maps them to cells, and writes them as Verilog."""

import argparse
import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from archsim.base import verbs
from archsim.base.answer import Answer, Grid
from archsim.base.errors import ArchsimError, SpecError, did_you_mean
from archsim.base.files import refuse_foreign
from archsim.cli import arguments
from archsim.show.units import between, percent

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
    """``archsim.questions.bench_records.record_bench`` in the runs of an experiment."""
    from archsim.questions.bench_records import record_bench
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator
    from archsim.specs.library import load_planned

    selection = select(load_planned(file, []))
    runs = list(selection.maker.runs(map(selection.plan.point, selection.kept)))
    return record_bench(block, runs, Simulator(selection.maker.traces).replay, events)


def combinations(block: str, given: list[str]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of ``--set``. Raises SpecError for unknown keys or other types."""
    shipped = benches()[block][1]
    fields = {each.name: getattr(shipped, each.name) for each in dataclasses.fields(shipped)}
    axes: dict[str, tuple] = {}
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


# Column → how its number is shown. Gated: the clock of registers that take nothing over is stopped.
COLUMNS = {
    "cycles": "{:,}", "bits": "{:,}", "clocked": "{:.1%}", "toggled": "{:.1%}", "fJ/cycle free": "{:,.0f}",
    "fJ/cycle gated": "{:,.0f}", "pJ/event free": "{:,.2f}", "pJ/event gated": "{:,.2f}", "GHz": "{:.2f}",
    "5 nm, mW free": "{:.2f}", "5 nm, mW gated": "{:.2f}",
}  # fmt: skip


def add_rtl_energy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")
    parser.add_argument(
        "--events",
        type=verbs.positive,
        default=300,
        metavar="N",
        help="How many events its stimulus has (default: 300).",
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random stimulus (default: 0).")
    add_run(parser)


def run_rtl_energy(args: argparse.Namespace) -> Answer:
    """Print activity and energy. Raises SpecError for an unknown block, or where a component differs from its table."""
    from archsim.cli.heartbeat import begins

    blocks, rows = [known_block(args.block)] if args.block else list(benches()), {}
    for done, block in enumerate(blocks):
        begins(f"simulating RTL, {done} of {len(blocks)} components done")
        rows[block] = _row(block, args)
    title = "registers and clock, cells of ASAP7; logic, wires and memories are not counted"
    cells = [(block, *(how.format(row[name]) for name, how in COLUMNS.items())) for block, row in rows.items()]
    free = {block: row["pJ/event free"] for block, row in rows.items()}
    saved = [max(1 - row["pJ/event gated"] / free[block], 0.0) for block, row in rows.items()]
    least, most = min(free, key=free.__getitem__), max(free, key=free.__getitem__)
    said = (
        f"An event takes {between(free.values(), '{:.2g} pJ'.format)} in registers and clock"
        + (f" ({least} to {most})" if len(rows) > 1 else f" of {most}")
        + f", and gated clocks save {between(saved, percent)} of it."
    )
    grid = Grid(("component",), cells, tuple(COLUMNS), title=title, wraps=True)
    return Answer((said, grid), result={"answer": said, "rows": rows})


def _row(block: str, args: argparse.Namespace) -> dict[str, float]:
    """A number for each of ``COLUMNS``."""
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
    milliwatt = (energy.mw(at_hz, gated) for gated in (False, True))
    row = (activity.cycles, activity.bits, clocked, toggled, *a_cycle, *of_event, at_hz / 1e9, *milliwatt)
    return dict(zip(COLUMNS, row, strict=True))


def add_rtl_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", metavar="BLOCK", help="The component: allocator, select, sorter, pdu, atu or heatmap.")
    parser.add_argument(
        "--events", type=verbs.positive, default=100, metavar="N",
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

    several = list(combinations(block, args.changes))
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


def add_rtl_formal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")


def run_rtl_formal(args: argparse.Namespace) -> int:
    """Print what was proved, at which size. SpecError without a claim; ArchsimError without the extra ``rtl``."""
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
            text = f"proved by induction over {proof.steps} steps" if proof.proved else "not proved"
            args.result.append({"block": block, "parameters": changes, "claim": proof.claim, "proved": proof.proved})
            print(f"{block} {said}: {proof.claim}: {text}", flush=True)
            if not proof.proved:
                print(f"  {proof.counterexample}")
            failed += not proof.proved
    return arguments.DIFFERS if failed else arguments.OK


NAMED = 5  # of what a stimulus did not cover


def add_rtl_lockstep(parser: arguments.Parser) -> None:
    parser.add_argument("block", metavar="BLOCK", help="The component: allocator, select, sorter, pdu, atu or heatmap.")
    parser.add_argument(
        "--events", type=verbs.positive, default=1000, metavar="N",
        help="The least number of random blocks of tokens, cycles, look-ups or words to add after the corner cases "
        "(default: 1000).",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="Seed of the stimulus (default: 0).")
    parser.spelled_before("--blocks", "--events")
    parser.add_argument("--lanes", metavar="N[,N]", help="Lanes of the allocator, as with --set lanes=N.")
    add_run(parser)
    add_parameters(parser)


def run_rtl_lockstep(args: argparse.Namespace) -> int:
    """Print what was compared and first differences. SpecError for an unknown block or parameter."""
    block, differences, args.result = known_block(args.block), 0, []
    given = [*args.changes, *([f"lanes={args.lanes}"] if args.lanes else [])]
    of_run = recorded_in(args.recorded, block, args.events) if args.recorded else None
    if of_run:
        print(f"{block}: {len(of_run.given):,} recorded in {of_run.run}")
    from microarch.rtl.lockstep import FURTHER_SIZES, lockstep

    further = () if given or of_run else FURTHER_SIZES[block]
    for each in [*combinations(block, given), *further]:
        changes = {**(of_run.changes if of_run else {}), **each}
        parameters_of(block, changes)
        found = lockstep(block, args.events, args.seed, changes, given=of_run and of_run.given, cover=True)
        of = ", ".join([*(f"{key}={value}" for key, value in changes.items()), f"seed {args.seed}"])
        did = "differs from its table in one" if found.difference else "does what its table says in all"
        said = (
            f"{block} ({of}) {did} of {found.events:,} events{'' if of_run else ', with the corner cases,'} in "
            f"{found.cycles:,} cycles; they cover {found.coverage}."
        )
        print(said, flush=True)
        args.result.append(
            {"block": block, "answer": said, "parameters": changes, "events": found.events, "cycles": found.cycles,
             "differences": found.differences, "missed": list(found.coverage.missed)}
        )  # fmt: skip
        if missed := found.coverage.missed:
            more = f" and {len(missed) - NAMED:,} more" if len(missed) > NAMED else ""
            print(f"  not covered: {'; '.join(missed[:NAMED])}{more}")
        if found.difference:
            print(f"  {found.difference}")
        differences += found.differences
    return arguments.DIFFERS if differences else arguments.OK


def add_rtl_synth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="Take only this component (default: all).")
    parser.add_argument("--liberty", nargs="+", default=[], metavar="FILE", help="Cell library, as .lib or .lib.xz.")
    parser.add_argument(
        "--out", metavar="DIR", help="Folder to write a JSON file for each component to (default: nothing is written)."
    )
    add_parameters(parser)


def run_rtl_synth(args: argparse.Namespace) -> Answer:
    """Print area, delay and energy of every component. Raises ArchsimError without a library or the extra ``rtl``."""
    blocks = [known_block(args.block)] if args.block else list(benches())
    from microarch.rtl import missing
    from microarch.silicon.liberty import find_libraries, read_libraries
    from microarch.silicon.synthesis import as_json, synthesise

    paths, lacking = find_libraries(args.liberty)
    if lacking := missing("pyosys") or lacking:
        raise ArchsimError(lacking)
    library = read_libraries(paths)
    rows, results = [], []
    for block in blocks:
        for changes in combinations(block, args.changes if args.block else []):
            component = built(block, changes)
            found = synthesise(block, component, Path(inspect.getfile(type(component))), library)
            results.append(found)
            if args.out:
                folder = Path(args.out)
                folder.mkdir(parents=True, exist_ok=True)
                name = "-".join([block, *(f"{key}{value}" for key, value in changes.items())])
                (folder / f"{name}.json").write_text(as_json(found), encoding="utf-8")
            said = " ".join(f"{key}={value}" for key, value in found.parameters.items())
            rows.append((
                block, said, f"{found.flip_flops:,}", f"{found.gated_flip_flops:,}", f"{found.cells:,}",
                f"{found.area_um2:,.0f}", f"{found.sequential_um2:,.1f}", f"{found.delay_ps / 1000:.3f}",
                f"{found.cells_ps / 1000:.3f}", f"{found.logic_ps / 1000:.3f}", f"{found.abc_logic_ps / 1000:.3f}",
                f"{found.free_running_fj:,.0f}",
            ))  # fmt: skip
    heads = (
        "parameters", "flip-flops", "gated", "cells", "um²", "sequential um²", "ns", "memories at once", "logic ns",
        "abc ns", "fJ/cycle",
    )  # fmt: skip
    return Answer(
        (Grid(("component",), rows, heads, title="cells of the library, without wires", wraps=True),), result=results
    )
