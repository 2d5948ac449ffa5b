"""The first sentences of a page, and its sections that are not figures: balancers, policies slower than plain expert
parallelism, copies, the engines' errors, and how sure the answers are.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, log
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.base.causes import CAUSES, DOING
from archsim.base.sums import sum
from archsim.iteration.memory import memory_fit
from archsim.policies.placement import Placement, balanced
from archsim.report.figures import option_times
from archsim.report.tables import Panel, Report, bound_shares, fastest
from archsim.report.units import BYTE_UNITS, RATE_UNITS, TIME_UNITS, between, factor, listed, percent, scaled
from archsim.runs.engine_comparison import OUTSIDE, errors, read_comparison
from archsim.runs.notes import SLOWER, grown
from archsim.runs.results import Row
from archsim.specs import balancers, policies
from archsim.specs.assumptions import AssumptionsSpec

# ---- answers
# The first sentences of a page: which policy wins where and by how much, what limits it, how far it is from the bound.

_MOST_PLACES = 4  # in a sentence; tables have all
_FIRST = "physical"  # the set of assumptions that a page begins with, where it was run


@dataclass(frozen=True)
class Winner:
    """The fastest policy of a place at a batch; ``gain``: over ep, None without one."""

    batch: int
    run: Row
    gain: float | None


def headline(report: Report) -> str:
    """The assumption set that the sentences and the picture are of."""
    labels = [label for label in report.compared() if any(place.assumptions == label for place in report.places())]
    return next((label for label in labels if label.startswith(_FIRST)), labels[-1] if labels else "")


def sentences(report: Report) -> list[str]:
    """What wins where and by how much, what limits it, and how far it is from the bound, of the places of the
    headline's assumptions; none where nothing was decoded.
    """
    label = headline(report)
    own = [place for place in report.places() if place.assumptions == label]
    places = {place: found for place in own if (found := winners(report, place))}
    if not places:
        return []
    by_system: dict[str, dict[Panel, list[Winner]]] = {}
    for place, found in places.items():
        by_system.setdefault(place.system, {})[place] = found
    last = {place: found[-1].run for place, found in list(places.items())[:_MOST_PLACES]}
    several = len(by_system) > 1
    told = _won(by_system) if len(report.policies) > 1 else _alone(by_system)
    whole = [said for place in last.values() if (said := iteration_told(place))]
    return [
        " ".join([*whole, *_faster_systems(by_system), *told])
        + f" These numbers hold under the assumption set {label}.",
        " ".join(_limits(last, several)),
        " ".join(_distances(last, several)),
    ]


def iteration_told(row: Row) -> str:
    """How long a whole decode iteration of a run takes, and the share of its MoE layers; '' where it is not known."""
    if not (whole_ns := row.get("iteration_ns")):
        return ""
    layers_ns = row["iteration_experts_ns"] + row["iteration_transfers_ns"]
    return (
        f"A decode iteration of {row['model']} on {row['system']} takes {scaled(whole_ns, TIME_UNITS)} at batch "
        f"{row['batch']:,} under {row['policy']}; MoE layers are {percent(layers_ns / whole_ns)} of it."
    )


def _faster_systems(by_system: Mapping[str, Mapping[Panel, list[Winner]]]) -> list[str]:
    """``dojo decodes deepseek-v3 1.30× to 1.52× as fast as tsmc_sow.``: the systems of a sweep compared first of all,
    each with its fastest policy, over the batches that both ran. The fastest system is that of the largest batch.
    """
    rates: dict[str, dict[str, dict[int, float]]] = {}
    for system, places in by_system.items():
        for place, found in places.items():
            own = {win.batch: win.run["throughput_tokens_per_s"] for win in found}
            rates.setdefault(place.model, {})[system] = own
    said = []
    for model, systems in rates.items():
        shared = sorted(set.intersection(*(set(own) for own in systems.values())))
        if len(systems) < 2 or not shared:
            continue
        first, *others = sorted(systems, key=lambda name: -systems[name][shared[-1]])
        parts = []
        for other in others:
            ratios = [systems[first][batch] / systems[other][batch] for batch in shared]
            parts.append(f"{between(ratios, factor)} as fast as {other}")
        said.append(f"{first} decodes {model} {listed(parts)}.")
    return said


def winners(report: Report, place: Panel) -> list[Winner]:
    """The fastest policy at every batch, in ascending order. Of policies within CLOSE of the fastest, it is ep if it is
    among them, else the first of the experiment.
    """
    found = []
    batch_of = itemgetter("batch")
    for batch, each in groupby(sorted(report.at(place), key=batch_of), key=batch_of):
        if not (close := fastest(each)):
            continue
        best = min(close, key=lambda run: (run["policy"] != "ep", report.policies.index(run["policy"])))
        found.append(Winner(batch, best, best["speedup_vs_ep"]))
    return found


# What a policy is called where a sentence compares with it.
_EP = "expert parallelism (ep)"


_EVERY = MappingProxyType({2: "both", 3: "all three", 4: "all four", 5: "all five", 6: "all six"})


def _won(by_system: Mapping[str, Mapping[Panel, list[Winner]]]) -> list[str]:
    """``On dojo, allo decodes deepseek-v3 1.14× to 1.33× faster than expert parallelism (ep) at batch 8,192. At batch
    64, ep is the fastest.`` The policy that wins most often on a system is the rule. Where others win at whole batches
    or for whole models, these are named. Other places are exceptions; if they are half of all, there is no rule.
    Systems with the same rule and models share a sentence.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for system, places in by_system.items():
        counted = Counter(win.run["policy"] for found in places.values() for win in found)
        rule = max(counted, key=lambda policy: counted[policy])
        groups.setdefault((rule, tuple(dict.fromkeys(place.model for place in places))), []).append(system)
    said = []
    for (rule, models), systems in groups.items():
        where, several = listed(systems), len(systems) > 1
        if several and len(systems) == len(by_system):
            where = f"{_EVERY.get(len(systems), f'all {len(systems)}')} systems"
        every = [(place, win) for system in systems for place, found in by_system[system].items() for win in found]
        batches = sorted({win.batch for _, win in every})
        by_policy: dict[str, list[tuple[Panel, Winner]]] = {rule: []}
        for place, win in every:
            by_policy.setdefault(win.run["policy"], []).append((place, win))
        at = f" at batch {batches[0]:,}" if len(batches) == 1 else ""
        others = [(place, win) for place, win in every if win.run["policy"] != rule]
        if not others:
            said.append(f"On {where}, {_decodes(rule, models, every)}{at}.")
        elif at_batches := _whole_batches(by_policy):
            told = [f"On {where}, {_decodes(rule, models, by_policy[rule])} at {at_batches.pop(rule)}."]
            for policy, named in at_batches.items():
                by = _by(policy, by_policy[policy])
                told.append(f"At {named}, {policy} is the fastest{f',{by}' if by else ''}.")
            said.append(" ".join(told))
        elif sum(len({place.model for place, _ in found}) for found in by_policy.values()) == len(models):
            told = [
                _decodes(policy, dict.fromkeys(place.model for place, _ in found), found)
                for policy, found in by_policy.items()
            ]
            said.append(f"On {where}{at}, {'; '.join(told)}.")
        elif len(others) * 2 < len(every):
            exceptions = _exceptions(others, len(every), several)
            said.append(f"On {where}, {_decodes(rule, models, by_policy[rule])}. {exceptions}")
        else:
            ranked = sorted(by_policy, key=lambda policy: -len(by_policy[policy]))
            told = [f"{each} in {len(by_policy[each])}{_by(each, by_policy[each])}" for each in ranked]
            said.append(
                f"On {where}, no policy is the fastest in most of the {len(every)} places: {listed(told)}. The table "
                "below has them."
            )
    return said


