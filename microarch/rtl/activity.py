"""Clocked and toggled bits of a component while it runs: what its energy follows from.

Beside every register stands a mask of its bits, set where a statement of the component is about to write them: the
bits whose enable is set. It is found from the component's own statements, so that a gated clock ticks for these bits
and no others; a free-running one ticks for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Elaboratable, Fragment, Signal
from amaranth.hdl._ast import ArrayProxy, Assign, Concat, Operator, Part, Slice, Statement, Switch, SwitchValue, Value
from amaranth.sim import Simulator

SYNC, COMB = "sync", "comb"


@dataclass
class RegisterActivity:
    """The activity of a run: ``bits`` of registers, ``cycles``; ``clocked``: bits · cycles whose enable was set;
    ``toggled``: bits that changed.
    """

    bits: int
    cycles: int = 0
    clocked: int = 0
    toggled: int = 0


class Watched(Elaboratable):
    """A component with its ports, and what to sample: ``registers`` and ``masks`` as one word each."""

    def __init__(self, component: Any):
        self.component = component
        self._fragment = fragment = Fragment.get(component, None)
        statements = fragment.statements[SYNC]
        written: dict[int, Signal] = {}
        for statement in statements:
            for signal in statement._lhs_signals():
                written.setdefault(id(signal), signal)
        masks = {key: Signal(len(signal), name=f"writes_{signal.name}") for key, signal in written.items()}
        bits = sum(map(len, masks.values()))
        self.registers, self.masks, self.activity = Signal(bits), Signal(bits), RegisterActivity(bits)
        fragment.add_statements(COMB, [_marked(each, masks) for each in statements])
        fragment.add_statements(COMB, self.registers.eq(Cat(written.values())), self.masks.eq(Cat(masks.values())))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.component, name)

    def elaborate(self, platform) -> Fragment:
        return self._fragment

    def watch(self, simulator: Simulator) -> None:
        """Count, in every cycle."""
        found = self.activity

        async def count(ctx):
            before = None
            async for _, _, registers, masks in ctx.tick().sample(self.registers, self.masks):
                found.cycles += 1
                found.clocked += masks.bit_count()
                found.toggled += 0 if before is None else (registers ^ before).bit_count()
                before = registers

        simulator.add_process(count)


def _marked(statement: Statement, masks: Mapping[int, Signal]) -> Statement:
    """The statement that sets the masks of the bits which this one writes."""
    if isinstance(statement, Assign):
        target = _mask(statement.lhs, masks)
        return Assign(target, Const(2 ** len(target) - 1, len(target)))
    if isinstance(statement, Switch):
        cases = [(patterns, _all(inner, masks), where) for patterns, inner, where in statement.cases]
        return Switch(statement.test, [(patterns, inner, where) for patterns, inner, where in cases])
    raise NotImplementedError(f"{type(statement).__name__} writes a register")


def _all(statements: Iterable[Statement], masks: Mapping[int, Signal]) -> list[Statement]:
    return [_marked(each, masks) for each in statements]


def _mask(value: Value, masks: Mapping[int, Signal]) -> Value:
    """The bits of the masks at the place of a register's."""
    if isinstance(value, Signal):
        return masks[id(value)]
    if isinstance(value, Slice):
        return Slice(_mask(value.value, masks), value.start, value.stop)
    if isinstance(value, Part):
        return Part(_mask(value.value, masks), value.offset, value.width, value.stride)
    if isinstance(value, Concat):
        return Concat([_mask(each, masks) for each in value.parts])
    if isinstance(value, ArrayProxy):
        return ArrayProxy([_mask(Value.cast(each), masks) for each in value.elems], value.index)
    if isinstance(value, SwitchValue):
        return SwitchValue(value.test, [(patterns, _mask(each, masks)) for patterns, each in value.cases])
    if isinstance(value, Operator) and value.operator in ("u", "s"):
        return _mask(value.operands[0], masks)
    raise NotImplementedError(f"{type(value).__name__} on the left of an assignment")
