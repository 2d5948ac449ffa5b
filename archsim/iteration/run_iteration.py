"""A whole iteration of an experiment: MoE layers as the engine ran them, and all else by the laws of iterations.

Attention is parallel as the deployment says. Of a group of tensor-parallel ranks each dispatches its share of the
tokens, whatever the assumption ``dispatch``. What runs beside what: ``archsim.iteration.overlap``. The parts add up:
an iteration is its MoE layers, as long as the engine says, and the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from archsim.base import sums, units
from archsim.iteration.constants import NONE, engines, host_of
from archsim.iteration.engine_laws import engine_laws, fastest
from archsim.iteration.layers import (
    ALL_REDUCE,
    COMBINE,
    DENSE_FFN,
    DISPATCH,
    ELSEWHERE,
    EXPERTS,
    HOST,
    OF_ROUTED,
    ONCE,
    PROJECTIONS,
    before_attention,
    row_flop,
)
from archsim.iteration.layers import SHARED as SHARED_EXPERTS
from archsim.iteration.links import Links
from archsim.iteration.machine import calibration_at
from archsim.iteration.machine import rates_of as machine_rates
from archsim.iteration.overlap import LEAST_HALVED, NOTHING, TWO_BATCH, ExpertLayer, Rest, of_halves
from archsim.iteration.times import Batches, IterationLaws, iteration_times
from archsim.laws import gemm, scaling, tables
from archsim.laws.calibration_files import DEFAULT_CALIBRATION, calibration_digest, calibration_named
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.scenario import Scenario

ON_LINKS = (ALL_REDUCE, DISPATCH, COMBINE, HOST)  # which no factor on kernels multiplies
# Columns of a run and the causes that each sums.
COLUMNS = MappingProxyType(
    {
        "attention": ("attention",),
        "projections": ("projections",),
        "dense": ("dense_ffn", "router", "elementwise"),
        "experts": ("shared", "experts"),
        "transfers": ("dispatch", "combine"),
        "all_reduce": ("all_reduce",),
        "head": ("lm_head", "sampling"),
        "host": ("host",),
    }
)


def laws_of(scenario: Scenario, links: Links | None) -> IterationLaws | None:
    """Laws of the rank's other work; None: calibration or model lack them. ``links``: of an unmeasured machine."""
    system, model = scenario.system, scenario.model
    if model.missing_geometry or model.attention is None:
        return None
    name, sizes = system.compute.calibration, (scenario.parallel, scenario.precision)
    of_gpus, digest = system.launch == "gpu", calibration_digest(name)
    at = machine_rates(system, calibration_named(name)) if of_gpus else None
    rates = None if of_gpus and system.slowest == (1, 1) else rates_of(system)
    return _laws(model.model_dump_json(by_alias=True), name, digest, *sizes, at, rates, links)


def rates_of(system: SystemSpec) -> gemm.Rates:
    """Those of its slowest die: ranks have equal shares of all this, and wait for each other."""
    array, hbm = system.slowest
    compute, latency_ns = system.compute, system.compute.kernel_latency_ns
    own = None if latency_ns is None else gemm.OwnKernels(latency_ns, compute.efficiency, system.hbm.efficiency)
    of_reads = system.hbm.bandwidth_bytes_per_s if own else system.kernel_rates.hbm_bytes_per_s
    return gemm.Rates(compute.peak_flop_per_s * array, of_reads * hbm, compute.dtype, own)


