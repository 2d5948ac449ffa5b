"""Area and power of the decision hardware: table designs, which models fit them, sources of the coefficients."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from archsim.base.errors import SpecError, did_you_mean
from archsim.engine.loop import Replay
from archsim.engine.own_blocks import INTERPRETED, OwnObject
from archsim.runs.run import Run
from archsim.specs.blocks import REPLACES
from archsim.specs.model import SLICES, ModelSpec
from archsim.specs.system import SystemSpec
from microarch.blocks.table_sizes import Shortfall, Storage, TableDesign, shortfalls
from microarch.rtl import blocks
from microarch.silicon import decision_area
from microarch.silicon.technology import A72, A76, CLOCK, Coefficient, Technology

# ---- area

_FROM_SYSTEM = ("dies", "hbm_capacity_bytes", "atu_entries")


def parse_design(texts: Iterable[str]) -> dict[str, Any]:
    """``key=value`` strings as arguments of :class:`TableDesign`. Raises SpecError."""
    kinds = get_type_hints(TableDesign)
    keys = [field.name for field in fields(TableDesign) if field.name not in _FROM_SYSTEM]
    changes: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--design {text}: expected KEY=VALUE, such as experts=1024")
        if key in _FROM_SYSTEM:
            raise SpecError(f"--design {text}: it is derived from the system; change it there with --set")
        if key not in keys:
            raise SpecError(f"--design {text}: unknown key{did_you_mean(key, keys)}; known: {', '.join(keys)}")
        try:
            changes[key] = kinds[key](value)
            TableDesign(**changes)
        except ValueError as error:
            raise SpecError(f"--design {text}: {error}") from None
    return changes


def published_design(system: SystemSpec, changes: Mapping[str, Any]) -> TableDesign:
    """The tables of table II, for the dies and the HBM of a system, whatever its ``decision`` is."""
    return TableDesign(**changes, dies=system.dies, hbm_capacity_bytes=system.hbm.capacity_bytes)


def needed_by(model: ModelSpec, built: TableDesign) -> TableDesign:
    """The smallest tables that a model fits."""
    return replace(built, experts=model.experts, layers=len(model.moe_layer_ids), atu_entries=None)


def misfits(models: Iterable[ModelSpec], built: TableDesign, executor: str = "fsm") -> Iterator[str]:
    """One line per model and on-wafer table that do not fit: which entries, how many more bits."""
    for model in models:
        for short in shortfalls(built, needed_by(model, built)):
            if short.table.name in decision_area.ON_DIES or executor in ("fsm", "firmware"):
                yield f"{model.name} does not fit the {short.table.name}: {_shortfall(short, model)}"


def _shortfall(short: Shortfall, model: ModelSpec) -> str:
    table, needed = short.table, short.needed
    more = f"{short.entries:,} entries × {needed.bits_per_entry} bit = {short.bits:,} bits more"
    where = (
        f" on each of {table.copies} dies" if table.copies > 1 else " in DRAM" if table.storage is Storage.DRAM else ""
    )
    if needed.entries == model.experts:
        return f"{more}{where}, for experts {table.entries} to {model.experts - 1}"
    counters = (
        f"{model.experts} × {model.experts} counters, "
        f"{'per layer' if table.storage is Storage.SRAM else 'for all layers'}"
    )
    return f"{more}{where}, for {counters}"


def named_coefficients(technology: Technology) -> Iterator[tuple[str, Coefficient]]:
    """(name, coefficient) of the technology, the cores and the datapath."""
    yield from technology.coefficients().items()
    for core in (A72, A76):
        yield from core.coefficients().items()
    yield from (
        ("clock", CLOCK),
        ("lane", decision_area.LANE),
        ("candidate", decision_area.CANDIDATE),
        ("comparator", decision_area.COMPARATOR),
    )
    yield from (
        ("sorter", decision_area.SORTER),
        ("order of use", decision_area.ORDER_BIT),
        ("heatmap adders", decision_area.ADDER_BIT),
    )
    yield "heatmap addresses", decision_area.ADDER_REST
    yield "merge buffer", decision_area.TOKENS
    yield from (("multiplier of speeds", decision_area.SPEED_MULTIPLIER), ("slot of speeds", decision_area.SPEED_SLOT))


# ---- recording
# Stimulus of the components in RTL, recorded in a run of an experiment on the interpreted engine: what its steps ask
# of sorter, allocator, selector, heatmap store, PDU and ATU.


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


def recorded(block: str, runs: list[Run], replay_of: Callable[[Run], Replay], events: int) -> BenchRun:
    """The stimulus of a component in the first of the runs that has any, of about as many events at least, if its steps
    have them. Raises SpecError where no run has one.
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
