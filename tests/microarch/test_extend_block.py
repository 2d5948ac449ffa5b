"""The recipe of docs/blocks.md, followed from outside the package with ``tests/support/decompressor.py``."""

import xml.etree.ElementTree as ET

import pytest
from support import decompressor
from support.contract import check_arrays, check_block, check_runs, check_walks
from support.decompressor import State
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.engine.interpreted.blocks import shipped_blocks
from archsim.engine.interpreted.interpreter import walk
from archsim.engine.interpreted.memory import DieMemory
from archsim.engine.interpreted.reserved import Reserved
from archsim.report.blocks import state_diagram
from archsim.specs.library import load_assumptions
from microarch.blocks import catalogue as blocks
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
        served_by = shipped_blocks(machine, dies) | {State.EXPAND: Decompressor(expand_ns)}
        super().__init__(machine, work, dies, total_order, served_by=served_by, request=decompressor.REQUEST)

    def needs(self, stage):
        if stage.state == State.EXPAND:
            return (("decompressor", self.entry(stage.item).die),)
        return super().needs(stage)

    def duration(self, stage):
        return stage.ns if stage.state == State.EXPAND else super().duration(stage)


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


def test_the_block_keeps_the_contract_and_the_whole_table_drains():
    check_block(decompressor, decompressor.TABLE)
    check_arrays(decompressor.REQUEST)
    check_runs(decompressor.REQUEST)
    check_walks(decompressor.REQUEST)


def test_the_table_can_be_walked_from_the_new_state():
    only = walk(
        decompressor.REQUEST, State.EXPAND, lambda state: (Event.SERVED, EXPAND_NS if state == State.EXPAND else 7.0)
    )
    assert [(t.time, t.state, t.next) for t in only] == [
        (EXPAND_NS, State.EXPAND, State.COMPUTE), (EXPAND_NS + 7.0, State.COMPUTE, State.DONE)
    ]


def test_the_interpreter_runs_it(inputs):
    before = interpreter(*inputs)
    after = WithDecompressor(*inputs)
    assert {entry.die != entry.home for entry in before.entries} == {True}
    # Slices arrive further apart than they take to expand and to multiply: the last one is late by one expansion.
    assert after.run(0.0) == before.run(0.0) + EXPAND_NS
    expanded = [stage for stage in after.log if stage.state == State.EXPAND]
    assert [stage.item for stage in expanded] == [stage.item for stage in after.log if stage.state == State.DATA]
    assert all(stage.parent.state == State.DATA and stage.next == State.COMPUTE for stage in expanded)
    assert not any(resource.claimed for resource in after.pool.values())


def test_a_decompressor_that_takes_no_time_changes_nothing(inputs):
    assert WithDecompressor(*inputs, expand_ns=0.0).run(0.0) == interpreter(*inputs).run(0.0)


def test_the_table_that_was_shipped_does_not_know_the_state():
    assert not any(state == State.EXPAND for state, _ in blocks.REQUEST.steps)
    with pytest.raises(KeyError):
        walk(blocks.REQUEST, State.EXPAND, lambda state: (Event.SERVED, 0.0))


def test_its_diagram_shows_the_new_state():
    drawn = ET.fromstring(state_diagram(decompressor.REQUEST))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"EXPAND", "expand the slice", "expand_ns"} <= set(words)
