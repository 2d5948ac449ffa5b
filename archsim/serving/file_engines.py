"""The engines that a file of ``archsim serve`` describes: machine, sizes, memory, host and links of each."""

from __future__ import annotations

import numpy as np

from archsim.base.errors import SpecError
from archsim.engine.machine import links_of
from archsim.iteration.constants import NONE, Host, host_of
from archsim.iteration.layers import has_experts
from archsim.iteration.machine import calibration_on
from archsim.iteration.overlap import MICRO_BATCHES
from archsim.iteration.overlap import NONE as NO_OVERLAP
from archsim.iteration.run_iteration import rates_of
from archsim.laws.calibration_files import DEFAULT_CALIBRATION, calibration_named
from archsim.machine.system import SystemSpec
from archsim.runs.clocks import has_limits
from archsim.serving.deployment import LOW_LATENCY
from archsim.serving.engine import Offload, ServingEngine, StaticBatch, missing_of
from archsim.serving.expert_groups import WITH_KERNELS, overlap_of, part_of, pool_of, refuse_on_wafer, slots_of_rank
from archsim.serving.kv_room import handed_over, store_of
from archsim.serving.records import KvTransfer
from archsim.serving.simulate import KvStore, Scheduler
from archsim.serving.speculation import NO_DRAFTS, Speculation
from archsim.serving.speculation import of as drafts_of
from archsim.serving.tabulated import Overlap
from archsim.specs.deployment import ParallelSpec
from archsim.specs.recipes import unserved
from archsim.specs.serving import ExpertsOnSpec, TransferSpec
from archsim.specs.serving_files import EXPERTS_SIDE, Serving

FIRST = "ttft"  # factor of a world on the time to first tokens, beside those on fields of `Host`


def speculation_of(serving: Serving) -> Speculation:
    """Drafts of a file; those of a multi-token-prediction head run one layer each."""
    given = serving.spec.speculation
    if given == "none":
        return NO_DRAFTS
    layers = 1 if given.method == "mtp" else 0
    return drafts_of(given.draft_tokens, given.acceptance, layers, given.seed, given.tree or ())


def kv_store_of(serving: Serving, scheduler: Scheduler, parallel: ParallelSpec | None = None) -> KvStore | None:
    """The KV store of the engines that take prompts, or of an engine with other sizes. None where the file has none."""
    given, side = serving.spec.kv_store, next(iter(serving.spec.sides.items()))
    if given == "none":
        return None
    on, sizes = serving.on(side[0]) if side[0] else serving, parallel or side[1].parallel
    rate = given.bandwidth_bytes_per_s or host_bytes_per_s(on.system)
    return store_of(engine_of(on, sizes), scheduler.block_tokens, given, side[1].instances, rate)


def host_bytes_per_s(system: SystemSpec) -> float:
    """Of a device's link to the memory of its host."""
    return system.decision.host.pcie_bandwidth_bytes_per_s


def machines_of(serving: Serving) -> tuple[tuple[str, int], ...]:
    """(name, devices) of a file's machines. SpecError for too many, and for pools with limited clocks."""
    used: dict[str, int] = {}
    has: dict[str, int] = {}
    for name, side in serving.spec.sides.items():
        system = serving.on(name).system
        used[system.name] = used.get(system.name, 0) + side.instances * side.parallel.devices
        has[system.name] = system.dies
        if serving.spec.disaggregated != "none" and has_limits(system):
            raise SpecError(
                f"{system.name}: power and cooling limit the clock of its dies, which is not modelled for pools, whose "
                "engines do unlike work. Give disaggregated: none, or leave power and cooling out of the system"
            )
    if serving.spec.experts_on is not None:
        system = serving.on(EXPERTS_SIDE).system
        used[system.name] = used.get(system.name, 0) + system.dies
        has[system.name] = has.get(system.name, 0) + system.dies  # further ones, even of the same kind
    for name, devices in used.items():
        if devices > has[name]:
            raise SpecError(
                f"{name} has {has[name]} devices, but the file asks for {devices} (`instances` times the ranks of "
                f"`parallel`). Use fewer of either, or name a larger system"
            )
    return tuple(used.items())


