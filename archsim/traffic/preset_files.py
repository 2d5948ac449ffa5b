"""Traffic presets as files, from expert loads alone or fitted to a recording, and traces drawn from them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from archsim.base.config_files import named_files
from archsim.base.errors import TraceError
from archsim.base.files import write_text
from archsim.base.yaml import read_yaml
from archsim.model.spec import ModelSpec
from archsim.specs.library import load_model
from archsim.traffic import traffic_heads, traffic_model
from archsim.traffic.published import PublishedFile, PublishedStatistic, measure_statistics, read_published, rows_of
from archsim.traffic.subjects import SeveralSubjects, collect, traffic_of
from archsim.traffic.trace import Trace
from archsim.traffic.trace_store import LOADS, is_store, open_store
from archsim.traffic.traffic_head import write_head
from archsim.traffic.traffic_presets import from_statistics, load_traffic, model_of, shape_of, traffic_file
from archsim.traffic.traffic_published import fit_published, sample_of

ASSUMED = {
    "groups": 1,
    "top_groups": 1,
    "kinds": 64,
    "kind_spread": 0.9,
    "weights": {"popularity": 0.05, "task": 0.05, "taste": 0.05, "keep": 0.05, "kind": 0.8},
    "taste_size": 8,
    "kind_weights": {"popularity": 0.05, "task": 0.05, "taste": 0.3, "keep": 0.05, "kind": 0.55},
    "kind_taste_size": 4,
    "prompt_tokens": [16, 64, 256],
    "decode_steps": [128, 128, 128],
}
"""Parameters that loads do not show: typical of fits to traces of DeepSeek-V2-Lite, gpt-oss-20b and Llama-4."""


def is_load_matrix(path: str | Path) -> bool:
    """Whether a path is a store of loads, or an .npz file with a member `counts`."""
    if is_store(Path(path)):
        return open_store(path).kind == LOADS
    from archsim.traffic.formats.npz import member_names

    return str(path).endswith(".npz") and Path(path).is_file() and "counts" in member_names(Path(path))


def write_load_preset(source: Path, model: ModelSpec, out: Path) -> Path:
    """Write a preset (.yaml, and .npz beside it) with loads; returns its path.

    source: a store of loads; or an .npz with counts [layer, expert] or [matrix, layer, expert], layer_ids, and phase
    [matrix] (0 prefill, 1 decode) if there are several; matrices of a phase count equally. A layer of the model without
    loads gets those of the nearest one, experts permuted, and the preset's source says so. Raises TraceError.
    """
    from archsim.traffic.traffic_fit import fit_loads

    counts, layer_ids, phase = _loads_of(source)
    missing = _check(source, model, counts, layer_ids)
    shares = counts / counts.sum(axis=2, keepdims=True)
    of_phase = [shares[phase == each] if (phase == each).any() else shares for each in (0, 1)]
    mean = _of_all_layers(np.stack([each.mean(axis=0) for each in of_phase]), layer_ids, model.moe_layer_ids)
    codes = np.round(mean / mean.max(axis=2, keepdims=True) * 65535).astype(np.uint16)
    tables, about = out.with_suffix(".npz"), f"loads: {source.name}; the rest assumed"
    if missing:
        about += f"; {len(missing)} layers without loads ({missing[0]}–{missing[-1]}): those of the nearest, experts permuted"  # noqa: E501
    head = {"name": out.stem, "model": model.name, "source": about, "loads": tables.name, **ASSUMED}

    def write(acceptance: np.ndarray) -> None:
        code = np.round(acceptance * 255).astype(np.uint8)
        np.savez_compressed(tables, layer_ids=np.array(model.moe_layer_ids, np.int32), loads=codes, acceptance=code)

    out.parent.mkdir(parents=True, exist_ok=True)
    write(np.ones(mean.shape))
    write(fit_loads(from_statistics(traffic_heads.TrafficStatistics(**head), out, shape_of(model))).acceptance)
    out.write_text(yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
    return out


def _loads_of(source: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float64[matrix, layer, expert], int[layer], and the phase of every matrix (-1: not known). Raises TraceError."""
    if is_store(source):
        store = open_store(source)
        columns, about = store.loads()
        counts, phase = _summed_over_time(columns["counts"].astype(np.float64), columns["phase"], about)
        return counts, np.array(store.shape.layer_ids), phase
    from archsim.traffic.formats.npz import load_members

    members = load_members(Path(source), {"counts", "layer_ids", "phase"})
    if missing := {"counts", "layer_ids"} - members.keys():
        raise TraceError(f"{source}: not a readable load matrix (without {', '.join(sorted(missing))})")
    counts = members["counts"].astype(np.float64)
    counts = counts[None] if counts.ndim == 2 else counts
    return counts, members["layer_ids"], members.get("phase", np.full(len(counts), -1))


