"""Fits blocks of sparse attention and kernels of linear attention: prices of the terms of ``attention.blocks``.

``python -m calibration.fit.attention_blocks FOLDER [CALIBRATIONS]`` reads the tidy set of sparse and linear attention
(its README names columns and defects) and writes the section ``blocks`` of every calibration that there is. Prices
are at least 0 and come from least squares on ln(measured / predicted), to first order, that weigh large errors
linearly; ``unseen`` leaves whole (model, heads) out. By the same errors it is chosen whether a library has one law,
or laws by dtype of the KV cache and by whether the context is so short that all of it is attended to, and whether
prompts have a floor: the median time of those of few tokens, for which the host launches kernels more slowly than the
GPU runs them. What the README calls unfit is left out.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from archsim.base.units import NS_PER_US
from archsim.iteration import attention_blocks
from archsim.laws.calibration_files import read_calibration
from archsim.laws.tables import BlockTable
from archsim.model.attention import AttentionKind, read_kind
from calibration.fit.calibration_file import round_calibration, write_calibration
from calibration.fit.gemm import quantiles

MOST_ROWS = 6000  # of a table, drawn with a fixed seed: more change prices by less than their noise
# Of reweighting: rounds; residuals below SMALL weigh the same, and predictions are at most MOST_OFF times off.
ROUNDS, SMALL, MOST_OFF = 8, 0.03, 20.0
FEW_TOKENS, FEWEST = 64, 5  # prompts that show the floor, and how many of them there are at least
ABOVE_FLOOR = 1.15  # times the floor, from which a point is the GPU's
LEAST_OF_LAW, WORTH, CAPPED = 100, 0.97, 1.0  # rows of a law; gain from which more laws are worth it; largest |ln|
GROUPS = ("model", "q_heads")  # that are left out together
GPUS = {"H100-SXM": "h100", "H200-SXM": "h200", "B200-SXM": "b200", "GB200-NVL72": "gb200", "B300-SXM": "b300",
        "GB300-NVL72": "gb300"}  # fmt: skip
DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
INDEXER = {"index_head_dim": 128, "index_topk": 2048}
# Hidden size and keys of the models (config.json); DeepSeek-V4's heads and groups of the output are those of the whole.
_GLM = {"q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "index_heads": 32, **INDEXER}  # fmt: skip
LATENT = {
    "DeepSeek-V3.2": (7168, {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                             "v_head_dim": 128, "index_heads": 64, **INDEXER}),
    "GLM-5": (6144, _GLM), "GLM-5.2": (6144, _GLM), "GLM-5.2-FP8": (6144, _GLM),
}  # fmt: skip
COMPRESSED = {
    "DeepSeek-V4-Flash": (4096, 64, 8, {"q_lora_rank": 1024, "index_topk": 512}),
    "DeepSeek-V4-Pro": (7168, 128, 16, {"q_lora_rank": 1536, "index_topk": 1024}),
}
MINIMAX_HIDDEN, MINIMAX_HEADS, MINIMAX_KV_HEADS = 6144, 64, 4
FILES = {
    "sparse/aic_dsa": ("sparse", "sparse_reused"),
    "sparse/aic_dsv4_csa": ("compressed_sparse",),
    "sparse/aic_dsv4_hca": ("compressed",),
    "sparse/aic_msa": ("block_sparse",),
}
LINEAR = {"gdn": "gated_delta_net", "kda": "kda", "mamba2": "mamba2"}
PHASES = {"context": "prefill", "generation": "decode", "verify": "verify"}


def model_of(kind: str, model: str, heads: int) -> tuple[int, AttentionKind]:
    """(hidden size, attention with the heads of one GPU) of a measured block."""
    if kind.startswith("sparse"):
        hidden, keys = LATENT[model]
        own = kind != "sparse_reused"
        return hidden, read_kind({"kind": "sparse", "heads": heads, "own_indexer": own, **keys})
    if kind.startswith("compressed"):
        hidden, every, groups, keys = COMPRESSED[model]
        keys = dict(keys, head_dim=512, o_lora_rank=1024, o_groups=max(1, groups * heads // every), window=128)
        if kind == "compressed":
            keys |= {"ratio": 128, "index_topk": 0}
        else:
            keys |= {"ratio": 4, "overlapping": True, "index_heads": 64, "index_head_dim": 128}
        return hidden, read_kind({"kind": "compressed", "heads": heads, **keys})
    kv_heads = max(1, heads * MINIMAX_KV_HEADS // MINIMAX_HEADS)
    keys = {"heads": heads, "kv_heads": kv_heads, "head_dim": 128, "index_heads": kv_heads, **INDEXER}
    return MINIMAX_HIDDEN, read_kind({"kind": "block_sparse", **keys})


def block_matrix(rows: pd.DataFrame, kind: str, phase: str, machine: attention_blocks.GpuRates) -> pd.DataFrame:
    parts = []
    for (model, heads, gemm, kv), mine in rows.groupby(["model", "q_heads", "gemm_type", "kv_dtype"]):
        hidden, attention = model_of(kind, model, int(heads))
        at = mine["batch"].to_numpy(), mine["input_tokens"].to_numpy(), (mine["past_tokens"] + mine["input_tokens"])
        dtypes = DTYPES[gemm], DTYPES[kv]
        terms = attention_blocks.block_terms(
            attention, phase, hidden, 1, (at[0], at[1], at[2].to_numpy()), dtypes, machine
        )
        parts.append(pd.DataFrame(terms, index=mine.index))
    return pd.concat(parts).loc[rows.index]


def linear_matrix(rows: pd.DataFrame, kind: str, part: str, machine: attention_blocks.GpuRates) -> pd.DataFrame:
    """Terms of every row of one kernel."""
    columns, parts = [*_heads(kind), "phase"], []
    for values, mine in rows.groupby(columns):
        first, phase = mine.iloc[0], values[-1]
        if kind == "mamba2":
            keys = {"heads": first["heads"], "head_dim": first["head_dim"], "groups": first["n_groups"]}
            keys |= {"state": first["d_state"]}
        elif kind == "kda":
            keys = {"heads": first["v_heads"], "head_dim": first["v_dim"]}
        else:
            keys = {key: first[key] for key in ("k_heads", "v_heads", "k_dim", "v_dim")}
        attention = read_kind({"kind": kind, **{key: int(value) for key, value in keys.items()}})
        new = np.ones(len(mine)) if phase == "generation" else mine["seq_len"].to_numpy()
        terms = attention_blocks.linear_terms(attention, part, 1, (mine["batch"].to_numpy(), new), machine)
        parts.append(pd.DataFrame(terms, index=mine.index))
    return pd.concat(parts).loc[rows.index]


def _heads(kind: str) -> list[str]:
    return ["heads", "n_groups"] if kind == "mamba2" else ["k_heads", "v_heads"]


def prices_of(terms: np.ndarray, ns: np.ndarray, floor_ns: np.ndarray | float = 0.0) -> np.ndarray:
    """float64[term] ≥ 0: robust least squares of ln(predicted / measured); those at floors count if predicted above."""
    scale = np.maximum(terms.max(axis=0), 1e-12)
    free = ns > ABOVE_FLOOR * np.asarray(floor_ns)
    free = free if free.sum() > terms.shape[1] else np.ones(len(ns), bool)
    counted, weights, last, found = free, np.ones(len(ns)), ns, np.zeros(terms.shape[1])
    for _ in range(ROUNDS):
        by = (weights / np.sqrt(last * ns))[counted]
        found, _ = nnls(terms[counted] / scale * by[:, None], ns[counted] * by)
        last = np.clip(terms / scale @ found, ns / MOST_OFF, ns * MOST_OFF)
        weights = 1 / np.sqrt(np.maximum(np.abs(np.log(last / ns)), SMALL))
        counted = free | (last > floor_ns)
    return found / scale


class Law(NamedTuple):
    """``floors_ns``: by dtype of the products."""

    prices: np.ndarray
    floors_ns: dict[str, float]

    def ns(self, rows: pd.DataFrame, terms: np.ndarray) -> np.ndarray:
        return np.maximum(terms @ self.prices, _floor_of(rows, self.floors_ns))


def _law_of(rows: pd.DataFrame, terms: np.ndarray, floored: bool) -> Law:
    ns, floors = rows["latency_us"].to_numpy() * NS_PER_US, {}
    if floored:
        few = rows[rows["batch"] * rows["input_tokens"] <= FEW_TOKENS]
        few = few if len(few) >= FEWEST else rows.nsmallest(FEWEST, "latency_us")
        medians = few.groupby("gemm_type")["latency_us"].median() * NS_PER_US
        floors = {DTYPES[name]: float(value) for name, value in medians.items()}
    return Law(prices_of(terms, ns, _floor_of(rows, floors)), floors)


def _floor_of(rows: pd.DataFrame, floors: dict[str, float]) -> np.ndarray | float:
    return np.array([attention_blocks.floor_ns(floors, DTYPES[name]) for name in rows["gemm_type"]]) if floors else 0.0


class AttentionFit(NamedTuple):
    """One law of some rows, and its errors where it had not seen them."""

    rows: pd.DataFrame  # of the tidy set
    law: Law
    terms: np.ndarray  # float64[row, term]
    unseen: np.ndarray  # float64[row]: predicted / measured by laws that had not seen its group; nan where none could


def _fit(rows: pd.DataFrame, terms: np.ndarray, groups: Sequence[str], floored: bool) -> AttentionFit:
    """``groups``: columns that tell what is left out together."""
    ns, unseen = rows["latency_us"].to_numpy() * NS_PER_US, np.full(len(rows), np.nan)
    of = rows.groupby(list(groups)).ngroup().to_numpy()
    for group in np.unique(of):
        out = of == group
        if (~out).sum() > terms.shape[1]:
            unseen[out] = _law_of(rows[~out], terms[~out], floored).ns(rows[out], terms[out]) / ns[out]
    return AttentionFit(rows, _law_of(rows, terms, floored), terms, unseen)


def _error(fits: Sequence[AttentionFit]) -> float:
    """Mean of |ln|, at most CAPPED each, of what was left out."""
    off = np.abs(np.log(np.concatenate([fit.unseen for fit in fits])))
    return float(np.minimum(off[np.isfinite(off)], CAPPED).mean())


def block_laws(
    rows: pd.DataFrame, terms: np.ndarray, short: np.ndarray, prompts: bool
) -> dict[tuple[str, str], AttentionFit]:
    """(dtype of KV, reach), '' for all → the fit with least left-out errors. ``short``: bool[row], of contexts."""
    reaches, kinds = (
        np.where(short, attention_blocks.SHORT, attention_blocks.LONG),
        rows["kv_dtype"].map(DTYPES).to_numpy(str),
    )
    least, best = np.inf, {}
    for by_reach in (False, True):
        for by_kv in (False, True):
            keys = list(
                zip(kinds if by_kv else [""] * len(rows), reaches if by_reach else [""] * len(rows), strict=True)
            )
            every = sorted(set(keys))
            if len({reach for _, reach in every}) < 1 + by_reach or (by_kv and len({kv for kv, _ in every}) < 2):
                continue
            where = {key: np.array([each == key for each in keys]) for key in every}
            if min(map(np.sum, where.values())) < LEAST_OF_LAW:
                continue
            for floored in (False, True)[: 1 + prompts]:
                found = {key: _fit(rows[at], terms[at], GROUPS, floored) for key, at in where.items()}
                error = _error(list(found.values()))
                if error < WORTH * least:
                    least, best = error, found
    return best


def table_of(fit: AttentionFit, columns: Sequence[str], named: dict) -> BlockTable:
    """One table."""
    rows, prices = fit.rows, fit.law.prices
    context = rows["past_tokens"] + rows["input_tokens"] if "past_tokens" in rows else rows["num_tokens"]
    seen = rows["latency_us"].to_numpy() * NS_PER_US / fit.law.ns(rows, fit.terms)
    return BlockTable(
        **named, prices={name: float(price) for name, price in zip(columns, prices, strict=True) if price > 0},
        floors_ns=fit.law.floors_ns, most_requests=float(rows["batch"].max()), most_context=float(context.max()),
        residuals=quantiles(seen - 1), unseen=quantiles(1 / fit.unseen[np.isfinite(fit.unseen)] - 1),
    )  # fmt: skip


def _short(rows: pd.DataFrame, kind: str) -> np.ndarray:
    """bool[row]: whether the context is as short as `blocks.most_short`."""
    most = {name: attention_blocks.most_short(model_of(kind, name, 64)[1]) for name in rows["model"].unique()}
    return (rows["past_tokens"] + rows["input_tokens"]).to_numpy() <= rows["model"].map(most).to_numpy()


def _sample(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sample(min(len(rows), MOST_ROWS), random_state=0).reset_index(drop=True)


def fit_blocks(folder: Path, gpu: str, machine: attention_blocks.GpuRates) -> Iterator[BlockTable]:
    """Tables of one GPU, as the set names it."""
    for stem, kinds in FILES.items():
        for word, phase in (("context", "prefill"), ("generation", "decode")):
            file = folder / f"{stem}_{word}_module.csv.gz"
            rows = pd.read_csv(file)
            rows = rows[rows["gpu"] == gpu]
            for kind in kinds:
                mine = rows[rows["op"].str.endswith("skip_indexer") == (kind == "sparse_reused")]
                for library, each in mine.groupby("framework"):
                    if (kind, library) == ("block_sparse", "trtllm"):
                        continue  # the README: a floor of 120 us, do not calibrate on it
                    drawn = _sample(each)
                    named = {
                        "kind": kind,
                        "part": attention_blocks.BLOCK,
                        "phase": phase,
                        "kernel": "block",
                        "library": library,
                    }
                    named |= {"version": str(drawn["framework_version"].iloc[0]), "source": f"{stem}_{word}"}
                    terms, short = block_matrix(drawn, kind, phase, machine), _short(drawn, kind)
                    laws = block_laws(drawn, terms.to_numpy(), short, phase == "prefill")
                    for (kv_dtype, reach), fit in laws.items():
                        yield table_of(fit, terms.columns, named | {"kv_dtype": kv_dtype, "reach": reach})


def fit_linear(folder: Path, gpu: str, machine: attention_blocks.GpuRates) -> Iterator[BlockTable]:
    """Like `fit_blocks`, but for linear attention."""
    for stem, kind in LINEAR.items():
        rows = pd.read_csv(folder / "linear" / f"aic_{stem}.csv.gz")
        rows = rows[rows["gpu"] == gpu]
        for (library, phase, kernel), each in rows.groupby(["framework", "phase", "kernel_source"]):
            part, drawn = (attention_blocks.CONVOLUTION if "conv" in kernel else attention_blocks.RULE), _sample(each)
            named = {"kind": kind, "part": part, "phase": PHASES[phase], "kernel": kernel, "library": library}
            named |= {"version": str(drawn["framework_version"].iloc[0]), "source": f"linear/aic_{stem}"}
            terms = linear_matrix(drawn, kind, part, machine)
            yield table_of(_fit(drawn, terms.to_numpy(), _heads(kind), False), terms.columns, named)


def main(folder: str, calibrations: str = "configs/calibrations") -> None:
    """Fit all GPUs whose calibration exists, and print the median error of what was left out."""
    for gpu, name in GPUS.items():
        path = Path(calibrations) / f"{name}.yaml"
        if not path.is_file():
            continue
        calibration = read_calibration(path)
        machine = attention_blocks.machine_of(calibration)
        tables = (*fit_blocks(Path(folder), gpu, machine), *fit_linear(Path(folder), gpu, machine))
        write_calibration(round_calibration(calibration.model_copy(update={"blocks": tables})), path, {"blocks"})
        for table in tables:
            off = max(abs(table.unseen.p05), abs(table.unseen.p95))
            said = f"unseen {table.unseen.p05:+.0%} to {table.unseen.p95:+.0%} (most {off:.0%})"
            print(f"{name} {table.library} {table.kind} {table.part} {table.phase} {table.kernel}: {said}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
