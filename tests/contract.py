"""What every hardware block keeps to; used for the blocks that are shipped, and for one from outside the package."""

import dataclasses
import importlib
import re

from microarch.fsm import ILLEGAL, NOTHING, Table

UNITS = ("_ns", "_bytes", "_bytes_per_s", "_flop_per_s", "_hz", "_bits", "_fraction")
WITHOUT_UNIT = {"efficiency", "ways", "entries", "lanes", "comparators"}  # shares and counts
NAME = re.compile(r"[a-z]+(?:\.[a-z0-9_]+|_[a-z0-9_.]+)")  # in a latency: a parameter, or another block's


def check_block(module, table: Table) -> None:
    """A block's module: docstring, parameters, and its own table."""
    check_docstring(table, module.__doc__)
    check_parameters(module.Parameters)
    check_latencies(table, module.Parameters)
    check_arrays(table)


def check_docstring(table: Table, printed: str) -> None:
    squeezed = [line.strip() for line in printed.splitlines()]
    assert "\n".join(line.strip() for line in table.describe().splitlines()) in "\n".join(squeezed)
    assert "State layout" in printed or "layout  " in printed


def check_parameters(parameters: type) -> None:
    """Frozen; every one with a default, its source, a spec key, and a unit in its name unless it is a count or share."""
    assert dataclasses.is_dataclass(parameters) and parameters.__dataclass_params__.frozen
    for field in dataclasses.fields(parameters):
        assert field.default is not dataclasses.MISSING
        assert field.metadata["source"] and field.metadata["key"]
        assert field.name.endswith(UNITS) or field.name in WITHOUT_UNIT, field.name


def check_latencies(table: Table, parameters: type) -> None:
    """Every transition has an action and a latency, in names of parameters that exist."""
    for step in table.steps.values():
        assert step.action and step.latency
        for name in NAME.findall(step.latency):
            block, _, attribute = name.rpartition(".")
            owner = importlib.import_module(f"microarch.{block}").Parameters if block else parameters
            assert hasattr(owner(), attribute), name


def check_arrays(table: Table) -> None:
    """Legal events lead on; illegal ones are refused."""
    following, spawned = table.arrays()
    for state in table.states:
        for event in table.events:
            step = table.steps.get((state, event))
            assert following[state, event] == (ILLEGAL if step is None else step.next)
            assert spawned[state, event] == (NOTHING if step is None or step.spawn is None else step.spawn)
    assert not any(state == table.final for state, _ in table.steps), "the final state is left"


def check_walks(table: Table) -> None:
    """Drain: from every initial state, whatever happens, each walk ends in the final state; none is left out."""
    steps_from = {state: [step for (at, _), step in table.steps.items() if at == state] for state in table.states}
    reached, waiting = set(table.initial), list(table.initial)
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
