"""Load of the slowest rank: its token-expert pairs, and the number of its experts that receive any.

Collectors of fused MoE layers route synthetic tokens. The load of one rank follows from their rules, which are
reimplemented here (ai-dynamo/aiconfigurator, collector/helper.py, Apache-2.0: its rules, none of its code):

- *balanced*: token t goes to experts t, t + experts / top_k, ...; or, for grouped GEMMs after a dispatch, all experts
  of the rank receive equally many rows, not aligned to the tiles of the kernel (collector/sglang, prefill), which
  uses the weights of one expert for a whole tile (*an expert a tile*);
- *power law*: shares of experts are drawn from a power law, again for every point, and the most loaded rank is timed.
  Shares are rounded; pairs left over by rounding (and by the limit of one pair per token and expert) go to the
  smallest experts in turn: across all experts in older collectors (*smallest first*), rank by rank in newer ones;
- either of them, *grouped*: the library keeps only the best groups of experts, as DeepSeek-V3's router does. Groups
  tie, the lowest win, and the lost pairs of a token go to the lowest experts: those of rank 0;
- anything else: *by chance*, ranks about equal (``MoeLaw.spread``).

Draws are not recorded (a point is one draw, or the mean of several: ``DRAWS_OF_POINT``). Laws use their mean; no law
can predict their scatter (``load_draws``).
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from archsim.laws.tables import MoeLaw, MoeTable

BALANCED, GROUPED, TILED, BY_CHANCE = "balanced", "balanced, grouped", "balanced, an expert a tile", "by chance"
SMALLEST_FIRST, RANK_BY_RANK = "power law, smallest first", "power law, rank by rank"
GROUPED_DRAWS = "power law, rank by rank, grouped"
DRAWN = (SMALLEST_FIRST, RANK_BY_RANK, GROUPED_DRAWS)
# Number of expert groups, and how many of them a token may use: config.json of the model (n_group, topk_group).
GROUPS = {"deepseek-v3": (8, 4), "deepseek-r1": (8, 4)}
# Contiguous grouped GEMM kernels that were timed with one host launch each and unaligned rows.
LAUNCHED_ONE_BY_ONE = ("deepepmoe-context",)
ROWS_OF_TILE = 128  # of DeepGEMM's contiguous grouped GEMM (its README: the rows of each expert must be a multiple)
DRAWS_OF_POINT = {"sglang-deepep": 5}  # collectors that time several draws and keep the mean (collector/sglang)
DRAWS = 128
SEED = 0
DRAWS_WITH_GROUPS = 16  # fewer draws with groups, which are slow to simulate
TOKENS_OF_DRAW = 256  # sampled evenly from a batch; their groups stand for all tokens
# Bounds of the shares that collectors draw: with more pairs than experts, and with fewer.
MANY, FEW = (1.0, 0.8), (0.01, 2.0)


def candidates(model: str, distribution: str, kernel: str = "", eplb_slots: int = 0) -> tuple[str, ...]:
    """Routings that a distribution may stand for (after EPLB, even); the fit chooses the best."""
    if eplb_slots:
        return (BY_CHANCE,)
    grouped = model.lower() in GROUPS
    if distribution == BALANCED:
        if kernel in LAUNCHED_ONE_BY_ONE:
            return (TILED,)
        return (BALANCED, GROUPED) if grouped else (BALANCED,)
    if _exponent(distribution) is None:
        return (BY_CHANCE,)
    return (RANK_BY_RANK, SMALLEST_FIRST, GROUPED_DRAWS) if grouped else (RANK_BY_RANK, SMALLEST_FIRST)


def rank_loads(named: dict, routing: str, law: MoeLaw | None, ep, tokens) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, active experts), float64[point] each; ``named``: model, distribution, experts and top_k of a table.

    ``law``: only the routing by chance reads it.
    """
    experts, top_k = named["experts"], named["top_k"]
    if routing == BALANCED:
        pairs, local = tokens * top_k / ep, experts / ep
        return pairs, np.minimum(local, np.maximum(pairs, 1.0))
    if routing == TILED:
        pairs, local = tokens * top_k / ep, experts / ep
        return pairs, np.minimum(local, np.maximum(pairs / ROWS_OF_TILE, 1.0))
    if routing == BY_CHANCE:
        assert law is not None
        pairs, local = tokens * top_k / ep**law.spread, experts / ep
        return pairs, np.maximum(local * -np.expm1(-pairs / local), np.minimum(local, 1.0))
    points = zip(ep, tokens, strict=True)
    if routing == GROUPED:
        groups = GROUPS[named["model"].lower()]
        loads = [_grouped_load(experts, top_k, groups, int(e), max(1, round(t))) for e, t in points]
    else:
        drawn = (load_draws(named, routing, e, t) for e, t in points)
        loads = [each.mean(axis=1) for each in drawn if each is not None]
    pairs, active = np.array(loads, float).T
    return pairs, active


