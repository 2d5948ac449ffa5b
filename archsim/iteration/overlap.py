"""What runs beside what in a layer of experts, on which resource: the assumption ``overlap``.

A layer computes on its SMs, one kernel after the other, and moves hidden vectors over its ports, one transfer after the
other. A transfer takes SMs, too (`Sms`): those that send and receive for a time, or some of them as long as it runs.

===================  =================================================================================================
``none``             attention, dispatch, shared experts, experts and combine follow each other
``shared_expert``    shared experts run while hidden vectors are dispatched
``two_batch``        two halves of the tokens take turns, stage by stage (`SCHEDULES`): what one moves, the other's
                     kernels hide. Every kernel is launched twice and reads its weights twice
``micro_batches``    of attention–FFN disaggregation, not of the assumption: parts of the tokens take turns on the side
                     that has attention, on links, on the side that has experts, and on links back (`micro_batched`)
===================  =================================================================================================
"""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base import compiled, sums

NONE, SHARED_EXPERT, TWO_BATCH, MICRO_BATCHES = "none", "shared_expert", "two_batch", "micro_batches"
_IN_TURN, _BESIDE, _HALVES, _PARTS = range(4)
HOW = MappingProxyType({
    NONE: np.int64(_IN_TURN), SHARED_EXPERT: np.int64(_BESIDE), TWO_BATCH: np.int64(_HALVES),
    MICRO_BATCHES: np.int64(_PARTS),
})  # fmt: skip
LEAST_HALVED = 2  # tokens of a group of tensor-parallel ranks: one has no halves
DECODES, PROMPTS = np.int64(0), np.int64(1)  # phases: whose operations are laid out
_NOTHING, BEFORE, ATTENTION, SHARED, EXPERTS, SEND, RECEIVE, RETURN, COLLECT = range(9)


class OverlapSchedule(NamedTuple):
    """``stages``: of a layer of one half; halves take turns, a stage each; ``behind``: how many the second lags."""

    stages: tuple[tuple[int, ...], ...]
    behind: int


# By phase. SGLang, python/sglang/srt/operations_strategy.py (the operations of DeepSeek-V3's layers, tbo_delta_stages).
SCHEDULES = (
    OverlapSchedule(((BEFORE,), (ATTENTION,), (SEND, SHARED), (RECEIVE, EXPERTS, RETURN), (COLLECT,)), behind=2),
    OverlapSchedule(((BEFORE, ATTENTION, SEND), (RECEIVE, EXPERTS, RETURN), (SHARED, COLLECT)), behind=0),
)
_STAGES = np.array([len(each.stages) for each in SCHEDULES])
_BEHIND = np.array([each.behind for each in SCHEDULES])
_DOES = np.array([  # int64[phase, stage, operation]
    [[*stage, *[_NOTHING] * (3 - len(stage))] for stage in (*each.stages, *[()] * (max(_STAGES) - len(each.stages)))]
    for each in SCHEDULES
])  # fmt: skip
_LAYERS, _FILL = 7, 3  # that are laid out; the first fill the pipeline, the last drains it


class Sms(NamedTuple):
    """SMs of a transfer: all for ``ns``, as kernels that send and receive do, and ``share`` as long as it runs."""

    ns: float = 0.0
    share: float = 0.0


class Rest(NamedTuple):
    """ns that a rank computes in a layer beside its experts: up to attention's kernel, and from it to the router."""

    before: float = 0.0
    attention: float = 0.0


NOTHING = Rest()


class ExpertLayer(NamedTuple):
    """ns of a layer of experts: unhidden transfers, and computation; the layer adds as much to the rest."""

    dispatch: float
    shared: float
    experts: float
    combine: float

    @property
    def total(self) -> float:
        return sums.sum(self)


@compiled.kernel
def beside(move_ns, compute_ns, sms):
    """When transfers and the kernels beside them have both ended, float64[any]; ``sms``: an `Sms`."""
    return np.maximum(move_ns, compute_ns + sms.ns + sms.share * move_ns)


