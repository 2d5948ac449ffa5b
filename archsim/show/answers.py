"""The first sentences of a page: which policy wins where, by how much, what limits it, how far it is from the bound."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from archsim.base.causes import DOING
from archsim.base.sums import sum
from archsim.runs.results import Row
from archsim.show.own_answers import best_other, own_policies, own_sentences, system_sentences
from archsim.show.report import Panel, Report
from archsim.show.tables import bound_shares, fastest
from archsim.show.units import RATE_UNITS, TIME_UNITS, between, factor, listing, percent, range_text

_BY_LAYERS = "Policies are compared by their MoE layers alone."  # beside the time of whole iterations
_MOST_PLACES = 4  # in a sentence; tables have all
_FIRST = "physical"  # the set of assumptions that a page begins with, where it was run


@dataclass(frozen=True)
class Winner:
    """The fastest policy of a place at a batch. ``gain``: over ep, None without one; ``ties``, ``leads``: pairs of
    `Report.ranges` in which another policy may be as fast, and is not.
    """

    batch: int
    run: Row
    gain: float | None
    ties: tuple[Row, ...] = ()
    leads: tuple[Row, ...] = ()


def headline(report: Report) -> str:
    """The assumption set that the sentences and the picture are of."""
    labels = [label for label in report.compared_sets() if any(place.assumptions == label for place in report.places())]
    return next((label for label in labels if label.startswith(_FIRST)), labels[-1] if labels else "")


def sentences(report: Report) -> list[str]:
    """What wins where, by how much, its limit and distance from the bound; none where nothing was decoded."""
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
    samples = report.ranges.get("samples", 0)
    together: dict[tuple[Any, ...], list[Row]] = {}
    for run in last.values():
        together.setdefault((run["model"], run["batch"], run["policy"]), []).append(run)
    whole = [said for runs in together.values() if (said := iteration_sentence(runs, samples))]
    first = [
        *own_sentences(report, list(places)[:_MOST_PLACES]),
        *system_sentences(report, {place: [win.run for win in found] for place, found in places.items()}),
    ]
    if len(report.policies) > 1:
        rest = [*_won(by_system, samples), *whole, *([_BY_LAYERS] if whole else [])]
    else:
        rest = [*whole, *_alone(by_system, samples)]
    return [
        " ".join([*filter(None, [report.ranges.get("damage", "")]), *first, *rest])
        + f" These numbers hold under the assumption set {label}.",
        " ".join(_limits(last, several)),
        " ".join(_distances(last, several)),
    ]


def iteration_at(row: Row, slower: Any) -> Any:
    """ns of a whole iteration whose MoE layers take ``slower`` times as long, a number or an array."""
    return row["iteration_ns"] + (row["iteration_experts_ns"] + row["iteration_transfers_ns"]) * (slower - 1)


def iteration_sentence(rows: Sequence[Row], samples: int = 0) -> str:
    """Time of a whole decode iteration, its range in ``samples``, its share of MoE layers; '' if unknown."""
    times, shares, several = [], [], len(rows) > 1
    for row in rows:
        if not (whole_ns := row.get("iteration_ns")):
            return ""
        layers_ns, rate, ends = whole_ns - iteration_at(row, 0.0), row["tokens_per_s"], rate_ends(row)
        spread = ends and (iteration_at(row, rate / max(ends[1], rate)), iteration_at(row, rate / min(ends[0], rate)))
        text = range_text(whole_ns, spread, TIME_UNITS, within(samples))
        times.append(f"{text} on {row['system']}" if several else text)
        shares.append(percent(layers_ns / whole_ns))
    row = rows[0]
    where = "" if several else f" on {row['system']}"
    return (
        f"A decode iteration of {row['model']}{where} takes {listing(times)} at batch {row['batch']:,} under "
        f"{row['policy']}; MoE layers are {listing(dict.fromkeys(shares))} of it."
    )


def rate_sentence(rows: Sequence[Row], samples: int = 0) -> str:
    """``On dojo, ep decodes 1.2 M tokens/s of deepseek-v3 at batch 64, counting MoE layers alone.``"""
    rates = {row["tokens_per_s"]: row for row in rows if row.get("tokens_per_s")}
    if not rates:
        return ""
    ends = rate_ends(rates[max(rates)])  # of the largest

    def text(rate: float) -> str:
        return range_text(rate, ends if rate == max(rates) else None, RATE_UNITS, within(samples))

    rate = between(rates, text)
    batch, row = between((each["batch"] for each in rows), lambda value: f"{value:,.0f}"), rows[0]
    return (
        f"On {row['system']}, {row['policy']} decodes {rate} of {row['model']} at batch {batch}, by MoE layers alone."
    )


def rate_ends(row: Row) -> tuple[float, float] | None:
    """The 5 and 95 % quantiles of a run's tokens/s over samples; None without samples."""
    low = row.get("tokens_per_s_p05")
    return None if low is None else (low, row["tokens_per_s_p95"])


