"""A report folder with made-up but plausible numbers, in the layout that a sweep writes."""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np

from archsim.base.tables import Table
from archsim.base.yaml import dump_yaml
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.runs.columns import DIE_COLUMNS, LAYOUT, LINK_COLUMNS, PAIR_COLUMNS, RUN_COLUMNS, STEP_COLUMNS
from archsim.runs.results import PARQUET, Results
from archsim.specs.assumptions import AssumptionsSpec
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.specs.workload import WorkloadSpec
from microarch.fabric.grid import build_mesh

SPEEDUP = {"base": 1.0, "ep": 3.4, "allo": 4.2, "allo-paper": 3.9, "pred": 1.9, "allo+pred": 5.2}
HOPS = {"base": 1.0, "ep": 0.0, "allo": 1 / 142, "allo-paper": 1 / 60, "pred": 1 / 4.5, "allo+pred": 1 / 213}
BUSY = {"base": (0.25, 0.15, 0.8), "pred": (0.45, 0.3, 0.55)}  # HBM, compute, links; others:
BUSY_AT_HOME = (0.7, 0.55, 0.06)


def write_folder(
    folder: Path,
    *,
    systems: tuple[str, ...] = ("dojo",),
    models: tuple[str, ...] = ("deepseek-v3",),
    batches: tuple[int, ...] = (4096,),
    policies: tuple[str, ...] = ("base", "ep", "allo", "pred", "allo+pred"),
    assumptions: tuple[AssumptionsSpec, ...] | None = None,
    trace: object = None,
    decode_steps: int = 4,
    prefill_ns: int = 12_345_678,
    changes: dict[str, object] | None = None,
) -> Path:
    """Write the files of a sweep. ``changes``: results column → value, or function of the row, put into every row."""
    experiment = ExperimentSpec(
        name="made-up",
        systems=tuple(load_system(name) for name in systems),
        models=tuple(load_model(name) for name in models),
        workload=WorkloadSpec(trace=trace or {"synthetic": {}}, batch=batches, decode_steps=decode_steps),
        policies=tuple(PolicySpec(name=name, **PRESETS[name]) for name in policies),
        assumptions=assumptions or (load_assumptions("published"), load_assumptions("physical")),
    )
    folder.mkdir(parents=True, exist_ok=True)
    results, dies, links, steps = [], [], [], []
    for system, model, batch, policy, spec in _runs(experiment):
        row = _result(system, model, batch, policy, spec, decode_steps, prefill_ns, "base" in policies)
        row |= {key: value(row) if callable(value) else value for key, value in (changes or {}).items()}
        results.append(row)
        dies += _dies(row, system, spec)
        links += _links(row, system, spec)
        steps += _steps(row, model)
    write_runs(folder, results)
    tables = (("dies", DIE_COLUMNS, dies), ("links", LINK_COLUMNS, links), ("pairs", PAIR_COLUMNS, []))
    for name, columns, rows in tables:
        Table(columns, (dict.fromkeys(columns) | row for row in rows)).write_csv(folder / f"{name}.csv")
    Table(STEP_COLUMNS, steps).write_parquet(folder / "steps.parquet")
    made = {"manifest": {"version": "0.2.0", "layout": LAYOUT, "seed": 0, "runs": len(results)}}
    (folder / "manifest.yaml").write_text(dump_yaml(made | experiment.resolved()), encoding="utf-8")
    return folder


def write_runs(folder: Path, rows: Iterable[Mapping]) -> None:
    Table(RUN_COLUMNS, (dict.fromkeys(RUN_COLUMNS) | dict(row) for row in rows)).write_parquet(folder / PARQUET)


def runs_of(folder: Path) -> list[dict]:
    return [dict(row) for row in Results.load(folder).runs]


