"""The command line: parse, call the API, print. Everything heavy is imported inside the command that needs it."""

import argparse
import os
import sys
from collections.abc import Sequence

from archsim.base.errors import ArchsimError
from archsim.cli.arguments import Parser, natural, positive
from archsim.cli.calibrate import add_calibration_commands
from archsim.cli.model import add_model_commands
from archsim.cli.trace import add_trace_commands

USER_ERROR = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or 2 with the message on stderr where the input is at fault."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.command(arguments)
    except ArchsimError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        # The reader of our output has gone (`archsim list models | head`); nothing more may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        # Commands that go on where they stopped say so themselves.
        print("\ninterrupted; what had not ended is not kept", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="archsim", description="Simulates MoE serving on chiplet, wafer-scale and multi-GPU machines.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    sweep = commands.add_parser("sweep", help="run every combination of an experiment and report on it")
    _add_experiment(sweep, "experiment, or manifest.yaml of a report")
    sweep.add_argument("--out", metavar="DIR", help="folder of the report (default: reports/NAME)")
    sweep.add_argument("--jobs", type=positive, metavar="N", help="runs side by side (default: number of cores)")
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="a Dask cluster that does the runs, such as tcp://host:8786")
    sweep.add_argument("--dry-run", action="store_true", help="print the runs and whether each fits in memory")
    sweep.add_argument("--point", type=natural, metavar="N", help="print point N of a `sweep:` as an experiment of its own")
    sweep.set_defaults(command=_sweep)

    _add_studies(commands)
    run = commands.add_parser("run", help="run one combination of an experiment; with a timeline of one step")
    _add_experiment(run, "experiment")
    run.add_argument("--policy", metavar="NAME", help="one of the experiment's policies (default: its first)")
    run.add_argument("--system", metavar="NAME", help="one of its systems (default: its first)")
    run.add_argument("--model", metavar="NAME", help="one of its models (default: its first)")
    run.add_argument("--batch", type=positive, metavar="N", help="one of its batch sizes (default: its first)")
    run.add_argument("--assumptions", metavar="LABEL", help="one of its assumption sets (default: its first)")
    run.add_argument("--step", type=natural, metavar="N", help="iteration of the timeline (0: prefill)")
    run.add_argument("--layer", type=natural, metavar="N", help="layer of the timeline")
    run.add_argument("--timeline", metavar="FILE", help="write a timeline of the step, to be opened with Perfetto")
    run.set_defaults(command=_run)

    _add_hardware(commands)
    _add_check_and_list(commands)
    blocks = commands.add_parser("blocks", help="hardware blocks as state machines: tables, parameters, diagrams")
    blocks.add_argument("block", nargs="?", metavar="BLOCK", help="one block, such as pdu (default: all)")
    blocks.add_argument("--diagram", metavar="FILE", help="write the block's state diagram, as SVG")
    blocks.add_argument("--diagram-dir", metavar="DIR", help="write the diagrams of all blocks, or of this one")
    blocks.set_defaults(command=_blocks)

    model = commands.add_parser("model", help="models from exported graphs")
    add_model_commands(model.add_subparsers(required=True, metavar="ACTION"))

    trace = commands.add_parser("trace", help="recorded routing: import it into a store, look at it, cut it")
    add_trace_commands(trace.add_subparsers(required=True, metavar="ACTION"))
    add_calibration_commands(commands)
    return parser


