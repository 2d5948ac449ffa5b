"""One contract for the tables of all hardware blocks."""

import importlib

import pytest

from microarch import blocks
from microarch.fsm import ILLEGAL, NOTHING
from microarch.request import Event, State, Unit

TABLES = [*blocks.TABLES.values()]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_docstring_prints_the_table(table):
    printed = importlib.import_module(f"microarch.{table.name}").__doc__
    squeezed = "\n".join(line.strip() for line in printed.splitlines())
    assert "\n".join(line.strip() for line in table.describe().splitlines()) in squeezed


@pytest.mark.parametrize("table", [*TABLES, blocks.REQUEST], ids=lambda table: table.name)
def test_arrays_say_what_the_table_says_and_refuse_the_rest(table):
    following, spawned = table.arrays()
    for state in table.states:
        for event in table.events:
            step = table.steps.get((state, event))
            assert following[state, event] == (ILLEGAL if step is None else step.next)
            assert spawned[state, event] == (NOTHING if step is None or step.spawn is None else step.spawn)


@pytest.mark.parametrize("table", [blocks.REQUEST, blocks.TABLES["local_cp"]], ids=lambda table: table.name)
def test_every_state_is_reached_and_drains(table):
    """From every initial state, whatever the events, the walk ends in the final state, and no state is left out."""
    reached, waiting = set(table.initial), list(table.initial)
    steps_from = {state: [step for (at, _), step in table.steps.items() if at == state] for state in table.states}
    while waiting:
        for step in steps_from[waiting.pop()]:
            for following in (step.next, step.spawn):
                if following is not None and following not in reached:
                    reached.add(following)
                    waiting.append(following)
    assert reached == set(table.states)

    def longest(state, seen=()):
        assert state not in seen, f"{state.name}: a walk returns to it"
        assert steps_from[state] or state == table.final, f"{state.name}: a walk ends here"
        return 1 + max((longest(step.next, (*seen, state)) for step in steps_from[state]), default=0)

    assert max(longest(state) for state in table.initial) <= len(table.states)


def test_every_state_of_a_request_is_served_by_one_block():
    owners = [state for block in blocks.REQUEST_BLOCKS for state in block.SERVES]
    assert sorted(owners) == sorted(set(State) - {State.DONE})
    assert blocks.SERVED_BY[State.DONE] == Unit.NONE
    for block in blocks.REQUEST_BLOCKS:
        assert {state for state, _ in block.STEPS} == set(block.SERVES)
        assert all(event in Event for _, event in block.STEPS)
