"""Notes on times that neither peak FLOP/s nor HBM bandwidth explain."""

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.base.causes import CAUSES, Cause
from archsim.runs.named_runs import count_runs, list_some, place_of

FAR = 3.0  # times its roofline, from which on a note is made of a run
ROOFLINE = "the least time in which evenly loaded dies could do the same FLOP and move the same bytes of HBM"
LEAST_TOLD = 0.01  # share of the time; smaller causes are not named
MOST_TOLD = 3  # systems one by one
TOLD = 3  # largest causes of a run
UNBALANCED = 1.5  # load of the busiest die over the mean


def roofline_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every system with runs over FAR times their roofline; without ``base`` beside others."""
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
        of_it = (
            f"A decode step of {place_of(row)} {took}" if step else f"The run of {place_of(row)} {took} as its roofline"
        )
        said = f"{of_it}, {ROOFLINE}."
    else:
        runs = count_runs(far, len(beside), "takes", "take")
        which = f"{place_of(row, row['system'] != where)} under {row['policy']} ({row['assumptions']})"
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
        goes = list_some(f"{CAUSES[cause].meaning} ({shares[cause]:.0%})" for cause in largest)
        why.append(f"The time goes to {goes}." if len(largest) > 1 else f"Nearly all of the time goes to {goes}.")
    if largest[:1] == [Cause.ACTIVATIONS]:
        why.append("With `launch: gpu`, a GPU's measured kernels take it; with `launch: local_cp`, there are none.")
    if (load := row.get("load_max_over_mean") or 0.0) >= UNBALANCED:
        why.append(f"The busiest die has {load:.1f} times the mean load.")
    return " ".join([said, *why, use])
