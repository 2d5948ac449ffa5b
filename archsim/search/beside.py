"""A machine beside a deployment: it serves the same model and requests, in the sizes that serve most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from archsim.base import errors
from archsim.search.machines import has_traffic_of
from archsim.search.options import SYSTEM, Side
from archsim.serving.expert_groups import WITH_KERNELS
from archsim.serving.measures import Measures
from archsim.serving.serving import serve
from archsim.specs import serving_files
from archsim.specs.file_kinds import SERVE
from archsim.uncertainty.estimate import NO_DIFFERENCE

# Keys of a file that are of its own machine; the others are of what is served, and how.
_OF_MACHINE = (
    "host", "engine_version", "instances", "parallel", "sweep", "search", "loads", "assumptions", "faults", "precision",
)  # fmt: skip
MOST_TP = 8  # ranks that share the heads of a request


def deployment_on(
    machine: Side, deployment: Side, overrides: Sequence[str] = (), say: Callable[[str], None] = lambda text: None
) -> Side:
    """The deployment on another machine: with its model, requests, limits and scheduler. Sizes are those that keep most
    requests within the limits, or else serve most tokens, of equals those with the shortest time per token; its
    precision is that of the file, or of the machine where that cannot run there. Raises SpecError for pools, and where
    no sizes run.
    """
    system = machine.system
    assert machine.kind == SYSTEM and system is not None
    if machine.machines > 1:
        raise errors.SpecError(
            f"{machine.label} beside {deployment.name}: one machine serves the requests of a deployment. "
            "Write several as one system, whose fabric has a level for them (such as h200_cluster)"
        )
    own = serving_files.load_serving(deployment.source, overrides)
    if own.spec.disaggregated != "none":
        raise errors.SpecError(
            f"{deployment.name} has pools, which are not divided over {machine.name}: write a file of archsim serve "
            f"for {machine.name}"
        )
    given = {key: value for key, value in own.given.items() if key not in _OF_MACHINE}
    given["system"] = system.model_dump(mode="json", by_alias=True)
    if system.launch != WITH_KERNELS:
        given["engine"] = "none"
        if not own.has_traffic:  # experts of a wafer are run by the engine, which needs to know where tokens go
            like = {"like": "model"} if has_traffic_of(own.model.name) else {"synthetic": {"popularity_skew": 0}}
            given["routing"] = like
    precisions = [{}, *([{"precision": own.given["precision"]}] if "precision" in own.given else [])][::-1]
    served: list[tuple[Measures, Side]] = []
    refused = ""
    for tp, dp, engines in _sizes(system.dies, machine.machines):
        name = f"{machine.label} ({f'{engines} engines, ' if engines > 1 else ''}attention TP {tp} DP {dp})"
        sizes = {"instances": engines, "parallel": {"attention": {"tp": tp, "dp": dp}}}
        for precision in precisions:  # that of the file, or else that of the machine
            file = given | sizes | precision
            say(f"{name}: serving the requests")
            try:
                found = serve(serving_files.load_serving(file)).measures
            except errors.ArchsimError as error:
                refused = str(error)
                continue
            served.append((found, Side(name, machine.machines, SERVE, file)))
            break
    if not served:
        raise errors.SpecError(f"{machine.name} cannot serve what {deployment.name} serves: {refused}")
    for rate in ("goodput_per_s", "output_tokens_per_s"):
        least = (1 - NO_DIFFERENCE) * max(getattr(found, rate) for found, _ in served)
        served = [each for each in served if getattr(each[0], rate) >= least]
    return min(served, key=lambda each: (each[0].tpot.mean, each[0].ttft.mean))[1]


def _sizes(dies: int, machines: int) -> Iterator[tuple[int, int, int]]:
    """(TP and DP of attention, engines) that take all devices: a machine as one engine, and engines of its parts."""
    for parts in (1, 2, 4):
        if dies % parts:
            continue
        for tp in (1, 2, 4, MOST_TP):
            if dies // parts % tp == 0:
                yield tp, dies // parts // tp, machines * parts
