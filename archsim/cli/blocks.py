"""``archsim hardware blocks``: tables, parameters and state diagrams of the hardware blocks."""

import argparse
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.cli import arguments


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
    """Print blocks; write diagrams. Raises SpecError for an unknown block, and ``--diagram`` without one."""
    from archsim.show.blocks import DIAGRAMS, diagram_of, full_text, known_block, overview, write_diagrams

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
