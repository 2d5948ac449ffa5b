"""Notes on times that neither peak FLOP/s nor HBM bandwidth explain."""

from collections.abc import Iterable, Mapping
from typing import Any

from archsim.base.causes import CAUSES, Cause
from archsim.runs.run import point_told

FAR = 3.0  # times of its roofline, from which a run is told
MOST_TOLD = 3  # systems one by one
COLUMNS = ("over_roofline", "mfu", "hbm_bandwidth_utilisation", "decode_step_ns", "load_max_over_mean")
TOLD = 3  # largest causes of a run
UNBALANCED = 1.5  # load of the busiest die over the mean


def roofline_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for every system (or for all, if many) with runs over FAR times their roofline: how many, and the run
    that is farthest.

    Policy ``base`` is left out where others ran: it is slow by construction.
    """
    rows = [row for row in rows if row.get("over_roofline")]
    told = [row for row in rows if row["policy"] != "base"] or rows
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for row in told:
        systems.setdefault(str(row["system"]), []).append(row)
    if len(systems) > MOST_TOLD:  # points of a sweep
        systems = {f"{len(systems):,} systems": told}
    farthest = {name: max(each, key=lambda row: row["over_roofline"]) for name, each in systems.items()}
    order = sorted(systems, key=lambda name: -farthest[name]["over_roofline"])
    return [_sentence(name, farthest[name], systems[name]) for name in order if farthest[name]["over_roofline"] > FAR]


def _sentence(where: str, row: Mapping[str, Any], beside: list[Mapping[str, Any]]) -> str:
    far = sum(each["over_roofline"] > FAR for each in beside)
    name = point_told(row.get("point")) + ("" if row["system"] == where else f"{row['system']}, ")
    name += f"{row['model']}, batch {int(row['batch'])}, {row['policy']}, {row['assumptions']}"
    step = row.get("decode_step_ns")
    took = f"a decode step of {step / 1e6:.3g} ms is " if step else "the time is "
    use = f"MFU {row['mfu']:.1%}, HBM bandwidth {row['hbm_bandwidth_utilisation']:.1%}"
    count = f"{far} of {len(beside)} runs" if len(beside) > 1 else "the run"
    return (
        f"{count} on {where} {'take' if far > 1 else 'takes'} over {FAR:.0f} times the roofline "
        "(FLOP and HBM bytes on evenly loaded dies); "
        f"farthest, {name}: {took}"
        f"{row['over_roofline']:.1f} times it, {use}{_why(row)}"
    )


def _why(row: Mapping[str, Any]) -> str:
    shares = {cause: row.get(f"bound_{cause.column}") or 0.0 for cause in CAUSES}
    largest = sorted((cause for cause in shares if shares[cause]), key=shares.__getitem__, reverse=True)[:TOLD]
    reasons = [", ".join(f"{CAUSES[cause].meaning} takes {shares[cause]:.0%}" for cause in largest)] if largest else []
    if largest[:1] == [Cause.ACTIVATIONS]:
        reasons.append("on systems with `launch: gpu` that is a GPU's measured kernels; `launch: local_cp` has none")
    if (load := row.get("load_max_over_mean") or 0.0) >= UNBALANCED:
        reasons.append(f"the busiest die has {load:.1f} times the mean load")
    return f"; {', and '.join(reasons)}" if reasons else ""
