"""Whether a balancer is worth it: for a model, its recorded loads and a deployment, judged on loads held out in time.

The placement is chosen on the first part of the loads (``archsim.studies.place``) and served on the last: tokens are
drawn from the held-out loads, step by step, and the deployment's requests are served with and without the placement.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.errors import CapacityError, PlacementError, SpecError
from archsim.base.nearest import did_you_mean
from archsim.base.shown import Shown
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.report.units import between, signed_percent
from archsim.serving.serving import Outcome
from archsim.specs.loading.serving import Serving, load_serving
from archsim.specs.model import ModelSpec
from archsim.specs.serving import RoutingSpec
from archsim.studies.block_worth import BLOCKS, DRAWS, PAYS
from archsim.studies.place.choosing import POLICIES, policy_named
from archsim.studies.place.history import History, read_history
from archsim.studies.place.place import NO_STEPS, Placed, place_experts, write_placed
from archsim.studies.serving.plan import serve_plan
from archsim.studies.serving.served import serve_all

if TYPE_CHECKING:
    import pandas

SPARES = (0, 1, 2, 4)  # slots of a rank beyond those that hold every expert once
NOTHING = 0.001  # changes of TPOT below this share save nothing
TOKENS = 64  # drawn a held-out matrix
MOST_STEPS = 64  # held-out matrices that are served
WITHOUT = "ep"


@dataclass(frozen=True)
class Served:
    """A deployment with so many ``spares`` a rank, or without the balancer. Times in ms; ``kv_blocks`` of a rank."""

    name: str
    spares: int | None
    max_over_mean: float
    experts_ms: float | None
    ttft_ms: float
    tpot_ms: float
    goodput_per_s: float
    kv_blocks: int


@dataclass(frozen=True)
class Worth(Shown):
    """``rows``: without the balancer, then by number of spares; ``best``: of the latter. ``tpot``, ``ttft``,
    ``goodput``: lowest and highest change of ``best`` over DRAWS draws, as shares. ``search_s``: the balancer took
    here; ``stall_ms``: moving to the placement takes, weights of the busiest rank over its link. ``placed``: of best.
    """

    policy: str
    rows: tuple[Served, ...]
    best: Served
    tpot: tuple[float, float]
    ttft: tuple[float, float]
    goodput: tuple[float, float]
    search_s: float
    stall_ms: float
    placed: Placed
    notes: tuple[str, ...]

    def to_pandas(self) -> pandas.DataFrame:
        """One row per deployment served."""
        import pandas

        return pandas.DataFrame([asdict(row) for row in self.rows])

    @property
    def break_even(self) -> float | None:
        """Decode iterations after which a rearrangement has paid for its moves and its search; None: never."""
        before = self.rows[0].tpot_ms
        saved_ms = before - self.best.tpot_ms
        return (self.stall_ms + 1e3 * self.search_s) / saved_ms if saved_ms > NOTHING * before else None

    @property
    def verdict(self) -> str:
        """One sentence."""
        gain = -self.tpot[1], -self.tpot[0]
        kept = any(row.goodput_per_s for row in self.rows)
        goodput = f"goodput {_between(self.goodput)}" if kept else "goodput 0 (no request keeps the limits)"
        how = f"TPOT {_between(self.tpot)}, {goodput}, TTFT {_between(self.ttft)}"
        low, high = max(gain[0], self.goodput[0]), max(gain[1], self.goodput[1])
        if low >= PAYS:
            phase = "decode" if -self.tpot[0] >= -self.ttft[0] else "prefill"
            return f"worth it, with {self.best.spares} spare slots a rank, most in {phase}: {how}"
        told = "not worth it" if high < PAYS else "undecided: the range includes no gain"
        return f"{told} ({how})"

    def __repr__(self) -> str:
        return f"Worth({self.policy}: {self.verdict})"


def worth(
    policy: str, loads: Sequence[Path], deployment: Any, overrides: Sequence[str], held_out: float, out: Path | None
) -> Worth:
    """See ``archsim.api.placing.worth``."""
    if policy not in POLICIES:
        known = [*POLICIES, *BLOCKS]
        raise SpecError(
            f"worth: unknown {policy!r}{did_you_mean(policy, known)}; balancers: {', '.join(POLICIES)}; blocks, with "
            f"--in: {', '.join(BLOCKS)}"
        )
    serving = load_serving(deployment, overrides)
    if serving.axes or serving.spec.disaggregated != "none":
        raise SpecError("worth: a deployment with sweep: or disaggregated: is not modelled here; give one engine's")
    model, ranks = serving.model, serving.spec.parallel.sizes(True).ep
    history = read_history(loads, model)
    placed = _candidates(policy, history, serving, ranks, held_out)
    first = next(iter(placed.values()))
    if not first.held_out:
        raise PlacementError(f"{history.source} is one matrix: nothing is left to judge on; record passes or steps")
    later = history.counts[-first.held_out :][:MOST_STEPS]
    with TemporaryDirectory(prefix="archsim-worth-") as folder:
        files = {spares: Path(folder) / f"{spares}" for spares in placed}
        for spares, each in placed.items():
            write_placed(each, files[spares])
        outcomes = _served(serving, model, history, later, files, 0)
        rows = [_row(outcomes[None], None, first)]
        rows += [_row(outcomes[spares], spares, each) for spares, each in placed.items()]
        best = min(rows[1:], key=lambda row: (-row.goodput_per_s, row.tpot_ms, row.spares))
        assert best.spares is not None
        chosen = {best.spares: files[best.spares]}
        draws = [outcomes] + [_served(serving, model, history, later, chosen, seed) for seed in range(1, DRAWS)]
    changes = np.array([_changes(each[None], each[best.spares]) for each in draws])
    low, high = changes.min(axis=0).tolist(), changes.max(axis=0).tolist()
    begin = time.perf_counter()
    policy_named(policy)(history.counts[: -first.held_out], ranks, placed[best.spares].map.slots)
    search_s = time.perf_counter() - begin
    kept = placed[best.spares] if out is None else write_placed(placed[best.spares], out)
    link = serving.system.d2d
    stall_ns = kept.cost.busiest_bytes / (link.bandwidth_bytes_per_s * link.efficiency) * NS_PER_S
    tokens = (
        f"served on tokens drawn from {len(later)} held-out matrices of {history.source}: loads say how often an "
        "expert was chosen, not which were chosen together"
    )
    others = [note for note in outcomes[None].notes if not note.startswith("experts from traffic")]
    of_place = [note for note in kept.notes if note != NO_STEPS]  # times here are those of served requests
    return Worth(
        policy, tuple(rows), best, (low[0], high[0]), (low[1], high[1]), (low[2], high[2]), search_s,
        stall_ns / NS_PER_MS, kept, (tokens, *of_place, *others),
    )  # fmt: skip


def _candidates(policy: str, history: History, serving: Serving, ranks: int, held_out: float) -> dict[int, Placed]:
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


def _served(
    serving: Serving, model: ModelSpec, history: History, loads: np.ndarray, folders: Mapping[int, Path], seed: int
) -> dict[int | None, Outcome]:
    """Spares (None: without the balancer) → what serving gives, with one draw of tokens and requests."""
    given = deepcopy(dict(serving.given))
    routing = serving.spec.routing
    sampled = {"layers": routing.layers, "every": routing.every} if isinstance(routing, RoutingSpec) else {}
    with TemporaryDirectory(prefix="archsim-worth-") as folder:
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
        outcomes = serve_all(serve_plan(given)).outcomes
    return dict(zip((None, *folders), outcomes, strict=True))


def write_tokens(path: Path, model: ModelSpec, layer_ids: Sequence[int], loads: np.ndarray, seed: int) -> None:
    """A trace of TOKENS requests, one decode step a matrix of ``loads`` (float64[time, layer, expert]).

    Each token chooses top_k different experts with probabilities as their loads (Gumbel top-k: Kool et al., 2019); the
    prompt tokens by the mean of all.
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


def _row(outcome: Outcome, spares: int | None, placed: Placed) -> Served:
    judged = placed.rows[0] if spares is None else placed.rows[-1]
    measures, ns = outcome.measures, judged.experts_ns
    return Served(
        WITHOUT if spares is None else placed.policy, spares, judged.max_over_mean,
        None if ns is None else ns / NS_PER_MS, measures.ttft.mean, measures.tpot.mean, measures.goodput_per_s,
        outcome.deployment.prefill.pool.kv_blocks,
    )  # fmt: skip


def _changes(before: Outcome, after: Outcome) -> tuple[float, float, float]:
    """Of TPOT, TTFT and goodput, relative."""
    old, new = ((m.tpot.mean, m.ttft.mean, m.goodput_per_s) for m in (before.measures, after.measures))
    tpot, ttft, goodput = (after_ / before_ - 1 if before_ else 0.0 for before_, after_ in zip(old, new, strict=True))
    return tpot, ttft, goodput


def _between(ends: tuple[float, float]) -> str:
    return between(ends, lambda end: signed_percent(end if abs(end) >= 0.001 else 0))
