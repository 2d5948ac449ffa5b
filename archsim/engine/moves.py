"""Hidden vectors of a step: which die sends how many to which, and how many bytes one has.

``dispatch: per_token_expert`` sends a vector once for every (token, expert), ``per_rank`` once for every (token, die),
however many of the token's experts run there; partial results are summed before they return, so that as many come
back. Where the routing of single tokens is known, per_rank counts them; else it takes the expected number.

The expected number: a token of a home die has none of its experts on a die with probability ∏ (1 − c), over the
experts that the die runs for that home, where c = p k / (k − those before) is the probability of one expert, given
that the token has none of those before: p is its share of the home's tokens, and the k selections then fall on the
other experts in proportion (sampling without replacement; Tillé, Sampling Algorithms, 2006, chapter 4, draws unit by
unit in this way). Where all p are k / E this is C(E − m, k) / C(E, k) for m experts, the hypergeometric law. 8 of 256
experts over 25 dies: 7.0 dies a token, 1.14 times fewer vectors; over 8 dies: 5.3, 1.5 times fewer. A router that is
limited to some groups of experts (DeepSeek-V3: 4 of 8) applies this within a group, which it takes with probability
``top_groups / groups``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil, log2
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.compiled import kernel, unsigned
from archsim.base.sums import sum
from archsim.base.units import BF16_BYTES, NS_PER_S, VECTOR_BYTES, WEIGHT_BYTES
from archsim.laws.laws import Laws
from archsim.laws.tables import CalibrationSpec, LawMissing, TransferTable
from archsim.laws.transfers import COMBINE, DISPATCH, dispatches, law_of, payload_of, sent_bytes
from archsim.policies.allocation import Plan
from archsim.specs.calibration_files import DEFAULT_CALIBRATION, calibration_digest, calibration_named
from archsim.specs.experiment import Scenario
from archsim.specs.system import SystemSpec
from archsim.workload.demand import TokenRouting

# ---- hidden

SCALED = ("fp8", "fp8_block")  # dtypes whose vectors travel with scales
VALUES_PER_SCALE, SCALE_BYTES = 128, 4  # one FP32 scale for 128 values (deepseek-ai/DeepEP, README)


class VectorBytes(NamedTuple):
    """Bytes of one hidden vector on its way to an expert, and of a result on its way back."""

    dispatch: int
    combine: int


class Sizes(NamedTuple):
    """What the number of vectors depends on beside plan and origins. Groups of experts are of equal size, in order of
    id; 1 and 1: the router is not limited.
    """

    experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1


def vector_bytes(hidden: int, dtype: str, combine: str) -> VectorBytes:
    """Bytes of a vector of ``hidden`` values under the assumption ``combine``; ``dtype``: of the die's weights."""
    plain = ceil(hidden * (VECTOR_BYTES[dtype] if WEIGHT_BYTES[dtype] < 1 else WEIGHT_BYTES[dtype]))
    if combine == "weights_dtype":
        return VectorBytes(plain, plain)
    scales = SCALE_BYTES * -(-hidden // VALUES_PER_SCALE) if dtype in SCALED else 0
    return VectorBytes(plain + scales, hidden * BF16_BYTES)


Send = Callable[[Plan, np.ndarray, "TokenRouting | None", Sizes, np.ndarray], np.ndarray]
"""(plan, origins: int[die, expert], routing, sizes, hops: int[die, die]) → vectors, int64 or float64[home, die]."""


def send_selections(
    plan: Plan, origins: np.ndarray, routing: TokenRouting | None, sizes: Sizes, hops: np.ndarray
) -> np.ndarray:
    """``dispatch: per_token_expert``: int64[home, die], one vector per token and expert."""
    return send_tokens(plan.expert, plan.die, plan.tokens, origins, hops)


def send_once(
    plan: Plan, origins: np.ndarray, routing: TokenRouting | None, sizes: Sizes, hops: np.ndarray
) -> np.ndarray:
    """``dispatch: per_rank``: one vector per token and die; int64[home, die] where the routing is known, else the
    expected number, float64[home, die].

    Among the dies that share an expert's tokens of one home, tokens are given out in their order, to the first entry
    of the plan that has not all of its own.
    """
    return send_once_to([np.arange(len(hops))], plan, origins, routing, sizes, hops)[0]


def send_once_to(
    groups: Sequence[np.ndarray],
    plan: Plan,
    origins: np.ndarray,
    routing: TokenRouting | None,
    sizes: Sizes,
    hops: np.ndarray,
) -> list[np.ndarray]:
    """As ``send_once``, one vector per token and *group* of dies: [home, group] for each of ``groups: int64[die]``,
    the group of every die.
    """
    dies = len(hops)
    taken = _tokens_taken(plan.expert, plan.die, plan.tokens, origins, hops)
    if routing is not None:
        first = np.searchsorted(plan.expert, np.arange(sizes.experts + 1))
        alone = np.flatnonzero(np.diff(first) == 1)
        whole = taken[first[alone]].sum(axis=1) == origins.sum(axis=0, dtype=np.int64)[alone]
        undivided = alone[whole]  # experts whose tokens one entry runs
        found = []
        for group in groups:
            count = int(group.max()) + 1
            sent, last = np.zeros((dies, count), np.int64), np.full(count, -1, np.int64)
            target, runs_all = group[plan.die], np.full(sizes.experts, -1)
            runs_all[undivided] = target[first[undivided]]
            done = np.zeros((dies, sizes.experts), np.int64)
            _count_once(routing.experts, routing.die, first, runs_all, target, taken.copy(), done, last, sent)
            found.append(sent)
        return found
    tokens = origins.sum(axis=1, dtype=np.int64) / sizes.top_k
    found = []
    for group in groups:
        shape = dies, int(group.max()) + 1
        expert, target, of_group = _merged(plan.expert, group[plan.die], taken, shape[1])
        none = np.ones(shape)
        router = expert * sizes.groups // sizes.experts
        _expect_none(router, target, of_group, tokens, sizes, np.ones(shape[1]), np.zeros(shape[1]), none)
        found.append(tokens[:, None] * (1.0 - none))
    return found


def received_of_experts(sizes: Sizes, experts: int, tokens: int) -> float:
    """Distinct tokens that a die receives if it runs ``experts`` with ``tokens`` each and the router favours none."""
    experts = min(experts, sizes.experts)
    every = np.arange(sizes.experts, dtype=np.int32)
    on_other = (every >= experts).astype(np.int32)
    plan = Plan(every, on_other, np.full(sizes.experts, sizes.top_k, np.int32))
    origins = np.array([np.zeros(sizes.experts), np.full(sizes.experts, sizes.top_k)], np.int64)
    arrived = send_once(plan, origins, None, sizes, 1 - np.eye(2, dtype=np.int64)).sum(axis=0)[0]
    return float(arrived / sizes.top_k * tokens)


def _merged(expert, group, taken, groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(expert, group, taken) with one row for every expert and group, in order of expert."""
    every = expert.astype(np.int64) * groups + group
    if (every[1:] > every[:-1]).all():
        return expert.astype(np.int64), group.astype(np.int64), taken
    rows, at = np.unique(every, return_inverse=True)
    if len(rows) == len(expert):
        return expert.astype(np.int64), group.astype(np.int64), taken
    total = np.zeros((len(rows), taken.shape[1]), taken.dtype)
    np.add.at(total, at, taken)
    return rows // groups, rows % groups, total


SENDS: Mapping[str, Send] = MappingProxyType({"per_token_expert": send_selections, "per_rank": send_once})


def expected_ranks(sizes: Sizes, ranks: int) -> float:
    """Ranks that a token is sent to, on average, where experts lie evenly on ``ranks`` in order of id and all are
    equally popular; see the module.
    """
    per_rank = np.bincount(np.arange(sizes.experts) * ranks // sizes.experts, minlength=ranks)
    expert = np.arange(sizes.experts, dtype=np.int32)
    rank = np.repeat(np.arange(ranks, dtype=np.int32), per_rank)
    plan = Plan(expert, rank, np.full(sizes.experts, sizes.top_k, np.int32))
    origins = np.zeros((ranks, sizes.experts), np.int64)
    origins[0] = sizes.top_k  # as many tokens as experts, all on rank 0
    return float(send_once(plan, origins, None, sizes, 1 - np.eye(ranks, dtype=np.int64))[0].sum() / sizes.experts)


def send_tokens(
    plan_expert: np.ndarray, plan_die: np.ndarray, plan_tokens: np.ndarray, origins: np.ndarray, hops: np.ndarray
) -> np.ndarray:
    """Tokens (one per token and expert) that home dies send to executing dies, int64[home, die].

    An entry takes tokens that live on its own die first, then from the nearest dies (ties to the lower id).
    """
    sent = np.zeros(hops.shape, np.int64)
    _sum_by_die(plan_die, _tokens_taken(plan_expert, plan_die, plan_tokens, origins, hops), sent)
    return sent


def _tokens_taken(plan_expert, plan_die, plan_tokens, origins, hops) -> np.ndarray:
    """Tokens of each home that an entry of the plan runs, int64[entry, home]; see ``send_tokens``."""
    dies, farthest = len(hops), int(hops.max(initial=0))
    taken, left = np.zeros((len(plan_expert), dies), np.int64), np.zeros(dies, np.int64)
    plan = plan_expert.astype(np.int32), plan_die.astype(np.int32), plan_tokens.astype(np.int64)  # one compiled form
    origins, hops = np.ascontiguousarray(origins, np.int64), np.ascontiguousarray(hops, np.int32)
    _share_tokens(*plan, origins, hops, farthest, left, taken)
    return taken


@kernel
def _share_tokens(plan_expert, plan_die, wanted, origins, hops, farthest, left, taken):
    """Fill ``taken``; ``wanted``: int64[entry], used up; ``left``: int64[die], scratch."""
    dies, begin = len(hops), 0
    while begin < len(plan_expert):
        end = begin
        while end < len(plan_expert) and plan_expert[end] == plan_expert[begin]:
            end += 1
        living = np.int64(0)
        for home in range(dies):
            left[home] = origins[home, plan_expert[begin]]
            living += left[home]
        if end == begin + 1 and living <= wanted[begin]:  # no other entry, and room for all
            for home in range(dies):
                taken[begin, home] = left[home]
            begin = end
            continue
        for reach in range(farthest + 1):
            for entry in range(begin, end):
                die = plan_die[entry]
                for home in range(dies):
                    if hops[home, die] == reach and left[home] > 0 and wanted[entry] > 0:
                        tokens = min(left[home], wanted[entry])
                        taken[entry, home] += tokens
                        left[home] -= tokens
                        wanted[entry] -= tokens
        begin = end


@kernel
def _sum_by_die(plan_die, taken, sent):
    for home in range(len(sent)):
        for entry in range(len(plan_die)):
            sent[home, plan_die[entry]] += taken[entry, home]


@kernel
def _count_once(experts, die, first, runs_all, plan_die, taken, done, last, sent):
    """Add one to ``sent: int64[home, die]`` for every token and every die that runs one of its experts.

    ``first``: int64[expert + 1], the plan's entries of each expert; ``runs_all``: int64[expert], the die that runs all
    of its tokens, -1 if there is none; ``taken``: see ``_tokens_taken``, used up where there is none; ``done``:
    int64[home, expert], zeros: entries of the expert that have all of their tokens of a home; ``last``: int64[die], -1:
    the token sent there last.
    """
    for token in range(len(experts)):
        home = unsigned(die[token])
        for rank in range(experts.shape[1]):
            expert = unsigned(experts[token, rank])
            target = runs_all[expert]
            if target < 0:
                entry, end = first[expert] + done[home, expert], first[expert + unsigned(1)]
                while entry < end and taken[unsigned(entry), home] <= 0:
                    entry += 1
                done[home, expert] = entry - first[expert]
                if entry < end:
                    taken[unsigned(entry), home] -= 1
                    target = np.int64(plan_die[unsigned(entry)])
            if target >= 0:
                sent[home, unsigned(target)] += last[unsigned(target)] != token
                last[unsigned(target)] = token


@kernel
def _expect_none(router_group, plan_die, taken, tokens, sizes, absent, before, none):
    """Fill ``none: float64[home, die]`` (ones), the probability that a token of a home has no expert on a die (or a
    group of dies).

    ``router_group``: int64[entry], ascending: the group of experts that the router sees; ``tokens``: float64[home];
    ``absent`` (ones), ``before`` (zeros): float64[die], the same probability, and the sum of p, of one home within the
    group of experts at hand.
    """
    taking = sizes.top_groups / sizes.groups  # probability of a group
    for home in range(len(none)):
        begin = 0
        while begin < len(plan_die):
            end = begin
            while end < len(plan_die) and router_group[end] == router_group[begin]:
                if taken[end, home] > 0:
                    die = plan_die[end]
                    p = taken[end, home] / (tokens[home] * taking)
                    rest = sizes.top_k - before[die]
                    absent[die] *= 1.0 - (min(1.0, p * sizes.top_k / rest) if rest > 0.0 else 1.0)
                    before[die] += p
                end += 1
            for entry in range(begin, end):
                die = plan_die[entry]
                none[home, die] *= 1.0 - taking + taking * absent[die]
                absent[die], before[die] = 1.0, 0.0
            begin = end


# ---- transfer
# Software of the transfers of hidden vectors: the assumption ``transfer_software``.
#
# On a GPU (``launch: gpu``) kernels of a library dispatch and combine: ``dispatch: per_rank`` as DeepEP's ``normal``,
# ``per_token_expert`` as its ``low_latency``. Each costs a fixed time, and a rank's port then passes bytes at the rate
# that the kernel achieves: t = fixed + bytes / rate. Both are fitted, with least relative errors, to the law of the
# calibration (``Laws.dispatch_combine``) over 1 to 4,096 tokens a rank of 8 ranks in a node, of the model's shape or
# the nearest that was measured; bytes are those that leave a rank when all experts are equally popular. The measured
# time includes reading HBM and crossing one switch, which the engine simulates: these latencies are subtracted. Neither
# is scaled with the machine's links, which may be slower; the port never passes more than they do.
#
# Under ``launch: local_cp`` the command processor of a die starts a bundle a cycle of its logic; nothing caps the rate.

KERNELS = {"per_rank": "normal", "per_token_expert": "low_latency"}
RANKS = 8  # of the node in which the kernels were measured
MOST_TOKENS = 4096  # a rank
INSTEAD = " instead of "  # in words, before the calibration that lacks the kernels


class Software(NamedTuple):
    """Of DISPATCH and COMBINE each: ``ns`` before a bundle moves, and the most bytes per ns of a die's port."""

    ns: np.ndarray  # float64[2]
    bytes_per_ns: np.ndarray  # float64[2]


def software(scenario: Scenario, hidden_latency_ns: float | np.ndarray) -> Software:
    """The software of a scenario's transfers. ``hidden_latency_ns``: latency of HBM and of the shortest route.

    Raises LawMissing (a SpecError) under ``launch: gpu`` where a fabric's law names a calibration that has no table of
    the kernel.
    """
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    no_cap = np.full(2, np.inf)
    if assumptions.transfer_software == "free" or assumptions.activations != "dispatched":
        return Software(np.zeros(2), no_cap)
    if system.launch == "local_cp":
        return Software(np.full(2, system.dies * NS_PER_S / system.decision.local_clock_hz), no_cap)
    if assumptions.execution == "expert_parallel":
        return Software(np.zeros(2), no_cap)  # it takes the time of whole kernels: archsim.engine.cluster.laws
    kernel, shape = KERNELS[assumptions.dispatch], (model.hidden, model.top_k, model.experts)
    name = kernels_from(system, kernel)
    fitted = [fixed_and_rate(name, calibration_digest(name), op, kernel, *shape) for op in (DISPATCH, COMBINE)]
    fixed_ns, rates = np.ascontiguousarray(np.array(fitted).T)  # kernels are compiled for contiguous arrays alone
    if system.d2d.measured_factor != 1:
        fixed_ns, rates = fixed_ns * system.d2d.measured_factor, rates / system.d2d.measured_factor
    return Software(np.maximum(fixed_ns - hidden_latency_ns, 0.0), rates)


def charges_kernels(scenario: Scenario) -> bool:
    """Whether hidden vectors wait for kernels of a GPU."""
    assumptions = scenario.assumptions
    charged = assumptions.transfer_software == "charged" and assumptions.activations == "dispatched"
    return charged and scenario.system.launch == "gpu" and assumptions.dispatch in KERNELS


def kernels_from(system: SystemSpec, kernel: str) -> str | None:
    """The calibration with the kernel's times, None for the default: what the law of the innermost fabric level names;
    else that of the compute array or, where that has none, the one that it is scaled from, or the default.
    """
    if system.transfer_law is not None:
        return system.transfer_law
    name = system.compute.calibration
    return _nearest_with(name, calibration_digest(name), kernel)


def own_calibration(system: SystemSpec) -> str:
    """The calibration of the system's transfers: of the law that its innermost level names, else of its dies."""
    return system.transfer_law or system.compute.calibration or DEFAULT_CALIBRATION


def told_kernels(scenario: Scenario) -> str | None:
    """The kernels that a scenario is charged for, in words; None where it is not."""
    if not charges_kernels(scenario):
        return None
    system, kernel = scenario.system, KERNELS[scenario.assumptions.dispatch]
    own = own_calibration(system)
    name = kernels_from(system, kernel) or DEFAULT_CALIBRATION
    return f"DeepEP {kernel} of {name}" + (f"{INSTEAD}{own}" if name != own else "")


def kernels_stand_in(scenario: Scenario) -> bool:
    """Whether the kernels of `told_kernels` were measured on another GPU, shape, or number of ranks."""
    system, model, kernel = scenario.system, scenario.model, KERNELS[scenario.assumptions.dispatch]
    calibration = calibration_named(kernels_from(system, kernel))
    own = calibration_named(system.compute.calibration).gpu
    alike = (model.hidden, model.top_k, model.experts) in _shapes(calibration, kernel)
    return not alike or calibration.gpu != own or system.dies != RANKS


@lru_cache(maxsize=64)
def _nearest_with(name: str | None, digest: str, kernel: str) -> str | None:
    """``digest``: of the calibration's file."""
    calibration = calibration_named(name)
    if _shapes(calibration, kernel):
        return name
    base = calibration.scaled and calibration.scaled.gpu
    return base if base and _shapes(calibration_named(base), kernel) else None


@lru_cache(maxsize=64)
def fixed_and_rate(
    name: str | None, digest: str, op: str, kernel: str, hidden: int, top_k: int, experts: int
) -> tuple[float, float]:
    """(ns, bytes per ns) of the kernel: a table of the nearest shape, as two numbers. ``digest``: of the calibration's
    file. Raises LawMissing.
    """
    laws = Laws(calibration_named(name))
    near = _nearest_shape(laws, kernel, (hidden, top_k, experts))
    ask = partial(
        laws.dispatch_combine, op, kernel=kernel, ranks=RANKS, nodes=1, hidden=near[0], top_k=near[1], experts=near[2]
    )
    table = ask(1).table
    assert isinstance(table, TransferTable)
    vector_bytes = near[0] * VECTOR_BYTES[payload_of(table)]
    vectors = expected_ranks(Sizes(near[2], near[1]), RANKS) if kernel == KERNELS["per_rank"] else near[1]
    token_bytes = vector_bytes * vectors * (RANKS - 1) / RANKS
    tokens = 2.0 ** np.arange(int(log2(MOST_TOKENS)) + 1)
    times = ask(tokens)
    # Of a table scaled from another GPU's, every time counts as extrapolated; its sizes are those measured there.
    sizes = sent_bytes(payload_of(table), tokens, near[1], near[0])
    measured = ~law_of(table).extrapolates(sizes)
    tokens, ns = tokens[measured], times.ns[measured]
    terms = np.stack([1.0 / ns, tokens * token_bytes / ns], axis=1)
    fixed_ns, ns_per_byte = np.linalg.lstsq(terms, np.ones(len(ns)), rcond=None)[0]
    return float(fixed_ns), float(1.0 / ns_per_byte)


def _nearest_shape(laws: Laws, kernel: str, wanted: tuple[int, int, int]) -> tuple[int, int, int]:
    """(hidden, top_k, experts) of the measured layer whose sizes differ least from those wanted, by the sum of their
    ratios' logarithms.
    """
    there = _shapes(laws.calibration, kernel)
    if not there:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no dispatch and combine of kernel {kernel!r} on {RANKS} ranks of "
            f"a node, which transfer_software: charged needs on a system of launch: gpu. Name another GPU in the law "
            f"of its innermost fabric level (law: h100/intra_node) or none, or take transfer_software: free or "
            f"launch: local_cp"
        )
    return min(there, key=lambda shape: (sum(abs(log2(a / b)) for a, b in zip(shape, wanted, strict=True)), shape))


def _shapes(calibration: CalibrationSpec, kernel: str) -> set[tuple[int, int, int]]:
    """(hidden, top_k, experts) with which the kernel was measured."""
    return {
        (int(table.of["hidden"]), int(table.of["top_k"]), int(table.of["experts"]))
        for table in dispatches(calibration)
        if (table.of.get("variant"), table.of.get("num_gpus"), table.of.get("nodes")) == (kernel, str(RANKS), "1")
    }
