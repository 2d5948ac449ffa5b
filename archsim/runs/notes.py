"""All caveats of results, as sentences for pages and terminals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import SpecError
from archsim.base.quantities import BANDWIDTH, COMPUTE, format_quantity
from archsim.laws.tables import HBM, CalibrationSpec
from archsim.runs import energy, run
from archsim.runs.measure_machine import GEMMS_OF, STAND_INS_APART
from archsim.specs.calibration_files import DEFAULT_CALIBRATION, calibration_named
from archsim.specs.plausible import plausibility_notes
from archsim.specs.system import SystemSpec
from archsim.specs.variants import is_variant
from archsim.specs.workload import OF_MODEL, PROMPT_TOKENS, SyntheticSpec, WorkloadSpec
from microarch.silicon.synthesised_area import clock_note

# Notes on the calibrations behind results: used by default, or outside the measured range.

ON_PORTS = " on "  # in the names of kernels of clusters: "normal on 8 ranks"
MOST_NAMED = 8  # systems
SAME = 0.005  # relative; smaller differences of rates are rounding


class GemmSource(NamedTuple):
    """Properties of a system that select its measured GEMMs and their scaling."""

    calibration: str | None  # `ComputeSpec.calibration`
    library: str | None  # `ComputeSpec.library`
    dtype: str  # of the products
    peak_flop_per_s: float  # of a die
    hbm_bytes_per_s: float  # of a die
    datasheet_only: bool = False  # nothing of the die was measured


def die_of(system: SystemSpec) -> GemmSource:
    """The properties of a system's die."""
    compute = system.compute
    peak, bandwidth = compute.peak_flop_per_s, system.hbm.bandwidth_bytes_per_s
    return GemmSource(compute.calibration, compute.library, compute.dtype, peak, bandwidth, system.datasheet_only)


def datasheet_note(systems: Iterable[str]) -> str:
    """A note on systems on which nothing was measured."""
    return (
        f"Nothing was measured on {_list_some(systems)} (datasheet only). The fitted curves are those of another GPU, "
        "scaled by nominal rates, so every time is extrapolated."
    )


def calibration_notes(rows: Iterable[Mapping[str, Any]], dies: Iterable[tuple[str, GemmSource]]) -> list[str]:
    """Notes on the calibrations of some results, one sentence each. rows: of results; dies: (system, its die), a
    system once or more (points of a sweep).
    """
    rows, dies = list(rows), list(dict.fromkeys(dies))
    ran = {row["system"] for row in rows if "system" in row}
    unmeasured = [system for system, die in dies if die.datasheet_only and system in ran]
    calibrated = [row for row in rows if row.get("gemm_extrapolated") is not None]
    used = {row["system"] for row in calibrated}
    names = _system_names(calibrated)
    dies = [(names[system], die) for system, die in dies if system in used]
    unnamed = [system for system, die in dies if die.calibration is None]
    notes = [datasheet_note(unmeasured)] if unmeasured else []
    if unnamed:
        notes.append(
            f"No compute.calibration is given for {_list_some(unnamed)}. GEMMs take the times of "
            f"{DEFAULT_CALIBRATION}, scaled to the die's peak and HBM bandwidth."
        )
    notes += _table_notes(dies)
    noted = set(unnamed) | set(unmeasured)  # above
    outside = [
        row["gemm_extrapolated"] for row in calibrated if row["gemm_extrapolated"] > 0 and not _takes_scaled_law(row)
    ]
    if outside:
        notes.append(
            f"{_runs(len(outside), len(calibrated), 'uses', 'use')} the GEMM calibration outside the measured sizes, "
            f"for up to {max(outside):.1%} of the GEMM time (column gemm_extrapolated)."
        )
    notes += _stand_in_notes(row for row in rows if row.get("system") not in noted or not _takes_scaled_law(row))
    moved = {(str(row["system"]), str(row["transfer_law"])) for row in rows if ON_PORTS in str(row.get("transfer_law"))}
    notes += [f"Hidden vectors on {system} take the measured times of {law}." for system, law in sorted(moved)]
    linked = [row for row in rows if row.get("copies_extrapolated") is not None]
    beyond = sum(row["copies_extrapolated"] > 0 for row in linked)
    if beyond:
        notes.append(
            f"{_runs(beyond, len(linked), 'copies', 'copy')} slices of a size that the calibration named in d2d did "
            "not measure (column copies_extrapolated)."
        )
    return notes


