"""The page section on balancers, from rows of results: which wins where, its share of what is possible, its cost, and
when it does not pay, against ``ep`` at the same *place*: system, model, routing, batch and assumptions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from typing import Any

from archsim.base.sums import sum
from archsim.runs.results import Row
from archsim.show.units import BYTE_UNITS, factor, percent, with_unit
from archsim.specs import balancer_presets

PLACE = ("system", "model", "trace", "batch", "assumptions")
MODEL, TRACE = PLACE.index("model"), PLACE.index("trace")
PAYS = 0.01  # a change of throughput that counts
IMBALANCES = (1.1, 1.3, 1.6)  # between them, places are shown together
REFERENCE = "ep"
_NAMES = frozenset(name for name, _, _ in balancer_presets.BALANCER_PRESETS)


@dataclass(frozen=True)
class BalancerCell:
    """One balancer at one place. ``step``: −4 … 4 of a colour scale; ``tip``: the tooltip."""

    text: str
    step: int
    tip: str


@dataclass(frozen=True)
class Glance:
    """Places that share something: their three fastest policies by geometric mean, of those that execute every pair,
    and what the fastest costs. ``nothing``: places where no policy pays.
    """

    shared: str
    best: str
    gain: str
    others: str
    wins: str
    reached: str
    memory: str
    moved: str
    waits: str
    nothing: str


@dataclass(frozen=True)
class Win:
    """One place: the fastest policy that executes every pair, and every policy's gain over ``ep``."""

    place: tuple[str, ...]
    winner: str
    gain: str
    load_before: str
    load: str
    bound: str
    reached: str
    cells: tuple[BalancerCell, ...]


@dataclass(frozen=True)
class PolicyWorth:
    """One policy over all places: geometric mean gain, where it pays, distance to the bound, and what it costs."""

    policy: str
    gain: str
    pays: str
    distance: str
    memory: str
    moved: str
    moves: str
    decisions: str
    lost: str
    why: str


def places_with_reference(rows: Iterable[Row]) -> dict[tuple, dict[str, Row]]:
    """Place (the values of PLACE) → policy → its row, of places at which ``ep`` ran."""
    places: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        if row.get("throughput_tokens_per_s"):
            places.setdefault(tuple(row[name] for name in PLACE), {})[row["policy"]] = row
    return {place: runs for place, runs in places.items() if REFERENCE in runs}


def balancers_section(rows: Iterable[Row]) -> dict[str, Any] | None:
    """What the section shows; None without ``ep`` or without a balancer beside it."""
    places = places_with_reference(rows)
    policies = list(dict.fromkeys(name for runs in places.values() for name in runs if name != REFERENCE))
    if not any(_is_balancer(name, runs.get(name)) for runs in places.values() for name in policies):
        return None
    varies = [i for i in range(len(PLACE)) if len({place[i] for place in places}) > 1]
    systems = {place[0] for place in places}
    if len({(place[0], place[-1]) for place in places}) == len(systems) > 1:
        varies = [i for i in varies if PLACE[i] != "assumptions"]  # the system says them
    shown = _short_traces(places)
    return {
        "glances": _glances(places, varies, shown) if len(places) > 1 else [],
        "heads": [PLACE[i] for i in varies],
        "policies": policies,
        "wins": [_win([shown[place[i]] for i in varies], runs, policies) for place, runs in places.items()],
        "costs": [_cost(name, [runs for runs in places.values() if name in runs]) for name in policies],
        "places": len(places),
    }


def gain(row: Row, ep: Row) -> float:
    """Decode throughput over that of ``ep``."""
    return row["throughput_tokens_per_s"] / ep["throughput_tokens_per_s"]


def distance(row: Row) -> float | None:
    """Load of the busiest die over the least that any placement of as many slots allows."""
    load, bound = row.get("load_max_over_mean"), row.get("load_ceiling_slots")
    return load / bound if load and bound else None


def share_reached(row: Row, ep: Row) -> float | None:
    """Share of the imbalance of ``ep`` that is gone, of what any placement of as many slots could remove; 1 for rules
    that run experts where they are not placed, which beat this bound.
    """
    before, now, bound = ep.get("load_max_over_mean"), row.get("load_max_over_mean"), row.get("load_ceiling_slots")
    if not before or not now or not bound or before - bound < 1e-6:
        return None
    return min(1.0, (before - now) / (before - bound))


