"""Laws of ports between nodes, by the bytes of a NIC, from kernels measured on some numbers of nodes.

Direct kernels (DeepEP's low latency): the geometric mean of the two measured numbers of nodes around, at equal bytes.

Forwarded ones (DeepEP's normal): a time has three parts, which follow the number of nodes differently.

==========  ==========================================================================================================
``notify``  ranks tell each other how many vectors come: one time a number of nodes, the median over sizes
``fixed``   of the exchange of vectors: the median of FEW_TOKENS and fewer
``busy``    a NIC passes its bytes, at the same rate whatever the number of nodes. What is measured is at least that,
            as SMs may be slower (2 nodes) or the network congested (8 nodes): the least of the measured is taken
==========  ==========================================================================================================

The first two take the geometric mean between measured numbers of nodes. A measured number of nodes takes its own busy
times as far as they were measured, and beyond grows as the least.

Kernels on fewer SMs than the most measured take the longer of that and of the time of their SMs, on numbers of nodes
that were not measured. The SMs' time is linear in the vectors that leave a node, at equal tokens: on the fewest nodes
it is what was measured; on the most, where this may be the network's, no more than as much longer as on the fewest SMs,
of dispatch or of combine, which limit most.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from archsim.base import errors, sums
from archsim.engine.cluster.laws import (
    INTER,
    INTRA,
    KERNELS,
    MOST_TOKENS,
    PortLaw,
    around,
    by_bytes,
    measured_shapes,
    middle,
    nearest_shape,
    node_law,
    prepare_ns,
    refuse_sms,
    variant_of,
)
from archsim.laws.calibration_files import calibration_digest, calibration_named
from archsim.laws.laws import Laws
from archsim.laws.tables import LawMissing
from archsim.laws.transfers import (
    COMBINE,
    DISPATCH,
    LINK_BYTES_PER_S,
    NIC_BYTES_PER_S,
    NOTIFY_OF,
    dispatches,
    nodes_away,
)

FEW_TOKENS = 8  # a rank


def level_law(level, number: int, op: str, dispatch: str, model, nodes: int, size: int, bandwidth: float) -> PortLaw:
    """The law of ports of fabric level ``number`` (0 inside a node, 1 between nodes) for ``op``, DISPATCH or COMBINE.
    Raises SpecError for a level without a law, or with one of another kind; LawMissing for kernels that its
    calibration lacks.
    """
    if level.law is None:
        raise errors.SpecError(
            f"fabric.levels.{number}: execution: expert_parallel needs a law of measured transfers. Give law: "
            f"h100/{(INTRA, INTER)[number]}, or take transfer_software: free"
        )
    name, _, kind = level.law.rpartition("/")
    if kind != (INTRA, INTER)[number]:
        raise errors.SpecError(
            f"fabric.levels.{number}.law: {level.law!r} is no law of this level; expected "
            f"{name}/{(INTRA, INTER)[number]}"
        )
    shape, digest = (model.hidden, model.top_k, model.experts), calibration_digest(name)
    if number == 0:
        law = node_law(name, digest, op, dispatch, level.library, shape, size, level.sms)
        law = law.scale(bandwidth / LINK_BYTES_PER_S.get(calibration_named(name).gpu, bandwidth))
        return law._replace(fixed_ns=law.fixed_ns + prepare_ns(name, op, dispatch, level.library, size))
    law = between_law(name, digest, op, dispatch, level.library, shape, nodes, level.sms)
    return law.scale(bandwidth / NIC_BYTES_PER_S)


@lru_cache(maxsize=256)
def between_law(
    name: str,
    digest: str,
    op: str,
    dispatch: str,
    library: str | None,
    shape: tuple[int, int, int],
    nodes: int,
    sms: int | None = None,
) -> PortLaw:
    """The law of the NICs of ``nodes``; arguments as of `node_law`. Raises LawMissing for what was not measured."""
    refuse_sms(dispatch, sms)
    laws = Laws(calibration_named(name))
    if "nccl" in KERNELS[dispatch].names:
        raise LawMissing(
            f"dispatch: {dispatch}: NCCL's all-to-all was not measured between nodes (calibration "
            f"{laws.calibration.gpu}). Take dispatch: per_rank or per_token_expert, or a single node"
        )
    variant = variant_of(laws, dispatch, library)
    known = sorted({each[4] for each in measured_shapes(laws, variant, op) if each[4] > 1})
    if not known:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no {variant} kernels between nodes. Name h100/{INTER} in the law "
            "of the level, or take transfer_software: free"
        )
    below, above, weight = around(known, nodes)
    if KERNELS[dispatch].forwarded:
        law = _anchor(laws, op, dispatch, variant, shape, nodes, known, sms if nodes in known else None)
        return law if nodes in known else _with_sms(law, laws, op, dispatch, variant, shape, nodes, known, sms)
    first = _of_nodes(laws, op, dispatch, variant, shape, below, nodes, sms)
    if below == above:
        return first
    return middle(first, _of_nodes(laws, op, dispatch, variant, shape, above, nodes, sms), weight)


def _of_nodes(
    laws: Laws, op: str, dispatch: str, variant: str, shape, at_nodes: int, nodes: int, sms: int | None
) -> PortLaw:
    """The law of one measured number of nodes, by bytes of a NIC."""
    there = measured_shapes(laws, variant, op, nodes=at_nodes)
    near = nearest_shape(there, shape)
    ranks = min(each[3] for each in there if each[:3] == near)
    _, top_k, experts = near
    away = nodes_away(at_nodes, top_k, experts) if KERNELS[dispatch].once else top_k * (at_nodes - 1) / at_nodes
    asked = {"kernel": variant, "ranks": ranks, "nodes": at_nodes, "sms": sms}
    carried = near != shape or at_nodes != nodes
    law = by_bytes(laws, op, near, asked, away, f"{variant} on {at_nodes} nodes", carried)
    return _measured_part(law, laws, op, near, asked, away) if KERNELS[dispatch].forwarded else law


def _measured_part(law: PortLaw, laws: Laws, op: str, shape, asked, away: float) -> PortLaw:
    """Up to the bytes of a NIC at the largest measured size."""
    hidden, top_k, experts = shape
    table = laws.dispatch_combine(op, 1, **asked, hidden=hidden, top_k=top_k, experts=experts).table
    there = law.at_bytes <= table.last_bytes * away / top_k
    return law._replace(at_bytes=law.at_bytes[there], busy_ns=law.busy_ns[there])


def _anchor(
    laws: Laws, op: str, dispatch: str, variant: str, shape, nodes: int, known: list[int], sms: int | None
) -> PortLaw:
    """Notify, fixed and busy times apart, as this section says."""
    by_nodes = {each: _of_nodes(laws, op, dispatch, variant, shape, each, nodes, sms) for each in known}
    notify = {each: _notify_ns(laws, op, variant, shape, each) for each in known}
    below, above, weight = around(known, nodes)
    if below == above == nodes:
        own = by_nodes[nodes]
        going_on = _going_on(own, _least([*by_nodes.values()]))
        return going_on._replace(fixed_ns=own.fixed_ns + notify[nodes])
    few = {each: _few_ns(law) for each, law in by_nodes.items()}
    fixed = sums.sum(of[below] ** (1 - weight) * of[above] ** weight for of in (few, notify))
    least = _least([_beyond_nodes(law, few[each]) for each, law in by_nodes.items()])
    named = f"{by_nodes[below].named.partition(' on ')[0]}, a NIC as on {' and '.join(map(str, known))} nodes"
    return PortLaw(fixed, least.at_bytes, least.busy_ns, named, True, laws.calibration.gpu)


def _with_sms(
    law: PortLaw, laws: Laws, op: str, dispatch: str, variant: str, shape, nodes: int, known: list[int], sms: int | None
) -> PortLaw:
    """``law``, of the most SMs, where so many pass tokens more slowly than the network."""
    tables = (table.of for table in dispatches(laws.calibration) if table.of["op"] == op)
    measured = sorted({int(of["sms"]) for of in tables if of["variant"] == variant and of["nodes"] == str(known[0])})
    if sms is None or sms >= measured[-1]:
        return law
    tokens = 2.0 ** np.arange(0, np.log2(MOST_TOKENS) + 0.01, 0.25)
    few, many = known[0], known[-1]

    def times(of: str, at_nodes: int, on: int) -> np.ndarray:
        found = _of_nodes(laws, of, dispatch, variant, shape, at_nodes, nodes, on)
        return found.fixed_ns + found.busy(tokens * found.at_bytes[1])

    longer = np.min([times(of, many, measured[0]) / times(of, few, measured[0]) for of in (DISPATCH, COMBINE)], axis=0)
    own = times(op, few, sms)
    most = np.minimum(times(op, many, sms), own * longer)
    away, least, whole = (nodes_away(each, *shape[1:]) for each in (nodes, few, many))
    ns = own + (most - own) * (away - least) / (whole - least) + _notify_ns(laws, op, variant, shape, few)
    passed = tokens * _of_nodes(laws, op, dispatch, variant, shape, few, nodes, sms).at_bytes[1] * away / least
    at = np.union1d(passed, law.at_bytes)
    busy = np.maximum.accumulate(np.maximum(law.busy(at), np.interp(at, passed, ns) - law.fixed_ns))
    return law._replace(at_bytes=at, busy_ns=np.where(at > 0, busy, 0.0), named=f"{law.named}, {sms} SMs")


def _notify_ns(laws: Laws, op: str, variant: str, shape, nodes: int) -> float:
    """The median over sizes: a notify does not depend on them."""
    there = measured_shapes(laws, variant, NOTIFY_OF[op], nodes=nodes)
    hidden, top_k, experts = nearest_shape(there, shape)
    ranks = min(each[3] for each in there if each[:3] == (hidden, top_k, experts))
    tokens = 2.0 ** np.arange(FEW_TOKENS)
    times = laws.dispatch_combine(
        NOTIFY_OF[op], tokens, kernel=variant, ranks=ranks, nodes=nodes, hidden=hidden, top_k=top_k, experts=experts
    )
    return float(np.median(times.ns[~times.extrapolated] if not times.extrapolated.all() else times.ns))


def _few_ns(law: PortLaw) -> float:
    """The median time of FEW_TOKENS and fewer."""
    few = (law.at_bytes > 0) & (law.at_bytes <= FEW_TOKENS * law.at_bytes[1])
    return law.fixed_ns + float(np.median(law.busy_ns[few]))


def _beyond_nodes(law: PortLaw, fixed_ns: float) -> PortLaw:
    """The same times, of which ``fixed_ns`` count as fixed."""
    return law._replace(fixed_ns=fixed_ns, busy_ns=np.maximum(law.fixed_ns + law.busy_ns - fixed_ns, 0.0))


def _least(laws: Sequence[PortLaw]) -> PortLaw:
    """The least busy time at any bytes; a law that ends before others grows as that of most bytes."""
    longest = max(laws, key=lambda law: law.at_bytes[-1])
    every = [_going_on(law, longest) for law in laws]
    at = np.unique(np.concatenate([law.at_bytes for law in every]))
    busy = np.maximum.accumulate(np.min([law.busy(at) for law in every], axis=0))
    return longest._replace(at_bytes=at, busy_ns=busy)


def _going_on(law: PortLaw, other: PortLaw) -> PortLaw:
    """A law as far as it goes, and from there with the growth of another."""
    last = law.at_bytes[-1]
    at = other.at_bytes[other.at_bytes > last]
    grown = law.busy_ns[-1] + other.busy(at) - other.busy(last)
    return law._replace(at_bytes=np.concatenate([law.at_bytes, at]), busy_ns=np.concatenate([law.busy_ns, grown]))