def _add_studies(commands) -> None:
    """Commands that make many runs and one answer."""
    ablate = commands.add_parser("ablate", help="what each assumption is worth: from one set to another, one at a time and in a chain")
    _add_experiment(ablate, "experiment")
    ablate.add_argument("--from", dest="start", default="published", metavar="SET", help="first set (default: published)")
    ablate.add_argument("--to", dest="end", default="physical", metavar="SET", help="last set (default: physical)")
    ablate.add_argument("--out", metavar="DIR", help="folder of the report (default: reports/NAME-ablation)")
    ablate.add_argument("--jobs", type=positive, metavar="N", help="runs side by side (default: number of cores)")
    ablate.set_defaults(command=_ablate)

    explore = commands.add_parser("explore", help="search the points of a `sweep:` for those that no other beats")
    _add_experiment(explore, "experiment with `sweep:` and `explore:`")
    explore.add_argument("--out", metavar="DIR", help="folder of the report (default: reports/NAME-exploration)")
    explore.add_argument("--jobs", type=positive, metavar="N", help="runs side by side (default: number of cores)")
    explore.set_defaults(command=_explore)

    compare = commands.add_parser("compare", help="run a sample of an experiment on both engines and print how they differ")
    _add_experiment(compare, "experiment")
    compare.add_argument("--sample", type=positive, metavar="N", default=40, help="runs drawn at random (default: 40)")
    compare.add_argument("--steps", type=positive, metavar="N", default=3, help="decode steps of each, at most (default: 3)")
    compare.set_defaults(command=_compare)

    optimum = commands.add_parser("optimum", help="how far every policy's steps are from a bound that no allocation could beat")
    _add_experiment(optimum, "experiment")
    optimum.add_argument("--out", metavar="DIR", help="folder of the page (default: reports/NAME-optimum)")
    optimum.add_argument("--steps", type=positive, default=200, metavar="N", help="steps of each run that are bounded, evenly spread (default: 200)")
    optimum.set_defaults(command=_optimum)


def _add_hardware(commands) -> None:
    """Commands that price a machine without running it."""
    area = commands.add_parser("area", help="area and power of the tables and cores that decide, beside the published")
    _add_experiment(area, "experiment")
    area.add_argument(
        "--design",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what the tables are built for, such as experts=1024 or ports=2; may be repeated",
    )
    area.add_argument("--technology", choices=("n5", "scaled"), default="n5", help="coefficients (default: n5)")
    area.add_argument("--sources", action="store_true", help="print every coefficient and where it comes from")
    area.set_defaults(command=_area)

    cost = commands.add_parser("cost", help="area of a die, price of a machine, and the coefficients of energy, with ranges")
    _add_experiment(cost, "experiment")
    cost.add_argument(
        "--coefficient",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value, such as wafer_usd=20000; may be repeated",
    )
    cost.add_argument("--sources", action="store_true", help="print every coefficient, its range and where it comes from")
    cost.set_defaults(command=_cost)


def _add_check_and_list(commands) -> None:
    """Commands that look at files."""
    check = commands.add_parser("check", help="check an experiment, system, model, assumption set, calibration or traffic file")
    _add_experiment(check, "file to check")
    check.set_defaults(command=_check)

    listing = commands.add_parser("list", help="list what an experiment may name")
    listing.add_argument("what", choices=("systems", "models", "policies", "assumptions", "calibrations", "traffic"))
    listing.set_defaults(command=_list)


def _add_experiment(parser: argparse.ArgumentParser, meaning: str) -> None:
    parser.add_argument("file", metavar="FILE", help=meaning)
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="override a key, such as workload.batch=[64] or systems.0.d2d.bandwidth=2TB/s; may be repeated",
    )


def _sweep(arguments: argparse.Namespace) -> int:
    if not arguments.dry_run and arguments.point is None:
        print(f"reading {arguments.file} ...", file=sys.stderr, flush=True)  # before anything is imported that takes time
    from archsim.cli.sweep import sweep_command
    from archsim.specs.loading.library import load_planned

    planned = load_planned(arguments.file, arguments.overrides)
    return sweep_command(planned, arguments.out, arguments.jobs, arguments.dry_run, arguments.point, arguments.scheduler)


def _optimum(arguments: argparse.Namespace) -> int:
    from archsim.cli.optimum import optimum_command
    from archsim.specs.loading.library import load_experiment

    return optimum_command(load_experiment(arguments.file, arguments.overrides), arguments.out, arguments.steps)