def _decodes(policy: str, models: Iterable[str], wins: Iterable[tuple[Panel, Winner]]) -> str:
    """``allo decodes deepseek-v3 1.14× to 1.33× faster than expert parallelism (ep)``."""
    gains = [win.gain for _, win in wins if win.gain is not None]
    how = "the fastest" if policy == "ep" or not gains else f"{between(gains, factor)} faster than {_EP}"
    return f"{_EP if policy == 'ep' else policy} decodes {listed(models)} {how}"


def _by(policy: str, wins: Iterable[tuple[Panel, Winner]]) -> str:
    """`` by 1.14× to 1.33×``: the gain over ep; '' of ep itself, and where it did not run."""
    gains = [win.gain for _, win in wins if win.gain is not None]
    return "" if policy == "ep" or not gains else f" by {between(gains, factor)}"


def _whole_batches(by_policy: Mapping[str, list[tuple[Panel, Winner]]]) -> dict[str, str]:
    """Policy → ``batch 64`` or ``batches 64 to 512``, at which it wins in all places; {} where a batch has two winners
    or did not run in all places, and where there are too many batches to be named.
    """
    every = [(place, win.batch) for found in by_policy.values() for place, win in found]
    batches = sorted({batch for _, batch in every})
    own = {policy: sorted({win.batch for _, win in found}) for policy, found in by_policy.items()}
    if len(every) < len(batches) * len({place for place, _ in every}) or sum(map(len, own.values())) > len(batches):
        return {}
    named = {}
    for policy, wins in own.items():
        unbroken = batches.index(wins[-1]) - batches.index(wins[0]) < len(wins)
        if len(wins) > _MOST_PLACES and not unbroken:
            return {}
        run = unbroken and len(wins) > 2
        told = f"{wins[0]:,} to {wins[-1]:,}" if run else listed(f"{batch:,}" for batch in wins)
        named[policy] = f"batch{'' if len(wins) == 1 else 'es'} {told}"
    return named


