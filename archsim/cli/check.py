"""``archsim check``: whether a file is valid, and an experiment's points can run; and what it contains."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from archsim.base.errors import ArchsimError
from archsim.base.own_code import NO_CODE, CodeNotImported, without_code
from archsim.cli.arguments import DIFFERS, OK, add_experiment, add_jobs, add_json

# ---- check

_MOST_SYSTEMS = 4  # whose ranges are listed
_MOST_POINTS = 1000  # a second or so to check


def add_check(parser: argparse.ArgumentParser) -> None:
    add_experiment(parser, "file to check")
    parser.add_argument(
        "--no-code",
        action="store_true",
        help=f"import no module that the file names: what only its code can say is not checked (also: {NO_CODE}=1)",
    )


def run_check(args: argparse.Namespace) -> int:
    """Print one line. Raises ArchsimError, which names the file, for one that is not valid or cannot run."""
    with without_code() if args.no_code else nullcontext():
        try:
            return _check(args)
        except ArchsimError as error:
            if Path(args.file).name in str(error):
                raise
            raise ArchsimError(f"{args.file}: {error}") from error


def _check(args: argparse.Namespace) -> int:
    from archsim.api import load
    from archsim.cli.printing import print_notes, system_notes

    found = load(args.file, args.overrides)
    of_file = getattr(found, "plan", found)
    print_notes([*system_notes(_systems(found)), *getattr(getattr(of_file, "experiment", of_file), "unread", ())])
    try:
        checked = _points_checked(found)
    except CodeNotImported as error:
        checked = f"; points were not checked: {error}"
    print_notes(_carrier_notes(found))
    print_notes(_limit_notes(found))
    print(f"{args.file}: {_summary(found, args.file)}{checked}{_indented(_as_built(found))}{_indented(_ranges(found))}")
    return OK


def _ranges(found) -> Iterator[str]:
    """What numbers of a file's machines may be, and which count as exact, as `archsim sure` takes them."""
    from archsim.uncertainty.worlds import exact_of, ranges_of

    systems = _systems(found)
    for system in systems[:_MOST_SYSTEMS]:
        of = f" of {system.name}" if len(systems) > 1 else ""
        yield f"ranges{of} that `archsim sure` draws from, beside those of kernels and measured laws:"
        for each in ranges_of(system):
            low, high = (_amount(end, each.unit) for end in (each.distribution.low, each.distribution.high))
            key, source = each.key.removeprefix("system."), each.source
            source = source.partition(": ")[0] if source.startswith("default of ") else source
            yield f"  {key} {_amount(each.value, each.unit)}: {low} to {high}, {each.distribution.shape}; {source}"
        exact = [key.removeprefix("system.") for key in exact_of(system)]
        yield f"exact{of}: {', '.join(exact)}"


def _amount(value: float, unit: str) -> str:
    """``1.5 TB/s``, ``300 ns``, ``0.9``."""
    from archsim.report.units import prefixed, significant

    if unit in ("B", "B/s", "FLOP/s", "Hz"):
        number, _, prefix = prefixed(value).partition("\u00a0")
        return f"{number} {prefix}{unit}"
    return f"{significant(value)} {unit}".strip()


def _systems(found) -> list:
    """The machines of a file: its own, those of an experiment or of the points' base, or that of a deployment."""
    from archsim.specs.system import SystemSpec

    found = getattr(found, "plan", found)
    found = getattr(found, "experiment", found)
    alone = found if isinstance(found, SystemSpec) else getattr(found, "system", None)
    return [alone] if isinstance(alone, SystemSpec) else list(getattr(found, "systems", ()))


def _as_built(found) -> Iterator[str]:
    """What is left of machines that are not perfect. Fabrics of own code are left out."""
    from archsim.runs.wafers import told_as_built

    for system in _systems(found):
        with suppress(CodeNotImported):
            yield from told_as_built(system)


def _carrier_notes(found) -> Iterator[str]:
    """Of machines that do not fit on the carrier on which their links are. Fabrics of own code are left out."""
    from archsim.runs.energy import build_costs, carrier_note

    for system in _systems(found):
        with suppress(CodeNotImported):
            if note := carrier_note(system.name, build_costs(system).carrier_share):
                yield note