def within(samples: int) -> str:
    """What is said of a range."""
    return f" in {percent(0.9)} of {samples} samples" if samples else ""


def winners(report: Report, place: Panel) -> list[Winner]:
    """The fastest policy at every batch, ascending. Within CLOSE of the fastest, ep if among them, else the first."""
    found = []
    batch_of = itemgetter("batch")
    for batch, each in groupby(sorted(report.at(place), key=batch_of), key=batch_of):
        if not (close := fastest(each)):
            continue
        best = min(close, key=lambda run: (run["policy"] != "ep", report.policies.index(run["policy"])))
        pairs = [
            pair for pair in report.ranges.get("pairs", ())
            if pair["faster_run"] == best["run"] and pair.get("slower_system", place.system) == place.system
        ]  # fmt: skip
        ties, leads = (tuple(pair for pair in pairs if bool(pair["tie"]) == tie) for tie in (True, False))
        found.append(Winner(batch, best, best["speedup_vs_ep"], ties, leads))
    return found


def in_question(report: Report) -> list[list[Row]]:
    """The runs that the sentences compare at every batch of the headline's places: the fastest first, then the best
    that is not as fast (`CLOSE`) and ep. Those that decide what is said come first: the least and the largest gain over
    ep, then the closest races.
    """
    found: list[tuple[float, float, list[Row]]] = []
    for place in report.places():
        if place.assumptions != headline(report):
            continue
        for win in winners(report, place):
            runs = [run for run in report.at(place) if run["batch"] == win.batch]
            close = [run["run"] for run in fastest(runs)]
            rate = {run["run"]: run["throughput_tokens_per_s"] or 0.0 for run in runs}
            others = fastest(run for run in runs if run["run"] not in close)
            own = [run for run in runs if run["policy"] in own_policies(report)]
            beside = [best_other(report, runs)] if own else []
            asked = {
                run["run"]: run
                for run in [win.run, *others[:1], *(r for r in runs if r["policy"] == "ep"), *beside, *own] if run
            }  # fmt: skip
            lead = rate[win.run["run"]] / max(rate[others[0]["run"]], 1e-9) if others else float("inf")
            found.append((win.gain or 0.0, lead, list(asked.values())))
    gains = [gain for gain, _, _ in found]
    found.sort(key=lambda each: (each[0] not in (min(gains), max(gains)), each[1]))
    return [runs for _, _, runs in found]


# What a policy is called where a sentence compares with it.
_EP = "expert parallelism (ep)"

_EVERY = MappingProxyType({2: "both", 3: "all three", 4: "all four", 5: "all five", 6: "all six"})


def _won(by_system: Mapping[str, Mapping[Panel, list[Winner]]], worlds: int = 0) -> list[str]:
    """``On dojo, allo decodes deepseek-v3 1.14× to 1.33× faster than expert parallelism (ep) at batch 8,192. At batch
    64, ep is the fastest.`` The policy that wins most often on a system is the rule. Where others win at whole batches
    or for whole models, these are named. Other places are exceptions; if they are half of all, there is no rule.
    Systems with the same rule and models share a sentence. Where worlds say that another may be as fast, there is no
    winner, but a tie.
    """
    ties = [(place, win) for found in by_system.values() for place, wins in found.items() for win in wins if win.ties]
    tied = _tie_sentences(ties, worlds, len(by_system) > 1)
    sure = {
        system: {place: left for place, found in places.items() if (left := [win for win in found if not win.ties])}
        for system, places in by_system.items()
    }
    return [*_won_surely({system: places for system, places in sure.items() if places}, worlds), *tied]


