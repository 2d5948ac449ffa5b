"""One layer of a made-up model on the event engine, alone: what is compared with laws and measurements."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from archsim.engine.engine import EventEngine
from archsim.engine.loop import Replay
from archsim.engine.run_demand import RunDemand
from archsim.specs.loading.library import load_assumptions
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.scenario import Scenario
from archsim.specs.workload import WorkloadSpec

_NAMED = {"name": "validation", "source": "validation of a calibration"}


def steps_ns(
    machine: Mapping[str, Any], sizes: Mapping[str, int], policy: str, tokens: np.ndarray, **assumptions: str
) -> np.ndarray:
    """float64[step] ns of steps with ``tokens: int64[step, expert]``.

    ``machine``: fields of a SystemSpec; ``sizes``: of a ModelSpec; ``assumptions``: changes of ``physical``.
    """
    steps, experts = tokens.shape
    system = SystemSpec(**_NAMED, **machine)
    model = ModelSpec(**_NAMED, layers=1, moe_layers={"first": 0, "last": 0}, experts=experts, **sizes)
    batch = int(tokens.max())
    workload = WorkloadSpec(trace={"synthetic": {}}, batch=batch)
    chosen = PolicySpec(name=policy, **PRESETS[policy])
    scenario = Scenario(system, model, load_assumptions("physical", **assumptions), chosen, workload, batch)
    demand = RunDemand(
        tokens=tokens.astype(np.int32)[:, None, :], first_seen=np.zeros((steps, 1, experts), np.int16),
        has_prefill=False, layer_ids=np.zeros(1, np.int32), top_k=model.top_k, batch=batch, digest="",
    )
    return Replay(EventEngine(scenario), demand).run().step_ns[:, 0]
