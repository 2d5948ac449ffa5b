"""All caveats of results, as sentences for pages and terminals."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from archsim.machine.plausible import plausibility_notes
from archsim.machine.system import SystemSpec
from archsim.runs import prices, run
from archsim.runs.calibration_notes import GemmSource, calibration_notes
from archsim.runs.named_runs import count_runs, place_of
from archsim.runs.policy_notes import policy_notes
from archsim.runs.roofline_notes import roofline_notes
from microarch.silicon.synthesised_area import clock_note

# Notes on batches that are larger than their trace.

MOST_NAMED_HERE = 4  # batches
HOW = {
    "shifted": "copies of the {recorded} recorded ones, and each copy begins at another decode step",
    "fitted": "generated from a traffic model that is fitted to the {recorded} recorded ones",
}


def drawn_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    drawn: dict[tuple[int, int, str], Mapping[str, Any]] = {}
    for row in rows:
        if row.get("drawn_from") is not None:
            drawn.setdefault((int(row["batch"]), int(row["drawn_from"]), row.get("extend") or "redraw"), row)
    notes = [_sentence(batch, of, how, row) for (batch, of, how), row in list(drawn.items())[:MOST_NAMED_HERE]]
    if len(drawn) > MOST_NAMED_HERE:
        left = len(drawn) - MOST_NAMED_HERE
        others = "1 other batch is" if left == 1 else f"{left} other batches are"
        notes.append(f"{others} larger than the trace, too (column drawn_from).")
    return notes


def _sentence(batch: int, recorded: int, extend: str, row: Mapping[str, Any]) -> str:
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
    """A sentence for each model of which something is not modelled or not known, and on a KV cache left out."""
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
    return [_limit_note(system, held, every[system]) for system, held in slow.items()]


def _limit_note(system: str, rows: list[Mapping[str, Any]], of: int) -> str:
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
            f"{count_runs(len(broken), len(rows), 'disobeys', 'disobey')} a law of physics, by a defect of archsim: do "
            f"not use these numbers (column broken_laws). {place_of(broken[0])}, policy {broken[0]['policy']}: "
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
    large = [note for system, share in shares.items() if (note := prices.carrier_note(system, share))]
    machines = [*law_notes(rows), *calibrations, *large, *limit_notes(rows)]
    return [*machines, *layer_notes(rows), *drawn_notes(rows), *memory_notes(rows), *policies]


# Notes on traffic: what generated routing is not, the prefill that a preset brings, and layers that did not run.


_FEW_LAYERS = 4  # with fewer, the standard error is itself off by half (of normal values: 1 / √(2 (n − 1)))


def layer_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
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


def system_notes(systems: Iterable[SystemSpec]) -> list[str]:
    """On state machines that are clocked higher than their RTL, and values far from known machines."""
    systems = list(systems)
    found = (clock_note(each.name, each.decision.executor, each.decision.fsm.clock_hz) for each in systems)
    odd = (note for each in systems for note in plausibility_notes(each))
    return [note for note in dict.fromkeys([*found, *odd]) if note]


SAME_NUMBERS = "every run has the same numbers with each of the values"


def changes_nothing(others: Sequence[Hashable], results: Sequence[Hashable]) -> bool:
    """Whether runs that differ in one axis alone have equal results. ``others``: values of all other axes."""
    found: dict[Hashable, set[Hashable]] = {}
    for key, values in zip(others, results, strict=True):
        found.setdefault(key, set()).add(values)
    return len(found) < len(others) and all(len(each) == 1 for each in found.values())
