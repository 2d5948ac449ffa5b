"""Generated routing in files: parameters fitted to a recording, and a trace drawn from them."""

from pathlib import Path

import numpy as np
import yaml

from archsim.base.errors import TraceError
from archsim.base.files import write_text
from archsim.specs.loading.library import load_model
from archsim.specs.model import ModelSpec
from archsim.workload import open_trace
from archsim.workload.generated.fit import fit_subjects
from archsim.workload.generated.generative import collect
from archsim.workload.generated.load_preset import is_load_matrix, write_load_preset
from archsim.workload.generated.subjects import SeveralSubjects, traffic_of
from archsim.workload.generated.traffic_model import TrafficModel, save_model
from archsim.workload.generated.traffic_presets import load_traffic, model_of, traffic_file
from archsim.workload.trace import Trace


def fit_preset(source: str, model: ModelSpec, out: Path, seed: int) -> Path:
    """Write the traffic preset of a trace, or of a matrix of loads, to ``out``; its tables lie beside it as .npz."""
    if is_load_matrix(source):
        return write_load_preset(Path(source), model, out)
    trace = open_trace(source, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    origin = f"archsim trace fit of {trace.requests} requests, {len(trace.experts)} tokens, digest {trace.digest[:12]}"
    save_traffic(fit_subjects(trace, out.stem, origin, seed), out, model.name)
    return out


def save_traffic(found: TrafficModel | SeveralSubjects, out: Path, of: str) -> None:
    """Write a preset; subjects lie in a folder beside it that has its name. of: name of the model."""
    if isinstance(found, TrafficModel):
        return save_model(found, out, of=of)
    folder = out.with_suffix("")
    folder.mkdir(exist_ok=True)
    subjects = {}
    for number, (name, model) in enumerate(found.models.items(), 1):
        save_model(model, folder / f"{number}.yaml", of=of)
        subjects[name] = {"like": f"{folder.name}/{number}.yaml", "share": found.shares[number - 1]}
    head = {"name": found.name, "model": of, "source": found.source, "subjects": subjects, "spread": found.spread}
    return write_text(out, yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True))


def generate_trace(like: str, model_name: str | None, requests: int, seed: int, out: str) -> Trace:
    """Draw requests from a traffic preset and write them to ``out``, .npz. Raises TraceError.

    like: name or file of the preset; model_name: None for the model that the preset is of.
    """
    if Path(out).resolve() == traffic_file(like).with_suffix(".npz").resolve():
        raise TraceError(f"{out}: holds the tables of {like}; expected another name")
    model = load_model(model_name or model_of(like))
    trace = collect(traffic_of(load_traffic(like, model), requests, seed))
    np.savez_compressed(
        out, experts=trace.experts, request_offsets=trace.request_offsets, iteration=trace.iteration,
        layer_ids=trace.layer_ids, num_experts=model.experts, top_k=model.top_k, num_layers_total=model.layers,
        model=model.name, request_subject=trace.request_subject, subject_names=np.array(trace.subject_names),
    )  # fmt: skip
    return trace
