"""Hardware blocks as texts and state diagrams, from their tables and parameters."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from archsim.base.errors import SpecError, did_you_mean
from archsim.show.state_diagram import state_diagram
from microarch.blocks import catalogue as blocks
from microarch.blocks import request
from microarch.blocks.block import TransitionTable, describe

DIAGRAMS = blocks.TABLES | {"request": blocks.REQUEST}


def known_block(name: str) -> str:
    """The name. Raises SpecError if no block has it."""
    if name not in DIAGRAMS:
        raise SpecError(f"{name!r} is not a block{did_you_mean(name, DIAGRAMS)}; there are {', '.join(DIAGRAMS)}")
    return name


def overview() -> str:
    parts = []
    for name, table in DIAGRAMS.items():
        first = " ".join(_module(name).__doc__.partition("\n\n")[0].split())
        parts += [f"{name}: {first}", _indent(table.describe()), ""]
    parts.append("archsim hardware blocks NAME: parameters and state layout; with --diagram FILE.svg: its diagram")
    return "\n".join(parts)


def full_text(name: str) -> str:
    if name == "request":
        said = importlib.import_module("microarch.blocks.request").__doc__ or ""
        return f"{said.rstrip()}\n\n{blocks.REQUEST.describe()}"
    module, table = _module(name), _indent(DIAGRAMS[name].describe())
    of_it = f"Parameters: {module.Parameters.__doc__}\n\n{_indent(describe(module.Parameters))}"
    return f"{module.__doc__.rstrip()}\n\nTransitions:\n\n{table}\n\n{of_it}"


def diagram_of(name: str) -> str:
    return state_diagram(DIAGRAMS[name], owners_of(DIAGRAMS[name]))


def owners_of(table: TransitionTable) -> dict[request.State, str]:
    if table.states is not request.State:
        return {}
    return {state: block.__name__.rpartition(".")[2] for block in blocks.REQUEST_BLOCKS for state in block.SERVES}


def write_diagrams(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.svg").write_text(diagram_of(name), encoding="utf-8")


def _module(name: str):
    return importlib.import_module(f"microarch.blocks.{name}")


def _indent(lines: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in lines.splitlines())
