"""``archsim blocks``: tables, parameters and state diagrams of the hardware blocks."""

import argparse
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("block", nargs="?", metavar="BLOCK", help="one block, such as pdu (default: all)")
    parser.add_argument("--diagram", metavar="FILE", help="write the block's state diagram as SVG")
    parser.add_argument("--diagram-dir", metavar="DIR", help="write the diagrams of all blocks, or of BLOCK")


def run(args: argparse.Namespace) -> int:
    """Print one block or all; write diagrams.

    Raises SpecError for an unknown block, and for ``--diagram`` without one.
    """
    from archsim.report.blocks import DIAGRAMS, diagram_of, full_text, known_block, overview, write_diagrams

    block = args.block and known_block(args.block)
    if args.diagram and block is None:
        raise SpecError("--diagram needs the name of a block; --diagram-dir writes all of them")
    if args.diagram_dir:
        names = [block] if block else [*DIAGRAMS]
        write_diagrams(Path(args.diagram_dir), names)
        print(f"{len(names)} diagrams: {args.diagram_dir}")
    if args.diagram:
        Path(args.diagram).write_text(diagram_of(block), encoding="utf-8")
        print(f"diagram: {args.diagram}")
    if not args.diagram and not args.diagram_dir:
        print(full_text(block) if block else overview())
    return OK
