"""Which reader a source of loads has, and loads of several sources and ranks as one."""

from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.specs.model import ModelSpec
from archsim.workload.formats.npz import load_members, member_names
from archsim.workload.formats.source_destination import is_matrices
from archsim.workload.loads import loads, sglang, trtllm, vllm
from archsim.workload.loads.loads import Loads

_ALWAYS = (".csv", ".npy", ".pt", ".safetensors")


def holds_loads(path: Path) -> bool:
    """Whether a source holds loads rather than tokens."""
    if path.is_dir():
        return bool(trtllm.statistic_files(path))
    if is_matrices(path):
        return False
    if path.suffix == ".npz":
        return "counts" in member_names(path)
    if path.suffix == ".jsonl":
        return vllm.is_load_stats(path)
    if path.suffix == ".json":
        content = path.read_bytes() if path.stat().st_size <= sglang.MOST_BYTES else b""
        return content.lstrip().startswith(b"{") and b'"routed_experts"' not in content
    return path.suffix in _ALWAYS


def loads_name(path: Path) -> str:
    """The model that a source of loads names, or ''."""
    if path.suffix == ".jsonl":
        return vllm.model_named(path)
    return str(load_members(path, {"model"}).get("model", "")) if path.suffix == ".npz" else ""


def read_loads(path: Path, model: ModelSpec) -> Loads:
    """The loads of one file. Raises TraceError."""
    readers = {
        ".npz": loads.read_npz_loads, ".npy": loads.read_npy_loads, ".csv": loads.read_csv,
        ".pt": sglang.read_pt_dump, ".jsonl": vllm.read_load_stats, ".safetensors": trtllm.read_statistics,
    }
    try:
        return readers.get(path.suffix, sglang.read_json_dump)(path, model)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error


def load_files(sources: Sequence[Path]) -> list[Path]:
    """The files of sources of loads; a folder has those of TensorRT-LLM's ranks."""
    return list(chain.from_iterable(trtllm.statistic_files(each) if each.is_dir() else [each] for each in sources))


def read_all_loads(sources: Sequence[Path], model: ModelSpec) -> Loads:
    """The loads of all sources, files or folders: summed over the ranks of a recording, idle matrices left out.

    Raises TraceError for sources that do not belong together, and where every count is zero.
    """
    files = load_files(sources)
    every = [read_loads(file, model) for file in files]
    for file, part in zip(files, every, strict=True):
        if not np.array_equal(part.layer_ids, every[0].layer_ids):
            raise TraceError(f"{file}: its layers differ from those of {files[0]}")
    busy = _busy(_summed(files, every))
    if not busy.names:
        raise TraceError(
            f"{files[0]}: all counts are zero: the recorder did not run while tokens were served; start it before the "
            "requests (SGLang: POST /start_expert_distribution_record), and dump again"
        )
    _refuse_counts_of_some_ranks(files, busy)
    return busy


# Choices an expert has on average in a layer, from which one that is never chosen in any of two layers or more is no
# chance: at a tenth of that popularity it would be left out of three layers in exp(-0.1 x 16 x 3), 1 of 100, and of 58
# never.
MEAN_CHOICES = 16


def _refuse_counts_of_some_ranks(files: list[Path], loads: Loads) -> None:
    """Raise TraceError where the same experts, or as many in every layer, never run: a rank counts its own experts
    alone until an engine adds the ranks up.
    """
    counts = loads.counts.sum(axis=0)
    counts = counts[counts.any(axis=1)]
    experts, idle = counts.shape[1], counts == 0
    never, idle_each = np.flatnonzero(idle.all(axis=0)), np.unique(idle.sum(axis=1))
    if counts.sum(axis=1).min() < MEAN_CHOICES * experts or len(counts) < 2:
        return
    if len(never) > 1:
        which = f"{len(never)} of {experts} experts ({spans(never.tolist())}) never run in any of {len(counts)} layers"
    elif len(idle_each) == 1 and 2 * idle_each[0] >= experts:
        which = f"in each of {len(counts)} layers {idle_each[0]} of {experts} experts never run"
    else:
        return
    raise TraceError(
        f"{files[0]}: {which}, which no router does: these are counts of some ranks alone, each of its own experts. "
        "Give the files of all ranks, or dump counts that the engine has summed over its ranks (SGLang: "
        "expert_distribution_recorder all-reduces them in mode stat)"
    )


def spans(numbers: Sequence[int]) -> str:
    """``0 to 15, 32``: ascending numbers, runs written short."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    written = [str(low) if low == high else f"{low} to {high}" for low, high in runs]
    return ", ".join(written[:6]) + (", ..." if len(written) > 6 else "")


def _summed(files: list[Path], every: list[Loads]) -> Loads:
    """Loads one after the other; those of the same name are summed if they are of different ranks."""
    at: dict[str, int] = {}
    ranks: dict[str, set[int]] = {}
    counts: list[np.ndarray] = []
    series: list[str] = []
    phase: list[int] = []
    for file, part in zip(files, every, strict=True):
        for n, name in enumerate(part.names):
            if name not in at:
                at[name] = len(counts)
                counts.append(part.counts[n])
                phase.append(part.phase[n])
                series.append(part.series[n])
            elif part.rank is None or part.rank in ranks.get(name, {part.rank}):
                whose = "" if part.rank is None else f" of rank {part.rank}"
                raise TraceError(f"{file}: a second matrix named {name!r}{whose}; give the files different names")
            else:
                counts[at[name]] = counts[at[name]] + part.counts[n]
            if part.rank is not None:
                ranks.setdefault(name, set()).add(part.rank)
    _refuse_missing_ranks(files, set().union(*ranks.values()))
    return Loads(np.stack(counts), every[0].layer_ids, list(at), series, phase)


def _refuse_missing_ranks(files: list[Path], ranks: set[int]) -> None:
    missing = next(rank for rank in count() if rank not in ranks)
    if missing < len(ranks):
        raise TraceError(
            f"{files[0]}: counts of ranks {', '.join(map(str, sorted(ranks)))}; expected the files of all ranks, rank "
            f"{missing} is missing"
        )


def _busy(loads: Loads) -> Loads:
    """Without the matrices in which nothing is counted, such as idle steps."""
    kept = np.flatnonzero(loads.counts.any(axis=(1, 2)))
    names, series = ([every[n] for n in kept] for every in (loads.names, loads.series))
    return Loads(loads.counts[kept], loads.layer_ids, names, series, [loads.phase[n] for n in kept])