def _takes_scaled_law(row: Mapping[str, Any]) -> bool:
    """Whether GEMMs take the law of another chip."""
    return GEMMS_OF in str(row.get("stand_ins") or "")


def _stand_in_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was not measured, whose law it takes, and on which systems."""
    rows = list(rows)
    names, systems = _system_names(rows), dict[str, list[str]]()
    for row in rows:
        for each in filter(None, str(row.get("stand_ins") or "").split(STAND_INS_APART)):
            systems.setdefault(each, []).append(names[row["system"]])
    return [
        f"On {_list_some(named)}, {each}. This combination was not measured, so all of its time counts as extrapolated."
        for each, named in sorted(systems.items())
    ]


def _table_notes(dies: list[tuple[str, GemmSource]]) -> list[str]:
    """Notes on the tables that the dies use: scaled from fitted rates, or including the quantisation of activations."""
    systems: dict[str, list[str]] = {}
    read = cache(calibration_named)  # a sweep has a system a point
    for system, die in dies:
        for said in _of_table(die, read):
            systems.setdefault(said, []).append(system)
    return [f"On {_list_some(named)}, {said}." for said, named in systems.items()]


def _of_table(die: GemmSource, read: Callable[[str | None], CalibrationSpec]) -> list[str]:
    from archsim.laws.gemm import choose_table

    name = die.calibration or DEFAULT_CALIBRATION
    try:
        calibration = read(die.calibration)
        table = choose_table(calibration, die.dtype, die.library)
    except (SpecError, OSError):  # results outlive files
        return []
    said = _of_reference(name, calibration, table.dtype, die)
    if table.quantisation == "included":
        said.append(f"the {table.dtype} GEMM times of calibration {name} include the quantisation of activations")
    return said


def _of_reference(name: str, calibration: CalibrationSpec, dtype: str, die: GemmSource) -> list[str]:
    reference, said = calibration.reference, []
    for rate, mine, measured, dimension in (
        (dtype, die.peak_flop_per_s, reference.peak_flop_per_s.get(dtype), COMPUTE),
        (HBM, die.hbm_bytes_per_s, reference.hbm_bytes_per_s, BANDWIDTH),
    ):
        if rate in reference.fitted and measured and abs(mine / measured - 1) > SAME:
            what, fitted = ("HBM bandwidth", "--hbm") if rate == HBM else (f"{rate} peak", "--peak")
            said.append(
                f"GEMMs are scaled from the fitted {what} of calibration {name}, "
                f"{format_quantity(float(f'{measured:.4g}'), dimension)}, to that of the die. The calibration has no "
                f"nominal {what}: give one with `archsim calibrate {fitted}`"
            )
    return said


def _system_names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """System → its name; that of a variant with the first point that has it, as a digest alone tells nobody which one
    it is.
    """
    first: dict[str, int] = {}
    for row in rows:
        if (point := row.get("point")) is not None and "system" in row:
            first.setdefault(row["system"], point)
    systems = dict.fromkeys(row["system"] for row in rows if "system" in row)
    return {each: f"{each} (point {first[each]})" if each in first and is_variant(each) else each for each in systems}


def _list_some(systems: Iterable[str]) -> str:
    """``a, b and c``; beyond MOST_NAMED, how many others there are."""
    names = list(dict.fromkeys(systems))
    left = len(names) - MOST_NAMED
    if left > 0:
        names = [*names[:MOST_NAMED], f"{left} other{'s' if left > 1 else ''}"]
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _runs(some: int, of: int, one: str, many: str) -> str:
    """``The run uses``, ``1 of 4 runs uses``, ``3 of 4 runs use``: a subject and its verb."""
    return f"The run {one}" if of == 1 else f"{some} of {of} runs {one if some == 1 else many}"


def _place(row: Mapping[str, Any], system: bool = True) -> str:
    """``deepseek-v3 on dojo at batch 64``; ``system``: whether the system is named."""
    on = f" on {row['system']}" if system else ""
    at = f" (point {row['point']})" if row.get("point") is not None else ""
    return f"{row['model']}{on} at batch {int(row['batch']):,}{at}"


# Notes on batches that are larger than their trace.

MOST_NAMED_HERE = 4  # batches
HOW = {
    "shifted": "copies of the {recorded} recorded ones, and each copy begins at another decode step",
    "fitted": "generated from a traffic model that is fitted to the {recorded} recorded ones",
}


def drawn_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every batch that is larger than its trace, and for how many others. rows: of results."""
    drawn: dict[tuple[int, int, str], Mapping[str, Any]] = {}
    for row in rows:
        if row.get("drawn_from") is not None:
            drawn.setdefault((int(row["batch"]), int(row["drawn_from"]), row.get("extend") or "redraw"), row)
    notes = [_told(batch, of, how, row) for (batch, of, how), row in list(drawn.items())[:MOST_NAMED_HERE]]
    if len(drawn) > MOST_NAMED_HERE:
        left = len(drawn) - MOST_NAMED_HERE
        others = "1 other batch is" if left == 1 else f"{left} other batches are"
        notes.append(f"{others} larger than the trace, too (column drawn_from).")
    return notes