def reason(row: Row, ep: Row) -> str:
    """Why a balancer is no faster than ``ep``: the first of moves, decisions and load that explains it."""
    moves, decisions = _moves_share(row), _share(row, "decision_exposed_ns") - _share(ep, "decision_exposed_ns")
    lost = 1 - gain(row, ep)
    if max(moves, decisions) > max(PAYS / 2, lost / 3):
        return "waits for moves" if moves > decisions else "waits for decisions"
    before, now = ep.get("load_max_over_mean"), row.get("load_max_over_mean")
    if before and now and now > before * (1 - PAYS):
        return "does not balance"
    return "load does not bound the step"


def _short_traces(places: Mapping[tuple, Any]) -> dict[Any, str]:
    """Values of places as shown: traces without the parameters that half of them share, or else all of them."""
    shown = {value: _shown(value) for place in places for value in place}
    words = {place[TRACE]: str(place[TRACE]).split() for place in places}
    for share in (0.5, 1.0):
        short = {trace: " ".join(_without_common(parts, list(words.values()), share)) for trace, parts in words.items()}
        if len(set(short.values())) == len(short):
            return shown | short
    return shown


def _without_common(words: list[str], every: list[list[str]], share: float) -> list[str]:
    """The first word, and of the others those that fewer than a share of all have."""
    return words[:1] + [each for each in words[1:] if sum(each in other for other in every) < share * len(every)]


def _glances(places: Mapping[tuple, Mapping[str, Row]], varies: list[int], shown: Mapping[Any, str]) -> list[Glance]:
    """Of the machines and batches, then of every traffic, then of every model that varies."""
    found = []
    axes = [[i for i in varies if i not in (MODEL, TRACE)], [TRACE], [MODEL]]
    for axis in axes:
        axis = [i for i in axis if i in varies]
        groups: dict[tuple, list[Mapping[str, Row]]] = {}
        for place, runs in places.items():
            groups.setdefault(tuple(place[i] for i in axis), []).append(runs)
        for values, group in groups.items() if axis else ():
            found.append(_glance(", ".join(shown[each] for each in values), group))
    return found + _by_imbalance(list(places.values()))


def _by_imbalance(places: list[Mapping[str, Row]]) -> list[Glance]:
    """Of places by the load of the busiest die over the mean under ``ep``, where they fall into several ranges."""
    groups: dict[int, list[Mapping[str, Row]]] = {}
    for runs in places:
        if load := runs[REFERENCE].get("load_max_over_mean"):
            groups.setdefault(sum(load >= bound for bound in IMBALANCES), []).append(runs)
    below = ("below", *(f"{low:g} to" for low in IMBALANCES[:-1]), "above")
    bounds = (*IMBALANCES, IMBALANCES[-1])
    found = sorted(groups.items()) if len(groups) > 1 else []
    return [_glance(f"load of ep {below[at]} {bounds[at]:g}", runs) for at, runs in found]


def _glance(shared: str, places: list[Mapping[str, Row]]) -> Glance:
    """Of one group of places; only policies that ran, and executed every pair, in all of them."""
    names = [name for name in places[0] if all(name in runs and not runs[name].get("pairs_lost") for runs in places)]
    gains = {name: exp(_mean([log(gain(runs[name], runs[REFERENCE])) for runs in places])) for name in names}
    best, *others = sorted(names, key=lambda name: -gains[name])
    rows, eps = [runs[best] for runs in places], [runs[REFERENCE] for runs in places]
    shares = [each for each in map(share_reached, rows, eps) if each is not None]
    fastest = [max(names, key=lambda name: runs[name]["throughput_tokens_per_s"]) for runs in places]
    idle = sum(all(gain(runs[name], runs[REFERENCE]) < 1 + PAYS for name in names) for runs in places)
    return Glance(
        shared=shared, best=best, gain=factor(gains[best]),
        others=", ".join(f"{name} {factor(gains[name])}" for name in others[:2]),
        wins=f"{fastest.count(best)} of {len(places)}",
        reached=percent(_mean(shares)) if shares and best != REFERENCE else "–",
        memory=with_unit(max(row.get("replica_hbm_bytes") or 0.0 for row in rows), BYTE_UNITS),
        moved=with_unit(_mean([_moved_a_step(row) for row in rows]), BYTE_UNITS),
        waits=percent(_mean([_moves_share(row) + _share(row, "decision_exposed_ns") for row in rows]), 1),
        nothing=f"{idle} of {len(places)}",
    )  # fmt: skip


