"""Allocator of the Global CP in RTL: GENERATE, EVALUATE and MERGE of one expert after the other.

An expert's candidates come one a cycle, in order of rank, and fill slots lane by lane: a lane has ``groups`` slots,
as many as it needs for ``candidates / lanes``. For every block of tokens each lane keeps the least cost of its groups,
one group a cycle; a tree over the lanes takes one level a cycle; ties go to the earlier candidate. MERGE hands out one
plan entry a cycle and returns the loads of its dies.

Cycles: GENERATE ``candidates``; EVALUATE ``blocks · (groups + ⌈log2 min(candidates, lanes)⌉ + stages)``; MERGE
``entries``: those of ``microarch.blocks.global_cp.fsm_ns``.

With ``speeds`` a slot also keeps how slow its die is (a factor of SPEED_BITS bits, SPEED_FRACTION of them behind the
point), and each lane multiplies the work of a block by it, in a stage of its own. The cost of reading weights, which
enters with a candidate, then already is that of its HBM, or of the link to it.

Costs are integers of ``cost_bits``; the caller sees to it that no load exceeds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from amaranth.hdl import Array, Assert, Assume, Cat, Const, Elaboratable, Module, Mux, Signal, signed

from archsim.laws.wafer import SPEED_BITS, SPEED_FRACTION

# ---- allocator

IDLE, GENERATE, EVALUATE, MERGE = range(4)


@dataclass(frozen=True)
class Parameters:
    """``pipeline``: further cycles of a block (0 to 3): registers after the operands, after the costs and before the
    loads. ``speeds``: whether dies differ in speed: a multiplier a lane, and a register after it.
    """

    dies: int = 25
    lanes: int = 8
    cost_bits: int = 24
    token_bits: int = 16
    pipeline: int = 3
    speeds: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be built."""
        if not (0 <= self.pipeline <= 3 and self.dies >= 1 and self.lanes >= 1):
            raise ValueError(f"expected a pipeline of 0 to 3 and at least one die and lane, got {self}")

    @property
    def registers(self) -> tuple[str, ...]:
        """What the pipeline holds."""
        return ("operands", "costs", "winner")[: self.pipeline]

    @property
    def stages(self) -> int:
        """Further cycles of a block in all."""
        return self.pipeline + self.speeds

    @property
    def groups(self) -> int:
        """Slots of a lane."""
        return ceil(self.dies / self.lanes)

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        """(lane, group) of every slot that some number of candidates fills, in order of rank."""
        filled = {
            (at // (n_groups := ceil(n / self.lanes)), at % n_groups)
            for n in range(1, self.dies + 1)
            for at in range(n)
        }
        return tuple(sorted(filled))

    @property
    def levels(self) -> int:
        """The number of levels of the tree."""
        return (min(self.dies, self.lanes) - 1).bit_length()


class Allocator(Elaboratable):
    """Inputs: ``start`` with ``candidates``, ``groups`` (⌈candidates / lanes⌉), ``levels``, ``tokens``,
    ``block_tokens``, ``work`` (of a full block) and ``last_work`` (of the rest); in GENERATE ``die``, ``read`` and,
    with speeds, ``factor``. Outputs: ``state``; in MERGE ``entry_die`` and ``entry_tokens``.
    """

    def __init__(self, parameters: Parameters):
        p = self.parameters = parameters
        self.clear, self.start = Signal(), Signal()
        self.candidates = Signal(range(p.dies + 1))
        self.groups, self.levels = Signal(range(p.groups + 1)), Signal(range(p.levels + 1))
        self.tokens, self.block_tokens = Signal(p.token_bits), Signal(p.token_bits)
        self.work, self.last_work = Signal(p.cost_bits), Signal(p.cost_bits)
        self.die, self.read = Signal(range(p.dies)), Signal(p.cost_bits)
        self.factor = Signal(SPEED_BITS if p.speeds else 0)
        self.state = Signal(2)
        self.entry_die, self.entry_tokens = Signal(range(p.dies)), Signal(p.token_bits)

    @property
    def inputs(self) -> list[Signal]:
        return [
            self.clear, self.start, self.candidates, self.groups, self.levels, self.tokens, self.block_tokens,
            self.work, self.last_work, self.die, self.read, *([self.factor] if self.parameters.speeds else []),
        ]  # fmt: skip

    @property
    def outputs(self) -> list[Signal]:
        return [self.state, self.entry_die, self.entry_tokens]

    def elaborate(self, platform) -> Module:
        m = Module()
        self._registers()
        finished = Signal()
        with m.Switch(self.state):
            with m.Case(GENERATE):
                self._generate(m)
            with m.Case(EVALUATE):
                self._step(m)
            with m.Case(MERGE):
                m.d.comb += finished.eq(self._merge(m))
        with m.If(self.start & ((self.state == IDLE) | finished)):
            m.d.sync += [self.state.eq(GENERATE), self.lane.eq(0), self.group.eq(0), self.left.eq(self.candidates)]
            m.d.sync += [self.rest.eq(self.tokens), self.pending.eq(0), self.filled.eq(0)]
        with m.Elif(finished):
            m.d.sync += self.state.eq(IDLE)
        self._evaluate(m)
        with m.If(self.clear):
            m.d.sync += [load.eq(0) for load in self.loads]
        return m

    def _registers(self):
        p = self.parameters

        def data(name, bits):  # of slots: no reset, so that synthesis needs no gate for one
            return [
                [Signal(bits, name=f"{name}_{lane}_{group}", reset_less=True) for group in self._groups_of(lane)]
                for lane in range(p.lanes)
            ]

        self.loads = [Signal(p.cost_bits, name=f"load_{die}", reset_less=True) for die in range(p.dies)]
        self.slot_load, self.slot_read = data("slot_load", p.cost_bits), data("slot_read", p.cost_bits)
        self.slot_die, self.placed = data("slot_die", range(p.dies)), data("placed", p.token_bits)
        self.slot_factor = data("slot_factor", SPEED_BITS) if p.speeds else []
        self.filled = Signal(len(p.slots))  # slots of this expert
        self.pending = Signal(len(p.slots))  # slots with tokens
        self.lane, self.group = Signal(range(p.lanes)), Signal(range(p.groups))
        self.left, self.rest = Signal(range(p.dies + 1)), Signal(p.token_bits)
        self.at = Signal(range(p.groups + p.levels + p.stages))

    def _slot(self, lane, group):
        return self.parameters.slots.index((lane, group))

    def _groups_of(self, lane):
        """Groups of a lane that have a slot."""
        return [group for each, group in self.parameters.slots if each == lane]

    def _generate(self, m):
        """One candidate a cycle into the next slot."""
        load = Signal.like(self.loads[0], name="generated")
        m.d.comb += load.eq(Array(self.loads)[self.die])
        for lane, group in self._slots():
            with m.If((self.lane == lane) & (self.group == group)):
                m.d.sync += [
                    self.slot_load[lane][group].eq(load),
                    self.slot_read[lane][group].eq(self.read),
                    self.slot_die[lane][group].eq(self.die),
                    self.placed[lane][group].eq(0),
                    self.filled[self._slot(lane, group)].eq(1),
                ]
                if self.slot_factor:
                    m.d.sync += self.slot_factor[lane][group].eq(self.factor)
        m.d.sync += [self.left.eq(self.left - 1), self.group.eq(self.group + 1)]
        with m.If(self.group + 1 == self.groups):
            m.d.sync += [self.group.eq(0), self.lane.eq(self.lane + 1)]
        with m.If(self.left == 1):
            m.d.sync += self.state.eq(EVALUATE)

    def _slots(self):
        return self.parameters.slots

    def _step(self, m):
        """Count the cycles of a block; after the last block, MERGE."""
        self.more = Signal()
        self.last_cycle = Signal()
        m.d.comb += self.more.eq(self.rest > self.block_tokens)
        m.d.comb += self.last_cycle.eq(self.at + 1 == self.groups + self.levels + self.parameters.stages)
        m.d.sync += self.at.eq(Mux(self.last_cycle, 0, self.at + 1))
        with m.If(self.last_cycle):
            m.d.sync += self.rest.eq(self.rest - self.block_tokens)
            with m.If(~self.more):
                m.d.sync += self.state.eq(MERGE)

    def _evaluate(self, m):
        """The datapath: operands, work, costs, the least of a lane, the least of all, the winner's slot."""
        p = self.parameters
        nominal = Mux(self.more, self.work, self.last_work)
        if p.speeds and "operands" in p.registers:  # the choice of the work is no part of the multiplier's path
            (nominal,) = self._registered(m, "nominal", (nominal,), (p.cost_bits,))
        ranked = []
        for lane in range(p.lanes):
            slots = self._groups_of(lane)
            if not slots:  # there are fewer dies than lanes
                ranked.append((Const(0), Const(0, p.cost_bits)))
                continue
            valid = Array([self.filled[self._slot(lane, group)] for group in slots])[self.at]
            used = Array([self.pending[self._slot(lane, group)] for group in slots])[self.at]
            load = Array(self.slot_load[lane])[self.at]
            read = Mux(used, 0, Array(self.slot_read[lane])[self.at])
            operands, bits = (valid, load, read), (1, p.cost_bits, p.cost_bits)
            if p.speeds:
                operands, bits = (*operands, Array(self.slot_factor[lane])[self.at]), (*bits, SPEED_BITS)
            if "operands" in p.registers:
                operands = self._registered(m, f"operand_{lane}", operands, bits)
            valid, load, read, *factor = operands
            work = nominal
            if p.speeds:
                product = Signal(p.cost_bits + SPEED_BITS, name=f"product_{lane}")
                m.d.comb += product.eq(nominal * factor[0] + (1 << (SPEED_FRACTION - 1)))
                here = (valid, load, read, product[SPEED_FRACTION : SPEED_FRACTION + p.cost_bits])
                valid, load, read, work = self._registered(m, f"work_{lane}", here, (*bits[:3], p.cost_bits))
            over = Signal(signed(p.cost_bits + 1), name=f"over_{lane}")
            cost = Signal(p.cost_bits, name=f"cost_{lane}")
            m.d.comb += [over.eq(read - work), cost.eq(load + Mux(over[-1], work, read))]
            costed = (valid, cost)
            if "costs" in p.registers:
                costed = self._registered(m, f"costed_{lane}", costed, (1, p.cost_bits))
            ranked.append(costed)
        delay = min(p.pipeline, 2) + p.speeds
        group = Signal(range(p.groups + 1))
        m.d.comb += group.eq(self.at - delay)
        best = self._least_of_lanes(m, ranked, group, delay)
        winner = self._least_of_all(m, best, delay)
        if "winner" in p.registers:
            slot_bits = self._slot_bits()
            winner = self._registered(m, "winner", winner, (p.cost_bits, slot_bits[0], slot_bits[1]))
        cost, lane_of, group_of = winner
        size = Mux(self.more, self.block_tokens, self.rest)
        for lane, slot in self._slots():
            with m.If(self.last_cycle & (lane_of == lane) & (group_of == slot)):
                m.d.sync += [
                    self.slot_load[lane][slot].eq(cost),
                    self.placed[lane][slot].eq(self.placed[lane][slot] + size),
                    self.pending[self._slot(lane, slot)].eq(1),
                ]

    def _slot_bits(self):
        p = self.parameters
        return (p.lanes - 1).bit_length(), (p.groups - 1).bit_length()

    def _registered(self, m, name, values, bits):
        held = [Signal(n, name=f"{name}_{i}", reset_less=True) for i, n in enumerate(bits)]
        m.d.sync += [register.eq(value) for register, value in zip(held, values, strict=True)]
        return tuple(held)

    def _least_of_lanes(self, m, ranked, group, delay):
        """[(least cost of a lane as {invalid, cost}, its group)]: as it is once this cycle's group is in."""
        p, found = self.parameters, []
        self.kept = []
        for lane, (valid, cost) in enumerate(ranked):
            key = Signal(p.cost_bits + 1, name=f"key_{lane}")
            kept = Signal(p.cost_bits + 1, name=f"kept_{lane}", reset_less=True)
            kept_group = Signal(self._slot_bits()[1], name=f"kept_group_{lane}", reset_less=True)
            m.d.comb += key.eq(Cat(cost, ~valid))
            takes = (self.at == delay) | (key < kept)
            least, at_group = Signal.like(kept, name=f"least_{lane}"), Signal.like(kept_group, name=f"at_{lane}")
            m.d.comb += [least.eq(Mux(takes, key, kept)), at_group.eq(Mux(takes, group, kept_group))]
            self.kept.append((kept, kept_group))
            found.append((least, at_group))
        return found

    def _least_of_all(self, m, best, delay):
        """(cost, lane, group) of the winner: after the groups, one level of the tree a cycle, in place."""
        p = self.parameters
        in_groups = Signal()
        m.d.comb += in_groups.eq(self.at < self.groups + delay)
        lane_bits = self._slot_bits()[0]
        joins = [2 * lane < p.lanes > 1 for lane in range(p.lanes)]  # whether the tree has a node in place of the lane
        kept_lane = [
            Signal(lane_bits, name=f"kept_lane_{lane}", reset_less=True) if joins[lane] else Const(lane, lane_bits)
            for lane in range(p.lanes)
        ]
        nothing = (Const(2 ** (p.cost_bits + 1) - 1, p.cost_bits + 1), Const(0), Const(0))
        rows = [(*self.kept[lane], kept_lane[lane]) for lane in range(p.lanes)]
        after = []
        for lane in range(p.lanes):
            mine = (*best[lane], Const(lane, lane_bits))
            if not joins[lane]:
                m.d.sync += [register.eq(value) for register, value in zip(rows[lane][:2], mine, strict=False)]
                after.append(mine)
                continue
            left, right = (rows[2 * lane + i] if 2 * lane + i < p.lanes else nothing for i in range(2))
            takes_right = Signal(name=f"right_{lane}")
            m.d.comb += takes_right.eq(right[0] < left[0])
            reduced = [Mux(takes_right, b, a) for a, b in zip(left, right, strict=True)]
            chosen = [Mux(in_groups, a, b) for a, b in zip(mine, reduced, strict=True)]
            m.d.sync += [register.eq(value) for register, value in zip(rows[lane], chosen, strict=True)]
            after.append(chosen)
        cost, group, lane = after[0]
        return cost[: p.cost_bits], lane, group

    def _merge(self, m):
        """One entry a cycle, the earliest slot first; returns whether it is the last."""
        p = self.parameters
        first = Signal(len(p.slots))
        m.d.comb += first.eq(self.pending & ~(self.pending - 1))
        m.d.sync += self.pending.eq(self.pending & ~first)
        load = Signal(p.cost_bits)
        for lane, group in self._slots():
            with m.If(first[self._slot(lane, group)]):
                m.d.comb += [
                    self.entry_die.eq(self.slot_die[lane][group]),
                    self.entry_tokens.eq(self.placed[lane][group]),
                    load.eq(self.slot_load[lane][group]),
                ]
        for die in range(p.dies):
            with m.If(self.entry_die == die):
                m.d.sync += self.loads[die].eq(load)
        return (self.pending & ~first) == 0


# ---- allocator
# Allocator: tokens that are handed out, placed and left add up to an expert's, and no count of them wraps; candidates
# enter slots that there are; states follow one another as in the table.

CLAIM = "placed tokens add up to an expert's, none wraps; slots stay in range; states follow the table"
SIZES = (
    {"dies": 4, "lanes": 2, "cost_bits": 4, "token_bits": 4, "pipeline": 0},
    {"dies": 4, "lanes": 2, "cost_bits": 4, "token_bits": 4, "pipeline": 0, "speeds": True},
)
AFTER = {
    IDLE: (IDLE, GENERATE),
    GENERATE: (GENERATE, EVALUATE),
    EVALUATE: (EVALUATE, MERGE),
    MERGE: (MERGE, IDLE, GENERATE),
}


def harness(dut: Allocator, m: Module) -> list[Signal]:
    """Adds the claim to ``m``. Inputs that belong to an expert are held while it is placed."""
    p, state = dut.parameters, dut.state
    begun = Signal()
    m.d.sync += begun.eq(1)
    for given in (dut.groups, dut.levels, dut.block_tokens):
        before = Signal.like(given, name=f"{given.name}_before")
        m.d.sync += before.eq(given)
        m.d.comb += Assume(~begun | (state == IDLE) | (state == GENERATE) | (given == before))
    m.d.comb += [
        Assume((dut.candidates >= 1) & (dut.candidates <= p.dies)),
        Assume((dut.groups >= 1) & (dut.groups <= p.groups)),
        Assume(dut.levels <= p.levels), Assume(~dut.clear),
    ]  # fmt: skip
    total, out, n = Signal(p.token_bits), Signal(p.token_bits), Signal.like(dut.candidates)
    merging = state == MERGE
    last = merging & ((dut.pending & (dut.pending - 1)) == 0)
    with m.If(dut.start & ((state == IDLE) | last)):
        m.d.sync += [total.eq(dut.tokens), out.eq(0), n.eq(dut.candidates)]
    with m.Elif(merging):
        m.d.sync += out.eq(out + dut.entry_tokens)
    left = Mux(merging, 0, dut.rest)
    placed = sum(Mux(dut.pending[dut._slot(*at)], dut.placed[at[0]][at[1]], 0) for at in dut._slots())
    with m.If(state != IDLE):
        m.d.comb += Assert(out + placed + left == total)
    with m.If(last):
        m.d.comb += Assert(out + dut.entry_tokens == total)
    with m.If(state == GENERATE):
        m.d.comb += Assert((dut.pending == 0) & (out == 0))
        m.d.comb += Assert(dut.filled[0] | ((dut.lane == 0) & (dut.group == 0)))
        m.d.comb += Assume((dut.groups * p.lanes >= n) & (dut.groups * p.lanes < n + p.lanes))
        m.d.comb += Assert(dut.left >= 1)
        m.d.comb += Assert((dut.lane < p.lanes) & (dut.group < dut.groups))
        m.d.comb += Assert(dut.lane * dut.groups + dut.group + dut.left == n)
    for lane, group in dut._slots():
        at = dut._slot(lane, group)
        with m.If((state == GENERATE) | (state == EVALUATE)):
            m.d.comb += Assert(~dut.filled[at] | dut.pending[at] | (dut.placed[lane][group] == 0))
            m.d.comb += Assert(~dut.pending[at] | dut.filled[at])
    with m.If(state == EVALUATE):
        m.d.comb += Assert(dut.filled[0] & (dut.at < dut.groups + dut.levels + p.stages) & (out == 0))
    with m.Else():
        m.d.comb += Assert(dut.at == 0)
    with m.If(merging):
        m.d.comb += Assert(dut.pending != 0)
    was = Signal.like(state, name="was")
    m.d.sync += was.eq(state)
    for one, following in AFTER.items():
        with m.If(begun & (was == one)):
            m.d.comb += Assert(sum(state == each for each in following) == 1)
    return []