def _told(batch: int, recorded: int, extend: str, row: Mapping[str, Any]) -> str:
    if extend in HOW:
        return f"The {batch:,} requests are {HOW[extend].format(recorded=recorded)} (workload.extend: {extend})."
    note = (
        f"The {batch:,} requests are sampled with replacement from the {recorded} of the trace, by workload.seed. All "
        "copies of a request choose the same experts at every step."
    )
    active, distinct = row.get("active_experts"), row.get("active_if_distinct")
    if active is None or distinct is None:
        return note
    return (
        f"{note} On average {active:.0f} experts of a layer are active in a step. With {batch:,} different requests it "
        f"would be up to {distinct:.0f}. `workload.extend: shifted` or `fitted` comes closer to that."
    )


# Notes on the model of a run: what of it is not modelled, and what it was taken to keep in HBM.


def memory_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each model of which something is not modelled, or that does not say what it keeps beside experts,
    and where the KV cache was left out. rows: of results.
    """
    rows = list(rows)
    odd = {str(row.get("model")): str(row["approximate"]) for row in rows if row.get("approximate")}
    notes = [f"The model {model} is approximate: {what}." for model, what in odd.items()]
    notes += dict.fromkeys(str(row["attention_law"]) for row in rows if row.get("attention_law"))
    notes += dict.fromkeys(str(row["memory_doubt"]) for row in rows if row.get("memory_doubt"))
    notes += dict.fromkeys(f"{row['first_steps']}." for row in rows if row.get("first_steps"))
    if any(row.get("context_tokens") == 0 for row in rows):
        notes.append(
            "HBM holds no KV cache, as workload.context is 0. With real requests there is less room for copies of "
            "experts."
        )
    derived = [row for row in rows if row.get("context_from") == run.LONGEST]
    if derived:
        most = max(int(row["context_tokens"]) for row in derived)
        notes.append(
            "workload.context is not given. Every request therefore holds as many tokens of KV cache as the longest "
            f"request of its batch has in the trace or preset, prompt and output together (up to {most:,})."
        )
    lacking = dict.fromkeys(str(row.get("model")) for row in rows if row.get("hbm_all_counted") == 0)
    notes += [
        f"Only the experts of {model} are counted in HBM. Its file lacks attention, vocabulary or dense_ffn, so its KV "
        "cache and attention weights cannot be counted."
        for model in lacking
    ]
    return notes


# Notes on policies: own functions whose decisions cost nothing, plans that are worse than ``ep``'s, and what speed-ups
# are worth if dies have the endpoints of a measured chip.

MOST_NAMED_POLICY_NOTES = 4  # policies
SLOWER = 0.99  # of the throughput of ep; above it, a policy is as fast


def policy_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every set of own functions that is not charged, and for every policy that is slower than ``ep``.
    rows: of results.
    """
    rows = list(rows)
    uncharged = dict.fromkeys((str(row["policy"]), str(row["uncharged"])) for row in rows if row.get("uncharged"))
    notes = [
        f"Decisions of policy {policy} take no time, because {functions} returns no Effort."
        for policy, functions in uncharged
    ]
    asking = list(dict.fromkeys(str(row["policy"]) for row in rows if row.get("plans_by_speeds")))
    if asking:
        notes.append(
            f"Policies that see the speeds of dies ({_list_some(asking)}) make another plan for every machine. By "
            "luck, the plan for slower dies may be better: a faster die was seen to make a step up to "
            f"{LUCK:.0%} longer. To compare two machines, compare means over several wafers or several samples of the "
            "traffic."
        )
    return [*notes, *_under_way(rows), *_slower(rows), *_endpoints(rows), *_plans(rows)]