def decodes_alone(serving: Serving, parallel: ParallelSpec) -> Serving:
    """The file as engines see it that only decode. Between nodes they take DeepEP's low-latency kernels, as SGLang's
    and vLLM's do, unless the file names a dispatch.
    """
    given, traffic = serving.spec.assumptions, serving.has_traffic and has_experts(serving.model)
    if not traffic or not (given is None or (isinstance(given, dict) and not {"dispatch", "set"} & set(given))):
        return serving
    fabric = part_of(serving.system, parallel.ranks).fabric
    if parallel.attention.dp == 1 or fabric is None or len(fabric.levels) == 1:
        return serving
    spec = serving.spec.model_copy(update={"assumptions": {**(given or {}), "dispatch": LOW_LATENCY}})
    return serving._replace(spec=spec, assumptions=serving.assumptions.model_copy(update={"dispatch": LOW_LATENCY}))


def engine_of(serving: Serving, parallel: ParallelSpec, apart: ExpertsOnSpec | None = None) -> ServingEngine:
    """One engine on the machine of ``serving``; ``apart``: where its experts are, if not on its own devices. Raises
    SpecError for a wafer without routing from traffic, and for what does not go with experts apart.
    """
    spec, system, model = serving.spec, serving.system, serving.model
    if apart is not None:
        if not has_experts(model):
            raise SpecError(f"disaggregated.decode.experts_on: {model.name} has no experts. Leave it out")
        if serving.assumptions.overlap != NO_OVERLAP:
            raise SpecError(
                f"assumptions.overlap: {serving.assumptions.overlap}: with experts on separate devices, "
                "micro-batches overlap (experts_on.micro_batches). Give overlap: none"
            )
        model = model.model_copy(update={"shared_experts": 0})  # they are with the routed ones
    traffic = serving.has_traffic and has_experts(serving.model)
    rates, links = None, links_of(system, serving.assumptions)
    if system.compute.kernel_factor != 1 and not traffic:
        raise SpecError(
            f"compute.kernel_factor: {system.compute.kernel_factor:g} is of experts that the engine runs. Give "
            "routing: {like: model}, or leave it out"
        )
    if system.drawn is not None and (system.drawn.wafers > 1 or system.drawn.needs_area):
        raise SpecError(
            f"{system.name}: drawn: archsim serve runs one machine. Give what `archsim sweep` sampled as "
            "dies_as_built and links_as_built"
        )
    array, hbm = system.slowest
    if system.launch == WITH_KERNELS and system.has_dead_links:
        raise SpecError(
            f"{system.name}: links_as_built.dead: collectives were measured where all links work. List the GPU under "
            "dies_as_built.dead, or give the link a share of its bandwidth (links_as_built.degraded)"
        )
    if system.launch != WITH_KERNELS:
        refuse_on_wafer(serving)
        rates = rates_of(system)
    elif (array, hbm) != (1.0, 1.0):
        raise SpecError(
            f"{system.name}: dies_as_built: archsim serve has the measured times of equal GPUs. Omit speed and "
            "harvest, or take an experiment (archsim sweep)"
        )
    if why := unserved(spec.engine, spec.precision.dtypes(system.compute.dtype, model), system):
        raise SpecError(why)
    utilisation = spec.utilisation if spec.utilisation is not None else 1 - system.hbm.reserved_fraction
    overlap = overlap_of(serving, parallel.ranks, parallel.attention.dp)
    if parallel.pp > 1:
        _refuse_beside_stages(serving, parallel.pp, apart)
    if apart is not None:
        overlap = Overlap(MICRO_BATCHES, parts=apart.micro_batches)
    slots = 0 if apart is not None else slots_of_rank(serving, parallel) if traffic else _slots_kept(serving, parallel)
    shares = parallel.attention.prompts == "shared" and parallel.attention.dp > 1
    if shares and (system.launch != WITH_KERNELS or serving.assumptions.overlap != NO_OVERLAP):
        raise SpecError(
            "parallel.attention.prompts: shared: modelled on GPUs and without overlap of batches (assumptions.overlap: "
            "none). Give own"
        )
    return ServingEngine(
        model=model,
        calibration=calibration_named(system.compute.calibration) if rates is not None else calibration_on(system),
        hbm_bytes=system.hbm.capacity_bytes,
        parallel=parallel.sizes(has_experts(serving.model)),
        precision=serving.precision,
        routing=None if traffic else str(spec.routing),
        library=None if spec.engine == NONE or rates is not None else spec.engine,
        utilisation=utilisation,
        rates=rates,
        expert_slots=slots,
        overlap=overlap,
        mtp_layers=speculation_of(serving).layers,
        drafts=speculation_of(serving).drafts,
        static=static_batch(serving, parallel),
        offload=_offload_of(serving, parallel),
        shares_prompts=shares,
        utilised=spec.utilisation is not None,
        links=links,
    )


