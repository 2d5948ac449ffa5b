"""A calibration beside measurements: the file as it is, and fits again without what they are compared with."""

from collections.abc import Iterator

import pandas as pd

from archsim.base.case import UNDER, errors
from archsim.evidence import choosing, kernels, products
from archsim.evidence.engine_copies import copy_cases
from archsim.evidence.engine_experts import engine_cases
from archsim.evidence.engine_layers import layer_cases, scaled_cases
from archsim.evidence.page import Evidence, EvidenceTable, error_table, join_frames, percent, table_of
from archsim.evidence.power import POWER_COLUMNS, power_cases
from archsim.evidence.transfers import series_cases, set_errors
from archsim.laws.calibration_files import load_calibration
from archsim.laws.tables import CalibrationSpec, newest_first
from archsim.laws.transfers import why_no_link
from calibration.measurements.adapters.not_fitted import NO_TIMES
from calibration.measurements.reading import CalibrationError, Measurements

MOST_WORST, MOST_SETS = 60, 12  # rows of tables: of the worst cases, and of sets of transfers in a terminal
FILE_ALONE, HELD_OUT = "calibration file", "sizes left out"
BY = ["kind", "source", "library", "version", "dtype", "table"]
OVERVIEW = ["kind", "source", "table", "dtype"]
# Kinds of cases that no fit has seen, in this order.
UNSEEN = (products.NEW, products.SWEEP_OUT, products.SHAPE_OUT, products.RANK_OUT)
LEAST_POINTS_TO_TELL = 8  # for a set of copies to appear in the first sentences
SIZES = ("sweep", "model", "distribution", "n", "k", "m", "ep", "tokens_total", "extrapolated")
ABOUT = (
    "Floor: how far a measurement is from other sweeps of the same release at the same point; no model can be expected "
    "to do better. Left out, not in its fit: not seen by the fit. Table: that of the calibration which predicts the "
    "case. Extrapolated: cases at sizes outside the measured range of the table. Own table: the kernel's table as it "
    "is; without that, as the engine takes it, by the bytes of a port."
)


def validate_calibration(name: str, measurements: Measurements, quick: bool) -> Evidence:
    """``name``: of a calibration, or its file; ``quick``: the file alone, nothing held out and fitted again. Raises
    CalibrationError without measurements of its GPU.
    """
    calibration = load_calibration(name)
    gpu = calibration.gpu
    if gpu not in measurements.gpus():
        known = ", ".join(measurements.gpus()) or "none"
        raise CalibrationError(f"no measurements of {gpu!r}, which was calibrated; there are some of: {known}")
    found = [products.gemm_cases(calibration, measurements), products.moe_cases(calibration, measurements)]
    series = {FILE_ALONE: series_cases(measurements, gpu, calibration)}
    if not quick:
        found += [
            products.sweep_out_cases(measurements, gpu), products.shape_out_cases(measurements, gpu),
            products.rank_out_cases(measurements, gpu),
        ]  # fmt: skip
        series[HELD_OUT] = series_cases(measurements, gpu)
    of_products = join_frames(found)
    of_kernels, left_out = kernels.kernel_cases(calibration, name, measurements)
    engine = join_frames([
        engine_cases(calibration, name, measurements), copy_cases(calibration, measurements),
        layer_cases(calibration, name, measurements), scaled_cases(calibration, name, measurements),
    ])  # fmt: skip
    power = power_cases(gpu, measurements)
    of_laws = join_frames([of_products, series[FILE_ALONE], of_kernels])
    sections = errors(of_laws[of_laws["law"].notna()], kernels.SECTION) if len(of_laws) else errors(of_laws, ["source"])
    cases = join_frames([of_laws, *list(series.values())[1:], engine, power])
    unread = (f"No fitted curve uses {line}" for line in left_out)
    skipped = (f"No fitted curve uses {file}: {why}" for file, why in measurements.skipped.items() if why != NO_TIMES)
    return Evidence(
        title=f"Calibration {gpu}: predicted and measured",
        sentences=tuple(_sentences(name, calibration, of_products, series, engine, power, len(sections))),
        cases=cases, errors=errors(cases, ["source", "group"]),
        tables=tuple(_tables(of_products, series, engine, power, sections)),
        notes=tuple(choosing.choice_notes(calibration, measurements)), left_out=(*unread, *skipped), about=ABOUT,
    )  # fmt: skip


def _sentences(
    name: str,
    calibration: CalibrationSpec,
    of_products: pd.DataFrame,
    series: dict[str, pd.DataFrame],
    engine: pd.DataFrame,
    power: pd.DataFrame,
    laws: int,
) -> Iterator[str]:
    """The most important first."""
    if not laws:
        yield f"There is nothing to compare: no fitted curve of {name} uses a measured table."
    experts = _of_one_table(_experts(of_products))
    for kind in _kinds_shown(experts) if len(experts) else ():
        mine = experts[experts["kind"] == kind].groupby("dtype", sort=True)["error"]
        parts = [f"{dtype} {(found.abs() < UNDER).sum()} of {len(found)}" for dtype, found in mine]
        yield f"GEMMs of experts at M = 1 … 4096, {kind}: under 5 % are {', '.join(parts)}."
    layers = products.layer_groups(of_products)
    if len(layers):
        met = layers["met"].value_counts()
        aims = ", ".join(f"{100 * aim:.0f} % for {model}" for model, aim in products.AIM_OF.items())
        yield (
            f"Fused MoE layers, each EP size left out: the mean error of {met.get('yes', 0)} of {len(layers)} groups "
            f"is within {100 * products.AIM:.0f} % ({aims}), that of {met.get('floor', 0)} others within the spread of "
            "repetitions or routing samples."
        )
    heading, last = list(series.items())[-1]
    for row in set_errors(last).itertuples():
        if row.set.startswith("p2p") and row.cases >= LEAST_POINTS_TO_TELL:
            yield (
                f"Copies, {row.set.removeprefix('p2p ')} ({heading}): errors of medians over half octaves of sizes: "
                f"mean {percent(row.binned_mean)}, max {percent(row.binned_max)}."
            )
    on_engine = dict(list(engine.groupby("source", sort=False))) if len(engine) else {}
    for source in on_engine.keys() - {"event engine, one rank"}:
        far = on_engine[source]["law_error"].abs().max()
        yield f"{source.capitalize()}: at most {100 * far:.2f} % from the fitted curve."
    if calibration.p2p and "event engine, copies between two dies" not in on_engine:
        yield f"No copies between two dies are compared, as {name} has {why_no_link(calibration)}."
    if laws and not len(power):
        yield "No power was measured. `python -m calibration.measure power` measures it."


