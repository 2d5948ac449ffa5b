"""What a user's policy gains over the best of the others, and a machine over another, with the ranges of both."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from archsim.base.sums import sum
from archsim.runs.results import Row
from archsim.show.report import Panel, Report
from archsim.show.units import factor, listing, percent, times_text
from archsim.specs.policies import PRESETS


def own_policies(report: Report) -> list[str]:
    """Policies that are no presets, where presets ran beside them."""
    own = [name for name in report.policies if name not in PRESETS]
    return own if len(own) < len(report.policies) else []


def best_other(report: Report, runs: Sequence[Row]) -> Row | None:
    """The fastest of runs of one batch whose policy is a preset."""
    others = [run for run in runs if run["policy"] not in own_policies(report) and run["throughput_tokens_per_s"]]
    return max(others, key=lambda run: run["throughput_tokens_per_s"], default=None)


def own_sentences(report: Report, places: Sequence[Panel]) -> Iterator[str]:
    """``mine decodes qwen3 1.05× as fast as allo at batch 64 (1.03× to 1.08× …)``: each of the user's policies beside
    the best of the others, at every batch.
    """
    for name in own_policies(report):
        for place in places:
            said, rows = [], []
            for batch in report.batches:
                runs = [run for run in report.at(place) if run["batch"] == batch]
                mine, other = next((run for run in runs if run["policy"] == name), None), best_other(report, runs)
                if mine is not None and mine["throughput_tokens_per_s"] and other is not None:
                    ratio = beside(report, mine, other)
                    said.append(f"{ratio} as fast as {other['policy']} at batch {batch:,}")
                    rows.append(mine)
            if said:
                where = f" on {place.system}" if len(report.systems) > 1 else ""
                yield (
                    f"{name} decodes {place.model}{where} {listing(said)}, the best of the policies that are not "
                    f"yours{_hits(report, name, rows)}{layers_text(rows)}."
                )


def beside(report: Report, run: Row, other: Row, whole: bool = False) -> str:
    """``1.05× (1.03× to 1.08× in 90 % of 32 samples)``, and whether it is a tie: a run's speed over another's, of MoE
    layers or of ``whole`` iterations.
    """
    found, of = pair_of(report, run["run"], other["run"]), "whole_" if whole else ""
    if found is None or f"{of}ratio" not in found:
        if whole:
            return factor(other["iteration_ns"] / run["iteration_ns"])
        return factor(run["throughput_tokens_per_s"] / other["throughput_tokens_per_s"])
    ends = found[f"{of}ratio"], found[f"{of}ratio_p05"], found[f"{of}ratio_p95"]
    middle, low, high = ends if found["faster_run"] == run["run"] else (1 / ends[0], 1 / ends[2], 1 / ends[1])
    tie = ", a tie" if found[f"{of}tie"] else ""
    return times_text(
        middle, min(low, middle), max(high, middle), f" in {percent(0.9)} of {report.ranges['samples']} samples{tie}"
    )


def pair_of(report: Report, one: str, other: str) -> Mapping[str, Any] | None:
    """What samples say of two runs, in any order."""
    return next(
        (each for each in report.ranges.get("pairs", ()) if {each["faster_run"], each["slower_run"]} == {one, other}),
        None,
    )


def _hits(report: Report, policy: str, rows: Sequence[Row]) -> str:
    """The share of reads of other dies' experts that cached copies saved, of a policy that predicts."""
    spec = next(each for each in report.experiment.policies if each.name == policy)
    if spec.prediction.name == "none":
        return ""
    saved, read = (sum(row[name] for row in rows) for name in ("copies_saved_bytes", "remote_hbm_read_bytes"))
    hits = percent(saved / (saved + read), 1) if saved + read else "0 %"
    return f"; its hit rate is {hits} of what dies read of other dies' experts"


def layers_text(rows: Sequence[Row]) -> str:
    """The standard error of times, where few layers stand for all."""
    errors = [row["layers_error"] for row in rows if row.get("layers_error")]
    return f"; the standard error of times is {percent(max(errors), 1)}, as only some layers ran" if errors else ""


def system_sentences(report: Report, fastest: Mapping[Panel, Sequence[Row]]) -> Iterator[str]:
    """``a decodes m 1.3× (1.2× to 1.4× in 90 % of 32 samples) as fast as b at batch 64.``: the systems of a sweep, each
    under its ``fastest`` policy at every batch; the first is the fastest at the largest batch that all ran.
    """
    by_model: dict[str, dict[str, dict[int, Row]]] = {}
    for place, rows in fastest.items():
        by_model.setdefault(place.model, {})[place.system] = {row["batch"]: row for row in rows}
    for model, systems in by_model.items():
        shared = sorted(set.intersection(*(set(own) for own in systems.values())))
        if len(systems) < 2 or not shared:
            continue
        whole = all(own[at].get("iteration_ns") for own in systems.values() for at in shared)
        last = {name: own[shared[-1]] for name, own in systems.items()}
        first, *others = sorted(
            last, key=lambda name: last[name]["iteration_ns"] if whole else -last[name]["throughput_tokens_per_s"]
        )
        parts = [
            f"{beside(report, systems[first][at], systems[other][at], whole)} as fast as {other} at batch {at:,}"
            for other in others for at in shared
        ]  # fmt: skip
        rows = [systems[name][at] for name in systems for at in shared]
        by = "in whole iterations" if whole else "in MoE layers"
        tied = all(", a tie)" in part for part in parts)
        begin = f"{listing([first, *others])} are a tie for {model}: {first} is" if tied else f"{first} decodes {model}"
        yield f"{begin} {listing(parts)}, {by}{layers_text(rows)}."


def system_pairs(groups: Sequence[Sequence[Row]]) -> Iterator[tuple[Row, Row]]:
    """Fastest runs of two systems at one model, batch and assumptions, faster first. ``groups``: of `in_question`."""
    for one, other in combinations((group[0] for group in groups), 2):
        if one["system"] != other["system"] and all(
            one[key] == other[key] for key in ("model", "batch", "assumptions")
        ):
            faster = max(one, other, key=lambda run: run["throughput_tokens_per_s"])
            yield faster, other if faster is one else one