def _alone(by_system: Mapping[str, Mapping[Panel, list[Winner]]]) -> list[str]:
    """``On dojo, ep decodes 1.2 M tokens/s of deepseek-v3 at batch 64. No other policy ran, so none is compared.``"""
    said = []
    for system, places in by_system.items():
        for place, found in places.items():
            rates = [win.run["tokens_per_s"] for win in found if win.run.get("tokens_per_s")]
            rate = f" {between(rates, lambda value: scaled(value, RATE_UNITS))} of" if rates else ""
            batch = between((win.batch for win in found), lambda value: f"{value:,.0f}")
            policy = found[0].run["policy"]
            said.append(f"On {system}, {policy} decodes{rate} {place.model} at batch {batch}.")
    return [*said[:_MOST_PLACES], "No other policy ran, so none is compared."]


def _exceptions(others: list[tuple[Panel, Winner]], places: int, several: bool) -> str:
    """Places where another policy wins: each by name, or how many there are. ``several``: systems, which are named."""
    if len(others) > _MOST_PLACES:
        names = listed(dict.fromkeys(win.run["policy"] for _, win in others))
        return f"In {len(others)} of {places} places another policy wins ({names}); the table below has them."
    each = []
    for policy, found in groupby(others, key=lambda other: other[1].run["policy"]):
        wins = list(found)
        where = listed(
            f"{place.model}{f' on {place.system}' if several else ''} at batch "
            f"{listed(f'{win.batch:,}' for _, win in here)}"
            for place, here in groupby(wins, key=lambda win: win[0])
        )
        each.append(f"{where}, where {policy} wins{_by(policy, wins)}")
    return f"The exception is {each[0]}." if len(others) == 1 else f"The exceptions are {'; and '.join(each)}."


def _limits(runs: Mapping[Panel, Row], several: bool) -> list[str]:
    """What limits steps: a sentence for all runs of the same batch and policy that wait for the same."""
    groups: dict[tuple[Any, ...], dict[Panel, list[float]]] = {}
    for place, run in runs.items():
        shares = bound_shares(run)
        first, second, *_ = sorted(shares, key=lambda name: -shares[name])
        causes = (first, second) if shares[second] >= 0.1 else (first,) if shares[first] else ()
        groups.setdefault((run["batch"], run["policy"], causes), {})[place] = [shares[name] for name in causes]
    said = []
    for (batch, policy, causes), places in groups.items():
        steps, verb = _steps_of(list(places), several)
        subject = f"At batch {batch:,}, {steps} under {policy}"
        if not causes:
            said.append(f"{subject} {verb('has')} no record of what {verb('it')} waited for.")
            continue
        of_time = f"of {verb('its')} time "
        told = [
            f"{between((shares[at] for shares in places.values()), percent)} {of_time if not at else ''}{DOING[name]}"
            for at, name in enumerate(causes)
        ]
        said.append(f"{subject} {verb('spends')} {' and '.join(told)}.")
    return said


