"""Coverage of a component by a stimulus: what of it was exercised, so that a check says how much it can notice.

Two figures are counted in every cycle. *Bits*: bits of registers that rose and fell. *Branches*: cases of every
``If``, ``Switch``, ``Mux`` and array of the component that were taken, the case in which nothing is taken included; a
case counts where the statement around it is active. A third figure, *bounds*, is counted by the bench: least and
largest values of what enters a component (``microarch.rtl.lockstep``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amaranth.hdl import Const, Elaboratable, Fragment, Signal
from amaranth.hdl._ast import ArrayProxy, Assign, Concat, Operator, Part, Slice, Statement, Switch, SwitchValue, Value

SYNC, COMB = "sync", "comb"


@dataclass
class LockstepCoverage:
    """Names of what can be covered, and those of it that were not yet. ``bounds``: by the bench's own names."""

    bits: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    bounds: dict[str, bool] = field(default_factory=dict)
    risen: int = 0  # a bit for each of ``bits``; the first value is that of a reset
    fallen: int = 0
    taken: int = 0  # a bit for each of ``branches``

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """(covered, all) of bits, branches and bounds."""
        return (
            ((self.risen & self.fallen).bit_count(), len(self.bits)),
            (self.taken.bit_count(), len(self.branches)),
            (sum(self.bounds.values()), len(self.bounds)),
        )

    @property
    def complete(self) -> bool:
        return all(covered == of for covered, of in self.counts)

    @property
    def missed(self) -> list[str]:
        """What no cycle of the stimulus exercised."""
        toggled = self.risen & self.fallen
        return [
            *(f"bit {name}" for at, name in enumerate(self.bits) if not toggled >> at & 1),
            *(f"branch {name}" for at, name in enumerate(self.branches) if not self.taken >> at & 1),
            *(f"bound {name}" for name, was in self.bounds.items() if not was),
        ]

    def __str__(self) -> str:
        parts = zip(("bits", "branches", "bounds"), self.counts, strict=True)
        return ", ".join(f"{covered:,} of {of:,} {what}" for what, (covered, of) in parts)


class Covered(Elaboratable):
    """A component with its ports; ``coverage`` is counted while it is simulated. ``never``: bits that cannot toggle,
    which are not counted.
    """

    def __init__(self, component: Any, never: Container[str] = ()):
        self.component, self.coverage = component, LockstepCoverage()
        self._fragment = fragment = Fragment.get(component, None)
        self._seen: dict[int, Value] = {}  # values that stand in several statements are counted where they stand first
        written = _registers(fragment)
        names = {id(signal): name for name, signal in vars(component).items() if isinstance(signal, Signal)}
        bits = [f"{names.get(id(each), each.name)}[{bit}]" for each in written for bit in range(len(each))]
        self._counted = [at for at, name in enumerate(bits) if name not in never]
        self.coverage.bits = [bits[at] for at in self._counted]
        probes = [probe for statement in _all_statements(fragment) for probe in self._probes(statement)]
        self._taken = Signal(max(1, len(self.coverage.branches)), reset_less=True)
        self._toggles = []  # (bits that rose, bits that fell) of each register
        for each in written:
            before, rose, fell = (Signal.like(each, name=f"{each.name}_{what}") for what in ("before", "rose", "fell"))
            changes = Assign(before, each), Assign(rose, rose | each & ~before), Assign(fell, fell | before & ~each)
            fragment.add_statements(SYNC, list(changes))
            self._toggles.append((rose, fell))
        fragment.add_statements(SYNC, list(self._built(probes)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.component, name)

    def elaborate(self, platform: Any) -> Fragment:
        return self._fragment

    def gather(self, ctx: Any) -> None:
        """Take over what the simulation has counted; ``ctx``: of a test bench."""
        self.coverage.taken = ctx.get(self._taken)
        for side, attribute in enumerate(("risen", "fallen")):
            at = word = 0
            for toggles in self._toggles:
                word |= ctx.get(toggles[side]) << at
                at += len(toggles[side])
            of_counted = (1 << bit for bit, at in enumerate(self._counted) if word >> at & 1)
            setattr(self.coverage, attribute, sum(of_counted))

    # A probe is a branch's number, or (test, [(patterns, probes)]) for what is tested below an active statement.

    def _probes(self, statement: Statement) -> list:
        if isinstance(statement, Assign):
            return [probe for value in (statement.rhs, statement.lhs) for probe in self._of_value(value)]
        if not isinstance(statement, Switch):
            return []
        cases = [
            (patterns, [self._branch(statement.src_loc, patterns), *(p for one in inner for p in self._probes(one))])
            for patterns, inner, _ in statement.cases
        ]
        return [*self._of_value(statement.test), (statement.test, self._with_rest(statement, cases))]

    def _of_value(self, value: Value) -> list:
        if id(value) in self._seen:
            return []
        self._seen[id(value)] = value
        if isinstance(value, SwitchValue):
            where = value.src_loc
            cases = [(patterns, [self._branch(where, patterns), *self._of_value(of)]) for patterns, of in value.cases]
            return [*self._of_value(value.test), (value.test, cases)]
        if isinstance(value, ArrayProxy):
            index, elements = Value.cast(value.index), [Value.cast(each) for each in value.elems]
            reached = min(len(elements), 2 ** len(index))
            patterns = [(f"{at:0{len(index)}b}",) for at in range(reached)]
            cases = [(one, [self._branch(value.src_loc, one)]) for one in patterns] if len(elements) > 1 else []
            return [*self._of_value(index), *([(index, cases)] if cases else [])]
        return [probe for part in _operands(value) for probe in self._of_value(part)]

    def _branch(self, where: Any, patterns: Any) -> int:
        file, line = where[:2]
        self.coverage.branches.append(f"{Path(file).name}:{line} {'else' if not patterns else '|'.join(patterns)}")
        return len(self.coverage.branches) - 1

    def _with_rest(self, switch: Switch, cases: list) -> list:
        """The cases of a statement, and the one in which none of them is taken, where it can be."""
        patterns = [each for some, _ in cases for each in some or ()]
        whole = any(some is None or not some for some, _ in cases) or len(set(patterns)) == 2 ** len(switch.test)
        return cases if whole else [*cases, (None, [self._branch(switch.src_loc, None)])]

    def _built(self, probes: Iterable) -> Iterator[Statement]:
        for probe in probes:
            if isinstance(probe, int):
                yield Assign(Slice(self._taken, probe, probe + 1), Const(1, 1))
            else:
                test, cases = probe
                yield Switch(test, [(patterns, list(self._built(inner)), None) for patterns, inner in cases])


def _registers(fragment: Fragment) -> list[Signal]:
    written: dict[int, Signal] = {}
    for statement in fragment.statements.get(SYNC, ()):
        for signal in statement._lhs_signals():
            written.setdefault(id(signal), signal)
    return list(written.values())


def _all_statements(fragment: Fragment) -> list[Statement]:
    return [each for domain in (COMB, SYNC) for each in fragment.statements.get(domain, ())]


def _operands(value: Value) -> list[Value]:
    if isinstance(value, Operator):
        return list(value.operands)
    if isinstance(value, Concat):
        return list(value.parts)
    if isinstance(value, Slice):
        return [value.value]
    if isinstance(value, Part):
        return [value.value, value.offset]
    return []
