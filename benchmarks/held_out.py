"""How far laws are off on groups that their fit has not seen: shapes, head geometries, models, EP sizes.

    python benchmarks/held_out.py ../shared/data/calibration --gpu b200 --only attention

A third of the groups is left out, by a hash of their names; the others are fitted, and the law is asked for every
point left out. Collectives are those of the GPU's sibling, as a calibration takes what was not measured
(`scaled:`). One line a library and dtype: points, medians and 90 % quantiles of |predicted / measured - 1|.
"""

import argparse
import sys
import time
import zlib
from collections.abc import Iterator

import numpy as np
import pandas as pd

from archsim.base.host import use_one_blas_thread
from archsim.laws.calibration_files import find_calibration, load_calibration, read_calibration
from archsim.laws.laws import Laws
from archsim.laws.moe import MoeSizes
from archsim.laws.scaling import with_scaled
from archsim.laws.tables import CalibrationSpec, LawMissing
from calibration.fit.attention import fit_attention
from calibration.fit.gemm import fit_gemm
from calibration.fit.moe import fit_moe, with_defaults
from calibration.measurements.datasheets import DATASHEETS, SCALED, peak_of
from calibration.measurements.reading import kinds_of, read_measurements

KIND = {"gemm": "gemm", "attention": "attention", "moe": "moe", "collectives": "collective"}
GROUPS = {
    "gemm": ["n", "k"],
    "attention": ["heads", "kv_heads", "head_dim", "window"],
    "moe": ["group"],  # the model of a fused layer, the EP size of experts alone
    "collectives": ["op", "num_gpus"],
}
TABLES = {
    "gemm": ["library", "library_version", "dtype", "quant_included"],
    "attention": ["library", "library_version", "phase", "kind", "dtype", "kv_dtype", "products"],
    "moe": ["library", "library_version", "dtype", "distribution"],
    "collectives": ["library", "library_version", "op"],
}
MORE = {"moe": ["eplb_slots", "model", "kernel"], "collectives": ["variant"]}  # asked one by one
EXPERTS_ALONE = ("sglang-deepep", "trtllm-wideep")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--only", choices=GROUPS, required=True)
    parser.add_argument("--fold", type=int, choices=range(3), default=0)
    args = parser.parse_args(arguments)
    use_one_blas_thread()
    rows = read_measurements(args.measurements, kinds=kinds_of([args.only])).table(KIND[args.only], args.gpu)
    print(f"{args.gpu} {args.only}: {len(rows)} points; median / 90 % of |error|, percent; refused points apart")
    for name, errors, refused in errors_of(args.only, args.gpu, prepared(args.only, rows), args.fold):
        found = f"{100 * np.median(errors):.1f} / {100 * np.quantile(errors, 0.9):.1f}" if len(errors) else "-"
        print(f"{name}: {len(errors)} points, {found}" + (f", {refused} refused" if refused else ""), flush=True)
    return 0


def prepared(section: str, rows: pd.DataFrame) -> pd.DataFrame:
    if section == "moe":
        alone = rows["library"].isin(EXPERTS_ALONE)
        return with_defaults(rows).assign(group=rows["model"].where(~alone, "ep " + rows["ep"].astype(int).astype(str)))
    return rows.assign(products=rows["products"].fillna("")) if section == "attention" else rows


def errors_of(section: str, gpu: str, rows: pd.DataFrame, fold: int) -> Iterator[tuple[str, np.ndarray, int]]:
    """(table, |error| of its points left out, points that no law covers)"""
    groups = rows[GROUPS[section]].astype(str).agg(" ".join, axis=1)
    out = groups.map({name: zlib.crc32(name.encode()) % 3 == fold for name in groups.unique()}).to_numpy(bool)
    laws = Laws(CALIBRATIONS[section](gpu, rows[~out]))
    for names, mine in rows[out].groupby(TABLES[section], dropna=False):
        errors, refused = [], 0
        for _, points in mine.groupby([*GROUPS[section], *MORE.get(section, [])]):
            try:
                predicted = ASKED[section](laws, points, points.iloc[0])
            except LawMissing:
                refused += len(points)
                continue
            errors.append(np.abs(predicted / 1e3 / points["latency_us_median"].to_numpy(float) - 1))
        yield " ".join(map(str, names)), np.concatenate(errors) if errors else np.array([]), refused


def _bare(gpu: str, **tables) -> CalibrationSpec:
    return CalibrationSpec(gpu=gpu, reference=DATASHEETS[gpu], **tables)


def _moe(gpu: str, rows: pd.DataFrame) -> CalibrationSpec:
    sheet = DATASHEETS[gpu]
    tables = fit_moe(rows, sheet.hbm_bytes_per_s, lambda dtype: peak_of(sheet.peak_flop_per_s, dtype))
    return _bare(gpu, moe=tables)


def _sibling(gpu: str, rows: pd.DataFrame) -> CalibrationSpec:
    """What the calibration would take for everything that was measured."""
    base = read_calibration(find_calibration(SCALED[gpu].gpu))
    return with_scaled(load_calibration(gpu).model_copy(update={"collectives": (), "scaled": SCALED[gpu]}), base)


CALIBRATIONS = {
    "gemm": lambda gpu, rows: _bare(gpu, gemm=fit_gemm(rows, DATASHEETS[gpu].sms)),
    "attention": lambda gpu, rows: _bare(gpu, attention=fit_attention(rows)),
    "moe": _moe,
    "collectives": _sibling,
}


def _gemm(laws: Laws, points: pd.DataFrame, first: pd.Series) -> np.ndarray:
    how = {"quantisation": "included" if first["quant_included"] == "1" else "apart", "library": first["library"]}
    return laws.gemm(points["m"], points["n"], points["k"], dtype=first["dtype"], **how).ns


def _attention(laws: Laws, points: pd.DataFrame, first: pd.Series) -> np.ndarray:
    sizes = {name: int(first[name]) for name in GROUPS["attention"]}
    how = {name: first[name] for name in ("dtype", "kv_dtype", "kind", "products", "phase", "library")}
    new = points["tokens"] if first["phase"] == "prefill" else 1
    return laws.attention(new, points["tokens"], points["batch"], **sizes, **how).ns


def _layers(laws: Laws, points: pd.DataFrame, first: pd.Series) -> np.ndarray:
    sizes = MoeSizes(*(int(first[name]) for name in ("hidden", "ffn", "experts", "top_k")))
    how = {name: first[name] for name in ("dtype", "distribution", "library")}
    slots = int(first["eplb_slots"])
    return laws.fused_moe(points["tokens_total"], points["ep"], points["tp"], sizes=sizes, eplb_slots=slots, **how).ns


def _collective(laws: Laws, points: pd.DataFrame, first: pd.Series) -> np.ndarray:
    how = {"library": first["library"], "variant": first["variant"] or None}
    return laws.collective(first["op"], points["bytes"], ranks=int(first["num_gpus"]), **how).ns


ASKED = {"gemm": _gemm, "attention": _attention, "moe": _layers, "collectives": _collective}

if __name__ == "__main__":
    started = time.time()
    code = main(sys.argv[1:])
    print(f"{time.time() - started:.0f} s")
    sys.exit(code)