def _under_way(rows: list[Mapping[str, Any]]) -> list[str]:
    """Where a run ended before the weights had arrived that a rebalancing moved."""
    late = [row for row in rows if row.get("under_way_bytes")]
    shares = [row["under_way_bytes"] / (row["under_way_bytes"] + row["migrated_bytes"]) for row in late]
    names = _list_some(dict.fromkeys(str(row["policy"]) for row in late))
    return (
        []
        if not late
        else [
            f"{_runs(len(late), len(rows), 'ends', 'end')} while weights are under way that rebalancing moves "
            f"(policies {names}, up to {max(shares):.0%} of the weights, column under_way_bytes). What has not arrived "
            "counts neither as moved nor in energy, and its placement is never used. More workload.decode_steps show "
            "what it brings."
        ]
    )


LUCK = 0.03  # of a step: greedy plans for one die faster (tests/engine/test_as_built_runs.py; 2.2 % was the most)
LESS_FOR_MORE = 0.99  # of the time of a step of fewer requests; below it, one of more takes less


def _plans(rows: list[Mapping[str, Any]]) -> list[str]:
    """Where a step of more requests takes less time: their plan differs, not the work of it."""
    steps: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for row in rows:
        if row.get("decode_step_ns"):
            key = tuple(str(row.get(name)) for name in ("system", "model", "policy", "engine", "assumptions"))
            steps.setdefault(key, {}).setdefault(int(row["batch"]), []).append(row["decode_step_ns"])
    notes = []
    for (system, model, policy, *_), of in steps.items():
        batches = sorted(of)
        if all(len(times) == 1 for times in of.values()):  # nothing else differs
            pairs = [(of[more][0] / of[few][0], few, more) for few, more in pairwise(batches)]
            share, few, more = min(pairs, default=(1.0, 0, 0))
            if share < LESS_FOR_MORE:
                notes.append(
                    f"For {model} on {system} under {policy}, a decode step of {more:,} requests takes {1 - share:.0%} "
                    f"less time than a decode step of {few:,}. The reason is that the policy makes another plan for "
                    "other loads. Under the same plan, more requests never take less time."
                )
    return notes


ENDPOINT = "endpoint=as_measured"


def _endpoints(rows: list[Mapping[str, Any]]) -> list[str]:
    """What the largest speed-up over base of each set of assumptions is worth under ``endpoint: as_measured``."""
    names = ("system", "model", "batch", "policy")
    known = [row for row in rows if row.get("speedup_vs_base") is not None]
    of = {(tuple(row[name] for name in names), row.get("point"), str(row["assumptions"])): row for row in known}
    pairs: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for (place, point, label), row in of.items():
        unlimited = "+".join(part for part in label.split("+") if part != ENDPOINT)
        if ENDPOINT in label and (other := of.get((place, point, unlimited))):
            pairs.setdefault(unlimited, []).append((other, row))
    notes = []
    for label, those in pairs.items():
        free, limited = max(those, key=lambda pair: pair[0]["speedup_vs_base"])
        notes.append(
            f"The largest speed-up over base under {label} is {free['speedup_vs_base']:.2f}×, reached by "
            f"{free['policy']} with {_place(free)}. It is {limited['speedup_vs_base']:.2f}× if a die's controller "
            "sends and receives only as fast as that of a measured chip (endpoint: as_measured)."
        )
    return notes