def _slots_kept(serving: Serving, parallel: ParallelSpec) -> int | None:
    """Expert slots of a rank, all layers together, where they are not its share: experts that stay in HBM and room for
    those of two layers that are loaded; or spare ones for ranks that fail. None: its share.
    """
    spec, sizes, model = serving.spec, parallel.sizes(), serving.model
    if not has_experts(model):
        return None
    layers, mine = len(model.moe_layer_ids), -(-model.experts // (sizes.ep * sizes.expert_tp))
    if spec.expert_offload != "none":
        resident = _resident(serving, parallel)
        of_rank = -(-model.experts // sizes.ep)
        held = resident * layers + min(2, layers) * (of_rank - resident)
        return -(-held // sizes.expert_tp)
    failing = max((sum(each.elastic and each.engine == engine for each in spec.faults)
                   for engine in {each.engine for each in spec.faults}), default=0)  # fmt: skip
    if not failing:
        return None
    left = sizes.dp - failing
    if left < 1:
        raise SpecError(f"faults: {failing} of {sizes.dp} ranks of an engine fail, and none is left. Give fewer faults")
    return layers * -(-mine * sizes.dp // left)


def _resident(serving: Serving, parallel: ParallelSpec) -> int:
    given = serving.spec.expert_offload
    assert given != "none"
    return int(given.resident * (serving.model.experts // parallel.sizes().ep))


def _offload_of(serving: Serving, parallel: ParallelSpec) -> Offload | None:
    """Experts in memory of the host. Raises SpecError for a dense model and a wafer, TraceError."""
    given, model = serving.spec.expert_offload, serving.model
    if given == "none":
        return None
    if not has_experts(model) or serving.system.launch != WITH_KERNELS:
        what = "has no experts" if not has_experts(model) else "is on a wafer, which has no memory of a host"
        raise SpecError(f"expert_offload: {model.name} {what}. Leave it out")
    ep, resident = parallel.sizes().ep, _resident(serving, parallel)
    pool = None
    if given.popularity is not None:
        pool = pool_of(serving._replace(spec=serving.spec.model_copy(update={"routing": given.popularity})))
    missing = missing_of(model, ep, resident, pool)
    one = float(missing(np.array([1]))[0])
    text = (
        f"A rank keeps {resident} of its {model.experts // ep} experts of a layer in HBM (expert_offload). Of the "
        f"{model.top_k} experts of a single token, the rank that loads most lacks "
        f"{one:.2f} there, on average."
    )
    rate = given.bandwidth_bytes_per_s or host_bytes_per_s(serving.system)
    return Offload(model.experts // ep - resident, rate, given.prefetch, missing, text)


def _refuse_beside_stages(serving: Serving, stages: int, apart: ExpertsOnSpec | None) -> None:
    """Raise SpecError for what nobody runs, or what is not modelled, with a pipeline."""
    spec = serving.spec
    for odd, what in (
        (apart is not None, "experts on separate devices (experts_on)"),
        (serving.assumptions.overlap != NO_OVERLAP, f"assumptions.overlap: {serving.assumptions.overlap}"),
        (spec.speculation != "none" and spec.engine != NONE, f"speculation under {spec.engine}"),
        (spec.static_batch is not None, "a static batch"),
    ):
        if odd:
            raise SpecError(f"parallel.pp: {stages} stages: a pipeline with {what} is not modelled. Give pp: 1")


def static_batch(serving: Serving, parallel: ParallelSpec) -> StaticBatch | None:
    """The batch of a file with ``static_batch``. Raises SpecError where its size is not stated."""
    given, requests = serving.spec.static_batch, serving.spec.requests
    if given is None:
        return None
    prompt, output = (getattr(each, "fixed", None) for each in (requests.input, requests.output))
    if requests.concurrency is None or prompt is None or output is None:
        raise SpecError(
            "static_batch: a batch has a size and prompts of one length. Give requests: {concurrency: 32, input: "
            "{fixed: 1024}, output: {fixed: 1}, count: 32}"
        )
    fetches = serving.policy.replication.name != NONE
    home = -(-serving.model.experts // parallel.ranks)
    return StaticBatch(
        requests.concurrency, prompt + output, requests.concurrency * prompt, given.reserve_bytes, given.imbalance,
        given.stages.get(serving.policy.name, 1), home if fetches else 0,
    )  # fmt: skip


def host_for(serving: Serving, pool: str = "", dp: int = 1) -> Host:
    """The host constants of a file: those of its engine, where it gives none; of a world, as far as they are off.
    ``pool``: PREFILL or DECODE of one that does one of both, with ``dp`` ranks of data-parallel attention. Engines to
    which requests bring their KV have the constants of those that do both: no router stands between them and an engine
    that prefills.
    """
    spec, given = serving.spec, serving.spec.host
    gpu = serving.system.compute.calibration or DEFAULT_CALIBRATION
    if spec.disaggregated != "none" and spec.disaggregated.prefill == "none":
        pool = ""
    dtypes = serving.precision.experts, serving.precision.products
    found = host_of(spec.engine, serving.model, gpu, *dtypes, pool=pool, dp=dp)
    if serving.system.launch != WITH_KERNELS:  # factors are of kernels of GPUs
        found = found._replace(experts=1.0, decodes=1.0, prompts=1.0)
    if given is not None:
        own = {name: each for name in Host._fields if (each := getattr(given, name, None)) is not None}
        found = found._replace(**own)
    off = {name: factor for name, factor in serving.off.get(serving.side, {}).items() if name != FIRST}
    return found._replace(**{name: getattr(found, name) * factor for name, factor in off.items()})


def transfer_of(
    serving: Serving, engine: ServingEngine, given: TransferSpec, host: Host, devices: int = 0
) -> KvTransfer:
    """Over the links that a file gives, or those of its system: of its innermost level while all engines are on one
    node, else those between nodes, if every device has its own. ``devices``: of all engines; 0: those of the file.
    """
    system = serving.system
    used = devices or sum(each.instances * each.parallel.devices for each in serving.spec.sides.values())
    rate = given.bandwidth_bytes_per_s or system.d2d.bandwidth_bytes_per_s * system.d2d.efficiency
    levels = system.fabric.levels if system.fabric is not None else ()
    if given.bandwidth_bytes_per_s is None and len(levels) > 1 and used > (levels[0].switch or used):
        outer = levels[1]
        if outer.per == "gpu" and outer.bandwidth_bytes_per_s is not None:
            rate = outer.bandwidth_bytes_per_s
    return handed_over(engine, rate, given.latency_ns, host)
