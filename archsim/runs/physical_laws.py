"""Laws of physics that every record obeys: nothing does more than its time allows or is faster than its roofline, parts
sum to wholes, and every expert with tokens is read. A broken one is a defect: the column ``broken_laws`` names it, and
with ``ARCHSIM_LAWS=refuse`` it is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.causes import CAUSES
from archsim.base.sums import sum
from archsim.runs.finished import HBM, untimed_bytes

if TYPE_CHECKING:
    from archsim.runs.finished import Finished

SWITCH, REFUSE = "ARCHSIM_LAWS", "refuse"  # variable of the environment, and the value that makes a broken law an error
ROUNDING = 1e-6  # relative: sums of float64 times, and bytes rounded to whole ones
OF_FRAMES = 6e-3  # relative: frames keep three digits
HBM_PARTS = ("local_hbm_read", "remote_hbm_read", "local_hbm_write", "activation", "moved_weight")  # of dies.csv
CLASSES = ("request", "weight", "dispatch", "combine", "replica", "statistics")  # of links.csv


class LawBroken(AssertionError):
    """A record disobeys a law of physics."""


def find_broken(found: Iterator[str], name: str) -> str | None:
    """The broken laws in words, or None. Raises LawBroken if the environment says so, with ``name``."""
    broken = "; ".join(found) or None
    if broken and os.environ.get(SWITCH) == REFUSE:
        raise LawBroken(f"{name}: {broken}")
    return broken


def law_sentence(broken: str) -> str:
    """A note on what a record says that cannot be."""
    return f"This disobeys a law of physics, by a defect of archsim: do not use these numbers. {broken}."


def broken_laws(run: Finished, record: Mapping[str, Any]) -> Iterator[str]:
    """What a record says that cannot be, one clause each."""
    row, dies, links = record["row"], _arrays(record["dies"]), _arrays(record["links"])
    total_ns = run.outcome.prefill_ns + run.outcome.decode_ns
    if total_ns > 0:
        yield from _capacities(run, row, dies, links, total_ns)
    yield from _parts(run, row, dies, links)
    yield from _weights(run, row)
    for name in ("hbm", "array", "link"):
        shares = [share for frame in record.get("frames", {}).get(name, ()) for share in frame if share is not None]
        if shares and max(shares) > 1 + OF_FRAMES:
            yield f"{name} is used {max(shares):.1%} of the time between two iterations"


def _arrays(columns: Mapping[str, list]) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in columns.items()}


def _capacities(
    run: Finished, row: Mapping[str, Any], dies: Mapping[str, np.ndarray], links: Mapping[str, np.ndarray],
    total_ns: float,
) -> Iterator[str]:  # fmt: skip
    """Bytes over bandwidth, and busy times, of every resource; links pass moves that take no time beside all else."""
    free = ("replica",) if np.any(run.outcome.balancing.untimed_bytes) else ()
    crossed = [links[f"{name}_ns"] for name in CLASSES if name not in free]
    uses: dict[str, np.ndarray] = {
        "the bandwidth of HBM": dies["hbm_utilisation"], "the time of HBM": dies["hbm_busy_ns"] / total_ns,
        "the time of an array": dies["compute_utilisation"],
        "the time of an LLC's port": dies["llc_busy_ns"] / total_ns,
        "the time of a link": links["utilisation"],
        "the bandwidth of a link": np.sum(crossed, axis=0) / total_ns,
    }  # fmt: skip
    for name, shares in uses.items():
        if len(shares) and (most := float(shares.max())) > 1 + ROUNDING:
            yield f"{most:.1%} of {name} is used"
    if (ratio := row["over_roofline"]) is not None and ratio < 1 - ROUNDING:
        yield f"the run takes {ratio:.1%} of the time of its roofline"


def _parts(
    run: Finished, row: Mapping[str, Any], dies: Mapping[str, np.ndarray], links: Mapping[str, np.ndarray]
) -> Iterator[str]:
    from archsim.engine.state import REPLICAS

    count = run.outcome.fabric.dies
    untimed = untimed_bytes(run.outcome)[HBM * count : (HBM + 1) * count]
    between = links["src"] != links["dst"]
    sums: list[tuple[str, Any, Any]] = [
        ("bytes of a link", links["bytes"], sum(links[f"{name}_bytes"] for name in CLASSES)),
        ("bytes of all links", row["link_bytes"], links["bytes"][between].sum()),
        ("bytes of all HBM", row["hbm_bytes"], dies["hbm_bytes"].sum()),
        ("HBM bytes of prefill and decode", dies["hbm_bytes"] - untimed,
         dies["prefill_hbm_bytes"] + dies["decode_hbm_bytes"]),
        ("pairs of a die", dies["tokens"], dies["prefill_tokens"] + dies["decode_tokens"]),
        ("pairs of all dies", run.demand.tokens[run.counted].sum(dtype=np.int64), dies["tokens"].sum()),
        ("moved weights", row["migrated_bytes"] + row["prefetched_bytes"],
         run.outcome.tally.pair_bytes[REPLICAS].sum()),
    ]  # fmt: skip
    if row["bounded_by"] is not None:
        sums.append(("causes of the critical path", 1.0, sum(row[f"bound_{cause.column}"] for cause in CAUSES)))
    copies = run.run.policy.predicts and run.run.assumptions.copy_writes == "background"
    if not (copies and run.run.workload.warmup_steps):  # some are under way when counting begins
        parts = sum(dies[f"{name}_bytes"] for name in HBM_PARTS)
        under_way = run.outcome.memory.copies.room["unwritten_bytes"]  # when the run ends; engines that book count them
        sums.append(("bytes of an HBM", np.clip(dies["hbm_bytes"], parts - under_way, parts), dies["hbm_bytes"]))
    for name, whole, parts in sums:
        if not np.allclose(whole, parts, rtol=ROUNDING, atol=0.0):
            worst = int(np.argmax(np.abs(np.subtract(whole, parts))))
            yield f"{name} are {np.ravel(whole)[worst]:,}, and the parts {np.ravel(parts)[worst]:,}"


def _weights(run: Finished, row: Mapping[str, Any]) -> Iterator[str]:
    """A die reads the slices of every expert that its plan has, once, from HBM or the LLC, and those of shared experts
    at most once a layer of an iteration. Reads include activations where dies have all tokens.
    """
    from archsim.engine.state import DATA_MESSAGES
    from microarch.blocks.hbm import SLICES

    if ":" in run.run.assumptions.execution:  # of a user's own, which reads what it likes
        return

    outcome, model = run.outcome, run.run.model
    entries, steps = int(outcome.counts.entries.sum()), int(np.count_nonzero(outcome.step_ns))
    size, hits = outcome.machine.slice_bytes, int(outcome.tally.llc_hits.sum())
    shared = size * model.shared_ffn / model.expert_ffn if model.shared_experts else size  # a slice of a shared expert
    read = row["local_hbm_read_bytes"] + row["remote_hbm_read_bytes"]
    least = entries * SLICES * size
    if run.run.assumptions.execution == "expert_parallel":  # what is fetched is read there, and here again
        least += int(outcome.tally.pair_bytes[DATA_MESSAGES].sum())
    most = least
    if run.run.assumptions.weights == "all":
        most += int(steps * outcome.fabric.dies * model.shared_experts * SLICES * shared)
    if read + hits * max(size, shared) < least * (1 - ROUNDING):
        yield f"{entries:,} experts of dies have {least:,} bytes, and {read:,} and {hits:,} hits of the LLC are read"
    if read + hits * min(size, shared) > most * (1 + ROUNDING) and run.run.assumptions.activations != "replicated":
        yield f"{entries:,} experts of dies have at most {most:,} bytes with shared experts, and {read:,} are read"
