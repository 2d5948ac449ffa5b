"""A file of ``archsim serve`` as a deployment and requests, and what comes of serving them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.errors import CapacityError, SpecError, TraceError
from archsim.iteration.constants import DECODE, NONE, PREFILL, Host
from archsim.iteration.layers import has_experts
from archsim.iteration.machine import is_measured, scaled_report
from archsim.iteration.overlap import MICRO_BATCHES
from archsim.machine.plausible import plausibility_notes
from archsim.runs.calibration_notes import datasheet_note
from archsim.runs.clocks import has_limits
from archsim.serving import file_engines
from archsim.serving import requests as drawn
from archsim.serving.clocks import Clocked, at_clock, run_within
from archsim.serving.deployment import Built, build
from archsim.serving.engine import ServingEngine
from archsim.serving.expert_groups import WITH_KERNELS, groups_apart, groups_of
from archsim.serving.file_requests import REQUESTS_A_CLIENT, notes_of_requests, requests_of
from archsim.serving.groups import Fixed
from archsim.serving.kv_room import doubt_of, kv_room
from archsim.serving.measures import measure
from archsim.serving.outcome import Deployment, Outcome, slo_of
from archsim.serving.power import BOARD_W, energy, upkeep
from archsim.serving.requests import Requests, format_of
from archsim.serving.simulate import SILENT, Fault, Progress, Scheduler, Served, servable, simulate
from archsim.specs.serving import SideSpec
from archsim.specs.serving_files import Serving, refuse_unserved
from archsim.traffic.formats.load_files import holds_loads
from microarch.silicon.energy import Activity

ENOUGH = 2000  # requests by which a queue that grows shows
MOST_LONGER = 20_000  # requests of a closed loop that are served to see its steady state
LOGGED = 100_000  # iterations whose work gives the power of a run


def serve(serving: Serving, logged: int = 0) -> Outcome:
    """Simulate a deployment under its requests. ``logged``: iterations to keep a log of. Raises ArchsimError for what
    does not fit, was not measured, or can never be served.
    """
    deployment = deploy(serving)
    return serve_requests(serving, deployment, requests_on(serving, deployment), logged)


def serve_requests(
    serving: Serving, deployment: Deployment, requests: Requests, logged: int = 0, progress: Progress = SILENT
) -> Outcome:
    """As ``serve``, for a deployment and requests that are built. ``logged``: iterations to log."""
    engine = identical_engine(serving)
    served, deployment, clocked = serve_at_clock(serving, deployment, engine, requests, progress, max(logged, LOGGED))
    power = _power(serving, deployment, engine, served, clocked)
    if not logged:
        served = served._replace(log=served.log[:0])
    longer = _longer(serving, deployment, requests, served)
    if serving.off:
        late = prod(factors.get(file_engines.FIRST, 1.0) for factors in serving.off.values())
        served, longer = _late(served, late), None if longer is None else _late(longer, late)
    rejected = sum(each.number for each in requests.rejected)
    measures = measure(served, deployment.devices, slo_of(serving), longer, rejected)._replace(**power)
    return Outcome(serving, deployment, requests, served, measures, longer)


def serve_at_clock(
    serving: Serving,
    deployment: Deployment,
    engine: ServingEngine | None,
    requests: Requests,
    progress: Progress = SILENT,
    logged: int = LOGGED,
    known: dict[float, Deployment] | None = None,
) -> tuple[Served, Deployment, Clocked | None]:
    """What happens at the highest clock within the limits of the machine, and the deployment at that clock; at the full
    one, and None, where it has no limits. ``engine``: None where engines are not identical; ``known``: clock →
    deployment, to build once.
    """
    system = serving.system
    if not has_limits(system):
        return simulate_requests(serving, deployment, requests, logged, progress), deployment, None
    assert engine is not None, "machines_of refuses pools within limits"
    known = {} if known is None else known
    known[1.0] = deployment

    def run(clock: float) -> tuple[Served, Deployment]:
        if clock not in known:
            known[clock] = deploy(serving._replace(system=at_clock(system, clock)))
        return simulate_requests(serving, known[clock], requests, logged, progress), known[clock]

    def joule_of(ran: tuple[Served, Deployment]) -> tuple[dict[str, float], Activity]:
        joule, done = energy(ran[0], engine, system, deployment.devices)
        return {name: each / deployment.devices for name, each in joule.items()}, done

    (served, own), clocked = run_within(system, deployment.devices + deployment.beside, run, joule_of)
    return served, replace(own, notes=(*deployment.notes, clocked.told(system))), clocked


def at_its_clock(
    serving: Serving, deployment: Deployment, engine: ServingEngine | None, known: dict[float, Deployment] | None = None
) -> Callable[[Requests], Served | None]:
    """What happens to requests, as `serve_at_clock`; None where they exceed a limit at every clock."""
    known = {} if known is None else known

    def serve(requests: Requests) -> Served | None:
        try:
            logged = LOGGED * has_limits(serving.system)
            return serve_at_clock(serving, deployment, engine, requests, logged=logged, known=known)[0]
        except CapacityError:
            return None

    return serve


def identical_engine(serving: Serving) -> ServingEngine | None:
    """The engine of a deployment without pools."""
    return file_engines.engine_of(serving, serving.spec.parallel) if serving.spec.disaggregated == "none" else None


def _power(
    serving: Serving, deployment: Deployment, engine: ServingEngine | None, served: Served, clocked: Clocked | None
) -> dict[str, Any]:
    """Fields of `Measures` on power; {} where engines are not identical."""
    system = serving.system
    if engine is None or not len(served.log):
        return {}
    limit_w = system.power.die_limit_w if system.power is not None else None
    if limit_w is None:
        limit_w = BOARD_W.get(system.compute.calibration or "", np.inf) if is_measured(system) else np.inf
    found = upkeep(served, engine, system, deployment.devices, limit_w, clocked.w_per_die if clocked else None)
    ends = ("", "_low", "_high")
    return {
        f"{name}{end}": value
        for name, values in (("device_w", found.w_per_gpu), ("output_token_j", found.j_per_token))
        for end, value in zip(ends, values, strict=True)
    }


def _late(served: Served, factor: float) -> Served:
    """With first tokens, and the wait before, ``factor`` times as late; later tokens as long after the first."""
    requests = served.requests.copy()
    more = (factor - 1) * (requests["first_ns"] - requests["arrival_ns"])
    requests["scheduled_ns"] = requests["arrival_ns"] + factor * (requests["scheduled_ns"] - requests["arrival_ns"])
    for name in ("first_ns", "last_ns"):
        requests[name] = requests[name] + more
    return served._replace(requests=requests)


def simulate_requests(
    serving: Serving, deployment: Deployment, requests: Requests, logged: int = 0, progress: Progress = SILENT
) -> Served:
    """What happens to requests on a deployment, without measures."""
    decode = deployment.decode.pool if deployment.decode else None
    return simulate(
        requests, deployment.scheduler, deployment.prefill.pool, decode=decode, transfer=deployment.transfer,
        **deployment.host.of_requests, speculation=file_engines.speculation_of(serving), layers=serving.model.layers,
        whose=str(serving.trace or "requests"), logged=logged, progress=progress, store=deployment.store,
        faults=deployment.faults,
    )  # fmt: skip


def _longer(serving: Serving, deployment: Deployment, requests: Requests, served: Served) -> Served | None:
    """More requests of the file, at the same rate, where it serves few: ENOUGH of an open loop, since a queue takes
    time to grow; as many as a closed loop serves by default. Experts stay as they were at the end. None where the file
    serves enough, or has no more.
    """
    if deployment.faults:  # which are of this run
        return None
    count, clients = ENOUGH, requests.concurrency
    if clients:
        turns = len(requests.input) / (len(requests.input) - (requests.follower >= 0).sum())
        count = int(np.ceil(REQUESTS_A_CLIENT * clients * turns))
        if not clients <= len(requests.input) < count or count > MOST_LONGER:
            return None
    elif len(requests.input) >= ENOUGH or not requests.offered_per_s:
        return None
    given = serving.spec.requests.model_copy(update={"total": count})
    try:
        more = requests_on(serving._replace(spec=serving.spec.model_copy(update={"requests": given})), deployment)
    except TraceError:
        return None
    own = len(requests.input)
    if len(more.input) <= own or not np.array_equal(more.input[:own], requests.input):  # requests of a measured run
        return None
    if not clients:
        more = drawn.scale_rate(more, requests.offered_per_s / more.offered_per_s)
    pools = [built.pool for built in (deployment.prefill, deployment.decode) if built]
    tables = served.experts
    if tables is not None and tables.shape[2]:
        pools = [pool._replace(experts=lambda i, say: Fixed(tables[i])) for pool in pools]
    return simulate(
        more, deployment.scheduler, pools[0], decode=pools[1] if len(pools) > 1 else None,
        transfer=deployment.transfer, **deployment.host.of_requests,
        speculation=file_engines.speculation_of(serving), layers=serving.model.layers, store=deployment.store,
    )  # fmt: skip


def requests_on(serving: Serving, deployment: Deployment) -> Requests:
    """The requests of a file that a deployment serves: without those that are too long for it. Raises TraceError."""
    decode = deployment.decode.pool if deployment.decode else None
    whose = str(serving.trace or "requests")
    return servable(requests_of(serving), deployment.scheduler, deployment.prefill.pool, decode, whose)


def deploy(serving: Serving) -> Deployment:
    """The engines of a file. Raises SpecError, LawMissing, CapacityError."""
    spec, scheduler = serving.spec, Scheduler.of(serving.spec.scheduler)
    host = file_engines.host_for(serving)
    decode, transfer = None, None
    machines = file_engines.machines_of(serving)
    if spec.disaggregated == "none":
        prefill = _built(serving, spec.pools[0], scheduler, host)
    else:
        sides, prefilled = spec.disaggregated, spec.disaggregated.prefill
        decodes = serving.on("decode")
        if sides.decode.experts_on is None:
            decodes = file_engines.decodes_alone(decodes, sides.decode.parallel)
        alone = file_engines.host_for(decodes, DECODE, sides.decode.parallel.attention.dp)
        decode = _built(decodes, sides.decode, scheduler, alone, DECODE)
        if isinstance(prefilled, SideSpec):
            prefills = serving.on("prefill")
            host = file_engines.host_for(prefills, PREFILL, prefilled.parallel.attention.dp)
            prefill = _built(prefills, prefilled, scheduler, host, PREFILL)
            transfer = file_engines.transfer_of(
                prefills, file_engines.engine_of(prefills, prefilled.parallel), sides.transfer, host
            )
        else:
            host = alone
            prefill, decode = decode._replace(pool=decode.pool._replace(prefilled=True)), None
    notes, devices = _notes(serving, prefill, decode), sum(devices for _, devices in machines)
    faults = tuple(
        Fault(each.at_ns, each.engine, each.rank, each.recovery_ns, each.elastic,
              np.inf if each.back_ns is None else each.back_ns)
        for each in spec.faults
    )  # fmt: skip
    return Deployment(
        scheduler=scheduler,
        host=host,
        prefill=prefill,
        decode=decode,
        transfer=transfer,
        devices=devices,
        notes=notes,
        machines=machines,
        store=file_engines.kv_store_of(serving, scheduler),
        faults=faults,
    )


def _built(serving: Serving, side: SideSpec, scheduler: Scheduler, host: Host, pool: str = "") -> Built:
    """``pool``: PREFILL or DECODE of engines that do one of both."""
    engine = file_engines.engine_of(serving, side.parallel, side.experts_on)
    engine = engine._replace(decodes_alone=pool == DECODE, prefills_alone=pool == PREFILL)
    built = build(engine, scheduler, host, side.instances)
    built = built._replace(pool=built.pool._replace(most=side.max_num_seqs or 0))
    return with_experts(serving, engine, built, scheduler, host)


def with_experts(serving: Serving, engine: ServingEngine, built: Built, scheduler: Scheduler, host: Host) -> Built:
    """The engine with groups of experts, where experts are chosen as in traffic. Raises SpecError, TraceError."""
    if engine.routing is not None or not has_experts(engine.model):
        return built
    groups_in = groups_of if engine.overlap.how != MICRO_BATCHES else groups_apart
    groups = groups_in(serving, engine, built, scheduler, host)
    return built._replace(pool=built.pool._replace(experts=groups.group), notes=(*built.notes, groups.note))


def room_notes(serving: Serving) -> list[str]:
    """What HBM of a device leaves for KV: a sentence for each pool."""
    sides, scheduler = serving.spec.sides, Scheduler.of(serving.spec.scheduler)
    rooms = {
        name: kv_room(file_engines.engine_of(serving.on(name), side.parallel, side.experts_on), scheduler)
        for name, side in sides.items()
    }
    return [f"{name}: {room.report}" if len(sides) > 1 else room.report for name, room in rooms.items()]


def _machine_notes(serving: Serving) -> list[str]:
    """Whose times the machines of a file take where they are not their own."""
    found = []
    for system in dict.fromkeys(serving.on(name).system for name in serving.spec.sides):
        found += [datasheet_note([system.name])] if system.datasheet_only else []
        scaled = scaled_report(system) if system.launch == WITH_KERNELS else ""
        found += [scaled] if scaled else []
    return found


def _notes(serving: Serving, prefill: Built, decode: Built | None) -> tuple[str, ...]:
    built = (prefill, decode) if decode else (prefill,)
    model = serving.model
    found = [*_machine_notes(serving), *plausibility_notes(serving.system)]
    found += serving.unread
    if serving.recipe:
        found.append(
            "The file leaves some settings out, which are taken as "
            f"{'engines start' if serving.spec.engine == NONE else serving.spec.engine + ' starts'} with: "
            f"{'; '.join(serving.recipe)}."
        )
    ranks = [pool.parallel.sizes().ep for pool in serving.spec.pools]
    if serving.policy.placement.name == "padded" and (uneven := [ep for ep in ranks if model.experts % ep]):
        slots = -(-model.experts // uneven[0])
        found.append(
            f"The {model.experts} experts do not divide over {uneven[0]} ranks. Every rank has {slots} slots in a "
            f"layer, of which {slots * uneven[0] - model.experts} in all are empty."
        )
    found += [f"The model {model.name} is approximate: {each}." for each in model.approximate]
    found += [note for each in built for note in each.notes]
    worst = max(each.errors[1] for each in built)
    found.append(
        "The times of iterations are interpolated between values of the fitted curves. The median error is "
        f"{prefill.errors[0]:.2%} and the largest {worst:.2%}."
    )
    beyond = max(each.extrapolated for each in built)
    if beyond > 0.01:
        found.append(f"{beyond:.0%} of a typical iteration's time is extrapolated beyond measured sizes.")
    if prefill.pool.prefilled:
        found.append(
            "Requests arrive with their KV cache and first token (disaggregated.prefill: none), so TTFT is not "
            "simulated."
        )
    if serving.spec.engine == NONE and serving.spec.host is None:
        also = "" if serving.system.launch == WITH_KERNELS else ", but for its way to the wafer (system.decision.host)"
        found.append(f"The host takes no time (engine: none){also}.")
    return tuple(dict.fromkeys(found))


# What ``archsim check`` asks of a file of ``archsim serve`` beside its keys: what serving would refuse, unserved.

_LOADS = (
    "the file holds loads of experts and no tokens, so there are no tokens to sample. Give a recorded trace. Loads "
    "are for `archsim place`"
)


def check_serving(serving: Serving) -> tuple[str, ...]:
    """Notes on the requests, and on engines that may not fit; nothing is served. Raises SpecError, CapacityError or
    LawMissing if no policy can be built, and SpecError or TraceError for files of routing or requests.
    """
    for key, file in (("routing.trace", serving.routed), ("requests.trace", serving.trace)):
        if file is not None and _are_loads(file, key):
            raise SpecError(f"{key}: {file}: {_LOADS}")
    requests = requests_of(serving)
    file_engines.machines_of(serving)
    scheduler, doubts = Scheduler.of(serving.spec.scheduler), dict[str, None]()
    for policy in serving.policies:
        if serving.has_traffic:
            refuse_unserved(policy)
        for name, side in serving.spec.sides.items():
            there = serving.on(name)._replace(policy=policy)
            host, engine = file_engines.host_for(there), file_engines.engine_of(there, side.parallel, side.experts_on)
            built = build(engine, scheduler, host, side.instances)
            doubts[doubt_of(engine, scheduler)] = None
            if side.experts_on is not None:
                groups_apart(there, engine, built, scheduler, host)
    return (*_machine_notes(serving), *notes_of_requests(serving, requests), *filter(None, doubts))


def _are_loads(file: Path, key: str) -> bool:
    if key == "routing.trace":
        return holds_loads(file)
    try:
        format_of(file)
    except TraceError:
        if holds_loads(file):
            return True
        raise
    return False