def _limit_notes(found) -> Iterator[str]:
    """What machines with limits of power or heat can do at once."""
    from archsim.runs.power import full_load_told

    for system in _systems(found):
        with suppress(CodeNotImported):
            yield from (f"{system.name}: {line}" for line in full_load_told(system))


def _points_checked(found) -> str:
    """Make the checks of ``archsim sweep`` before it simulates, where they are quick, else say what makes them; and say
    what it takes.
    """
    from archsim.api import ExplorationPlan
    from archsim.specs.experiment import ExperimentSpec
    from archsim.specs.plan import SweepPlan
    from archsim.specs.serving_files import Serving
    from archsim.specs.system import SystemSpec

    if isinstance(found, Serving):
        from archsim.serving.serving import check_serving, rooms_told

        of_requests = check_serving(found)
        return _indented([*found.recipe, *rooms_told(found), *of_requests])
    if isinstance(found, SystemSpec):
        from archsim.runs.feasibility import refuse_own_fabric
        from archsim.runs.power import refuse_unpowered

        refuse_own_fabric(found)
        refuse_unpowered(found)
        return ""
    if not isinstance(found, ExperimentSpec | SweepPlan | ExplorationPlan):
        return ""
    from archsim.base.host import available_cores
    from archsim.runs.feasibility import kv_rooms_told, told
    from archsim.runs.plan import plan_of, select

    plan = plan_of(found.plan if isinstance(found, ExplorationPlan) else found)
    cost = f"; {told(plan, available_cores())}"
    if plan.combinations > _MOST_POINTS:
        return f"{cost}; `archsim sweep --dry-run` checks whether points can run"
    selection = select(plan, lambda text: print(text, file=sys.stderr, flush=True))
    runs = selection.runs()
    drawn = [run.system.drawn for run in runs if run.system.drawn is not None]
    first = min((each.wafer for each in drawn), default=0)  # of drawn machines, which have nearly the same room
    return cost + _indented(
        kv_rooms_told([run for run in runs if run.system.drawn is None or run.system.drawn.wafer == first])
    )


def _indented(lines: Iterable[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _summary(found, file: str) -> str:
    from archsim.api import ExplorationPlan
    from archsim.base.fields import Spec
    from archsim.specs.describe import summary, summary_of_serving, summary_of_sweep
    from archsim.specs.plan import SweepPlan
    from archsim.specs.serving_files import Serving

    match found:
        case Spec():
            return summary(found)
        case ExplorationPlan():
            return summary_of_sweep(found.plan)
        case SweepPlan():
            return summary_of_sweep(found)
        case Serving():
            return summary_of_serving(found)
    from archsim.workload.traffic_presets import model_of

    return f"ok, a valid traffic preset of {model_of(file)}"


# ---- verify
# ``archsim verify``: run a report again from its manifest, and say which numbers moved.

_SHOWN = 20  # columns that moved


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", metavar="REPORT", help="folder of a sweep, serve or explore, or its manifest.yaml")
    add_jobs(parser)
    add_json(parser)


def run_verify(args: argparse.Namespace) -> int:
    """Print what moved; status 1 if anything did. Raises ArchsimError for a report that was changed."""
    print(f"reading {args.report} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher

    print_compiling()
    found = ar.verify(Path(args.report), args.jobs, watcher)
    args.result = found
    _print(found)
    return DIFFERS if found.moved else OK


def _print(found) -> None:
    from archsim.base.errors import printable
    from archsim.cli.printing import console, grid

    table = grid("", "made by", "run again by")
    for name, made, now in found.facts():
        table.add_row(name, printable(made), now if now != made else "the same")
    console().print(table)
    compared = f"{found.rows:,} rows, {found.numbers:,} cells"
    if not found.moved:
        print(f"{found.folder}: {compared}: none moved")
        return
    print(f"{found.folder}: {compared}: {len(found.moved)} columns moved")
    table = grid("file", "column", numbers=("rows", "before", "after", "change"))
    table.add_column("moved most at")
    for each in sorted(found.moved, key=lambda each: -abs(each.change or 0))[:_SHOWN]:
        change = "–" if each.change is None else f"{each.change:+.2%}"
        cells = each.file, each.column, str(each.rows), each.before, each.after, change, each.at
        table.add_row(*map(printable, cells))
    console().print(table)
    if len(found.moved) > _SHOWN:
        print(f"and {len(found.moved) - _SHOWN} more columns; --json has all")