def grown(row: Mapping[str, Any], ep: Mapping[str, Any], slower: float) -> tuple[Cause, float] | None:
    """The cause on the critical path that grew most, and by what share of the time under ``ep``; ``slower``: time over
    that time. None where nothing tells what bounds a run.
    """
    shares = {cause: f"bound_{cause.column}" for cause in CAUSES}
    if not all(any(each.get(column) for column in shares.values()) for each in (row, ep)):
        return None
    grew = {cause: (row.get(each) or 0.0) * slower - (ep.get(each) or 0.0) for cause, each in shares.items()}
    most = max(grew, key=grew.__getitem__)
    return most, grew[most]


def _slower(rows: list[Mapping[str, Any]]) -> list[str]:
    compared: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("speedup_vs_ep") is not None and row["policy"] != "ep":
            compared.setdefault(str(row["policy"]), []).append(row)
    worse = {name: [row for row in those if row["speedup_vs_ep"] < SLOWER] for name, those in compared.items()}
    columns = ("point", "system", "model", "batch", "assumptions")
    reference = {tuple(row.get(column) for column in columns): row for row in rows if row.get("policy") == "ep"}
    slower = sorted((name for name in worse if worse[name]), key=lambda name: -len(worse[name]) / len(compared[name]))
    notes = []
    for name in slower[:MOST_NAMED_POLICY_NOTES]:
        least = min(worse[name], key=lambda row: row["speedup_vs_ep"])
        ep = reference.get(tuple(least.get(column) for column in columns))
        grew = grown(least, ep, 1 / least["speedup_vs_ep"]) if ep else None
        notes.append(
            f"Policy {name} is slower than ep in {len(worse[name])} of {len(compared[name])} runs. At worst, its "
            f"throughput is {least['speedup_vs_ep']:.2f}× that of ep ({_place(least)}, {least['assumptions']})."
            + (f" Most of the added time there goes to {CAUSES[grew[0]].meaning}." if grew else "")
        )
    if others := slower[MOST_NAMED_POLICY_NOTES:]:
        are = "Policies {} are" if len(others) > 1 else "Policy {} is"
        notes.append(f"{are.format(_list_some(others))} slower than ep in some runs, too (column speedup_vs_ep).")
    return notes


# Notes on times that neither peak FLOP/s nor HBM bandwidth explain.

FAR = 3.0  # times its roofline, from which on a note is made of a run
ROOFLINE = "the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM"
LEAST_TOLD = 0.01  # share of the time; smaller causes are not named
MOST_TOLD = 3  # systems one by one
TOLD = 3  # largest causes of a run
UNBALANCED = 1.5  # load of the busiest die over the mean