def load_draws(named: dict, routing: str, ep: float, tokens: float) -> np.ndarray | None:
    """float64[2, draw]: pairs and active experts of every draw at one point; None if nothing is drawn."""
    if routing not in DRAWN:
        return None
    groups = GROUPS[named["model"].lower()] if routing == GROUPED_DRAWS else None
    exponent = _exponent(named["distribution"])
    batch = named["experts"], named["top_k"], exponent, max(1, round(tokens))
    return _rank_draws(batch, int(ep), routing != SMALLEST_FIRST, groups)


def routing_of(table: MoeTable) -> str:
    return table.routing or candidates(table.model, table.distribution, table.kernel, table.eplb_slots)[0]


def _exponent(distribution: str) -> float | None:
    found = re.fullmatch(r"power_law_([0-9]+(?:\.[0-9]+)?)", distribution)
    return float(found[1]) if found else None


@lru_cache(maxsize=20_000)
def _rank_draws(batch: tuple, ep: int, rank_by_rank: bool, groups: tuple[int, int] | None) -> np.ndarray:
    """float64[2, draw] of the fullest of ``ep`` ranks; batch: experts, top_k, exponent, tokens; one seed."""
    counts, left = _counts(*batch)
    more, less = np.maximum(left, 0), np.maximum(-left, 0)
    if rank_by_rank:
        ranks = _given_by_rank(_by_rank(counts, ep), more, less)
    else:
        ranks = _by_rank(_smallest_first(*batch), ep)
    heaviest = ranks.sum(axis=2).argmax(axis=1)
    draws = np.arange(DRAWS)
    if groups is not None:
        ranks[draws, heaviest], ranks[:, 0] = ranks[:, 0].copy(), ranks[draws, heaviest]
        return _grouped_draws(ranks, batch[0], batch[1], batch[3], groups)
    mine = ranks[draws, heaviest]
    return np.stack([mine.sum(axis=1), np.maximum((mine > 0).sum(axis=1), 1)]).astype(float)


