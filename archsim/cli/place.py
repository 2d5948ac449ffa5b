"""``archsim place``: from recorded loads to a placement that a serving engine starts with."""

import argparse

from archsim.cli.arguments import OK, add_out, natural, positive


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "loads", nargs="+", metavar="LOADS", help="Recorded loads: a dump of an engine, a matrix of loads or a store."
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="The model, by name or file.")
    parser.add_argument(
        "--system", required=True, metavar="NAME", help="The system, by name or file. Every die is a rank."
    )
    parser.add_argument(
        "--policy",
        default="eplb",
        metavar="NAME",
        help="How experts are placed: none, eplb, craft, remap or dup (default: eplb).",
    )
    number = parser.add_mutually_exclusive_group()
    number.add_argument(
        "--slots",
        type=natural,
        default=0,
        metavar="N",
        help="Slots of a layer beyond one for each expert (default: 0).",
    )
    number.add_argument("--num-slots", type=positive, metavar="N", help="All slots of a layer together.")
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="Number of ranks of expert parallelism (default: the dies of the system).",
    )
    parser.add_argument(
        "--tokens", type=positive, metavar="N", help="Tokens of an iteration, for loads summed over iterations."
    )
    add_out(parser, "Folder to write files for serving engines to (default: nothing is written).")


def run_place(args: argparse.Namespace) -> int:
    """Place, and print what it gains and costs. Raises ArchsimError for what does not fit."""
    import archsim as ar
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.workload.placements import ENGINES

    print_compiling()
    placed = ar.place(
        args.loads, args.model, args.system, args.policy, args.slots,
        num_slots=args.num_slots, ranks=args.ranks, tokens=args.tokens, out=args.out,
    )  # fmt: skip
    args.result = placed
    _print_rows(placed)
    _print_costs(placed)
    for engine, file in zip(ENGINES, placed.files, strict=False):
        print(f"{engine.name:<12} {file}\n{'':<12} {engine.options(placed.map, file)}")
    print_notes(placed.notes)
    return OK


def _print_rows(placed) -> None:
    """The placements on the loads by which they are judged."""
    from archsim.cli.printing import console, grid

    matrices = placed.trained + placed.held_out
    judged = f"the last {placed.held_out} of {matrices} matrices" if placed.held_out else "all loads"
    print(
        f"The largest load with the default placement of SGLang and vLLM is {placed.gain:.3f} times that with "
        f"{placed.policy}."
    )
    title = f"{placed.model.name}, {placed.map.ranks} ranks, {placed.map.slots} slots: {judged}"
    table = grid("placement", title=title, numbers=("max / mean", "balancedness", "experts"))
    for row in placed.rows:
        time = "–" if row.experts_ns is None else f"{row.experts_ns / 1e6:.3f} ms"
        table.add_row(row.name, f"{row.max_over_mean:.3f}", f"{row.balancedness:.3f}", time)
    console().print(table)


def _print_costs(placed) -> None:
    cost = placed.cost
    print(f"Replicas take {cost.extra_bytes / 1e9:.2f} GB of a rank's HBM, {cost.hbm_share:.1%} of its capacity.")
    print(
        f"Replacing the default placement of a running engine moves {cost.moved:,} experts "
        f"({cost.moved_bytes / 1e9:.1f} GB), of which {cost.busiest_bytes / 1e9:.2f} GB go to the busiest rank. An "
        "engine that starts with it moves none."
    )
