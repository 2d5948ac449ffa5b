"""What ``archsim blocks`` does: tables, parameters and state diagrams of the hardware blocks."""

from __future__ import annotations

import importlib
from pathlib import Path

from archsim.base.errors import SpecError
from archsim.base.nearest import did_you_mean
from archsim.report.draw.state_diagram import state_diagram
from microarch.blocks import catalogue as blocks
from microarch.blocks import parameters
from microarch.blocks.request import State
from microarch.blocks.state_machine import Table

OK = 0
DIAGRAMS = blocks.TABLES | {"request": blocks.REQUEST}


def blocks_command(block: str | None, diagram: str | None, diagram_dir: str | None) -> int:
    """Print one block or all; write diagrams. Raises SpecError for an unknown block and for a diagram of no block."""
    if block is not None and block not in DIAGRAMS:
        raise SpecError(f"{block!r} is not a block{did_you_mean(block, DIAGRAMS)}; there are {', '.join(DIAGRAMS)}")
    if diagram and block is None:
        raise SpecError("--diagram needs the name of a block; --diagram-dir writes all of them")
    if diagram_dir:
        write_diagrams(Path(diagram_dir), [block] if block else [*DIAGRAMS])
    if diagram:
        Path(diagram).write_text(diagram_of(block), encoding="utf-8")
        print(f"diagram: {diagram}")
    if not diagram and not diagram_dir:
        print(full_text(block) if block else overview())
    return OK


def overview() -> str:
    """Every block with one line and its table."""
    parts = []
    for name, table in DIAGRAMS.items():
        parts += [f"{name}: {_module(name).__doc__.splitlines()[0]}", _indented(table.describe()), ""]
    parts.append("archsim blocks NAME: parameters and state layout; with --diagram FILE.svg: its state diagram")
    return "\n".join(parts)


def full_text(name: str) -> str:
    """What the block's module says of itself, and its parameters."""
    if name == "request":
        return f"{importlib.import_module('microarch.blocks.request').__doc__.rstrip()}\n\n{blocks.REQUEST.describe()}"
    block = _module(name).Parameters
    return f"{_module(name).__doc__.rstrip()}\n\nParameters: {block.__doc__}\n\n{_indented(parameters.describe(block))}"


def diagram_of(name: str) -> str:
    """SVG."""
    return state_diagram(DIAGRAMS[name], owners_of(DIAGRAMS[name]))


def owners_of(table: Table) -> dict[State, str]:
    """The block that serves each state of a request, for tables over those states."""
    if table.states is not State:
        return {}
    return {state: block.__name__.rpartition(".")[2] for block in blocks.REQUEST_BLOCKS for state in block.SERVES}


def write_diagrams(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.svg").write_text(diagram_of(name), encoding="utf-8")
    print(f"{len(names)} diagrams: {folder}")


def _module(name: str):
    return importlib.import_module(f"microarch.blocks.{name}")


def _indented(lines: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in lines.splitlines())