def _run(arguments: argparse.Namespace) -> int:
    from archsim.cli.run import run_command
    from archsim.specs.loading.library import load_experiment

    experiment = load_experiment(arguments.file, arguments.overrides)
    return run_command(
        experiment,
        policy=arguments.policy,
        system=arguments.system,
        model=arguments.model,
        batch=arguments.batch,
        assumptions=arguments.assumptions,
        step=arguments.step,
        layer=arguments.layer,
        timeline=arguments.timeline,
    )


def _ablate(arguments: argparse.Namespace) -> int:
    from archsim.cli.ablate import ablate_command
    from archsim.specs.loading.library import load_experiment

    experiment = load_experiment(arguments.file, arguments.overrides)
    return ablate_command(experiment, arguments.start, arguments.end, arguments.out, arguments.jobs)


def _explore(arguments: argparse.Namespace) -> int:
    from archsim.cli.explore import explore_command
    from archsim.specs.loading.library import load_exploration

    plan, spec = load_exploration(arguments.file, [*arguments.overrides, "engine=analytical"])
    return explore_command(plan, spec, arguments.out, arguments.jobs)


def _area(arguments: argparse.Namespace) -> int:
    from archsim.cli.area import area_command
    from archsim.specs.loading.library import load_experiment

    experiment = load_experiment(arguments.file, arguments.overrides)
    return area_command(experiment, arguments.design, arguments.technology, arguments.sources)


def _cost(arguments: argparse.Namespace) -> int:
    from archsim.cli.cost import cost_command
    from archsim.specs.loading.library import load_experiment

    experiment = load_experiment(arguments.file, arguments.overrides)
    return cost_command(experiment, arguments.coefficient, arguments.sources)


def _compare(arguments: argparse.Namespace) -> int:
    from archsim.cli.compare import compare_command, compare_points_command
    from archsim.specs.loading.library import load_planned
    from archsim.specs.sweeps.plan import SweepPlan

    planned = load_planned(arguments.file, arguments.overrides)
    compare = compare_points_command if isinstance(planned, SweepPlan) else compare_command
    return compare(planned, arguments.sample, arguments.steps)


def _check(arguments: argparse.Namespace) -> int:
    from archsim.specs.loading.describe import summary, summary_of_sweep
    from archsim.specs.loading.file_kinds import TRAFFIC, kind_of
    from archsim.specs.loading.library import check_file, load_sweep
    from archsim.specs.text.yaml import read_yaml

    data = read_yaml(arguments.file).data
    if kind_of(data) == TRAFFIC:
        print(f"{arguments.file}: ok, a valid traffic preset of {_checked_traffic(arguments)}")
    elif "sweep" in data:
        print(f"{arguments.file}: {summary_of_sweep(load_sweep(arguments.file, arguments.overrides))}")
    else:
        print(f"{arguments.file}: {summary(check_file(arguments.file, arguments.overrides))}")
    return 0


def _checked_traffic(arguments: argparse.Namespace) -> str:
    """The model that a traffic preset is of. Raises ArchsimError for one that its model could not take."""
    from archsim.specs.loading.library import load_model
    from archsim.workload.generated.traffic_presets import load_traffic, model_of

    if arguments.overrides:
        raise ArchsimError(f"--set {arguments.overrides[0]}: not of a traffic preset")
    model = model_of(arguments.file)
    load_traffic(arguments.file, load_model(model))
    return model


def _list(arguments: argparse.Namespace) -> int:
    from archsim.specs.loading.describe import listing

    print(listing(arguments.what))
    return 0


def _blocks(arguments: argparse.Namespace) -> int:
    from archsim.cli.blocks import blocks_command

    return blocks_command(arguments.block, arguments.diagram, arguments.diagram_dir)


if __name__ == "__main__":
    sys.exit(main())
