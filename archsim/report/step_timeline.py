"""The timeline of one layer in one iteration of a run, chosen and checked."""

from pathlib import Path

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.engine.loop import Replay
from archsim.report.timeline import write_timeline
from microarch.blocks.request import State

# Under ``contention: shared`` these are latencies; the bytes flow in DATA and ACT_MOVE (archsim.engine.event.shared).
LATENCIES = (State.REMOTE_LLC, State.REMOTE_HBM, State.LLC_FILL, State.ACT_READ, State.ACT_WRITE)


def write_step_timeline(replay: Replay, step: int, layer: int, path: Path, name: str) -> Path:
    """Write what every block and link does in iteration ``step`` (0: prefill) and ``layer`` (the model's number of it).

    replay: at its beginning, with a ``RunDemand``; name: of the run.

    Raises ArchsimError for an iteration or layer that the run does not have.
    """
    demand = replay.demands
    layers = demand.layer_ids.tolist()
    if not 0 <= step < demand.steps:
        raise ArchsimError(f"step {step}: the run has iterations 0 (the prefill) to {demand.steps - 1}")
    if layer not in layers:
        nearest = min(layers, key=lambda each: abs(each - layer))
        raise ArchsimError(
            f"layer {layer}: not an MoE layer of the routing; it has {_ranges(layers)}; nearest is {nearest}"
        )
    index = layers.index(layer)
    if not demand.tokens[step, index].any():
        raise ArchsimError(f"step {step}, layer {layer}: no request has routing there")
    log = replay.trace_step(step, index)
    if replay.engine.scenario.assumptions.contention == "shared":
        log["bytes"] = np.where(np.isin(log["kind"], LATENCIES), -1, log["bytes"])
    return write_timeline(log, path, f"{name}, iteration {step}, layer {layer}", replay.engine.fabric)


def _ranges(layers: list[int]) -> str:
    """Layers in few words: 3 to 60, or 1, 3, 5, … 47."""
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers)) if len(layers) < 6 else f"{', '.join(map(str, layers[:3]))}, … {layers[-1]}"
