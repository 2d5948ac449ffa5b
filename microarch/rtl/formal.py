"""Invariants of the components by temporal induction, with the SAT solver in Yosys (``sat -tempinduct``).

A harness, at the end of a component's module, claims something of it at a small size; the proof holds for runs of any
length and for all inputs that the harness allows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Fragment, Module

from microarch.rtl import allocator, atu, heatmap, lockstep, pdu, select, sorter
from microarch.silicon.synthesis import in_yosys

PROPERTIES: Mapping[str, Any] = MappingProxyType({
    "allocator": allocator, "atu": atu, "heatmap": heatmap, "pdu": pdu, "select": select, "sorter": sorter
})  # fmt: skip
MAX_STEPS = 6  # of an induction
PROVED = "Induction step proven: SUCCESS!"
DISPROVED = "model found for base case"


@dataclass(frozen=True)
class Proof:
    """``steps``: length of the induction; ``counterexample``: what the solver found, or ''."""

    block: str
    claim: str
    parameters: Any
    proved: bool
    steps: int
    counterexample: str


def prove(block: str, changes: Mapping[str, Any], component: Any = None) -> Proof:
    """The claim of a block at its shipped parameters with ``changes``. ``component``: one to take instead of the
    shipped, and its module's parameters with it.
    """
    kind, shipped = lockstep.BENCHES[block]
    parameters = type(shipped)(**changes)
    dut = (component or kind.component)(parameters)
    top = Module()
    clock = top.domains.sync = ClockDomain("sync", reset_less=True)
    top.submodules.dut = Fragment.get(dut, None)
    own = PROPERTIES[block].harness(dut, top)
    text = rtlil.convert(top, ports=[clock.clk, *dut.inputs, *dut.outputs, *own], name="harness")
    log = in_yosys(_induction, text)
    proved = PROVED in log
    steps = len(re.findall(r"Trying induction with length", log))
    why = "a run from reset breaks it" if DISPROVED in log else f"no induction of up to {MAX_STEPS} steps holds"
    against = "" if proved else why
    return Proof(block, PROPERTIES[block].CLAIM, parameters, proved, steps, against)


def _induction(text: str, folder: Path, run: Callable[[str], None]) -> str:
    """Log of the proof."""
    (folder / "in.il").write_text(text, encoding="utf-8")
    for command in (
        f"read_rtlil {folder / 'in.il'}", "proc", "flatten", "async2sync", "chformal -lower", "opt_clean", "techmap",
        "opt -fast", f"sat -tempinduct -prove-asserts -set-assumes -maxsteps {MAX_STEPS} harness",
    ):  # fmt: skip
        run(command)
    return (folder / "log").read_text(encoding="utf-8", errors="replace")