def _is_balancer(name: str, row: Row | None) -> bool:
    moved = row is not None and any(row.get(column) for column in ("migrated_bytes", "prefetched_bytes", "pairs_lost"))
    return name in _NAMES or moved


def _win(place: list[str], runs: Mapping[str, Row], policies: list[str]) -> Win:
    ep = runs[REFERENCE]
    exact = [name for name, row in runs.items() if not row.get("pairs_lost")]
    winner = max(exact, key=lambda name: runs[name]["throughput_tokens_per_s"])
    best = runs[winner]
    share = share_reached(best, ep)
    return Win(
        place=tuple(place), winner=winner, gain=factor(gain(best, ep)),
        load_before=_load(ep.get("load_max_over_mean")), load=_load(best.get("load_max_over_mean")),
        bound=_load(best.get("load_ceiling_slots")),
        reached="–" if share is None or winner == REFERENCE else percent(share),
        cells=tuple(_cell(name, runs.get(name), ep, name == winner) for name in policies),
    )  # fmt: skip


def _cell(name: str, row: Row | None, ep: Row, wins: bool) -> BalancerCell:
    if row is None:
        return BalancerCell("–", 0, "not run")
    value = gain(row, ep)
    step = max(-4, min(4, round(log(value) / 0.08)))
    text = f"{name}: {factor(value)} of ep"
    if row.get("pairs_lost"):
        text += f", loses {percent(row.get('gate_mass_lost') or 0.0, 1)} of the gate mass"
    elif value < 1 + PAYS:
        text += f": {reason(row, ep)}"
    return BalancerCell(f"{value:.2f}{'*' if wins else ''}", step, text)


def _cost(name: str, places: list[Mapping[str, Row]]) -> PolicyWorth:
    rows, eps = [runs[name] for runs in places], [runs[REFERENCE] for runs in places]
    gains = [gain(row, ep) for row, ep in zip(rows, eps, strict=True)]
    distances = [each for each in map(distance, rows) if each is not None]
    moved = [_moved_a_step(row) for row in rows]
    reasons: dict[str, int] = {}
    for row, ep, value in zip(rows, eps, gains, strict=True):
        if value < 1 + PAYS:
            reasons[reason(row, ep)] = reasons.get(reason(row, ep), 0) + 1
    return PolicyWorth(
        policy=name, gain=factor(exp(_mean([log(value) for value in gains]))),
        pays=f"{sum(value >= 1 + PAYS for value in gains)} of {len(gains)}",
        distance=factor(_mean(distances)) if distances else "–",
        memory=with_unit(max(row.get("replica_hbm_bytes") or 0.0 for row in rows), BYTE_UNITS),
        moved=with_unit(_mean(moved), BYTE_UNITS), moves=percent(_mean([_moves_share(row) for row in rows]), 1),
        decisions=percent(_mean([_share(row, "decision_exposed_ns") for row in rows]), 1),
        lost=percent(_mean([row.get("gate_mass_lost") or 0.0 for row in rows]), 1),
        why="; ".join(f"{why}: {count}" for why, count in sorted(reasons.items(), key=lambda each: -each[1])) or "–",
    )  # fmt: skip


def _moved_a_step(row: Row) -> float:
    """Weights that dies get from others: moved, fetched ahead, or plainly read. Of the whole run, over decode steps."""
    moved = sum(row.get(column) or 0.0 for column in ("migrated_bytes", "prefetched_bytes", "remote_hbm_read_bytes"))
    return moved / max(row.get("decode_steps") or 1, 1)


def _share(row: Row, column: str) -> float:
    """Of the time of a run."""
    total_ns = (row.get("prefill_ns") or 0.0) + (row.get("decode_ns") or 0.0)
    return (row.get(column) or 0.0) / total_ns if total_ns else 0.0


def _moves_share(row: Row) -> float:
    return _share(row, "migration_exposed_ns") + _share(row, "prefetch_exposed_ns")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _load(value: float | None) -> str:
    return "–" if value is None else factor(value)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
