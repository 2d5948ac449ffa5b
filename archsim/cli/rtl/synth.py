"""``archsim rtl synth``: components in cells of a library, beside the analytical model."""

import argparse
import inspect
from pathlib import Path

from archsim.base.errors import ArchsimError
from archsim.cli.exit_codes import OK
from archsim.cli.printing import console, grid
from archsim.cli.rtl.arguments import add_parameters, benches, built, combinations, known_block


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="one component (default: all)")
    parser.add_argument("--liberty", nargs="+", default=[], metavar="FILE", help="cell library, .lib or .lib.xz")
    parser.add_argument("--out", metavar="DIR", help="write a JSON file a component here")
    add_parameters(parser)


def run(args: argparse.Namespace) -> int:
    """Print area, delay and energy of every component. Raises ArchsimError without a library or the extra ``rtl``."""
    blocks = [known_block(args.block)] if args.block else list(benches())
    from microarch.rtl import missing
    from microarch.silicon.liberty import find_libraries, read_libraries
    from microarch.silicon.synthesis import synthesise, written

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
    for block in blocks:
        for changes in combinations(block, args.changes if args.block else [], {}):
            component = built(block, changes)
            found = synthesise(block, component, Path(inspect.getfile(type(component))), library)
            if args.out:
                folder = Path(args.out)
                folder.mkdir(parents=True, exist_ok=True)
                name = "-".join([block, *(f"{key}{value}" for key, value in changes.items())])
                (folder / f"{name}.json").write_text(written(found), encoding="utf-8")
            said = " ".join(f"{key}={value}" for key, value in found.parameters.items())
            made.add_row(
                block, said, f"{found.flip_flops:,}", f"{found.gated_flip_flops:,}", f"{found.cells:,}",
                f"{found.area_um2:,.0f}", f"{found.sequential_um2:,.1f}", f"{found.delay_ps / 1000:.3f}",
                f"{found.cells_ps / 1000:.3f}", f"{found.logic_ps / 1000:.3f}", f"{found.abc_logic_ps / 1000:.3f}",
                f"{found.free_running_fj:,.0f}",
            )  # fmt: skip
    console().print(made)
    return OK
