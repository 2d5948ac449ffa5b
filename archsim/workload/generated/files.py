"""Generated routing in files: parameters fitted to a recording, and a trace drawn from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.loading.library import load_model
from archsim.specs.model import ModelSpec
from archsim.workload import open_trace
from archsim.workload.generated.fit import fit_trace
from archsim.workload.generated.generative import GenerativeTraffic, collect
from archsim.workload.generated.load_preset import is_load_matrix, write_load_preset
from archsim.workload.generated.traffic_model import save_model
from archsim.workload.generated.traffic_presets import load_traffic, model_of, traffic_file
from archsim.workload.trace import Trace


def fit_preset(source: str, model: ModelSpec, out: Path, seed: int) -> Path:
    """Write the traffic preset of a trace, or of a matrix of loads, to ``out``; its tables lie beside it as .npz."""
    if is_load_matrix(source):
        return write_load_preset(Path(source), model, out)
    trace = open_trace(source, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    origin = f"archsim trace fit of {trace.requests} requests, {len(trace.experts)} tokens, digest {trace.digest[:12]}"
    save_model(fit_trace(trace, out.stem, origin, seed=seed), out, of=model.name)
    return out


def generate_trace(like: str, model_name: str | None, requests: int, seed: int, out: str) -> Trace:
    """Draw requests from a traffic preset and write them to ``out``, .npz. Raises TraceError.

    like: name or file of the preset; model_name: None for the model that the preset is of.
    """
    if Path(out).resolve() == traffic_file(like).with_suffix(".npz").resolve():
        raise TraceError(f"{out}: holds the tables of {like}; expected another name")
    model = load_model(model_name or model_of(like))
    trace = collect(GenerativeTraffic(load_traffic(like, model), requests, seed))
    np.savez_compressed(
        out, experts=trace.experts, request_offsets=trace.request_offsets, iteration=trace.iteration,
        layer_ids=trace.layer_ids, num_experts=model.experts, top_k=model.top_k, num_layers_total=model.layers,
        model=model.name, request_subject=trace.request_subject, subject_names=np.array(trace.subject_names),
    )  # fmt: skip
    return trace