def roofline_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every system (or for all, if many) with runs over FAR times their roofline: how many, and the run
    that is farthest.

    Policy ``base`` is left out where others ran: it is slow by construction.
    """
    rows = [row for row in rows if row.get("over_roofline")]
    others = [row for row in rows if row["policy"] != "base"] or rows
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for row in others:
        systems.setdefault(str(row["system"]), []).append(row)
    if len(systems) > MOST_TOLD:  # points of a sweep
        systems = {f"{len(systems):,} systems": others}
    farthest = {name: max(each, key=lambda row: row["over_roofline"]) for name, each in systems.items()}
    order = sorted(systems, key=lambda name: -farthest[name]["over_roofline"])
    return [_sentence(name, farthest[name], systems[name]) for name in order if farthest[name]["over_roofline"] > FAR]


def _sentence(where: str, row: Mapping[str, Any], beside: list[Mapping[str, Any]]) -> str:
    far = sum(each["over_roofline"] > FAR for each in beside)
    over, step = f"{row['over_roofline']:.1f}", row.get("decode_step_ns")
    took = f"takes {step / 1e6:.3g} ms, which is {over} times its roofline" if step else f"takes {over} times as long"
    if len(beside) == 1:
        of_it = f"A decode step of {_place(row)} {took}" if step else f"The run of {_place(row)} {took} as its roofline"
        said = f"{of_it}, {ROOFLINE}."
    else:
        runs = _runs(far, len(beside), "takes", "take")
        which = f"{_place(row, row['system'] != where)} under {row['policy']} ({row['assumptions']})"
        said = (
            f"On {where}, {runs} more than {FAR:.0f} times as long as the roofline allows. The roofline is {ROOFLINE}. "
            f"The run that is farthest from it is {which}. Its "
            + (f"decode step {took}." if step else f"time is {over} times its roofline.")
        )
    use = f"Its MFU is {row['mfu']:.1%}, and it uses {row['hbm_bandwidth_utilisation']:.1%} of the HBM bandwidth."
    shares = {cause: row.get(f"bound_{cause.column}") or 0.0 for cause in CAUSES}
    named = (cause for cause in shares if shares[cause] >= LEAST_TOLD)
    largest = sorted(named, key=shares.__getitem__, reverse=True)[:TOLD]
    why = []
    if largest:
        goes = _list_some(f"{CAUSES[cause].meaning} ({shares[cause]:.0%})" for cause in largest)
        why.append(f"The time goes to {goes}." if len(largest) > 1 else f"Nearly all of the time goes to {goes}.")
    if largest[:1] == [Cause.ACTIVATIONS]:
        why.append("With `launch: gpu`, a GPU's measured kernels take it; with `launch: local_cp`, there are none.")
    if (load := row.get("load_max_over_mean") or 0.0) >= UNBALANCED:
        why.append(f"The busiest die has {load:.1f} times the mean load.")
    return " ".join([said, *why, use])


def limit_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every system whose limits of power or heat lower a clock: which limit, and by how much."""
    slow: dict[str, list[Mapping[str, Any]]] = {}
    every: dict[str, int] = {}
    for row in rows:
        if row.get("throttled_share") is None:
            continue
        every[row["system"]] = every.get(row["system"], 0) + 1
        if row["throttled_share"] > 0:
            slow.setdefault(row["system"], []).append(row)
    return [_limit_told(system, held, every[system]) for system, held in slow.items()]


def _limit_told(system: str, rows: list[Mapping[str, Any]], of: int) -> str:
    clocks: dict[str, list[float]] = {}
    for row in rows:
        names = [name for name in ("clock", "prefill_clock") if row.get(name) is not None]
        clocks.setdefault(row["policy"], []).extend(row[name] for name in names)
    said = ", ".join(
        f"{min(each):.0%} (policy {policy})"
        if min(each) == max(each)
        else f"{min(each):.0%} to {max(each):.0%} (policy {policy})"
        for policy, each in clocks.items()
    )
    limits = list(dict.fromkeys(row["held_by"] for row in rows if row["held_by"]))
    some = "" if len(rows) == of else f" in {len(rows)} of {of} runs"
    return (
        f"On {system}, the {' and the '.join(limits)} {'limit' if len(limits) > 1 else 'limits'} the clock{some}. It "
        f"runs at {said} of the full clock. A higher limit or better cooling raises it."
    )


