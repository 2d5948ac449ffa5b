"""Whether a balancer pays for a model, its recorded loads and a deployment: placed on the first part of the loads, and
requests served on tokens that are sampled from the last, with and without the placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archsim.base.answer import Answer, Grid
from archsim.base.errors import CapacityError, PlacementError, SpecError, did_you_mean
from archsim.base.tables import DataFrame, Shown, frame_of
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.model.spec import ModelSpec
from archsim.questions.block_worth import BLOCKS, DRAWS, PAYS, GainInWorlds
from archsim.runs.executor import do_all, shared_folder
from archsim.runs.run import Workspace
from archsim.serving.answers import page, runs, sure
from archsim.serving.answers.place import NO_STEPS, Placed, place_experts, write_placed
from archsim.serving.answers.placement_choices import POLICIES, policy_named
from archsim.serving.answers.recorded_loads import RecordedLoads, made_history, read_history
from archsim.serving.expert_groups import FROM_TRAFFIC
from archsim.serving.measures import Measures
from archsim.show.units import BYTE_UNITS, TIME_UNITS, between, listing, percent, signed_percent, significant, with_unit
from archsim.specs.serving import RoutingSpec
from archsim.specs.serving_files import Serving, load_serving
from archsim.uncertainty.estimate import SURE, interval

SPARES = (0, 1, 2, 4)  # slots of a rank beyond those that hold every expert once
NOTHING = 0.001  # changes of TPOT below this share save nothing
TOKENS = 64  # drawn a held-out matrix
MOST_STEPS = 64  # held-out matrices that are served
WITHOUT = "ep"
SAMPLES, MOST_TOKENS = 16, 6e6  # of the best placement where nobody asks for samples, as of `archsim serve`


@dataclass(frozen=True)
class ServedVariant:
    """A deployment with so many spares a rank, or without the balancer."""

    name: str  # of the variant
    spares: int | None  # slots a rank; None: without the balancer
    max_over_mean: float  # load of the fullest rank over the mean
    experts_ms: float | None  # of a step
    ttft_ms: float  # time to first token
    tpot_ms: float  # time per output token
    goodput_per_s: float  # requests within their limits
    kv_blocks: int  # of a rank


@dataclass(frozen=True)
class Worth(Shown):
    """What a balancer is worth in a deployment."""

    policy: str  # the balancer
    rows: tuple[ServedVariant, ...]  # without it, then by number of spares
    best: ServedVariant  # of those with it
    tpot: tuple[float, float]  # lowest and highest change of `best` over DRAWS draws, as shares
    ttft: tuple[float, float]  # the same
    goodput: tuple[float, float]  # the same
    search_s: float  # the balancer took here
    stall_ms: float  # moving to the placement: weights of the busiest rank over its link
    placed: Placed  # the placement of `best`
    notes: tuple[str, ...]  # what limits the numbers
    answer: str = ""  # how many redundant experts, and what they gain with its range
    worlds: GainInWorlds | None = None  # the gain in many worlds

    def to_pandas(self) -> DataFrame:
        return frame_of(self.rows)

    @property
    def break_even(self) -> float | None:
        """Decode iterations after which a rearrangement has paid for its moves and its search; None: never, or not in
        every sample.
        """
        saved_ms = self.rows[0].tpot_ms - self.best.tpot_ms
        saves = min(saved_ms / self.rows[0].tpot_ms, -self.tpot[1]) > NOTHING
        return (self.stall_ms + 1e3 * self.search_s) / saved_ms if saves else None

    @property
    def verdict(self) -> str:
        gain = -self.tpot[1], -self.tpot[0]
        kept = any(row.goodput_per_s for row in self.rows)
        changes = [f"the time per token (TPOT) by {_between(self.tpot)}"]
        changes += [f"goodput by {_between(self.goodput)}"] if kept else []
        changes += [f"the time to first token (TTFT) by {_between(self.ttft)}"]
        how = f"It changes {listing(changes)}."
        how += "" if kept else " Goodput is 0, as no request keeps the limits."
        low, high = max(gain[0], self.goodput[0]), max(gain[1], self.goodput[1])
        sampled = self.worlds
        if low >= PAYS and sampled is not None and 1 - SURE < sampled.pays < SURE:
            share = f"{percent(sampled.pays)} of {sampled.samples} samples"
            return f"Whether {self.policy} is worth it is undecided, as it is in {share}. {how}"
        if low >= PAYS:
            phase = "decode" if -self.tpot[0] >= -self.ttft[0] else "prefill"
            slots = f"{self.best.spares} spare slot{'' if self.best.spares == 1 else 's'} per rank"
            return f"{self.policy} is worth it, with {slots}. It gains most in {phase}. {how}"
        if high < PAYS:
            return f"{self.policy} is not worth it. {how}"
        return f"Whether {self.policy} is worth it is undecided, as the range includes no gain. {how}"

    @property
    def reason(self) -> str:
        """Sentences: why it is not worth it, and from where on it would be. '' if it is worth it."""
        if max(-self.tpot[1], self.goodput[0]) >= PAYS:
            return ""
        before, best = self.rows[0], self.best
        was, now = significant(before.max_over_mean), significant(best.max_over_mean)
        old_ms, new_ms = before.experts_ms, best.experts_ms
        if best.max_over_mean > (1 - PAYS) * before.max_over_mean:
            why = f"Its placement balances the held-out loads no better: max / mean is {now}, and {was} without it"
        elif old_ms is not None and new_ms is not None and new_ms > (1 - PAYS) * old_ms:
            times = f"{significant(new_ms)} ms, and {significant(old_ms)} ms without it"
            why = (
                f"Loads are balanced better (max / mean {now} instead of {was}), but GEMMs on the slowest rank take "
                f"{times}, since weights of replicas are read, too"
            )
        else:
            why = (
                f"Loads are balanced better (max / mean {now} instead of {was}), but a token hardly waits for the "
                "busiest rank at this rate of requests"
            )
        blocks = 1 - best.kv_blocks / before.kv_blocks
        charge = f" Its spare slots take {percent(blocks, 1)} of the KV blocks." if blocks > 0 else ""
        least = percent(PAYS)
        return f"{why}.{charge} It would be worth it if TPOT fell or goodput grew by {least} or more in every sample."

    def as_answer(self) -> Answer:
        timed, cost, even = any(row.experts_ms is not None for row in self.rows), self.placed.cost, self.break_even
        rows = [
            (
                row.name, "–" if row.spares is None else f"{row.spares:.4g}", significant(row.max_over_mean),
                *(["–" if row.experts_ms is None else significant(row.experts_ms)] if timed else []),
                *map(significant, (row.ttft_ms, row.tpot_ms, row.goodput_per_s)), f"{row.kv_blocks:,}",
            )
            for row in self.rows
        ]  # fmt: skip
        heads = ("spares per rank", "max / mean", *(["experts ms"] if timed else []))
        sampled = self.worlds.sentence if self.worlds is not None else ""
        return Answer(
            (
                *filter(None, (self.verdict, self.answer, self.reason, sampled)),
                Grid(
                    ("served",), rows, (*heads, "TTFT ms", "TPOT ms", "goodput /s", "KV blocks per rank"),
                    title="on held-out loads, simulated",
                ),
                *([f"Spare slots take {with_unit(cost.extra_bytes, BYTE_UNITS)} of HBM per rank, "
                   f"{percent(cost.hbm_share, 1)} of it."] if cost.extra_bytes else []),
                f"A new placement moves {cost.moved:,} experts, of which {with_unit(cost.busiest_bytes, BYTE_UNITS)} "
                f"go to the busiest rank. That takes {self.stall_ms:,.1f} ms over its link, after a search of "
                f"{with_unit(self.search_s * NS_PER_S, TIME_UNITS)} on this host (measured).",
                "Moving experts is not worth it: a token does not take less time in every sample." if even is None
                else f"Moving experts is worth it if the placement stays for {even:,.0f} decode iterations.",
                *(f"Written for deployment: {file}" for file in self.placed.files),
            ),
            self.notes, self,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Worth({self.policy}: {self.verdict})"


def worth(
    policy: str,
    loads: Sequence[Path],
    deployment: Any,
    overrides: Sequence[str],
    held_out: float,
    out: Path | None,
    samples: int | None = None,
    jobs: int = 1,
    tell: Callable[[runs.ServePlan, sure.ServedSure, Sequence[str]], str] = lambda plan, found, names: "",
) -> Worth:
    """See `archsim.api.questions.worth`. ``tell``: returns what is said of the deployment without and with the best
    placement, by the names of both.
    """
    if policy not in POLICIES:
        known = [*POLICIES, *BLOCKS]
        raise SpecError(
            f"unknown balancer or block {policy!r}{did_you_mean(policy, known)} (balancers: {', '.join(POLICIES)}; "
            f"blocks, with --in: {', '.join(BLOCKS)})"
        )
    serving = load_serving(deployment, overrides)
    if serving.axes or serving.spec.disaggregated != "none":
        raise SpecError(
            "the deployment has sweep: or disaggregated:. A balancer can only be tested on one engine: leave them out"
        )
    model, ranks = serving.model, serving.spec.parallel.sizes(True).ep
    history = read_history(loads, model) if loads else made_history(model)
    placed = _candidates(policy, history, serving, ranks, held_out)
    first = next(iter(placed.values()))
    if not first.held_out:
        few = f"{history.source} is one matrix: nothing is left to test on"
        raise PlacementError(f"{few}. Record several passes or steps")
    later = history.counts[-first.held_out :][:MOST_STEPS]
    with shared_folder() as folder:
        files = {spares: Path(folder) / f"{spares}" for spares in placed}
        for spares, each in placed.items():
            write_placed(each, files[spares])
        outcomes = _serve_variants(serving, model, history, later, files, 0, jobs)
        rows = [_row(outcomes[None], None, first)]
        rows += [_row(outcomes[spares], spares, each) for spares, each in placed.items()]
        best = min(rows[1:], key=lambda row: (-row.goodput_per_s, row.tpot_ms, row.spares))
        assert best.spares is not None
        chosen = {best.spares: files[best.spares]}
        draws = [outcomes] + [
            _serve_variants(serving, model, history, later, chosen, seed, jobs) for seed in range(1, DRAWS)
        ]
        redundant = placed[best.spares].map.slots - model.experts
        names = "no balancer", f"{policy} and {redundant:,} redundant expert{'' if redundant == 1 else 's'}"
        worlds, answer = None, ""
        if samples != 0:
            with _plan_with_loads(serving, model, history, later, chosen, 0) as plan:
                most = MOST_TOKENS if samples is None else np.inf
                sampled = sure.find_sure(plan, samples or SAMPLES, None, jobs=jobs, names=names, most_tokens=most)
                worlds, answer = _in_worlds(policy, sampled, names), tell(plan, sampled, names)
    changes = np.array([_changes(each[None], each[best.spares]) for each in draws])
    low, high = changes.min(axis=0).tolist(), changes.max(axis=0).tolist()
    begin = time.perf_counter()
    policy_named(policy)(history.counts[: -first.held_out], ranks, placed[best.spares].map.slots)
    search_s = time.perf_counter() - begin
    kept = placed[best.spares] if out is None else write_placed(placed[best.spares], out)
    link = serving.system.d2d
    stall_ns = kept.cost.busiest_bytes / (link.bandwidth_bytes_per_s * link.efficiency) * NS_PER_S
    tokens = (
        f"The tokens are sampled from {len(later)} held-out matrices of {history.source}. Loads say how "
        "often an expert was chosen, but not which experts were chosen together."
    )
    others = [note for note in outcomes[None].notes if not note.startswith(FROM_TRAFFIC)]
    of_place = [note for note in kept.notes if note != NO_STEPS]  # times here are those of served requests
    return Worth(
        policy=policy, rows=tuple(rows), best=best, tpot=(low[0], high[0]), ttft=(low[1], high[1]),
        goodput=(low[2], high[2]), search_s=search_s, stall_ms=stall_ns / NS_PER_MS, placed=kept,
        notes=(tokens, *of_place, *others), answer=answer, worlds=worlds,
    )  # fmt: skip


def _candidates(
    policy: str, history: RecordedLoads, serving: Serving, ranks: int, held_out: float
) -> dict[int, Placed]:
    """Spares a rank → placement, of those that fit. Raises CapacityError where none does."""
    model, found, refused = serving.model, {}, None
    least = -(-model.experts // ranks)
    for spares in SPARES:
        slots = (least + spares) * ranks
        try:
            found[spares] = place_experts(history, model, serving.system, policy, slots, ranks, held_out, None)
        except CapacityError as error:
            refused = error
    if not found:
        raise refused or CapacityError("no number of slots fits")
    return found


class _Served(NamedTuple):
    """What comes of serving a variant."""

    measures: Measures
    kv_blocks: int  # of a rank
    notes: tuple[str, ...]


def _serve_variants(
    serving: Serving,
    model: ModelSpec,
    history: RecordedLoads,
    loads: np.ndarray,
    folders: Mapping[int, Path],
    seed: int,
    jobs: int,
) -> dict[int | None, _Served]:
    """Spares (None: without the balancer) → what serving gives, with one draw of tokens and requests."""
    with _plan_with_loads(serving, model, history, loads, folders, seed) as plan:
        asked, server = plan.runs(), page.Server(Workspace())

        def serve(at: int) -> _Served:
            outcome = server.serve(asked[at])
            return _Served(outcome.measures, outcome.deployment.prefill.pool.kv_blocks, tuple(outcome.notes))

        found = dict(do_all(serve, range(len(asked)), jobs))
    return {spares: found[at] for at, spares in enumerate((None, *folders))}


@contextmanager
def _plan_with_loads(
    serving: Serving,
    model: ModelSpec,
    history: RecordedLoads,
    loads: np.ndarray,
    folders: Mapping[int, Path],
    seed: int,
) -> Iterator[runs.ServePlan]:
    """The deployment without the balancer and with these placements; its traffic is a file while this is open."""
    given = deepcopy(dict(serving.given))
    routing = serving.spec.routing
    sampled = {"layers": routing.layers, "every": routing.every} if isinstance(routing, RoutingSpec) else {}
    with shared_folder() as folder:
        trace = Path(folder) / "held_out.npz"
        write_tokens(trace, model, history.layer_ids, loads, seed)
        given["routing"] = {"trace": str(trace), "requests": TOKENS, "steps": MOST_STEPS, **sampled}
        static = [
            {"name": f"spares-{spares}", "placement": {"name": "from_file", "file": str(place)}, "allocation": "even"}
            for spares, place in folders.items()
        ]
        given["policies"] = [WITHOUT, *static]
        if isinstance(given["requests"], dict):
            given["requests"]["seed"] = seed
        yield runs.serve_plan(given)


def _in_worlds(policy: str, found: sure.ServedSure, names: Sequence[str]) -> GainInWorlds:
    """Gain of the second over the first, of goodput or of the time of a token, as `Worth.verdict` tests it."""
    before, after = (next(each.samples for each in found.options if each.name == name) for name in names)
    goodput = after["goodput_per_s"] / np.maximum(before["goodput_per_s"], 1e-12) - 1
    goodput = np.where(before["goodput_per_s"] > 0, goodput, 0.0)
    gains = np.maximum(1 - after["tpot_mean_ms"] / before["tpot_mean_ms"], goodput)
    return GainInWorlds(policy, found.samples, interval(gains), float((gains >= PAYS).mean()))


def write_tokens(path: Path, model: ModelSpec, layer_ids: Sequence[int], loads: np.ndarray, seed: int) -> None:
    """A trace of TOKENS requests, one decode step a matrix of ``loads`` (float64[time, layer, expert]). A token chooses
    top_k different experts as likely as their loads (Gumbel top-k: Kool et al., 2019); prompts by the mean of all.
    """
    rng = np.random.default_rng(seed)
    every = np.concatenate([loads.mean(axis=0, keepdims=True), loads])  # [iteration, layer, expert]
    with np.errstate(divide="ignore"):
        weights = np.log(every)
    shape = TOKENS, *every.shape
    keys = weights[None] + rng.gumbel(size=shape)
    chosen = np.argpartition(-keys, model.top_k - 1, axis=3)[..., : model.top_k]  # [request, iteration, layer, k]
    steps = len(every)
    np.savez(
        path, experts=chosen.reshape(TOKENS * steps, len(layer_ids), model.top_k).astype(np.int16),
        request_offsets=np.arange(TOKENS + 1) * steps, iteration=np.tile(np.arange(steps), TOKENS),
        layer_ids=np.array(layer_ids), num_experts=model.experts, top_k=model.top_k, num_layers_total=model.layers,
    )  # fmt: skip


def _row(outcome: _Served, spares: int | None, placed: Placed) -> ServedVariant:
    judged = placed.rows[0] if spares is None else placed.rows[-1]
    measures, ns = outcome.measures, judged.experts_ns
    return ServedVariant(
        name=WITHOUT if spares is None else placed.policy, spares=spares, max_over_mean=judged.max_over_mean,
        experts_ms=None if ns is None else ns / NS_PER_MS, ttft_ms=measures.ttft.mean, tpot_ms=measures.tpot.mean,
        goodput_per_s=measures.goodput_per_s, kv_blocks=outcome.kv_blocks,
    )  # fmt: skip


def _changes(before: _Served, after: _Served) -> tuple[float, float, float]:
    old, new = ((m.tpot.mean, m.ttft.mean, m.goodput_per_s) for m in (before.measures, after.measures))
    tpot, ttft, goodput = (after_ / before_ - 1 if before_ else 0.0 for before_, after_ in zip(old, new, strict=True))
    return tpot, ttft, goodput


def _between(ends: tuple[float, float]) -> str:
    return between(ends, lambda end: signed_percent(end, NOTHING))
