"""One table of fused MoE layers on one kind of die: the parts of its time, and where it was measured.

`AsMeasured` and `Received` differ in the tokens that pass a die, in the experts that it pays for, and in whose measured
corrections it takes:

============ ======================================= =============================================================
             tokens, experts                         corrections
============ ======================================= =============================================================
AsMeasured   all tokens of the group; its experts    of its EP size (interpolated between measured ones)
Received     those with an expert there; active ones of the measured rank that has as many experts as are active
============ ======================================= =============================================================

The time of `Received` depends on pairs, tokens and active experts alone: a die does not know how many others there are.
"""

import numpy as np

from archsim.base.dtypes import WEIGHT_BYTES
from archsim.base.units import NS_PER_S
from archsim.laws.fused_moe import SLICES, measured_corrections, named_of
from archsim.laws.laws import MoeSizes
from archsim.laws.moe_scaling import Layer, Scale, scaled_law
from archsim.laws.rank_load import rank_loads, routing_of
from archsim.laws.tables import MoeTable, Reference, shape_of

NEARLY = 1.01  # of measured sizes


class DieKernel:
    """The fitted law of a table on a die, without corrections. ``least_ns``: of a pair, FLOP over the die's peak."""

    def __init__(self, table: MoeTable, sizes: MoeSizes, reference: Reference, scale: Scale, launched: bool):
        layer = Layer(table.hidden, table.ffn, table.dtype, reference.hbm_bytes_per_s)
        law, weights = scaled_law(table.law, layer, scale), sizes.hidden * sizes.ffn
        wider = sizes.hidden / table.hidden
        self._order = law.order
        self.launch_ns = law.launch_ns if launched else 0.0
        self._floor_ns = law.floor_ns if launched else 0.0
        self._token_ns, self._pair_ns = law.ns_per_token * wider, law.ns_per_pair * wider
        self._expert_ns = law.ns_per_expert
        flop = 2 * SLICES * weights
        self._flop_ns = flop / law.flop_per_s * NS_PER_S
        self.least_ns = flop / (reference.peak_flop_per_s[table.dtype] * scale.compute) * NS_PER_S
        n_bytes = SLICES * weights * WEIGHT_BYTES[table.dtype]
        self._bytes_ns = n_bytes / law.bytes_per_s * NS_PER_S

    def parts_ns(self, pairs, active, experts, tokens) -> np.ndarray:
        """float64[5, die]: launch, FLOP, tokens and pairs, ``experts`` that cost, and what the bytes of ``active`` ones
        add to the FLOP; arguments float64[die].
        """
        flop_ns, bytes_ns = pairs * self._flop_ns, active * self._bytes_ns
        longer = np.maximum(flop_ns, bytes_ns)
        both = longer * ((flop_ns / longer) ** self._order + (bytes_ns / longer) ** self._order) ** (1 / self._order)
        permute_ns = pairs * self._pair_ns + tokens * self._token_ns
        launch_ns = np.full(len(pairs), self.launch_ns)
        parts = np.stack([launch_ns, flop_ns, permute_ns, experts * self._expert_ns, both - flop_ns])
        if self._floor_ns:
            parts[0] += np.maximum(self._floor_ns - parts.sum(axis=0), 0.0)
        return parts