def _tables(
    of_products: pd.DataFrame,
    series: dict[str, pd.DataFrame],
    engine: pd.DataFrame,
    power: pd.DataFrame,
    sections: pd.DataFrame,
) -> Iterator[EvidenceTable]:
    """Those with rows, in the order of a page; the first ones in a terminal, too."""
    if len(of_products):
        kinds = (of_products[of_products["kind"] == kind] for kind in _kinds_shown(of_products))
        shown = pd.concat([errors(each, OVERVIEW) for each in kinds], ignore_index=True)
        floor = "; floor –: unknown, as the release has only one sweep" if shown["floor"].isna().any() else ""
        yield error_table(f"GEMMs and fused MoE layers{floor}", shown, OVERVIEW)
    for heading, found in reversed(series.items()):
        if len(found):
            worst = set_errors(found).sort_values("mean", ascending=False, kind="stable")
            table = error_table(f"Transfers and memory, {heading}, the worst first", worst, ["set", "table"])
            halves = worst[["binned_mean", "binned_max", "binned_max_unrounded"]].to_numpy()
            rows = [[*row, *map(percent, each)] for row, each in zip(table.rows, halves, strict=True)]
            names = [*table.names, "half octaves: mean", "max", "max beyond rounding"]
            yield table._replace(names=names, rows=rows, most=MOST_SETS if heading == list(series)[-1] else 0)
    if len(sections):
        shown_of_laws = ("cases", "median", "p90", "worst", "within_25")
        title = "Every fitted curve that an iteration uses, on all that was measured"
        yield error_table(title, sections, kernels.SECTION, shown_of_laws)
    if len(engine):
        by, statistics = ["source", "group"], ("cases", "under_5", "mean", "median", "p95", "worst", "within_25")
        yield error_table("On the event engine, beside measurements", errors(engine, by), by, (*statistics, "in_range"))
        curve = errors(engine.assign(error=engine["law_error"]), by)
        yield error_table("On the event engine, beside the fitted curve", curve, by, ("cases", "mean", "worst"))
    if len(power):
        yield table_of("Power of the whole GPU at steady work, measured and computed", power, POWER_COLUMNS)
    experts, layers = _experts(of_products), products.layer_groups(of_products)
    if len(experts):
        by = [*BY[:1], *BY[2:], "model"]
        yield error_table("GEMMs of experts, M = 1 … 4096", errors(experts, by), by)._replace(most=0)
    if len(layers):
        worst = layers.sort_values("mean", ascending=False, kind="stable").assign(aim=layers["aim"].map(percent))
        title = "Fused MoE layers, each EP size left out"
        yield error_table(title, worst, [*products.GROUP, "aim", "met"])._replace(most=0)
        by = ["library", "dtype", "distribution", "model", "ep"]
        of_ranks = errors(of_products[of_products["kind"] == products.RANK_OUT], by)
        yield error_table(f"{title}: by that size", of_ranks, by, ("cases", "mean", "worst"))._replace(most=0)
    if len(of_products):
        yield error_table("All GEMMs and fused MoE layers", errors(of_products, BY), BY)._replace(most=0)
        above = of_products[of_products["error"].abs() >= UNDER]
        worst = above.loc[above["error"].abs().sort_values(ascending=False, kind="stable").index[:MOST_WORST]]
        columns = {name: (name, _cell) for name in (*BY, *SIZES) if name in worst}
        times = {"measured us": ("measured", _time), "predicted us": ("predicted", _time), "error": ("error", percent),
                 "floor": ("floor", percent)}  # fmt: skip
        title = f"Largest errors: {len(above)} of {len(of_products)} cases have one of 5 % or more"
        yield table_of(title, worst, columns | times)._replace(texts=len(columns), most=0)


def _of_one_table(cases: pd.DataFrame) -> pd.DataFrame:
    if not len(cases):
        return cases
    mine = cases[cases["library"] == cases["library"].mode()[0]]
    return mine[mine["table"] == max(mine["table"], key=lambda table: newest_first(table.rpartition(" ")[2]))]


def _kinds_shown(cases: pd.DataFrame) -> list[str]:
    """Cases that the fit has not seen; if it has seen all, all of them."""
    return [kind for kind in UNSEEN if (cases["kind"] == kind).any()] or [products.FITTED]


def _experts(cases: pd.DataFrame) -> pd.DataFrame:
    return products.expert_cases(cases[cases["source"] == choosing.GEMM])


def _time(us: float) -> str:
    return f"{us:.4g}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:g}"
    return str(value)