@lru_cache(maxsize=128)
def _counts(experts: int, top_k: int, exponent: float, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """(int32[draw, expert] rounded pairs, int32[draw, 1] pairs left over)."""
    low, high = (MANY[0], max(MANY[1] * tokens, MANY[0])) if tokens * top_k > experts else FEW
    uniform = np.random.default_rng(SEED).random((DRAWS, experts))
    power = 1 - exponent
    if power:
        shares = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    else:
        shares = low * (high / low) ** uniform
    pairs = np.rint(shares / shares.sum(axis=1, keepdims=True) * tokens * top_k)
    counts = np.minimum(pairs, tokens).astype(np.int32)
    return counts, (tokens * top_k - counts.sum(axis=1, keepdims=True)).astype(np.int32)


@lru_cache(maxsize=128)
def _smallest_first(*batch) -> np.ndarray:
    """Left-over pairs to (or from) all experts in turn, the smallest first; of equals, the last."""
    counts, left = _counts(*batch)
    more, less = np.maximum(left, 0), np.maximum(-left, 0)
    experts = counts.shape[1]
    descending = np.argsort(np.argsort(-counts, axis=1, kind="stable"), axis=1, kind="stable")
    turn = experts - 1 - descending
    counts = counts + more // experts + (turn < more % experts)
    taken = (turn < less) & (counts > 0)
    counts = counts - taken
    counts[np.arange(len(counts)), counts.argmax(axis=1)] -= less[:, 0] - taken.sum(axis=1)
    return counts


def _given_by_rank(ranks: np.ndarray, more: np.ndarray, less: np.ndarray) -> np.ndarray:
    """The same, rank by rank: first to the idle experts of a rank, then to its first expert; taken from its largest."""
    turn = np.arange(ranks.shape[1])
    given = more // len(turn) + (turn < more % len(turn))
    taken = less // len(turn) + (turn < less % len(turn))
    idle = ranks == 0
    filled = idle & (np.cumsum(idle, axis=2) <= given[:, :, None])
    ranks = ranks + filled
    ranks[:, :, 0] += given - filled.sum(axis=2)
    largest = ranks.argmax(axis=2)[:, :, None]
    left = np.maximum(np.take_along_axis(ranks, largest, 2) - taken[:, :, None], 0)
    np.put_along_axis(ranks, largest, left, 2)
    return ranks


def _by_rank(counts: np.ndarray, ep: int) -> np.ndarray:
    """[..., rank, local expert]; a last rank with fewer experts is padded with idle ones."""
    local = -(-counts.shape[-1] // ep)
    idle = [(0, 0)] * (counts.ndim - 1) + [(0, local * ep - counts.shape[-1])]
    return np.pad(counts, idle).reshape(*counts.shape[:-1], ep, local)


def _grouped_draws(ranks: np.ndarray, experts: int, top_k: int, tokens: int, groups: tuple[int, int]) -> np.ndarray:
    """float64[2, draw]: pairs and active experts of rank 0 if each token keeps its experts in some groups only.

    Experts are assigned to tokens in decreasing order of pairs, as collectors do.
    """
    local, size, found = ranks.shape[2], experts // groups[0], []
    sample = np.linspace(0, tokens - 1, min(tokens, TOKENS_OF_DRAW)).astype(int)
    for counts in ranks[:DRAWS_WITH_GROUPS].reshape(DRAWS_WITH_GROUPS, -1)[:, :experts]:
        order = np.argsort(-counts, kind="stable")
        until = np.cumsum(counts[order])
        place = sample[:, None] + tokens * np.arange(top_k)
        chosen = order[np.minimum(np.searchsorted(until, place, side="right"), experts - 1)]
        kept = _kept(chosen, experts, *groups)
        mine = kept & (chosen < local)
        lowest = np.where(kept, chosen // size, groups[0]).min(axis=1) * size
        room = np.maximum(local - lowest - mine.sum(axis=1), 0)
        filled = np.minimum(top_k - kept.sum(axis=1), room)
        active = max(_seen(counts[:local], chosen // size, kept, groups[0], size), filled.max(), 1)
        found.append(((mine.sum() + filled.sum()) * tokens / len(sample), active))
    return np.array(found, float).T


def _seen(counts: np.ndarray, group: np.ndarray, kept: np.ndarray, number: int, size: int) -> float:
    """Number of the first experts that receive a pair, if their groups keep the sampled share of pairs."""
    share = np.bincount(group[kept], minlength=number) / np.maximum(np.bincount(group.ravel(), minlength=number), 1)
    return float(np.sum(1 - (1 - share[np.arange(len(counts)) // size]) ** counts))


def _kept(chosen: np.ndarray, experts: int, number: int, kept: int) -> np.ndarray:
    """bool[token, choice]: chosen experts in the lowest ``kept`` of the ``number`` groups of the token."""
    group = chosen // (experts // number)
    has = (group[:, :, None] == np.arange(number)).any(axis=1)
    best = has & (np.cumsum(has, axis=1) <= kept)
    return np.take_along_axis(best, group, axis=1)


@lru_cache(maxsize=20_000)
def _grouped_load(experts: int, top_k: int, groups: tuple[int, int], ep: int, tokens: int) -> tuple[float, float]:
    """Pairs and active experts of rank 0 for balanced tokens that keep only their experts in the lowest groups."""
    stride = -(-experts // top_k)
    token = np.arange(min(tokens, stride))  # the pattern repeats after that
    first = token if tokens >= stride else token * stride // tokens
    chosen = (first[:, None] + stride * np.arange(top_k)) % experts
    kept = _kept(chosen, experts, *groups)
    counts = np.zeros(experts)
    for experts_of, keeps in zip(chosen, kept, strict=True):
        mine = experts_of[keeps]
        others = np.setdiff1d(np.arange(2 * top_k), mine)[: top_k - len(mine)]
        counts[np.concatenate([mine, others])] += tokens / len(token)
    rank = _by_rank(counts, ep)[0]
    return float(rank.sum()), float(max((rank > 0).sum(), 1))