_PLURAL = MappingProxyType({"spends": "spend", "its": "their", "has": "have", "it": "they", "takes": "take"})


def _steps_of(places: Sequence[Panel], several: bool) -> tuple[str, Callable[[str], str]]:
    """``a step of deepseek-v3 on dojo`` or ``steps of deepseek-v3 and qwen3 on dojo``, and the form of its verbs."""
    models, systems = (list(dict.fromkeys(getattr(place, name) for place in places)) for name in ("model", "system"))
    if len(places) == 1:
        return f"a step of {models[0]}{f' on {systems[0]}' if several else ''}", str
    if len(places) == len(models) * len(systems):
        where = f"{listed(models)}{f' on {listed(systems)}' if several else ''}"
    else:
        where = listed(f"{place.model} on {place.system}" for place in places)
    return f"steps of {where}", lambda word: _PLURAL.get(word, word)


def _distances(runs: Mapping[Panel, Row], several: bool) -> list[str]:
    """How far steps are from their roofline and from the best balance: a sentence for all runs of the same batch and
    policy that have the same parts.
    """
    groups: dict[tuple[Any, ...], dict[Panel, tuple[float, float]]] = {}
    for place, run in runs.items():
        over, load, bound = (run.get(name) for name in ("over_roofline", "load_max_over_mean", "load_ceiling_slots"))
        kind = "" if not load or not bound else "balance" if load >= bound else "split"
        known = over or 0.0, load / bound if load and bound else 0.0
        if over is not None or kind:
            groups.setdefault((run["batch"], run["policy"], over is not None, kind), {})[place] = known
    said = []
    for (batch, policy, timed, kind), places in groups.items():
        steps, verb = _steps_of(list(places), several)
        parts = []
        if timed:
            by = between((over for over, _ in places.values()), factor)
            parts.append(f"{verb('takes')} {by} as long as the roofline allows")
        if kind == "balance":
            die = "its busiest die has" if len(places) == 1 else "their busiest dies have"
            by = between((load for _, load in places.values()), factor)
            given = "it" if len(places) == 1 else "them"
            parts.append(f"{die} {by} the load that the best placement would give {given}")
        elif kind:
            balanced = "it" if len(places) == 1 else "them"
            parts.append(
                f"no placement of whole experts would balance {balanced} better, as the policy splits experts over dies"
            )
        subject = f"{steps} under {policy}"
        told = f"{subject} {' and '.join(parts)}" if timed else f"in {subject}, {parts[0]}"
        said.append(f"At batch {batch:,}, {told}.")
    return said


# ---- balancers
# The page section on balancers: which wins where, by how much of what is possible, what each costs, and when it does
# not pay.
#
# It works on rows of results (name of a column → value), so that pages of runs and of points share it. A balancer is
# compared with plain expert parallelism (``ep``) at the same *place*: system, model, routing, batch and assumptions.

PLACE = ("system", "model", "trace", "batch", "assumptions")
MODEL, TRACE = PLACE.index("model"), PLACE.index("trace")
PAYS = 0.01  # a change of throughput that counts
IMBALANCES = (1.1, 1.3, 1.6)  # between them, places are shown together
REFERENCE = "ep"
_NAMES = frozenset(name for name, _, _ in balancers.BALANCER_PRESETS)


@dataclass(frozen=True)
class BalancerCell:
    """One balancer at one place. ``step``: −4 … 4 of a colour scale; ``told``: the tooltip."""

    text: str
    step: int
    told: str


