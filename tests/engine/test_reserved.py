"""``contention: reserved``, slow and obvious: a stage claims all of its resources, queues are Python's ``heapq``."""

import pytest
from support import decompressor
from support.decompressor import State as At
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.engine.interpreted.blocks import shipped_blocks
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.reserved import Reserved
from archsim.specs.library import load_assumptions
from microarch.blocks.request import Event

EXPAND_NS = decompressor.Parameters().expand_ns


class Decompressor:
    """Holds every slice as long."""

    def __init__(self, expand_ns):
        self.expand_ns = expand_ns

    def serve(self, request, now):
        return Event.SERVED, self.expand_ns


def interpreter(machine, work, memory, total_order):
    return Reserved(machine, work, DieMemory(memory, int(machine.slice_bytes)), total_order)


class WithDecompressor(Reserved):
    """Says of the new state who serves it and what it needs; the table says the rest."""

    def __init__(self, machine, work, memory, total_order, expand_ns=EXPAND_NS):
        dies = DieMemory(memory, int(machine.slice_bytes))
        served_by = shipped_blocks(machine, dies) | {At.EXPAND: Decompressor(expand_ns)}
        super().__init__(machine, work, dies, total_order, served_by=served_by, request=decompressor.REQUEST)

    def needs(self, stage):
        if stage.state == At.EXPAND:
            return (("decompressor", self.entry(stage.item).die),)
        return super().needs(stage)

    def duration(self, stage):
        return stage.ns if stage.state == At.EXPAND else super().duration(stage)


class FirstStep(Exception):
    """Carries the inputs of a kernel's first step."""


class Stop:
    def step(self, work, memory, tally, begin_ns):
        raise FirstStep(work, memory)


@pytest.fixture
def inputs():
    """Machine, work and memory of one expert whose home is another die than the one that runs it."""
    model, system, spec = small_model(experts=1, top_k=1, shared_experts=0), small_system(2, 1), policy("base")
    assumptions = load_assumptions("published", numbering="row_major")
    run = replay(system, model, spec, assumptions, demand_of(model, system, spec, batch=4, decode_steps=1))
    run.engine.execution.kernel = Stop()
    with pytest.raises(FirstStep) as first:
        run.run()
    return run.engine.machine, *first.value.args, True


def test_the_interpreter_runs_it(inputs):
    before = interpreter(*inputs)
    after = WithDecompressor(*inputs)
    assert {entry.die != entry.home for entry in before.entries} == {True}
    # Slices arrive further apart than they take to expand and to multiply: the last one is late by one expansion.
    assert after.run(0.0) == before.run(0.0) + EXPAND_NS
    expanded = [stage for stage in after.log if stage.state == At.EXPAND]
    assert [stage.item for stage in expanded] == [stage.item for stage in after.log if stage.state == At.DATA]
    assert all(stage.parent.state == At.DATA and stage.next == At.COMPUTE for stage in expanded)
    assert not any(resource.claimed for resource in after.pool.values())


def test_a_decompressor_that_takes_no_time_changes_nothing(inputs):
    assert WithDecompressor(*inputs, expand_ns=0.0).run(0.0) == interpreter(*inputs).run(0.0)
