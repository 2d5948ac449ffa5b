"""What of an iteration runs beside what: overlap, stages of a pipeline, groups that share a prompt."""

import numpy as np

from archsim.base.errors import SpecError
from archsim.iteration.collectives import gathered_ns, with_copies
from archsim.iteration.layers import ACTIVATION_BYTES
from archsim.laws.laws import Laws
from archsim.laws.transfers import domain_of
from archsim.serving.engine import ServingEngine
from archsim.serving.kv_room import request_kv
from archsim.serving.tabulated import Overlap


def pipeline_of(engine: ServingEngine, sizes: int) -> Overlap:
    """The stages of an engine, one after the other: a micro-batch for each is on its way, and hidden vectors go from
    one to the next by a copy, between nodes where the stages need more than one; copies that were not measured are
    those of the nearest GPU. On a wafer it is over its own links. Raises LawMissing.
    """
    parallel, tokens = engine.parallel, np.arange(sizes)
    if engine.links is not None:
        hop_ns = engine.links.next_stage_ns(
            tokens * engine.model.hidden * ACTIVATION_BYTES, parallel.ranks, parallel.stages
        )
        return Overlap(stages=parallel.stages, hop_ns=np.where(tokens > 0, hop_ns, 0.0))
    placement = "inter_node" if parallel.ranks * parallel.stages > domain_of(engine.calibration) else "intra_node"
    n_bytes = np.maximum(tokens * engine.model.hidden * ACTIVATION_BYTES, 1)
    laws = with_copies(Laws(engine.calibration), placement)
    copied = laws.copy(n_bytes, placement=placement).ns
    return Overlap(stages=parallel.stages, hop_ns=np.where(tokens > 0, copied, 0.0), hops_of=laws.calibration.gpu)


def sharing_of(engine: ServingEngine, sizes: int) -> Overlap:
    """The groups of an engine that share the tokens of every prompt: each has the keys and values of all, gathered in
    every layer before attention (SGLang, in-seq-split; Context Parallelism, arXiv 2411.01783, calls it all-gather).
    Raises SpecError for caches that are no list of tokens, and LawMissing.
    """
    kv, parallel = request_kv(engine), engine.parallel
    if kv.windows or kv.fixed_bytes or not kv.token_bytes:
        raise SpecError(
            f"parallel.attention.prompts: shared: {engine.model.name} has layers that keep a window or a state. Give "
            "own"
        )
    # As many bytes in BF16 as a token keeps, in as many messages as there are layers.
    of_token = kv.token_bytes * (ACTIVATION_BYTES if engine.precision.kv == "fp8" else 1)
    size = np.maximum(np.arange(sizes) * of_token / engine.model.layers, 1)
    laws = Laws(engine.calibration)
    each = engine.model.layers * gathered_ns(laws, "all_gather", size, parallel.dp)
    return Overlap(sharing=parallel.dp, shared_ns=np.where(np.arange(sizes) > 0, each, 0.0))
