"""Two designs side by side: what differs in their specification, and in time, traffic, energy and price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from archsim.base import errors, fields, sums, tables
from archsim.base.causes import CAUSES
from archsim.base.tables import DataFrame, frame_of
from archsim.runs import energy, executor, plan, pool
from archsim.runs.columns import BY_NAME
from archsim.runs.notes import result_notes
from archsim.runs.packed_steps import unpack
from archsim.runs.prices import build_costs, price_range
from archsim.runs.run import Workspace
from archsim.show.answers import iteration_at
from archsim.specs.experiment import ExperimentSpec
from archsim.uncertainty.ranges import quick_worlds

if TYPE_CHECKING:
    import numpy as np

    from archsim.runs.run import Record
    from archsim.uncertainty.sure_answer import Sure


STEP = "a decode step"  # through all MoE layers
RUN = "the run"  # through the layers that ran, prefill included
LEAST = 1e-6  # share of the time below which a cause is none: the rest of a subtraction
SAME = 0.005  # relative; smaller differences are no better and no worse
# Group → column of results, and whether more of it is better (1), worse (-1), or neither (0).
GROUPS: Mapping[str, Mapping[str, int]] = {
    "time": {
        "iteration_ns": -1, "tokens_per_s": 1, "decode_step_ns": -1, "decode_batch_token_ns": -1, "prefill_ns": -1,
        "decode_ns": -1, "mfu": 1, "hbm_bandwidth_utilisation": 0, "over_roofline": -1, "die_utilisation": 1,
        "load_max_over_mean": -1,
        "decision_exposed_ns": -1,
    },
    "traffic": {
        "local_hbm_read_bytes": -1, "remote_hbm_read_bytes": -1, "local_hbm_write_bytes": -1, "hbm_bytes": -1,
        "link_bytes": -1, "dispatch_bytes": -1, "combine_bytes": -1, "migrated_bytes": -1, "hop_messages": -1,
    },
    "energy": {"energy_per_token_j": -1, "power_w": -1},
    "price and area": {"cost_usd": -1, "die_mm2": -1, "silicon_mm2": -1},
}  # fmt: skip

_NAMES = {
    "iteration_ns": "a whole decode iteration", "throughput_tokens_per_s": "throughput of MoE layers",
    "decision_exposed_ns": "decisions waited for", "hbm_bytes": "HBM, all", "link_bytes": "links, bytes times hops",
    "migrated_bytes": "weights moved by rebalancing", "energy_per_token_j": "energy per token", "power_w": "power",
    "cost_usd": "price", "die_mm2": "area of a die", "silicon_mm2": "area of all dies",
}  # fmt: skip


@dataclass(frozen=True)
class DesignFigure:
    """One number of both designs."""

    group: str  # heading under which it stands
    name: str  # of the number
    unit: str  # of both values, or empty
    meaning: str  # in words
    a: float | None  # value of the first design; None: it has none
    b: float | None  # of the second
    sense: int  # 1: more is better, -1: less is better, 0: neither
    ranges: tuple[tuple[float, float], ...] = ()  # of a and b, lowest to highest, of estimates

    @property
    def ratio(self) -> float | None:
        return self.b / self.a if self.a and self.b is not None else None

    @property
    def better(self) -> int:
        """1: B is better than A, -1: it is worse, 0: neither."""
        if self.a is None or self.b is None or abs(self.b - self.a) <= SAME * max(abs(self.a), abs(self.b)):
            return 0
        return self.sense if self.b > self.a else -self.sense


@dataclass(frozen=True)
class Difference:
    """A key of the specification with its values in both designs, '–' where one lacks it."""

    key: str
    a: str
    b: str


@dataclass(frozen=True)
class DesignComparison(tables.Shown):
    """Two designs beside each other."""

    a: str  # name of the first
    b: str  # name of the second
    rows: tuple[Mapping[str, Any], Mapping[str, Any]]  # of results, of both
    spec: tuple[Difference, ...]  # keys that differ
    causes: tuple[DesignFigure, ...]  # ns by what the critical path waited for; ``group``: STEP or RUN
    quantities: tuple[DesignFigure, ...]  # results of both
    notes: tuple[str, ...]  # their caveats
    rates: tuple[np.ndarray, np.ndarray] | None = None  # float64[sample] tokens/s of both; None: without samples
    sure: Sure | None = None  # how sure their order is, where samples were asked for

    def __repr__(self) -> str:
        return f"DesignComparison({self.a!r}, {self.b!r}: {len(self.spec)} keys differ; {self.same})"

    @property
    def same(self) -> str:
        """What both ran: ``system dojo, model deepseek-v3, batch 256, policy ep, assumptions published``."""
        rows = self.rows
        names = ("system", "model", "batch", "policy", "assumptions")
        return ", ".join(f"{name} {rows[0][name]}" for name in names if rows[0][name] == rows[1][name])

    def to_pandas(self) -> DataFrame:
        """One row per number: group, name, unit, a, b, ratio (b over a)."""
        return frame_of((*self.causes, *self.quantities), ("group", "name", "unit", "a", "b", "ratio"))


def compare_designs(names: tuple[str, str], sides: Sequence[ExperimentSpec], samples: int = 0) -> DesignComparison:
    """Simulate both sides, experiments of one run each; ``samples``: in which the order is tried. Raises as
    `archsim.runs.plan.select`; ArchsimError for two equal ones.
    """
    trees = [_flat(side.resolved()) for side in sides]
    differences = tuple(_differences(*trees))
    if not differences:
        raise errors.ArchsimError(
            f"{names[0]} and {names[1]} are the same design: no key of their specifications differs"
        )
    selections = [plan.select(side) for side in sides]
    runs, found = [replace(each.runs()[0], details=True) for each in selections], {}
    for run, reply in executor.simulate_all(runs, 1, Workspace()):
        if isinstance(reply, pool.Failure):
            raise errors.ArchsimError(reply.message)
        found[run.key] = reply
    records = [found[run.key] for run in runs]
    rows = [{**record["row"], "speedup_vs_base": None, "speedup_vs_ep": None} for record in records]
    from archsim.runs.calibration_notes import die_of

    notes = result_notes(rows, [(side.systems[0].name, die_of(side.systems[0])) for side in sides])
    notes += [sentence for side in sides for sentence in side.unread]
    first, second = rows
    quantities = (*as_quantities(sides, first, second), *_a_unit(sides, rows), *_energies(sides, rows))
    rates = None
    if samples and all(row["tokens_per_s"] for row in rows):
        traces = {name: trace for each in selections for name, trace in each.maker.traces.items()}
        try:
            sampled = quick_worlds(runs, rows, traces, samples, 1)
        except errors.ArchsimError as error:
            notes.append(f"The order has no range, as one of its samples cannot run: {error}")
        else:
            slower = [each.ns / each.value_ns for each in sampled]
            whole = all(row.get("iteration_ns") for row in rows)
            rates = tuple(
                row["batch"] * 1e9 / iteration_at(row, each) if whole else row["tokens_per_s"] / each
                for row, each in zip(rows, slower, strict=True)
            )
    return DesignComparison(
        *names, (first, second), differences, tuple(_causes(records)), quantities, tuple(dict.fromkeys(notes)), rates
    )


def _a_unit(sides: Sequence[ExperimentSpec], rows: Sequence[Mapping[str, Any]]) -> Iterator[DesignFigure]:
    """Throughput per device, watt (of MoE layers), square millimetre and dollar."""
    rates = [row["tokens_per_s"] for row in rows]
    over = {
        "device": [side.systems[0].dies for side in sides], "W": [row["power_w"] for row in rows],
        "mm²": [row["silicon_mm2"] for row in rows], "USD": [row["cost_usd"] for row in rows],
    }  # fmt: skip
    for unit, amounts in over.items():
        a, b = (rate / amount if rate and amount else None for rate, amount in zip(rates, amounts, strict=True))
        if a or b:
            yield DesignFigure(
                group="throughput per", name=unit, unit=f"tokens/s/{unit}", meaning=f"decode throughput per {unit}",
                a=a, b=b, sense=1,
            )  # fmt: skip


def as_quantities(
    sides: Sequence[ExperimentSpec], first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[DesignFigure]:
    prices = tuple(price_range(side.systems[0]) for side in sides)
    for group, columns in GROUPS.items():
        for name, sense in columns.items():
            column, values = BY_NAME[name], (first[name], second[name])
            if any(values):
                about = group, column.header or _NAMES[name], column.unit, column.meaning
                yield DesignFigure(*about, *values, sense, prices if name == "cost_usd" else ())


def _causes(records: Sequence[Record]) -> Iterator[DesignFigure]:
    """Time of a decode step by cause; of the whole run, where a side keeps no steps or has no decode."""
    group, sides = STEP, [_of_decode_step(record) for record in records]
    if not all(sides):
        group, sides = RUN, [_of_run(record["row"]) for record in records]
    least = LEAST * max((sums.sum(side.values()) for side in sides), default=0.0)
    for cause, about in CAUSES.items():
        a, b = (side[cause.column] for side in sides)
        if max(a, b) > least:
            yield DesignFigure(
                group=group, name=about.label, unit="ns", meaning=f"that {about.meaning} takes of it", a=a, b=b,
                sense=-1,
            )  # fmt: skip


def _of_decode_step(record: Record) -> dict[str, float]:
    """Cause → ns of a decode step of all MoE layers: shares of what decode iterations waited for, of
    ``decode_step_ns``. Empty without decode, and for runs of too many steps.
    """
    row, steps = record["row"], unpack(record["steps"])
    first = 1 if row["prefill_ns"] else 0  # step 0 is the prefill, where one counts
    waited = {
        name: sums.sum(ns for step, ns in zip(steps["step"], steps[f"bound_{name}_ns"], strict=True) if step >= first)
        for name in (cause.column for cause in CAUSES) if steps
    }  # fmt: skip
    every = sums.sum(waited.values())
    return {name: ns / every * row["decode_step_ns"] for name, ns in waited.items()} if every else {}


def _of_run(row: Mapping[str, Any]) -> dict[str, float]:
    total_ns = row["prefill_ns"] + row["decode_ns"]
    return {cause.column: total_ns * (row[f"bound_{cause.column}"] or 0.0) for cause in CAUSES}


def _energies(sides: Sequence[ExperimentSpec], rows: Sequence[Mapping[str, Any]]) -> Iterator[DesignFigure]:
    parts = []
    for side, row in zip(sides, rows, strict=True):
        activity = energy.activity_of(side.models[0], row)
        joule = energy.energy_of(activity, build_costs(side.systems[0]))
        parts.append({name: each / activity.tokens for name, each in joule.items()} if activity.tokens else {})
    for name in dict.fromkeys((*parts[0], *parts[1])):
        a, b = (part.get(name) for part in parts)
        if a or b:
            yield DesignFigure(
                group="energy", name=f"of it: {name}", unit="J/token", meaning="energy per token", a=a, b=b, sense=-1
            )


def _flat(value: Any, path: str = "") -> dict[str, str]:
    if (plain := fields.without_range(value)) is not value:
        each = [(path, plain), *((f"{path}.{key}", inner) for key, inner in value.items() if key != "value")]
    elif isinstance(value, Mapping):
        each = [(f"{path}.{key}" if path else str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        one = len(value) == 1  # the only system, model, policy: without a number
        each = [(path if one else f"{path}.{at}", inner) for at, inner in enumerate(value)]
    else:
        return {path: "–" if value is None else str(value)}
    return {key: text for name, inner in each for key, text in _flat(inner, name).items()}


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Difference]:
    for key in dict.fromkeys((*first, *second)):
        values = first.get(key, "–"), second.get(key, "–")
        if values[0] != values[1] and key != "name":
            yield Difference(key, *values)