@dataclass(frozen=True)
class Glance:
    """Places that share something: the three fastest policies by geometric mean, of those that execute every pair, and
    what the fastest costs. ``nothing``: places where no policy pays.
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


def reached(row: Row, ep: Row) -> float | None:
    """Share of the imbalance of ``ep`` that is gone, of what any placement of as many slots could remove; 1 for rules
    that run experts where they are not placed and so beat this bound.
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
    told = ("below", *(f"{low:g} to" for low in IMBALANCES[:-1]), "above")
    bounds = (*IMBALANCES, IMBALANCES[-1])
    found = sorted(groups.items()) if len(groups) > 1 else []
    return [_glance(f"load of ep {told[at]} {bounds[at]:g}", runs) for at, runs in found]


def _glance(shared: str, places: list[Mapping[str, Row]]) -> Glance:
    """Of one group of places; only policies that ran, and executed every pair, in all of them."""
    names = [name for name in places[0] if all(name in runs and not runs[name].get("pairs_lost") for runs in places)]
    gains = {name: exp(_mean([log(gain(runs[name], runs[REFERENCE])) for runs in places])) for name in names}
    best, *others = sorted(names, key=lambda name: -gains[name])
    rows, eps = [runs[best] for runs in places], [runs[REFERENCE] for runs in places]
    shares = [each for each in map(reached, rows, eps) if each is not None]
    fastest = [max(names, key=lambda name: runs[name]["throughput_tokens_per_s"]) for runs in places]
    idle = sum(all(gain(runs[name], runs[REFERENCE]) < 1 + PAYS for name in names) for runs in places)
    return Glance(
        shared,
        best,
        factor(gains[best]),
        ", ".join(f"{name} {factor(gains[name])}" for name in others[:2]),
        f"{fastest.count(best)} of {len(places)}",
        percent(_mean(shares)) if shares and best != REFERENCE else "–",
        scaled(max(row.get("replica_hbm_bytes") or 0.0 for row in rows), BYTE_UNITS),
        scaled(_mean([_moved_a_step(row) for row in rows]), BYTE_UNITS),
        percent(_mean([_moves_share(row) + _share(row, "decision_exposed_ns") for row in rows]), 1),
        f"{idle} of {len(places)}",
    )


def _is_balancer(name: str, row: Row | None) -> bool:
    moved = row is not None and any(row.get(column) for column in ("migrated_bytes", "prefetched_bytes", "pairs_lost"))
    return name in _NAMES or moved


def _win(place: list[str], runs: Mapping[str, Row], policies: list[str]) -> Win:
    ep = runs[REFERENCE]
    exact = [name for name, row in runs.items() if not row.get("pairs_lost")]
    winner = max(exact, key=lambda name: runs[name]["throughput_tokens_per_s"])
    best = runs[winner]
    share = reached(best, ep)
    return Win(
        tuple(place),
        winner,
        factor(gain(best, ep)),
        _load(ep.get("load_max_over_mean")),
        _load(best.get("load_max_over_mean")),
        _load(best.get("load_ceiling_slots")),
        "–" if share is None or winner == REFERENCE else percent(share),
        tuple(_cell(name, runs.get(name), ep, name == winner) for name in policies),
    )


def _cell(name: str, row: Row | None, ep: Row, wins: bool) -> BalancerCell:
    if row is None:
        return BalancerCell("–", 0, "not run")
    value = gain(row, ep)
    step = max(-4, min(4, round(log(value) / 0.08)))
    told = f"{name}: {factor(value)} of ep"
    if row.get("pairs_lost"):
        told += f", loses {percent(row.get('gate_mass_lost') or 0.0, 1)} of the gate mass"
    elif value < 1 + PAYS:
        told += f": {reason(row, ep)}"
    return BalancerCell(f"{value:.2f}{'*' if wins else ''}", step, told)


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
        name,
        factor(exp(_mean([log(value) for value in gains]))),
        f"{sum(value >= 1 + PAYS for value in gains)} of {len(gains)}",
        factor(_mean(distances)) if distances else "–",
        scaled(max(row.get("replica_hbm_bytes") or 0.0 for row in rows), BYTE_UNITS),
        scaled(_mean(moved), BYTE_UNITS),
        percent(_mean([_moves_share(row) for row in rows]), 1),
        percent(_mean([_share(row, "decision_exposed_ns") for row in rows]), 1),
        percent(_mean([row.get("gate_mass_lost") or 0.0 for row in rows]), 1),
        "; ".join(f"{why}: {count}" for why, count in sorted(reasons.items(), key=lambda each: -each[1])) or "–",
    )


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