def law_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every law of physics that rows disobey, and how many do (``archsim.runs.physical_laws``)."""
    rows = list(rows)
    broken = [row for row in rows if row.get("broken_laws")]
    return (
        []
        if not broken
        else [
            f"{_runs(len(broken), len(rows), 'disobeys', 'disobey')} a law of physics, by a defect of archsim: do not "
            f"use these numbers (column broken_laws). {_place(broken[0])}, policy {broken[0]['policy']}: "
            f"{broken[0]['broken_laws']}."
        ]
    )


def result_notes(rows: Iterable[Mapping[str, Any]], dies: Iterable[tuple[str, GemmSource]]) -> list[str]:
    """A sentence each. rows: of results; dies: (system, its die), a system once or more (points of a sweep)."""
    rows = list(rows)
    calibrations = calibration_notes(rows, dies)
    policies = [*policy_notes(rows), *roofline_notes(rows)]
    shares: dict[str, float] = {}  # of the largest machine of a system
    for row in rows:
        shares[str(row["system"])] = max(shares.get(str(row["system"]), 0.0), row.get("carrier_share") or 0.0)
    large = [note for system, share in shares.items() if (note := energy.carrier_note(system, share))]
    machines = [*law_notes(rows), *calibrations, *large, *limit_notes(rows)]
    return [*machines, *layer_notes(rows), *drawn_notes(rows), *memory_notes(rows), *policies]


# Notes on traffic: what generated routing is not, the prefill that a preset brings, and layers that did not run.

THREE_NUMBERS = (
    "The routing is not that of these models. It is generated from three numbers (popularity, taste and stickiness), "
    "which are medians over recorded traces of other models. Speed-ups come out too high: the busiest die has 1.6 to "
    "1.8 times the mean load, where recorded routing gives 2.5 to 3.0 times. `like: model` takes the traffic preset of "
    "each model instead."
)


def traffic_notes(workload: WorkloadSpec) -> list[str]:
    """Sentences about the traffic of an experiment; none for recorded routing."""
    if isinstance(workload.trace, str):
        return []
    synthetic = workload.trace.synthetic
    if synthetic.like is None:
        return [THREE_NUMBERS]
    return [prefill_told(synthetic)] if synthetic.prompt_tokens is None else []


_FEW_LAYERS = 4  # with fewer, the standard error is itself off by half (of normal values: 1 / √(2 (n − 1)))


def layer_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every model of which fewer layers ran than it has. rows: of results."""
    parts: dict[tuple[str, int, int], list[tuple[float, str]]] = {}
    for row in rows:
        ran, every, error = row.get("layers"), row.get("model_layers"), row.get("layers_error")
        if ran and every and ran < every:
            of_part = parts.setdefault((row["model"], int(ran), int(every)), [])
            of_part += [(error, row["policy"])] if error is not None else []
    notes = []
    for (model, ran, every), errors in parts.items():
        note = (
            f"Only {ran} of the {every} MoE layers of {model} ran. The throughput and the times of a step are scaled "
            "to all of them."
        )
        if not errors:
            notes.append(f"{note} One layer cannot tell how large the error is: `workload.layers: 2` or more can.")
            continue
        most, least = max(errors), min(errors)
        note += f" The standard error is {least[0]:.1%}"
        note += (
            " (column layers_error)."
            if most[1] == least[1]
            else (
                f" (policy {least[1]}) to {most[0]:.1%} (policy {most[1]}); see column layers_error. Policies that "
                "differ by less may be in another order with other layers."
            )
        )
        if ran < _FEW_LAYERS:
            note += f" It is itself uncertain, as only {ran} layers ran."
        notes.append(note)
    return notes


def prefill_told(synthetic: SyntheticSpec) -> str:
    """A sentence on the prefill that generated requests begin with."""
    tokens, like = synthetic.prompt_tokens, synthetic.like
    if tokens == 0:
        return "There is no prefill (`prompt_tokens: 0`)."
    if tokens is not None or like is None:
        return f"Every request begins with a prefill of {PROMPT_TOKENS if tokens is None else tokens} prompt tokens."
    whose = "each model's preset" if like == OF_MODEL else f"the preset {like}"
    return (
        f"Every request begins with a prefill, whose length is sampled from {whose}. `prompt_tokens: N` sets one "
        "length, and `prompt_tokens: 0` leaves the prefill out."
    )


def system_notes(systems: Iterable[SystemSpec]) -> list[str]:
    """A sentence for every system whose state machine is clocked higher than its RTL, and for every value that is far
    from known machines.
    """
    systems = list(systems)
    found = (clock_note(each.name, each.decision.executor, each.decision.fsm.clock_hz) for each in systems)
    odd = (note for each in systems for note in plausibility_notes(each))
    return [note for note in dict.fromkeys([*found, *odd]) if note]
