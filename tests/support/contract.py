"""The contract of every hardware block; used for the shipped blocks, and for one from outside the package."""

import dataclasses
import importlib
import itertools
import re
from collections import Counter

import pytest

from microarch.blocks.block import ILLEGAL, NOTHING, TransitionTable

UNITS = ("_ns", "_bytes", "_bytes_per_s", "_flop_per_s", "_hz", "_bits", "_fraction")
WITHOUT_UNIT = {"efficiency", "ways", "entries", "lanes", "comparators", "pipeline"}  # shares and counts
NAME = re.compile(r"[a-z]+(?:\.[a-z0-9_]+|_[a-z0-9_.]+)")  # in a latency: a parameter, or another block's


def check_block(module, table: TransitionTable) -> None:
    """A block's module: state layout, parameters, and its own table."""
    assert "State layout" in module.__doc__ or "layout  " in module.__doc__
    check_parameters(module.Parameters)
    check_latencies(table, module.Parameters)
    check_arrays(table)
    check_runs(table)


def check_parameters(parameters: type) -> None:
    """Frozen; every one with a default, its source, a spec key, and a unit in its name unless it is a
    count or share.
    """
    assert dataclasses.is_dataclass(parameters) and parameters.__dataclass_params__.frozen
    for field in dataclasses.fields(parameters):
        assert field.default is not dataclasses.MISSING
        assert field.metadata["source"] and field.metadata["key"]
        assert field.name.endswith(UNITS) or field.name in WITHOUT_UNIT, field.name


def check_latencies(table: TransitionTable, parameters: type) -> None:
    """Every transition has an action and a latency, in names of parameters that exist."""
    for step in table.steps.values():
        assert step.action and step.latency
        for name in NAME.findall(step.latency):
            block, _, attribute = name.rpartition(".")
            owner = importlib.import_module(f"microarch.blocks.{block}").Parameters if block else parameters
            assert hasattr(owner(), attribute), name


def check_arrays(table: TransitionTable) -> None:
    """Legal events lead to the next state; illegal ones are refused."""
    following, spawned = table.arrays()
    for state in table.states:
        for event in table.events:
            step = table.steps.get((state, event))
            assert following[state, event] == (ILLEGAL if step is None else step.next)
            assert spawned[state, event] == (NOTHING if step is None or step.spawn is None else step.spawn)
    assert not any(state == table.final for state, _ in table.steps), "the final state is left"


class Running:
    """A running block, driven by the arrays that the kernels read; ``under_way``: the state of each activity."""

    def __init__(self, table: TransitionTable):
        self.following, self.spawned = table.arrays()
        self.under_way: list[int] = []

    def enter(self, state) -> None:
        """Start an activity, unless the block handles no event in its state."""
        if (self.following[state] != ILLEGAL).any():
            self.under_way.append(int(state))

    def send(self, event) -> tuple[int, int]:
        """The oldest activity's state and the one that follows ``event``; ValueError, and nothing happens, if it is
        illegal.
        """
        state = self.under_way[0]
        following, spawned = int(self.following[state, event]), int(self.spawned[state, event])
        if following == ILLEGAL:
            raise ValueError(f"event {event} is illegal in state {state}")
        del self.under_way[0]
        for entered in (spawned, following):
            if entered != NOTHING:
                self.enter(entered)
        return state, following

    def reset(self) -> None:
        self.under_way.clear()


def transitions(block: Running, state, choices, most: int, events) -> list[tuple[int, int]]:
    """Transitions of up to ``most`` events from ``state``, each the next choice among the legal ones; illegal ones
    come before.
    """
    block.enter(state)
    made = []
    while block.under_way and len(made) < most:
        at = block.under_way[0]
        legal = [event for event in events if block.following[at, event] != ILLEGAL]
        for event in set(events) - set(legal):
            before = list(block.under_way)
            with pytest.raises(ValueError, match="illegal"):
                block.send(event)
            assert block.under_way == before
        made.append(block.send(legal[next(choices) % len(legal)]))
    return made


def check_runs(table: TransitionTable) -> None:
    """Legal and illegal events, drain and reset, from every state that the block serves, whatever happens first,
    second and third.

    A block drains. After a reset at any point, it has no activity and behaves like a new one.
    """
    most = 4 * len(table.steps)  # a path through every state, and what it spawns
    ways = Counter(state for state, _ in table.steps)
    taken = set()
    for state in ways:
        for first in itertools.product(range(max(ways.values())), repeat=3):
            new = Running(table)
            path = transitions(new, state, itertools.cycle(first), most, table.events)
            assert not new.under_way, f"{state.name}: does not drain"
            taken |= set(path)
            for cut in range(len(path)):
                again = Running(table)
                assert (
                    transitions(again, state, itertools.cycle(first), cut, table.events) == path[:cut]
                    and again.under_way
                )
                again.reset()
                assert not again.under_way
                assert transitions(again, state, itertools.cycle(first), most, table.events) == path
    assert taken == {(state, step.next) for (state, _), step in table.steps.items()}


def check_walks(table: TransitionTable) -> None:
    """Drain: from every initial state, each walk ends in the final state, and the walks visit every state."""
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