@lru_cache(maxsize=16)
def _laws(
    model: str, name: str | None, digest: str, parallel: Parallelism, precision: Precision,
    at: scaling.MachineRates | None, rates: gemm.Rates | None, links: Links | None,
) -> IterationLaws | None:  # fmt: skip
    """As `laws_of`; ``model``: as JSON, ``digest``: of the calibration's file; ``at``: rates of a machine of GPUs,
    ``rates``: of a die that is not one of these. GPUs take the fastest kernel of all engines, as serving without one
    does. Experts are timed elsewhere, and may be replicated: here they are as many as divide.
    """
    given = ModelSpec.model_validate_json(model)
    of = given.model_copy(update={"experts": -(-given.experts // parallel.ep) * parallel.ep})
    own = calibration_named(name) if at is None else calibration_at(name, digest, at)
    own = own.model_copy(update={"moe": ()})  # these kernels are not asked, and stand-ins for them would take long
    more = {"experts": None, "rates": rates, "moves": ELSEWHERE, "links": links}
    try:
        each = [engine_laws(name, of, own, parallel, precision, **more) for name in (engines() if at else (None,))]
    except tables.LawMissing:
        return None
    return fastest([laws for laws, _ in each]) if at else each[0][0]


def batch_of(scenario: Scenario, tokens: float, prompts: bool) -> Batches:
    """One iteration of a rank, or group of tensor-parallel ranks, with ``tokens``: decodes of `context_tokens` each, or
    the prompts of its requests, all equal. A rank has at least one request, as all wait for one that has.
    """
    one, none = np.ones(1), np.zeros(1)
    if not prompts:
        decodes = one * (max(tokens, 1.0) if tokens else 0.0)
        return Batches(decodes, one * max(scenario.workload.context_tokens or 1, 1), none, one, one, decodes)
    requests = one * min(max(scenario.batch / scenario.parallel.dp, 1.0), max(tokens, 1.0))
    each = np.maximum(tokens / requests, 1.0)
    return Batches(none, one, requests, each, each, requests)


def rest_of(scenario: Scenario, sms_share: float, links: Links | None) -> Callable[[float, bool], Rest]:
    """What a rank computes in a layer beside experts for half of its tokens, by tokens of the rank and whether they are
    prompts; ``sms_share``: of the SMs that transfers take as long as they run; ``links``: as in `laws_of`.
    """
    laws = laws_of(scenario, links)
    if laws is None:
        return lambda tokens, prompts: NOTHING
    before = before_attention(laws.model, laws.parallel)

    @lru_cache(maxsize=4096)
    def of_half(tokens: float, prompts: bool) -> Rest:
        batch = batch_of(scenario, tokens * scenario.parallel.tp, prompts)
        found = rest_ns(scenario, laws, batch, sms_share)
        first = before * found["projections"]
        whole = sums.sum(ns for cause, ns in found.items() if cause not in ONCE)
        of_one = 1 / (2 * laws.model.layers)
        return Rest(first * of_one, (whole - first) * of_one)

    return of_half


def rest_ns(scenario: Scenario, laws: IterationLaws, batch: Batches, sms_share: float) -> dict[str, float]:
    """Cause → ns of an iteration without its experts; ``batch``: of a rank or group; ``sms_share``: as in `rest_of`."""
    apart = scenario.assumptions.weights == "all" and scenario.model.shared_experts > 0
    found = _of_one(laws, batch, apart)
    whole = scenario.assumptions.overlap != TWO_BATCH or scenario.assumptions.execution == "weight_streaming"
    if whole or batch.tokens[0] < LEAST_HALVED:
        return found
    half = _of_one(laws, half_of(batch), apart)
    multiply = _multiply_ns(scenario, laws, half_of(batch), apart)
    return {
        cause: ns if cause in ONCE else of_halves.py_func(ns, half[cause], multiply.get(cause, 0.0), sms_share)
        for cause, ns in found.items()
    }


def iteration_ns(
    scenario: Scenario, laws: IterationLaws, batch: Batches, layers: ExpertLayer, sms_share: float
) -> dict[str, float]:
    """Cause → ns of one iteration on its critical path. ``layers``: all MoE layers, as the engine has composed them;
    ``batch``, ``sms_share``: as in `rest_ns`. Kernels of GPUs take the factors that serving without an engine has.
    """
    found = rest_ns(scenario, laws, batch, sms_share) | layers._asdict()
    if scenario.system.launch != "gpu":
        return found
    dtypes = scenario.precision.experts, scenario.precision.products
    host = host_of(NONE, scenario.model, scenario.system.compute.calibration or DEFAULT_CALIBRATION, *dtypes)
    of_all = host.prompts if batch.chunks.any() else host.decodes
    found[EXPERTS] *= host.experts
    return {cause: ns if cause in ON_LINKS else of_all * ns for cause, ns in found.items()}


def _multiply_ns(scenario: Scenario, laws: IterationLaws, batch: Batches, shared_apart: bool) -> dict[str, float]:
    """Cause → ns at peak of the products of an iteration."""
    found = dict.fromkeys((PROJECTIONS, DENSE_FFN, SHARED_EXPERTS), 0.0)
    for (rows, cause), flop in row_flop(laws.model, laws.parallel).items():
        if cause in found:
            peak = scenario.system.compute.peak_flop_per_s * scenario.system.slowest[0]
            found[cause] += flop * float(batch.rows(rows)[0]) / peak * units.NS_PER_S
    return _with_shared(found, shared_apart)


def half_of(batch: Batches) -> Batches:
    return batch._replace(decodes=batch.decodes / 2, chunks=batch.chunks / 2, sampled=batch.sampled / 2)


def _of_one(laws: IterationLaws, batch: Batches, shared_apart: bool) -> dict[str, float]:
    ns = iteration_times(laws, batch).ns
    return _with_shared({cause: float(each[0]) for cause, each in ns.items() if cause not in OF_ROUTED}, shared_apart)


def _with_shared(found: dict[str, float], shared_apart: bool) -> dict[str, float]:
    """Shared experts as dense layers, unless the engine runs them."""
    shared = found.pop(SHARED_EXPERTS)
    return found if shared_apart else found | {DENSE_FFN: found[DENSE_FFN] + shared}
