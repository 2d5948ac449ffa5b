"""What ``archsim check`` asks of a file of ``archsim serve`` beside its keys: what serving would refuse, unserved."""

from pathlib import Path

from archsim.base.errors import SpecError, TraceError
from archsim.serving.deployment import build
from archsim.serving.groups import refuse_unserved
from archsim.serving.serving import engine_of, host_for, notes_of_requests, requests_of
from archsim.serving.simulate import Scheduler
from archsim.serving.traces import format_of
from archsim.specs.loading.serving import Serving
from archsim.workload.formats.loads.reading import holds_loads

_LOADS = "these are loads, of experts and not of tokens, so that serving has none to draw; `archsim place` takes them"


def check_serving(serving: Serving) -> tuple[str, ...]:
    """What a reader has to know of the requests.

    Raises SpecError, CapacityError or LawMissing for a deployment that cannot be built under any of its policies, and
    SpecError or TraceError for files that are no routing or no requests. Nothing is served.
    """
    for key, file in (("routing.trace", serving.routed), ("requests.trace", serving.trace)):
        if file is not None and _are_loads(file, key):
            raise SpecError(f"{key}: {file}: {_LOADS}")
    requests = requests_of(serving)
    pools = serving.spec.pools
    devices = sum(pool.instances * pool.parallel.ranks for pool in pools)
    if devices > serving.system.dies:
        raise SpecError(
            f"{serving.system.name} has {serving.system.dies} devices, but {devices} are asked for; use fewer ranks"
        )
    scheduler, host = Scheduler.of(serving.spec.scheduler), host_for(serving)
    for policy in serving.policies:
        if serving.has_traffic:
            refuse_unserved(policy)
        for pool in pools:
            build(engine_of(serving._replace(policy=policy), pool.parallel), scheduler, host, pool.instances)
    return notes_of_requests(serving, requests)


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
