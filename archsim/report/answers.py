"""The first words of a page: which policy wins where and by how much, what limits it, how far it is from the bound."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from archsim.report.data import Place, Report, RunRow
from archsim.report.figures import BOUND_NAMES
from archsim.report.tables import CLOSE
from archsim.report.units import between, factor, percent

_MOST_PLACES = 4  # in a sentence; tables have all
_FIRST = "physical"  # the set of assumptions that a page begins with, where it was run


@dataclass(frozen=True)
class Winner:
    """The fastest policy of a place at a batch; ``gain``: over ep, None without one."""

    batch: int
    run: RunRow
    gain: float | None


def headline(report: Report) -> str:
    """The assumption set that the sentences and the picture are of."""
    labels = [label for label in report.compared() if any(place.assumptions == label for place in report.places())]
    return next((label for label in labels if label.startswith(_FIRST)), labels[-1] if labels else "")


def sentences(report: Report) -> list[str]:
    """Three sentences on the places of the headline's assumptions; none where nothing was decoded."""
    places = {place: found for place in _places(report) if (found := winners(report, place))}
    if not places:
        return []
    shown = dict(list(places.items())[:_MOST_PLACES])
    more = f"; {len(places) - len(shown)} more places are below" if len(places) > len(shown) else ""
    wins = "; ".join(f"{_name(report, place)}: {_won(found)}" for place, found in shown.items())
    last = {place: found[-1].run for place, found in shown.items()}
    return [
        f"Under {headline(report)}, the fastest policy is, of {wins}{more}.",
        f"What limits it at the largest batch: {_each(report, last, _limit)}.",
        f"How far it is from the bound: {_each(report, last, _distance)}.",
    ]


def winners(report: Report, place: Place) -> list[Winner]:
    """By batch, ascending; of policies within CLOSE of the fastest, ep before all, else the experiment's first."""
    found = []
    for batch, each in groupby(sorted(report.at(place), key=lambda run: run.batch), key=lambda run: run.batch):
        runs = [run for run in each if run.get("throughput_tokens_per_s")]
        if not runs:
            continue
        highest = max(run["throughput_tokens_per_s"] for run in runs)
        close = [run for run in runs if run["throughput_tokens_per_s"] >= highest * (1 - CLOSE)]
        best = min(close, key=lambda run: (run.policy != "ep", report.policies.index(run.policy)))
        found.append(Winner(batch, best, best.get("speedup_vs_ep")))
    return found


def _places(report: Report) -> list[Place]:
    return [place for place in report.places() if place.assumptions == headline(report)]


def _name(report: Report, place: Place) -> str:
    return place.model if len(report.systems) == 1 else f"{place.model} on {place.system}"


def _won(found: Iterable[Winner]) -> str:
    """``allo up to batch 8,192 (1.14× to 1.33× ep), base at 16,384 (1.51×)``."""
    parts = []
    for policy, each in groupby(found, key=lambda winner: winner.run.policy):
        wins = list(each)
        first, last = (f"{wins[at].batch:,}" for at in (0, -1))
        where = f"at batch {first}" if len(wins) == 1 else f"at batch {first} to {last}"
        gains = [win.gain for win in wins if win.gain is not None]
        over = "" if not gains or policy == "ep" else f" ({between(gains, factor)} of ep)"
        parts.append(f"{policy} {where}{over}")
    return ", then ".join(parts)


def _each(report: Report, runs: dict[Place, RunRow], told) -> str:
    """What is told of every place; once where it is the same."""
    said = {place: told(run) for place, run in runs.items()}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{_name(report, place)}, {text}" for place, text in said.items())


def _limit(run: RunRow) -> str:
    shares = {name: run.get(column) or 0.0 for column, (_, name) in BOUND_NAMES.items()}
    first, second, *_ = sorted(shares, key=lambda name: -shares[name])
    if not shares[first]:
        return "not recorded"
    return f"{first} {percent(shares[first])} of the time" + (
        f", {second} {percent(shares[second])}" if shares[second] >= 0.1 else ""
    )


def _distance(run: RunRow) -> str:
    over, load, bound = (run.get(name) for name in ("over_roofline", "load_max_over_mean", "load_ceiling_slots"))
    parts = [] if over is None else [f"a step takes {factor(over)} its roofline"]
    if load and bound:
        best = "of the best placement" if load >= bound else "that the best placement could reach: it splits experts"
        parts.append(f"its busiest die has {factor(load / bound)} the load {best}")
    return " and ".join(parts) or "not recorded"
