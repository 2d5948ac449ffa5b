"""Stimulus of the components in RTL, recorded in a run of an experiment on the interpreted engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.engine.loop import Replay
from archsim.engine.own_objects import INTERPRETED, OwnObject
from archsim.machine.blocks import REPLACES
from archsim.model.spec import SLICES
from archsim.runs.run import Run
from microarch.rtl import blocks


class BenchRun(NamedTuple):
    """``changes``: parameters of the component, as the run has them; ``given``: its stimulus, as a bench takes it."""

    run: str
    changes: dict[str, Any]
    given: list[Any]


@dataclass
class Log:
    """Stimulus of every die's component, and the component's parameters."""

    of_die: dict[int, list[Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def longest(self) -> list[Any]:
        return max(self.of_die.values(), key=len, default=[])


class PduLog(blocks.Pdu):
    """Notes the cycles of every die's PDU, and answers by its table."""

    def __init__(self, shipped: Any, log: Log):
        super().__init__(shipped)
        self._log = log

    def cycle(self, die, given):
        from microarch.rtl.pdu import Parameters
        from microarch.rtl.tables import PduTable

        if die not in self._of_die:
            self._log.sizes = self.sizes
            self._of_die[die] = PduTable(Parameters(self.sizes["experts"], self.sizes["port_bits"]))
        self._log.of_die.setdefault(die, []).append(given)
        return self._of_die[die].cycle(*given)


class AtuLog(blocks.Atu):
    """Notes the experts that every die's ATU is asked for."""

    def __init__(self, shipped: Any, log: Log):
        super().__init__(shipped)
        self._log = log
        log.sizes = self.sizes

    def translate(self, die, key):
        self._log.of_die.setdefault(die, []).append(key // SLICES)
        return self.memory.translate(die, key)


def record_bench(block: str, runs: list[Run], replay_of: Callable[[Run], Replay], events: int) -> BenchRun:
    """The stimulus of a component in the first run that has any, of at least about ``events`` events if its steps have
    them. Raises SpecError if no run has one.
    """
    needs, record = _RECORDS[block]
    for run in runs:
        if not _has(needs, run):
            continue
        replay = replay_of(replace(run, engine=INTERPRETED))
        found = record(replay, events)
        if found.given:
            return found._replace(run=run.name)
    raise SpecError(f"no run has a stimulus for {block}: it needs {needs}")


PAPER, PREDICTION, LIMITED = "allocation: paper", "prediction: heatmap", "prediction, and heatmap_update: limited"


def _has(needs: str, run: Run) -> bool:
    if needs == PAPER:
        return run.policy.allocation.name == "paper"
    if needs == LIMITED:
        return run.limits_heatmap
    return run.policy.predicts


def _go(replay: Replay, enough: Callable[[], bool]) -> None:
    for _ in replay.steps():
        if enough():
            return


def _views(replay: Replay, events: int) -> BenchRun:
    engine, rule = replay.engine, replay.engine.scenario.policy.allocation
    decide, size, found, blocks_of = engine.decision.decide, rule.params["block_tokens"], [], []

    def noting(allocate, view):
        found.append((view._replace(copied_slices=view.copied_slices.copy(), charged=None), size))
        blocks_of.append(int(np.ceil(view.tokens / size).sum()))
        return decide(allocate, view)

    engine.decision.decide = noting  # type: ignore[method-assign]
    _go(replay, lambda: sum(blocks_of) >= events)
    fsm, speeds = engine.scenario.system.decision.fsm, engine.scenario.policy.needs_speeds("allocation")
    sizes = {"dies": engine.machine.dies, "pipeline": fsm.pipeline, "cost_bits": fsm.cost_bits, "speeds": speeds}
    return BenchRun("", sizes, found)


def _tokens(replay: Replay, events: int) -> BenchRun:
    views = _views(replay, events).given
    tokens = [view.tokens[view.tokens > 0] for view, _ in views]
    experts = 1 << max(1, (replay.engine.scenario.model.experts - 1).bit_length())
    comparators = min(replay.engine.scenario.system.decision.fsm.comparators, experts // 2)
    changes = {"experts": experts, "comparators": 1 << (comparators.bit_length() - 1)}
    return BenchRun("", changes, [each for each in tokens if len(each) > 1])


def _rows(replay: Replay, events: int) -> BenchRun:
    from archsim.policies.heatmap import TopFraction

    assert replay._heatmap is not None, "of a run with heatmap_update: limited"
    heatmap: Any = replay._heatmap._map  # whose parts are replaced by ones that note what they are asked
    rows: list[np.ndarray] = []
    predictor = heatmap._predictor
    scenario = replay.engine.scenario
    changes = {
        "experts": scenario.model.experts, "comparators": scenario.system.decision.fsm.comparators,
        "keep": min(scenario.model.experts, predictor.keep(scenario.model.experts)),
        "larger_wins": isinstance(predictor, TopFraction),
    }  # fmt: skip

    def noting(heat, changed, out):
        rows.extend(heat[layer, row].copy() for layer, row in np.argwhere(changed) if heat[layer, row].any())
        predictor(heat, changed, out)

    heatmap._predictor = noting
    cycles = 1 + 17 * -(-changes["experts"] // changes["comparators"])  # of a row
    _go(replay, lambda: len(rows) * cycles >= events)
    return BenchRun("", changes, rows)


def _updates(replay: Replay, events: int) -> BenchRun:
    assert replay._heatmap is not None, "of a run with heatmap_update: limited"
    heatmap: Any = replay._heatmap._map  # whose parts are replaced by ones that note what they are asked
    found: list[tuple[int, int, int]] = []
    take_in, per_word = heatmap.take_in, heatmap._per_word

    def noting(layer, transitions):
        for at in heatmap._pairs[: min(transitions, len(heatmap._pairs))]:
            now = heatmap._experts[layer][at]
            follows = heatmap._same[at]
            before = heatmap._experts[layer][at - 1] if follows else heatmap._last[layer][heatmap._request[at]]
            masks: dict[int, int] = {}
            for expert in now.tolist():
                masks[expert // per_word] = masks.get(expert // per_word, 0) | 1 << expert % per_word
            found.extend((int(row), word, mask) for row in before for word, mask in masks.items())
        return take_in(layer, transitions)

    heatmap.take_in = noting
    _go(replay, lambda: len(found) >= events)
    return BenchRun("", {"experts": replay.engine.scenario.model.experts, "port_bits": 16 * per_word}, found)


def _of_busiest_die(kind: type, replay: Replay, events: int) -> BenchRun:
    log = Log()
    own = OwnObject(kind.__name__, REPLACES, partial(kind, log=log), kind.SERVES)  # type: ignore[attr-defined]
    kernel = replay.engine.execution.kernel  # type: ignore[attr-defined]
    kernel._own = (*kernel._own, own)

    _go(replay, lambda: len(log.longest()) >= events)
    return BenchRun("", dict(log.sizes), log.longest())


_RECORDS: Mapping[str, tuple[str, Callable[[Replay, int], BenchRun]]] = {
    "allocator": (PAPER, _views),
    "sorter": (PAPER, _tokens),
    "select": (LIMITED, _rows),
    "heatmap": (LIMITED, _updates),
    "pdu": (PREDICTION, partial(_of_busiest_die, PduLog)),
    "atu": (PREDICTION, partial(_of_busiest_die, AtuLog)),
}