# ---- slower
# The page section on policies that are slower than plain expert parallelism: where, by how much, what takes longer,
# and what the rule that allocates does not see.
#
# Policies are compared at the same place, as in the answers above.

STEPS = (0.05, 0.15, 0.35)  # losses from which a cell is redder
# What the engine charges and an allocation does not weigh (docs/policies.md), where assumptions have these values.
VECTORS = "hidden vectors", {"activations": "dispatched"}
KERNELS = "times of kernels", {"gemm": "grouped"}
LINKS: tuple[str, Mapping[str, str]] = ("links that pairs share", {})
UNSEEN: Mapping[str, tuple[tuple[str, Mapping[str, str]], ...]] = {
    "first_seen": (("anything but the order of experts: weights, links, balance", {}),),
    "home": (("how the load is divided", {}),),
    "isca26": (VECTORS, LINKS, KERNELS),
    "paper": (VECTORS, LINKS, ("HBM reads for others", {}), KERNELS),
    "copy_aware": (VECTORS, LINKS, KERNELS),
    "lp": (("what its solver takes", {"decision_cost": "charged"}),),
}
NOTHING = "–"
OTHER = "the time of a step: it balances numbers of tokens"


@dataclass(frozen=True)
class Slower:
    """A policy. ``lost``: in how many of its runs; ``loss``, ``place``, ``longer``: of the worst, with what takes most
    of the time that it loses; ``step``: 1 … 4 of the red scale.
    """

    policy: str
    lost: str
    loss: str
    place: str
    step: int
    longer: str
    unseen: str


def slower_section(
    rows: Iterable[Row], policies: Iterable[policies.PolicySpec], assumptions: Mapping[str, AssumptionsSpec]
) -> dict[str, Any] | None:
    """What the section shows; None where no run is slower than ``ep``. assumptions: by label."""
    rules = {each.name: each.allocation.name for each in policies}
    compared = [
        (place, row, runs[REFERENCE])
        for place, runs in places_with_reference(rows).items()
        for name, row in runs.items()
        if name != REFERENCE
    ]
    lost = sorted((each for each in compared if gain(*each[1:]) < SLOWER), key=lambda each: gain(*each[1:]))
    if not lost:
        return None
    runs = Counter(row["policy"] for _, row, _ in compared)
    of_policy: dict[str, list[tuple[tuple, Row, Row]]] = {}
    for each in lost:
        of_policy.setdefault(each[1]["policy"], []).append(each)
    varies = [at for at in range(len(PLACE)) if len({place[at] for place, _, _ in compared}) > 1]
    shown = []
    for name, worst in of_policy.items():
        place, row, ep = worst[0]
        where = ", ".join(f"{PLACE[at]} {place[at]}" if PLACE[at] == "batch" else str(place[at]) for at in varies)
        unseen = _unseen(rules.get(name, ""), assumptions[row["assumptions"]])
        shown.append(_slower(f"{len(worst)} of {runs[name]}", where, row, ep, unseen))
    return {"rows": shown, "lost": len(lost), "compared": len(compared)}


def _unseen(rule: str, assumptions: AssumptionsSpec) -> str:
    """What the rule does not see of what is charged under these assumptions."""
    if rule not in UNSEEN:
        return OTHER
    parts = [
        part
        for part, needs in UNSEEN[rule]
        if all(getattr(assumptions, field) == value for field, value in needs.items())
    ]
    return ", ".join(parts) or NOTHING


