"""What runs beside what in a layer of experts, on which resource: the assumption ``overlap``.

A layer computes on its SMs, one kernel after the other, and moves hidden vectors over its ports, one transfer after the
other. A transfer takes SMs, too (`Sms`): those that send and receive for a time, or some of them as long as it runs.

===================  =================================================================================================
``none``             attention, dispatch, shared experts, experts and combine follow each other
``shared_expert``    shared experts run while hidden vectors are dispatched
``two_batch``        two halves of the tokens take turns, stage by stage (`SCHEDULES`): what one moves, the other's
                     kernels hide. Every kernel is launched twice and reads its weights twice
===================  =================================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

NONE, SHARED_EXPERT, TWO_BATCH = "none", "shared_expert", "two_batch"
BEFORE, ATTENTION, SHARED, EXPERTS = "before", "attention", "shared", "experts"
SEND, RECEIVE, RETURN, COLLECT = "send", "receive", "return", "collect"
DECODES, PROMPTS = "decodes", "prompts"


class Schedule(NamedTuple):
    """``stages``: of a layer of one half, in order; halves take turns, a stage each. ``behind``: stages by which the
    second half is later.
    """

    stages: tuple[tuple[str, ...], ...]
    behind: int


# SGLang, python/sglang/srt/operations_strategy.py (the operations of DeepSeek-V3's layers, tbo_delta_stages).
SCHEDULES = {
    PROMPTS: Schedule(((BEFORE, ATTENTION, SEND), (RECEIVE, EXPERTS, RETURN), (SHARED, COLLECT)), behind=0),
    DECODES: Schedule(((BEFORE,), (ATTENTION,), (SEND, SHARED), (RECEIVE, EXPERTS, RETURN), (COLLECT,)), behind=2),
}
_LAYERS, _FILL = 7, 3  # that are laid out; the first fill the pipeline, the last drains it


class Sms(NamedTuple):
    """What a transfer takes of the SMs: all for ``ns``, as kernels that send and receive do, and ``share`` of them as
    long as it runs.
    """

    ns: float = 0.0
    share: float = 0.0


class Rest(NamedTuple):
    """ns that a rank computes in a layer beside its experts: up to attention's kernel, and from it to the router."""

    before: float = 0.0
    attention: float = 0.0

    @property
    def total(self) -> float:
        return self.before + self.attention


NOTHING = Rest()


class Layer(NamedTuple):
    """ns of a layer of experts: transfers that nothing hides, and what is computed. The layer adds as much to the rest
    of the iteration.
    """

    dispatch: float
    shared: float
    experts: float
    combine: float

    @property
    def total(self) -> float:
        return sum(self)


def beside(move_ns: float, compute_ns: float, sms: Sms) -> float:
    """When a transfer and the kernels beside it have both ended."""
    return max(move_ns, compute_ns + sms.ns + sms.share * move_ns)


def of_halves(whole: float, half: float, multiply_ns: float = 0.0, share: float = 0.0) -> float:
    """ns of both halves of some kernels: never less than the whole takes at once, whatever laws say between their
    points. Products leave the transfers their ``share`` of the SMs at all times, as SGLang's do (deep_gemm_num_sms,
    operations_strategy.py): that lengthens ``multiply_ns``, what a half multiplies at peak, but not what they read.
    """
    return max(whole, 2 * half) + 2 * min(multiply_ns, half) * share / (1 - share)


def two_batches(
    whole: Layer, half: Layer, multiply: tuple[float, float], rest: Rest, sms: tuple[Sms, Sms], phase: str
) -> Layer:
    """A layer of two halves; ``whole``, ``half``: each alone; ``multiply``: ns at peak of shared and routed experts of
    a half; ``rest``: of a half, as it is computed here; ``sms``: of dispatch and combine of a half; ``phase``: of
    SCHEDULES.
    """
    share = max(each.share for each in sms)
    shared = of_halves(whole.shared, half.shared, multiply[0], share)
    experts = of_halves(whole.experts, half.experts, multiply[1], share)
    one = half._replace(shared=shared / 2, experts=experts / 2)
    hidden_not = max(_layer_ns(one, rest, sms, SCHEDULES[phase]) - 2 * rest.total - shared - experts, 0.0)
    moved = half.dispatch + half.combine
    first = half.dispatch / moved if moved else 0.0
    return Layer(hidden_not * first, shared, experts, hidden_not * (1 - first))


def _layer_ns(half: Layer, rest: Rest, sms: tuple[Sms, Sms], schedule: Schedule) -> float:
    """ns of a layer of both halves, once the layers before have filled the pipeline."""
    computes = {BEFORE: rest.before, ATTENTION: rest.attention, SHARED: half.shared, EXPERTS: half.experts}
    moves = {SEND: (half.dispatch, sms[0].ns), RETURN: (half.combine, sms[1].ns)}
    stages, last = schedule.stages * _LAYERS, len(schedule.stages)
    sm = network = 0.0
    arrives, ends = [0.0, 0.0], []
    for at in range(len(stages) + schedule.behind):
        for who, stage in ((0, at), (1, at - schedule.behind)):
            for doing in stages[stage] if 0 <= stage < len(stages) else ():
                if doing in computes:
                    sm += computes[doing]
                elif doing in moves:
                    move_ns, sm_ns = moves[doing]
                    network = arrives[who] = max(network, sm) + move_ns
                    sm += sm_ns
                else:
                    sm = max(sm, arrives[who])
            if who == 1 and stage >= 0 and stage % last == last - 1:
                ends.append(sm)
    return (ends[-2] - ends[_FILL - 1]) / (len(ends) - 1 - _FILL)