def _tie_sentences(ties: Sequence[tuple[Panel, Winner]], worlds: int, several: bool) -> list[str]:
    """``With deepseek-v3 at batch 16,384, base and allo are a tie: base is 1.09× as fast as allo (0.98× to …).``"""
    said = []
    for place, win in ties[:_MOST_PLACES]:
        where = f"With {place.model}{f' on {place.system}' if several else ''} at batch {win.batch:,}"
        each = win.ties[0]
        low, high = (factor(each[end]) for end in ("ratio_p05", "ratio_p95"))
        names = listing([win.run["policy"], *(pair["slower"] for pair in win.ties)])
        said.append(
            f"{where}, {names} are a tie: {win.run['policy']} is {factor(each['ratio'])} as fast as {each['slower']} "
            f"({low} to {high} in {percent(0.9)} of {worlds} samples)."
        )
    if len(ties) > _MOST_PLACES:
        said.append(f"The order is a tie in {len(ties) - _MOST_PLACES} more configurations.")
    return said


def _won_surely(by_system: Mapping[str, Mapping[Panel, list[Winner]]], worlds: int) -> list[str]:
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for system, places in by_system.items():
        counted = Counter(win.run["policy"] for found in places.values() for win in found)
        rule = max(counted, key=lambda policy: counted[policy])
        groups.setdefault((rule, tuple(dict.fromkeys(place.model for place in places))), []).append(system)
    said = []
    for (rule, models), systems in groups.items():
        where, several = listing(systems), len(systems) > 1
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
            said.append(f"On {where}, {_decodes(rule, models, every, worlds)}{at}.")
        elif at_batches := _whole_batches(by_policy):
            sentences = [f"On {where}, {_decodes(rule, models, by_policy[rule], worlds)} at {at_batches.pop(rule)}."]
            for policy, named in at_batches.items():
                by = _by(policy, by_policy[policy])
                sentences.append(f"At {named}, {policy} is the fastest{f',{by}' if by else ''}.")
            said.append(" ".join(sentences))
        elif sum(len({place.model for place, _ in found}) for found in by_policy.values()) == len(models):
            sentences = [
                _decodes(policy, dict.fromkeys(place.model for place, _ in found), found, worlds)
                for policy, found in by_policy.items()
            ]
            said.append(f"On {where}{at}, {'; '.join(sentences)}.")
        elif len(others) * 2 < len(every):
            exceptions = _exceptions(others, len(every), several)
            said.append(f"On {where}, {_decodes(rule, models, by_policy[rule], worlds)}. {exceptions}")
        else:
            ranked = sorted(by_policy, key=lambda policy: -len(by_policy[policy]))
            counts = [f"{each} in {len(by_policy[each])}{_by(each, by_policy[each])}" for each in ranked]
            said.append(
                f"On {where}, no policy wins most of the {len(every)} configurations: {listing(counts)}. The table "
                "below has them."
            )
    return said


def _decodes(policy: str, models: Iterable[str], wins: Sequence[tuple[Panel, Winner]], worlds: int) -> str:
    """``allo decodes deepseek-v3 1.14× to 1.33× faster than expert parallelism (ep) (1.10× to 1.38× …)``"""
    gains = [win.gain for _, win in wins if win.gain is not None]
    how = "the fastest" if policy == "ep" or not gains else f"{between(gains, factor)} faster than {_EP}"
    known = [win.run for _, win in wins if win.run.get("speedup_vs_ep_p05") is not None]
    if known and policy != "ep":
        low, high = min(run["speedup_vs_ep_p05"] for run in known), max(run["speedup_vs_ep_p95"] for run in known)
        how += f" ({factor(low)} to {factor(high)} in {percent(0.9)} of {worlds} samples)"
    leads = [min(win.leads, key=lambda pair: pair["ratio"]) for _, win in wins if win.leads]
    if leads and policy == "ep":
        ratios, others = between([pair["ratio"] for pair in leads], factor), dict.fromkeys(p["slower"] for p in leads)
        low, high = min(pair["ratio_p05"] for pair in leads), max(pair["ratio_p95"] for pair in leads)
        how += f", {ratios} as fast as {listing(others)} ({factor(low)} to {factor(high)} in "
        how += f"{percent(0.9)} of {worlds} samples)"
    return f"{_EP if policy == 'ep' else policy} decodes {listing(models)} {how}"