def _slower(lost: str, place: str, row: Row, ep: Row, unseen: str) -> Slower:
    loss = 1 / gain(row, ep) - 1
    step = 1 + sum(loss >= least for least in STEPS)
    return Slower(row["policy"], lost, percent(loss, 1), place, step, _longer(row, ep), unseen)


def _longer(row: Row, ep: Row) -> str:
    """The cause on the critical path that grew most, relative to the time of ``ep``."""
    found = grown(row, ep, 1 / gain(row, ep))
    return f"{CAUSES[found[0]].label}: +{percent(found[1], 1)}" if found else ""


# ---- copies
# What prediction did with copies of experts: bytes written, saved and evicted by every run; and runs whose copies
# exceed HBM capacity, under assumptions that do not bound them.


def copied(report: Report) -> list[Row]:
    """The runs that wrote or held copies, in the order of places, batches and policies."""
    return [run for run in report.shown() if run["local_hbm_write_bytes"] or run["replicas_max_bytes_per_die"]]


@dataclass(frozen=True)
class Excess:
    """Runs of a place whose copies exceed capacity: the most bytes that a die stores, and the room beside its homes."""

    place: Panel
    policies: tuple[str, ...]
    most_bytes: float
    room_bytes: int


def beyond_memory(report: Report) -> Iterator[Excess]:
    """Every place with such runs where ``capacity`` is unbounded; elsewhere the engine enforces the bound."""
    for place in report.places():
        if report.assumptions[place.assumptions].capacity != "unbounded":
            continue
        room = _room_bytes(report, place)
        beyond = [run for run in report.at(place) if run["replicas_max_bytes_per_die"] > room]
        if beyond:
            policies = tuple(dict.fromkeys(run["policy"] for run in beyond))
            yield Excess(place, policies, max(run["replicas_max_bytes_per_die"] for run in beyond), room)


def _room_bytes(report: Report, place: Panel) -> int:
    """Room of a die with the fewest homes, experts spread evenly; 0 if the homes alone exceed capacity."""
    system, model = report.systems[place.system], report.models[place.model]
    placement = Placement.of_homes(balanced(model.experts, system.dies), len(model.moe_layer_ids), system.dies)
    return max(0, int(memory_fit(system, model, report.assumptions[place.assumptions], placement).room_bytes.max()))


# ---- engines
# The page section on the error of the analytical engine: the sample of an analytical sweep that the event engine
# repeated.


def engines_section(folder: Path) -> dict[str, Any] | None:
    """Rows of the section's two tables; None if the folder has no comparison."""
    kept = read_comparison(folder)
    if kept is None:
        return None
    compared, about = kept
    outside = sorted((each for each in compared if abs(each.error) > OUTSIDE), key=lambda each: -abs(each.error))
    return {
        "runs": len(compared),
        **about,
        "limit": percent(OUTSIDE),
        "sets": [
            {
                "assumptions": each.assumptions,
                "runs": each.runs,
                "numbers": [f"{value:.1%}" for value in (each.median, each.p95, each.largest)]
                + [f"{each.signed_median:+.1%}"],
                "rank": "–" if each.rank is None else f"{each.rank:.3f}",
            }
            for each in errors(compared)
        ],
        "outside": [{"run": each.run, "error": f"{each.error:+.1%}", "reason": each.reason} for each in outside],
    }


# ---- sure
# What `archsim sure`, or ``--samples``, left beside the results.


def sure_section(folder: Path) -> list[dict[str, Any]]:
    """For each place its name, its sentence, a picture and what to measure. Empty without samples."""
    file = folder / "sure.json"
    if not file.is_file():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    places = []
    for place in found["places"]:
        name = ", ".join(str(value) for value in place["of"].values())
        options = [
            (
                str(each.get("policy", each.get("option"))),
                (each["decode_ns_p05"], each["decode_ns_p50"], each["decode_ns_p95"]),
            )
            for each in place["options"]
        ]  # fmt: skip
        told = place.get("advice") or [each["told"] for each in place["measure"]]
        places.append({"name": name, "told": place["told"], "chart": option_times(name, options), "measure": told})
    return places