@compiled.kernel
def of_halves(whole, half, multiply_ns=0.0, share=0.0):
    """ns of both halves of some kernels, float64[any]: never less than the whole takes at once, whatever laws say
    between their points. Products leave the transfers their ``share`` of the SMs at all times, as SGLang's do
    (deep_gemm_num_sms, operations_strategy.py): that lengthens ``multiply_ns``, what a half multiplies at peak, but not
    what they read.
    """
    return np.maximum(whole, 2 * half) + 2 * np.minimum(multiply_ns, half) * share / (1 - share)


@compiled.kernel
def compose(how, whole, half, multiply, rest, sms, phase):
    """An `ExpertLayer` of experts under an overlap of HOW. ``whole``, ``half``: `ExpertLayer` of all tokens and of
    half of them, if nothing ran beside anything; ``multiply``: ns at peak of shared and routed experts of a half;
    ``rest``: `Rest` of a half; ``sms``: two `Sms`, of dispatch and combine (of a half, where there are halves);
    ``phase``: of SCHEDULES.

    Two batches: a layer of both halves, once the layers before have filled the pipeline. All is in proportion, so
    sums of many layers go as well as one.
    """
    if how == _IN_TURN:
        return whole
    if how == _BESIDE:
        both = beside(whole.dispatch, whole.shared, sms[0]) if whole.shared > 0 else whole.dispatch
        return ExpertLayer(both - whole.shared, whole.shared, whole.experts, whole.combine)
    share = max(sms[0].share, sms[1].share)
    shared = of_halves(whole.shared, half.shared, multiply[0], share)
    experts = of_halves(whole.experts, half.experts, multiply[1], share)
    computed = 2 * (rest.before + rest.attention) + shared + experts
    hidden_not = max(_of_both(half, shared / 2, experts / 2, rest, sms, phase) - computed, 0.0)
    moved = half.dispatch + half.combine
    first = half.dispatch / moved if moved > 0 else 0.0
    return ExpertLayer(hidden_not * first, shared, experts, hidden_not * (1 - first))


@compiled.kernel
def micro_batched(parts, layers, own_ns, dispatch_ns, experts_ns, combine_ns):
    """ns of ``layers`` layers of ``parts`` equal micro-batches on two sides with links each way. All ns are of one
    micro-batch and all layers: what it computes on its own side, there, at the experts, and back.

    A micro-batch passes four stages a layer, each of which serves one at a time, and begins its next layer when it is
    back. Without contention the longest path is: ``(L - 1) max(m x longest stage, sum of stages)`` until the first
    micro-batch begins its last layer, its way through that layer, and the longest stage of each of the others
    (arXiv 2601.21351 and MegaScale-Infer, arXiv 2504.02263, section 4.1, have its period). As layers are equal,
    sums over all of them go as well as one.
    """
    longest = max(max(own_ns, experts_ns), max(dispatch_ns, combine_ns))
    alone = own_ns + dispatch_ns + experts_ns + combine_ns
    period = max(parts * longest, alone)
    return ((layers - 1) * period + alone + (parts - 1) * longest) / layers


@compiled.kernel
def _of_both(half, shared, experts, rest, sms, phase):
    """ns of a layer of both halves: their operations in turn, on the SMs and on the network."""
    last, behind = _STAGES[phase], _BEHIND[phase]
    computes = (0.0, rest.before, rest.attention, shared, experts)
    sm = network = filled = ended = first = second = 0.0
    for at in range(last * _LAYERS + behind):
        for who in range(2):
            stage = at - behind * who
            if stage < 0 or stage >= last * _LAYERS:
                continue
            for doing in _DOES[phase, stage % last]:
                if doing <= EXPERTS:
                    sm += computes[doing]
                elif doing == SEND or doing == RETURN:
                    move = sms[0] if doing == SEND else sms[1]
                    network = max(network, sm) + (half.dispatch if doing == SEND else half.combine)
                    sm += move.ns
                    first, second = (network, second) if who == 0 else (first, network)
                else:
                    sm = max(sm, first if who == 0 else second)
            if who == 1 and stage % last == last - 1:
                if stage // last == _FILL - 1:
                    filled = sm
                if stage // last == _LAYERS - 2:
                    ended = sm
    return (ended - filled) / (_LAYERS - 1 - _FILL)