class AsMeasured:
    """A die of a group in which every die has ``local`` experts and sees all tokens."""

    def __init__(self, table: MoeTable, sizes: MoeSizes, local: float, measured: bool):
        self._local = local
        experts, top_k = (table.experts, table.top_k) if measured else (sizes.experts, sizes.top_k)
        self._tokens = experts / local / top_k  # of the group, for one pair of the die
        self._received = table.seen == "received"
        ep, tokens = table.experts / local, np.array(table.tokens)
        self._axis = np.log(_pairs_of(table, ep))
        self._corrections = _corrections_at(table, ep) if measured else np.zeros(len(tokens))
        ranks = _ranks_of(table)
        self._known = bool(ranks) and ranks[0] / NEARLY <= ep <= ranks[-1] * NEARLY
        self._first, self._last = np.exp(self._axis[0]) / NEARLY, np.exp(self._axis[-1]) * NEARLY

    def seen(self, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Experts that cost, and tokens that pass, float64[die]; ``tokens`` None: as many as give every die these
        pairs.
        """
        seen = pairs * self._tokens if tokens is None else tokens
        if self._received:  # the measured kernel stands behind a dispatch, and sees no others
            seen = np.minimum(seen, pairs)
        return np.maximum(active, self._local), seen

    def correction(self, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Measured over law, float64[die]."""
        return np.exp(np.interp(np.log(pairs), self._axis, self._corrections))

    def within(self, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
        """bool[2, die]: at a measured EP size with at least the fewest tokens; and with at most the most."""
        begun = self._known & (pairs >= self._first)
        return np.stack([begun, begun & (pairs <= self._last)])


class Received:
    """A die that receives its tokens from a dispatch."""

    def __init__(self, table: MoeTable, measured: bool):
        self._experts = table.experts
        ranks = np.array(_ranks_of(table) or [1.0])
        self._ranks = np.log(ranks)
        self._axes = [np.log(_pairs_of(table, ep)) for ep in ranks]
        shape = len(ranks), len(table.tokens)
        self._corrections = np.array([_corrections_at(table, ep) for ep in ranks]) if measured else np.zeros(shape)

    def seen(self, pairs: np.ndarray, active: np.ndarray, tokens: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """See ``AsMeasured.seen``."""
        if tokens is None:
            raise ValueError("a die behind a dispatch needs the tokens that it receives")
        return active, tokens

    def correction(self, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
        """See ``AsMeasured.correction``."""
        at = np.log(pairs)
        rows = [np.interp(at, axis, row) for axis, row in zip(self._axes, self._corrections, strict=True)]
        return np.exp(self._between(active, np.array(rows)))

    def within(self, pairs: np.ndarray, active: np.ndarray) -> np.ndarray:
        """See ``AsMeasured.within``; the EP size is that of a rank with as many experts as are active."""
        at, ep = np.log(pairs), np.log(self._experts / active)
        near = np.log(NEARLY)
        first, last = (
            self._between(active, np.repeat([[axis[end]] for axis in self._axes], len(at), axis=1)) for end in (0, -1)
        )
        begun = (ep >= self._ranks[0] - near) & (ep <= self._ranks[-1] + near) & (at >= first - near)
        return np.stack([begun, begun & (at <= last + near)])

    def _between(self, active: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Values of each die's EP size, along its logarithm between measured sizes; rows: float64[size, die]."""
        ranks, ep = self._ranks, np.log(self._experts / active)
        if len(ranks) == 1:
            return rows[0]
        above = np.clip(np.searchsorted(ranks, ep), 1, len(ranks) - 1)
        share = np.clip((ep - ranks[above - 1]) / (ranks[above] - ranks[above - 1]), 0.0, 1.0)
        die = np.arange(len(ep))
        return rows[above - 1, die] * (1 - share) + rows[above, die] * share


def _ranks_of(table: MoeTable) -> list[float]:
    """Measured EP sizes at TP 1, sorted."""
    return sorted(float(ep) for ep, tp in map(shape_of, table.ranks) if tp == 1)


def _pairs_of(table: MoeTable, ep: float) -> np.ndarray:
    """Pairs of a rank at the table's tokens, float64[token]."""
    tokens = np.array(table.tokens)
    return rank_loads(named_of(table), routing_of(table), table.law, np.full(len(tokens), ep), tokens)[0]


def _corrections_at(table: MoeTable, ep: float) -> np.ndarray:
    """Logarithms of measured over law at the table's tokens, for one EP size, float64[token]."""
    tokens, near = np.array(table.tokens), _ranks_of(table)
    ep = min(near, key=lambda each: abs(np.log(each / ep))) if near and not near[0] <= ep <= near[-1] else ep
    return measured_corrections(table, np.full(len(tokens), ep), np.ones(len(tokens)), tokens)