def write_csv(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def die_row(die: int, **values: object) -> dict:
    """A row of the table of dies: half of its HBM and compute array is used; ``values`` of other columns."""
    return dict.fromkeys(DIE_COLUMNS) | {"die": die, "hbm_utilisation": 0.5, "compute_utilisation": 0.5} | values


def link_row(src: int, dst: int, **values: object) -> dict:
    """A row of the table of links: one way, half used; ``values`` of other columns."""
    return dict.fromkeys(LINK_COLUMNS) | {"src": src, "dst": dst, "direction": "one way", "utilisation": 0.5} | values


def _runs(experiment: ExperimentSpec) -> Iterator[tuple]:
    batches = experiment.workload.batch
    policies = [policy.name for policy in experiment.policies]
    return product(experiment.systems, experiment.models, batches, policies, experiment.assumptions)


def _wobble(*key: object) -> float:
    """Between 0 and 1, always the same for the same key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:4], "little") / 2**32


def _result(
    system: SystemSpec,
    model: ModelSpec,
    batch: int,
    policy: str,
    spec: AssumptionsSpec,
    steps: int,
    prefill_ns: int,
    base: bool,
) -> dict:
    key = (system.name, model.name, batch, policy, spec.label)
    speedup = 1.0 if policy == "base" else SPEEDUP[policy] * (0.8 + 0.4 * _wobble(*key))
    if spec.contention == "shared":
        speedup = speedup**0.7
    weights = 3 * model.slice_weights * model.experts * len(model.moe_layer_ids) * steps
    decode_ns = round(weights / 2e12 * 1e9 / system.dies * 8 * (batch / 4096) ** 0.5 / speedup)
    dispatched = (
        batch * model.hidden * model.top_k * len(model.moe_layer_ids) * steps if spec.activations == "dispatched" else 0
    )
    return {
        "system": system.name,
        "mesh_x": system.mesh.x,
        "mesh_y": system.mesh.y,
        "model": model.name,
        "trace": "synthetic",
        "batch": batch,
        "policy": policy,
        "engine": "event",
        "assumptions": spec.label,
        "decode_steps": steps,
        "prefill_ns": prefill_ns,
        "decode_ns": decode_ns,
        "throughput_tokens_per_s": batch * steps / decode_ns * 1e9,
        **_rates(batch, steps, decode_ns),
        "expert_tokens": 1000 * system.dies,
        "flop": 1e12 * system.dies,
        "speedup_vs_base": speedup if base else None,
        **_traffic(policy, weights, dispatched),
        "die_utilisation": BUSY.get(policy, BUSY_AT_HOME)[1],
        "load_max_over_mean": 1.15 if policy == "base" else 1.3 + _wobble(*key),
        "replicas_max_bytes_per_die": round(2.3e9 * (1 + _wobble(*key))) if "pred" in policy else 0,
        "layers": len(model.moe_layer_ids),
        "model_layers": len(model.moe_layer_ids),
        "copies_saved_bytes": 0,
        "copies_evicted_unused_bytes": 0,
        "copies_evicted_used_bytes": 0,
        "copies_held_bytes": 0,
        "events": round(weights / 1e6),
        "replicas_evicted": 0,
        **_bounds(policy, 0.1 if dispatched else 0.0),
        "decision_exposed_ns": 0.0,
        "decision_overhead_percent": 0.0,
        "decision_overhead_percent_p50": 0.0,
        "decision_overhead_percent_p99": 0.0,
        "exposed_evaluate_ns": 0.0,
        "heatmap_dropped": 0,
        "atu_misses": 0,
        "run": hashlib.sha256(repr(key).encode()).hexdigest()[:12],
    }


def _traffic(policy: str, weights: int, dispatched: int) -> dict:
    """Of the bytes of weights and of hidden vectors."""
    remote = HOPS[policy] ** 0.5 if HOPS[policy] else 0.0
    hops = round(weights / 1e6 * HOPS[policy]) + dispatched // 10_000_000
    return {
        "hop_messages": hops,
        "hop_bytes": hops * 16,
        "local_hbm_read_bytes": round(weights * (1 - remote)),
        "remote_hbm_read_bytes": round(weights * remote),
        "local_hbm_write_bytes": round(weights * remote / 3) if "pred" in policy else 0,
        "activation_bytes": dispatched,
    }


def _bounds(policy: str, hidden: float) -> dict:
    """Shares of the critical path; ``hidden``: that of hidden vectors."""
    own = {"base": (0.02, 0.2, 0.7, 0.08), "pred": (0.02, 0.4, 0.4, 0.18)}.get(policy, (0.01, 0.55, 0.02, 0.42))
    shares = dict(zip(("llc", "hbm", "link", "compute"), (share * (1 - hidden) for share in own), strict=True))
    return {f"bound_{name}": share for name, share in shares.items()} | {
        "bound_activations": hidden,
        "bound_decision": 0.0,
    }


def _rates(batch: int, steps: int, decode_ns: float) -> dict:
    return {
        "tokens_per_s": batch * steps / decode_ns * 1e9, "decode_step_ns": decode_ns / steps,
        "decode_batch_token_ns": decode_ns / steps / batch, "mfu": 0.25, "hbm_bandwidth_utilisation": 0.125,
        "over_roofline": 4.0,
    }  # fmt: skip


def _steps(row: dict, model: ModelSpec) -> Iterator[dict]:
    """A prefill and the decode steps of the first three layers; the slowest is the last layer of the last."""
    nothing = dict.fromkeys(STEP_COLUMNS, 0) | _shared_columns(row)
    for step in range(row["decode_steps"] + 1):
        for layer in model.moe_layer_ids[:3]:
            took = 1000.0 * (1 + step) + layer
            yield (
                nothing
                | {"step": step, "layer": layer, "time_ns": took, "bound_hbm_ns": took, "link": 1}
                | {"link_src": 1, "link_dst": 2}
            )


def _shared_columns(row: dict) -> dict:
    return {key: row[key] for key in ("run", "system", "model", "batch", "policy", "assumptions")}


def _dies(row: dict, system: SystemSpec, spec: AssumptionsSpec) -> Iterator[dict]:
    mesh = build_mesh(system.mesh.x, system.mesh.y, spec.numbering)
    hbm, compute, _ = BUSY.get(row["policy"], BUSY_AT_HOME)
    for die in range(mesh.dies):
        vary = 0.6 + 0.8 * _wobble(row["run"], die)
        yield _shared_columns(row) | {
            "die": die,
            "x": mesh.x_of[die],
            "y": mesh.y_of[die],
            "compute_utilisation": min(1.0, compute * vary),
            "hbm_utilisation": min(1.0, hbm * vary),
            "activation_bytes": row["activation_bytes"] * 2 // mesh.dies,
            "prefill_tokens": 400,
            "prefill_hbm_bytes": 10**9,
            "decode_tokens": 600,
            "decode_hbm_bytes": 10**10 + die,
        }


def _links(row: dict, system: SystemSpec, spec: AssumptionsSpec) -> Iterator[dict]:
    mesh = build_mesh(system.mesh.x, system.mesh.y, spec.numbering)
    busy = BUSY.get(row["policy"], BUSY_AT_HOME)[2]
    for link, (src, dst) in enumerate(zip(mesh.link_src.tolist(), mesh.link_dst.tolist(), strict=True)):
        if spec.contention == "reserved" and src > dst:
            continue
        middle = (
            1
            - (abs(mesh.x_of[src] - (system.mesh.x - 1) / 2) + abs(mesh.y_of[src] - (system.mesh.y - 1) / 2))
            / mesh.dies**0.5
        )
        yield _shared_columns(row) | {
            "link": link,
            "src": src,
            "dst": dst,
            "src_x": mesh.x_of[src],
            "src_y": mesh.y_of[src],
            "dst_x": mesh.x_of[dst],
            "dst_y": mesh.y_of[dst],
            "direction": "both ways" if spec.contention == "reserved" else "one way",
            "bytes": round(1e12 * busy * middle),
            "utilisation": float(np.clip(busy * (0.35 + 0.8 * middle) * (0.7 + 0.5 * _wobble(row["run"], link)), 0, 1)),
        }
