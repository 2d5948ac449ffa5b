"""Which reader a source of loads has, and loads of several sources and ranks as one."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError
from archsim.model.spec import ModelSpec
from archsim.traffic.formats import npz, source_destination
from archsim.traffic.formats.load_matrices import read_csv, read_npy_loads, read_npz_loads
from archsim.traffic.formats.sglang_loads import read_json_dump, read_pt_dump
from archsim.traffic.formats.trtllm_loads import read_statistics, statistic_files
from archsim.traffic.formats.vllm_loads import is_load_stats, model_named, read_load_stats
from archsim.traffic.loads import MOST_BYTES, Loads, number_in_name

_ALWAYS = (".csv", ".npy", ".pt", ".safetensors")


def holds_loads(path: Path) -> bool:
    """Whether a source holds loads rather than tokens."""
    if path.is_dir():
        return bool(statistic_files(path))
    if source_destination.is_matrices(path):
        return False
    if path.suffix == ".npz":
        return "counts" in npz.member_names(path)
    if path.suffix == ".jsonl":
        return is_load_stats(path)
    if path.suffix == ".json":
        content = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b""
        return content.lstrip().startswith(b"{") and b'"routed_experts"' not in content
    return path.suffix in _ALWAYS


def loads_name(path: Path) -> str:
    """The model that a source of loads names, or ''."""
    if path.suffix == ".jsonl":
        return model_named(path)
    return str(npz.load_members(path, {"model"}).get("model", "")) if path.suffix == ".npz" else ""


def read_loads(path: Path, model: ModelSpec) -> Loads:
    """The loads of one file. Raises TraceError."""
    readers = {
        ".npz": read_npz_loads,
        ".npy": read_npy_loads,
        ".csv": read_csv,
        ".pt": read_pt_dump,
        ".jsonl": read_load_stats,
        ".safetensors": read_statistics,
    }
    try:
        return readers.get(path.suffix, read_json_dump)(path, model)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error


def load_files(sources: Sequence[Path]) -> list[Path]:
    """The files of sources of loads; a folder has those of TensorRT-LLM's ranks."""
    return list(chain.from_iterable(statistic_files(each) if each.is_dir() else [each] for each in sources))


def read_all_loads(sources: Sequence[Path], model: ModelSpec) -> Loads:
    """Loads of all sources, summed over ranks, without idle matrices. TraceError: several recordings, or all zero."""
    files = load_files(sources)
    every = [read_loads(file, model) for file in files]
    for file, part in zip(files, every, strict=True):
        if not np.array_equal(part.layer_ids, every[0].layer_ids):
            raise TraceError(f"{file}: its layers differ from those of {files[0]}")
    busy = _busy(_sum_ranks(files, every))
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
    """Raise TraceError where the same experts, or as many a layer, never run: the counts are of single ranks."""
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
        f"{files[0]}: {which}, which no router does: these are counts of some ranks alone, each of the experts on it. "
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


def _sum_ranks(files: list[Path], every: list[Loads]) -> Loads:
    """Loads in turn; those of one name are summed over ranks; a rank's later file (time in its name) is its own."""
    at: dict[str, int] = {}
    ranks: dict[str, dict[int, Path]] = {}
    counts: list[np.ndarray] = []
    series: list[str] = []
    phase: list[int] = []
    dumps: Counter[tuple[str, int]] = Counter()
    times = [number_in_name(file.stem, "time", "at") for file in files]
    for n in sorted(range(len(files)), key=lambda n: times[n] or 0.0):
        file, part = files[n], every[n]
        dump = ""
        if times[n] is not None and part.rank is not None:
            of = part.series[0], part.rank
            dumps[of] += 1
            dump = f", dump {dumps[of]}" if dumps[of] > 1 else ""
        for m, name in enumerate(f"{each}{dump}" for each in part.names):
            if name not in at:
                at[name] = len(counts)
                counts.append(part.counts[m])
                phase.append(part.phase[m])
                series.append(part.series[m] + dump)
            elif part.rank is None or part.rank in ranks.get(name, {part.rank}):
                whose = "" if part.rank is None else f" of rank {part.rank}"
                raise TraceError(f"{file}: a second matrix named {name!r}{whose}. Give the files different names")
            else:
                counts[at[name]] = counts[at[name]] + part.counts[m]
            if part.rank is not None:
                ranks.setdefault(name, {})[part.rank] = file
    _refuse_missing_ranks(files, ranks)
    return Loads(np.stack(counts), every[0].layer_ids, list(at), series, phase)


def _refuse_missing_ranks(files: list[Path], ranks: dict[str, dict[int, Path]]) -> None:
    """``ranks``: of every matrix, and the files that they are in."""
    every = set().union(*ranks.values())
    missing = next(rank for rank in count() if rank not in every)
    if missing < len(every):
        raise TraceError(
            f"{files[0]}: counts of ranks {', '.join(map(str, sorted(every)))}; expected the files of all ranks, rank "
            f"{missing} is missing"
        )
    for name, own in ranks.items():
        if lacking := every - set(own):
            raise TraceError(
                f"{next(iter(own.values()))}: {name!r} is of {len(own)} ranks, others of {len(every)}: rank "
                f"{min(lacking)} lacks it; expected the same passes of every rank"
            )


def _busy(loads: Loads) -> Loads:
    """Without the matrices in which nothing is counted, such as idle steps."""
    kept = np.flatnonzero(loads.counts.any(axis=(1, 2)))
    names, series = ([every[n] for n in kept] for every in (loads.names, loads.series))
    return Loads(loads.counts[kept], loads.layer_ids, names, series, [loads.phase[n] for n in kept])