def _summed_over_time(counts: np.ndarray, phase: np.ndarray, about: dict) -> tuple[np.ndarray, np.ndarray]:
    """One matrix for each series and phase; stores without series have one matrix in each."""
    keys = list(zip(about.get("series", about["names"]), phase.tolist(), strict=True))
    kept = list(dict.fromkeys(keys))
    summed = np.zeros((len(kept), *counts.shape[1:]))
    np.add.at(summed, [kept.index(key) for key in keys], counts)
    return summed, np.array([each for _, each in kept])


def _check(source: Path, model: ModelSpec, counts: np.ndarray, layer_ids: np.ndarray) -> list[int]:
    """The model's MoE layers without loads. Raises TraceError if the loads do not belong to the model."""
    if counts.ndim != 3 or counts.shape[1:] != (len(layer_ids), model.experts):
        raise TraceError(
            f"{source}: loads of shape {counts.shape}; expected {len(layer_ids)} layers, {model.experts} experts"
        )
    for layer, total in zip(layer_ids.tolist(), counts.sum(axis=2).min(axis=0), strict=True):
        if layer not in model.moe_layer_ids:
            raise TraceError(f"{source}: loads of layer {layer}; model {model.name} has no MoE layer of that number")
        if total <= 0:
            raise TraceError(f"{source}: no loads in layer {layer}; expected some in every layer and matrix")
    return [layer for layer in model.moe_layer_ids if layer not in layer_ids]


def _of_all_layers(mean: np.ndarray, layer_ids: np.ndarray, wanted: tuple[int, ...]) -> np.ndarray:
    """float64[phase, layer, expert] of the layers wanted; see `write_load_preset`."""
    nearest = np.abs(np.array(wanted)[:, None] - layer_ids).argmin(axis=1)
    found = mean[:, nearest]
    for row, layer in enumerate(wanted):
        if layer not in layer_ids:
            found[:, row] = found[:, row, np.random.default_rng(layer).permutation(mean.shape[2])]
    return found