def _by(policy: str, wins: Iterable[tuple[Panel, Winner]]) -> str:
    """`` by 1.14× to 1.33×``: the gain over ep; '' of ep itself, and where it did not run."""
    gains = [win.gain for _, win in wins if win.gain is not None]
    return "" if policy == "ep" or not gains else f" by {between(gains, factor)}"


def _whole_batches(by_policy: Mapping[str, list[tuple[Panel, Winner]]]) -> dict[str, str]:
    """Policy → ``batches 64 to 512`` at which it wins everywhere; {} with two winners, gaps or too many."""
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
        text = f"{wins[0]:,} to {wins[-1]:,}" if run else listing(f"{batch:,}" for batch in wins)
        named[policy] = f"batch{'' if len(wins) == 1 else 'es'} {text}"
    return named


def _alone(by_system: Mapping[str, Mapping[Panel, list[Winner]]], samples: int) -> list[str]:
    every = [found for places in by_system.values() for found in places.values()]
    said = [rate_sentence([win.run for win in found], samples) for found in every[:_MOST_PLACES]]
    return [*filter(None, said), "No other policy ran, so none is compared."]


def _exceptions(others: list[tuple[Panel, Winner]], places: int, several: bool) -> str:
    """Places where another policy wins: each by name, or how many there are. ``several``: systems, which are named."""
    if len(others) > _MOST_PLACES:
        names = listing(dict.fromkeys(win.run["policy"] for _, win in others))
        return f"In {len(others)} of {places} configurations another policy wins ({names}); the table below has them."
    each = []
    for policy, found in groupby(others, key=lambda other: other[1].run["policy"]):
        wins = list(found)
        where = listing(
            f"{place.model}{f' on {place.system}' if several else ''} at batch "
            f"{listing(f'{win.batch:,}' for _, win in here)}"
            for place, here in groupby(wins, key=lambda win: win[0])
        )
        each.append(f"{where}, where {policy} wins{_by(policy, wins)}")
    return f"The exception is {each[0]}." if len(others) == 1 else f"The exceptions are {'; and '.join(each)}."


def _limits(runs: Mapping[Panel, Row], several: bool) -> list[str]:
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
        sentences = [
            f"{between((shares[at] for shares in places.values()), percent)} {of_time if not at else ''}{DOING[name]}"
            for at, name in enumerate(causes)
        ]
        said.append(f"{subject} {verb('spends')} {' and '.join(sentences)}.")
    return said


_PLURAL = MappingProxyType({"spends": "spend", "its": "their", "has": "have", "it": "they", "takes": "take"})


def _steps_of(places: Sequence[Panel], several: bool) -> tuple[str, Callable[[str], str]]:
    """``a step of deepseek-v3 on dojo`` or ``steps of deepseek-v3 and qwen3 on dojo``, and the form of its verbs."""
    models, systems = (list(dict.fromkeys(getattr(place, name) for place in places)) for name in ("model", "system"))
    if len(places) == 1:
        return f"a step of {models[0]}{f' on {systems[0]}' if several else ''}", str
    if len(places) == len(models) * len(systems):
        where = f"{listing(models)}{f' on {listing(systems)}' if several else ''}"
    else:
        where = listing(f"{place.model} on {place.system}" for place in places)
    return f"steps of {where}", lambda word: _PLURAL.get(word, word)


def _distances(runs: Mapping[Panel, Row], several: bool) -> list[str]:
    """How far steps are from roofline and best balance: a sentence for runs of a batch and policy with equal parts."""
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
        text = f"{subject} {' and '.join(parts)}" if timed else f"in {subject}, {parts[0]}"
        said.append(f"At batch {batch:,}, {text}.")
    return said