def fit_preset(
    source: str, model: ModelSpec, out: Path, seed: int, published: str | None = None, held_out: Sequence[str] = ()
) -> Path:
    """Write the traffic preset of a trace, of a matrix of loads, or of published statistics, to ``out``; its tables lie
    beside it as .npz.

    source: recorded routing, or a file of statistics or a preset of some (.yaml). published: file of statistics to fit
    at once; a trace of tokens determines everything, and they are measured beside it. held_out: statistics that the fit
    does not see. Raises TraceError, SpecError.
    """
    of_statistics = source.endswith((".yaml", ".yml"))
    given = read_published(Path(published or source)) if of_statistics or published else None
    if given is not None and given.model != model.name:
        raise TraceError(f"{published or source}: statistics of {given.model}, not of {model.name}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if of_statistics or is_load_matrix(source):
        file = Path(source) if of_statistics else write_load_preset(Path(source), model, out)
        if given is None:
            return file
        head = _head_of(file, model, given)
        found, traffic = fit_published(head, file, model, held_out)
        write_head(found, traffic, file, out, model.name)
        return out
    from archsim.traffic.formats.readers import open_trace
    from archsim.traffic.traffic_fit import fit_subjects

    trace = open_trace(source, model)
    origin = f"archsim trace fit of {trace.requests} requests, {len(trace.experts)} tokens, digest {trace.digest[:12]}"
    parameters = fit_subjects(trace, out.stem, origin, seed)
    save_traffic(parameters, out, model.name)
    if given is not None:
        add_published(out, measure_statistics(given.published, sample_of(parameters)))
    return out


def add_published(out: Path, published: tuple[PublishedStatistic, ...]) -> None:
    """Add statistics to a preset's file, in place of those that it has."""
    text = out.read_text(encoding="utf-8").partition("published:\n")[0]
    rows = (yaml.safe_dump(row, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
            for row in rows_of(published))  # fmt: skip
    write_text(out, text + "published:\n" + "".join(f"- {row}" for row in rows))


def _head_of(file: Path, model: ModelSpec, given: PublishedFile) -> traffic_heads.TrafficStatistics:
    """The head of a preset of statistics that is fitted: that of ``file``, or what is assumed where it is none."""
    if "groups" in read_yaml(file).data:
        head, tree = traffic_heads.read_head(file)
        if not isinstance(head, traffic_heads.TrafficStatistics):
            raise TraceError(f"{tree.place(())}: fitted to recorded tokens; expected a preset of statistics")
    else:
        about = f"{file.name}: fitted at once (archsim trace fit) to the statistics below; the rest assumed"
        start = {"popularity_skew": 0.75, "phase_agreement": 0.85}
        groups = {"groups": model.expert_groups, "top_groups": model.top_groups}
        head = traffic_heads.TrafficStatistics(**({"name": file.stem, "source": about} | ASSUMED | start | groups))
    return head.model_copy(update={"published": given.published})


def save_traffic(found: traffic_model.TrafficModel | SeveralSubjects, out: Path, of: str) -> None:
    """Write a preset; subjects lie in a folder beside it that has its name. of: name of the model."""
    if isinstance(found, traffic_model.TrafficModel):
        return traffic_model.save_model(found, out, of=of)
    folder = out.with_suffix("")
    folder.mkdir(exist_ok=True)
    subjects = {}
    for number, (name, model) in enumerate(found.models.items(), 1):
        traffic_model.save_model(model, folder / f"{number}.yaml", of=of)
        subjects[name] = {"like": f"{folder.name}/{number}.yaml", "share": found.shares[number - 1]}
    head = {"name": found.name, "model": of, "source": found.source, "subjects": subjects, "spread": found.spread}
    return write_text(out, yaml.safe_dump(head, sort_keys=False, width=120, allow_unicode=True))


def statistics_model(source: str) -> str:
    """The name of the model that a YAML file of statistics is of. Raises TraceError for another kind of file."""
    if not source.endswith((".yaml", ".yml")):
        raise TraceError(f"{source}: does not name its model. Give --model")
    return read_published(Path(source)).model


def profile_source(
    source: str, model_name: str | None, published: str | None
) -> tuple[Trace, tuple[PublishedStatistic, ...]]:
    """What `archsim trace profile` measures: recorded requests, or generated ones of a preset, and the statistics that
    are published of the model: those of the file ``published``, else those of the model's preset. Raises TraceError,
    SpecError.
    """
    from archsim.traffic.formats.readers import open_trace

    is_preset = source in named_files("traffic") or source.endswith((".yaml", ".yml"))
    if not is_preset and model_name is None:
        raise TraceError(f"{source}: does not name its model. Give --model")
    model = load_model(model_name or model_of(source))
    own = traffic_file(source) if is_preset else named_files("traffic").get(model.name)
    trace = sample_of(load_traffic(source, model)) if is_preset else open_trace(source, model)
    if published is not None:
        return trace, read_published(Path(published)).published
    return trace, traffic_heads.read_head(own)[0].published if own is not None else ()


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
