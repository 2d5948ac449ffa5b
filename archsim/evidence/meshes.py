"""Measured meshes of chips beside the laws and null models with one constant, fitted to the same cases: ``links only``
(bytes over the busiest link), ``endpoint only`` (vectors of the busiest chip), ``constant``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from archsim.base.case import Case as EvidenceCase
from archsim.base.case import errors, frame_of
from archsim.base.errors import capital
from archsim.base.sums import sum
from archsim.base.tables import Shown
from archsim.evidence.page import Evidence, EvidenceTable
from archsim.laws.mesh import COMBINE, DISPATCH, LINEAR, NULLS, RING, EndpointLaw, LinkRate, quantities
from archsim.machine.fabric_calibrations import FabricCalibration, shipped_fabrics
from calibration.fit.mesh import endpoint_laws
from calibration.measurements.mesh import TPU7X, Case, Meshes, TransformerBlock, read_meshes
from calibration.measurements.reading import CalibrationError

if TYPE_CHECKING:
    import pandas

MISSING_SPREAD = (
    "captured_columns_*.csv do not say how the picks of a column spread over its eight chips; the spread is taken to "
    "be even, so that two columns with the same share get the same time, though measured ones differ by up to 41 %"
)
NONE = (nan,) * len(NULLS)  # no null model has a time


class MeshCase(NamedTuple):
    """A measured case beside its law."""

    file: str  # its name
    name: str  # of the case
    kernel: str  # dispatch, combine, link or hop …
    version: str  # of the kernel
    measured_ns: float  # time of the case
    simulated_ns: float = nan  # by the law; nan: no law reads it
    left_out_ns: float = nan  # by a law that the other cases of the folder alone give; nan: too few
    nulls: tuple[float, ...] = NONE  # ns by each of `NULLS`
    left_out_nulls: tuple[float, ...] = NONE  # the same by the other cases alone
    case: Case | None = None  # None for links, latencies and blocks
    unit: str = "us"  # in which its time is shown

    @property
    def error(self) -> float:
        return self.simulated_ns / self.measured_ns - 1

    @property
    def left_out_error(self) -> float:
        return self.left_out_ns / self.measured_ns - 1


class Ratio(NamedTuple):
    """A ratio of two times."""

    kind: str  # what is compared
    name: str  # of the case
    kernel: str  # of the case
    measured: float  # ratio
    simulated: float  # ratio
    bar: float  # most that they may differ

    @property
    def off(self) -> float:
        return self.simulated - self.measured


class MeasuredOrder(NamedTuple):
    """What was measured in ascending order of time, and the order of the simulated times."""

    kind: str
    measured: tuple[str, ...]
    simulated: tuple[str, ...]


class MeshSummary(NamedTuple):
    """Mean relative errors of a law over its cases."""

    kernel: str  # of the law
    version: str  # of the kernel
    cases: int  # how many
    error: float  # mean of |error|, by the file
    most: float  # largest of |error|
    left_out: float  # mean of |error| of cases that were left out of a fit; nan: none
    nulls: tuple[float, ...]  # of cases left out, where the law was fitted to these; else of the file's constants
    fitted: bool  # whether the law was fitted to these cases

    @property
    def beaten_by(self) -> tuple[str, ...]:
        """Null models that are at least as good."""
        own = self.left_out if self.fitted and self.left_out == self.left_out else self.error
        return tuple(name for name, error in zip(NULLS, self.nulls, strict=True) if error <= own)


@dataclass(frozen=True)
class MeshValidation(Shown):
    """What `validate_meshes` found."""

    judged: tuple[MeshCase, ...]  # every case
    ratios: tuple[Ratio, ...]  # of times of two cases
    orders: tuple[MeasuredOrder, ...]  # of times of several
    summaries: tuple[MeshSummary, ...]  # one for each law
    unread: tuple[str, ...]  # a line for each file that no law reads
    laws: tuple[EndpointLaw, ...] = field(repr=False, default=())  # fitted to the folders' cases

    def __repr__(self) -> str:
        return f"MeshValidation({len(self.judged)} cases, {len(self.ratios)} ratios, {len(self.unread)} files unread)"

    def to_pandas(self) -> pandas.DataFrame:
        return cases_of(self)

    @property
    def evidence(self) -> Evidence:
        beaten = sum(bool(each.beaten_by) for each in self.summaries)
        sentences = [f"{len(self.summaries) - beaten} of {len(self.summaries)} fitted curves beat every null model."]
        sentences += [
            f"Order of {order.kind}, from the shortest: measured {' < '.join(order.measured)}; simulated "
            f"{' < '.join(order.simulated)}."
            for order in self.orders
        ]
        columns = any(each.case and each.case.family == "column" for each in self.judged)
        cases = cases_of(self)
        return Evidence(
            "Measured meshes", tuple(sentences), cases, errors(cases, ["source", "group"]), tuple(tables_of(self)),
            (f"{capital(MISSING_SPREAD)}.",) if columns else (), self.unread,
        )  # fmt: skip


def validate_meshes(*folders: str | Path, fabrics: Sequence[FabricCalibration] | None = None) -> MeshValidation:
    """Compare the CSV files of folders, which count as one, with calibrations of fabrics; None: the shipped ones.
    Raises CalibrationError for an unexpected file, and for a topology on which a law was not measured.
    """
    measured = read_meshes(*folders)
    known = list(shipped_fabrics() if fabrics is None else fabrics)
    own = _own_laws(measured.cases, known)
    judged = [_judge(case, measured.cases, known, own) for case in measured.cases]
    unread = [*measured.unread, *_without_law(judged)]
    judged = [each for each in judged if np.isfinite(each.simulated_ns)]
    links = [*_judged_rates(measured, known), *_judged_latencies(measured, known)]
    blocks, block_orders, apart = _judged_blocks(measured.blocks, known)
    ratios = [*_changes(judged, measured), *_ratios(judged), *_to_one_chip(measured, known)]
    orders = [*_tpu_order(judged), *block_orders]
    laws, every = tuple(law for each in known for law in each.endpoint), (*judged, *links, *blocks)
    summaries = tuple(_summaries(every, laws))
    return MeshValidation(every, tuple(ratios), tuple(orders), summaries, (*unread, *apart), laws)


def _law_of(case: Case, known: Sequence[FabricCalibration]) -> EndpointLaw | None:
    found = [law for each in known if each.machine == case.machine if (law := each.law(case.kernel, case.version))]
    return found[0] if found else None


def _own_laws(cases: Sequence[Case], known: Sequence[FabricCalibration]) -> dict[tuple[str, str, str], EndpointLaw]:
    """Laws fitted to the folder itself, of kernels and versions that no calibration has."""
    new = [case for case in cases if _law_of(case, known) is None and case.family != "tpu hierarchical"]
    return {(law.machine, law.kernel, law.version): law for law in endpoint_laws(new)}


def _judge(
    case: Case, cases: Sequence[Case], known: Sequence[FabricCalibration], own: dict[tuple[str, str, str], EndpointLaw]
) -> MeshCase:
    found = MeshCase(Path(case.file).name, case.name, case.kernel, case.version, case.measured_ns, case=case)
    law, stages = _law_of(case, known), 1
    if law is None and case.family == "tpu hierarchical":  # two exchanges, each like a flat one along its axes
        flat = case._replace(version=case.version.replace("hierarchical", "flat"))
        law, stages = _law_of(flat, known), 2
    if law is None and case.family == "mori":  # the library's other kernel
        law = _law_of(case._replace(kernel=COMBINE if case.kernel == DISPATCH else DISPATCH), known)
    if law is None:
        law = own.get((case.machine, case.kernel, case.version))
        if law is None or (law.residuals and law.residuals.cases == 1):
            return found
    if case.topology not in law.topologies:
        raise CalibrationError(
            f"{case.file}: line {case.line}: {case.name} is on a topology {case.topology!r}; the calibration "
            f"of {law.machine} {law.kernel} {law.version} was measured on {', '.join(law.topologies)}. Give a "
            "calibration of this topology with --with"
        )
    vectors = quantities(case.sent, case.sides, case.wrapped, case.kernel)
    found = found._replace(
        simulated_ns=stages * _ns_of(law, case, vectors),
        nulls=tuple(law.null_ns(name, vectors, case.vector_bytes, case.links) for name in NULLS),
    )
    others = [
        each for each in cases
        if (each.machine, each.kernel, each.version) == (case.machine, case.kernel, case.version)
        and each.whole != case.whole
    ]  # fmt: skip
    if len({each.whole for each in others}) < 2 or stages > 1:
        return found
    again = _refit(others, law)
    return found._replace(
        left_out_ns=_ns_of(again, case, vectors),
        left_out_nulls=tuple(again.null_ns(name, vectors, case.vector_bytes, case.links) for name in NULLS),
    )


def _ns_of(law: EndpointLaw, case: Case, vectors: Mapping[str, float]) -> float:
    return law.time_ns(vectors, case.vector_bytes, case.links, case.links * case.link_bytes_per_s)


def _refit(cases: Sequence[Case], law: EndpointLaw) -> EndpointLaw:
    from calibration.fit.mesh import FIXED, LINK, fit_law

    terms = [FIXED] if law.fixed_ns else []
    terms += [*law.ns_per_vector] + ([LINK] if law.link_ns_per_byte else [])
    return fit_law(cases, tuple(terms), "")


def _without_law(judged: Iterable[MeshCase]) -> list[str]:
    lacking: dict[tuple[str, str, str], int] = {}
    for each in judged:
        if not np.isfinite(each.simulated_ns):
            key = each.file, each.kernel, each.version
            lacking[key] = lacking.get(key, 0) + 1
    return [
        f"{file}: {count} {'case' if count == 1 else 'cases'} of {kernel} {version}: no calibration has this kernel, "
        "and one case alone gives none"
        for (file, kernel, version), count in lacking.items()
    ]  # fmt: skip


def _changes(judged: Sequence[MeshCase], measured: Meshes) -> list[Ratio]:
    """Changes against the captured routing: of other cases of the same layer, and of permuted slots."""
    found, of = [], {(each.name, each.kernel): each for each in judged}
    for (name, kernel), each in of.items():
        base, _, mode = name.rpartition("_captured")
        if mode or not base:
            continue
        for other in of:
            if other[0].startswith(f"{base}_") and other[0] != name and other[1] == kernel:
                by = of[other].measured_ns / each.measured_ns - 1, of[other].simulated_ns / each.simulated_ns - 1
                found.append(Ratio("change against captured", other[0], kernel, *by, 0.05))
    for name, kernel, relative, percent in measured.ratios:
        if (name, kernel) not in of and (relative, kernel) in of and "slot" in name:
            # slots of a chip have no part in any term: the matrix is the same
            found.append(Ratio("change against captured", name, kernel, percent / 100, 0.0, 0.05))
    return found


def _ratios(judged: Sequence[MeshCase]) -> list[Ratio]:
    cases = [each for each in judged if each.case is not None]
    found: list[Ratio] = []

    def add(kind: str, name: str, of: MeshCase, over: MeshCase) -> None:
        measured, simulated = of.measured_ns / over.measured_ns, of.simulated_ns / over.simulated_ns
        found.append(Ratio(kind, name, of.kernel, measured, simulated, 0.10))

    for each in cases:
        case = each.case
        assert case is not None
        same = [o for o in cases if o.case and (o.kernel, o.version) == (each.kernel, each.version)]
        if case.topology == RING:
            for other in same:
                o = other.case
                assert o is not None
                gate = "gate" in each.name, "gate" in other.name
                if (
                    o.topology == LINEAR and o.links == case.links and len(set(gate)) == 1 and o.hot == case.hot
                    and (o.whole == case.whole or case.family == o.family == "uniform")
                ):  # fmt: skip
                    add("ring over line", f"{case.whole} {case.version}", each, other)
        if case.hot > 30 and case.family == "column":
            model = case.whole.partition(" layer")[0]
            for other in same:
                o = other.case
                assert o is not None
                if o.topology == case.topology and o.whole.startswith(f"{model} layer") and 20 < o.hot < 30:
                    add("hot over uniform column", f"{case.whole} over {o.whole}, {case.topology}", each, other)
        if case.links == 1 and case.family == "uniform":
            for other in same:
                o = other.case
                assert o is not None
                if o.topology == case.topology and o.links == 2 and "gate" not in other.name:
                    add("1 link over 2 links", f"{case.topology} {case.version}", each, other)
        if case.machine == TPU7X and case.name.endswith("fp8"):
            for other in same:
                if other.name == case.name.replace("fp8", "bf16"):
                    add("fp8 over bf16", case.name, each, other)
    return found


# Mistral Small 4, chunks of 5,120 tokens. ms of a layer beside dispatch, combine and experts, on 8 and on 32 chips
# (stage_means.csv), and of experts a vector of the busiest chip (least squares of model_layers_paired.csv); load of the
# busiest chip over the mean in recorded routing (mean of routing_statistics_mistral4.csv).
REST_MS = {8: 5.73, 32: 3.87}
EXPERT_NS, EXPERTS_MS = 185.0, 1.5
IMBALANCE = {8: 1.49, 32: 2.73}
ASSIGNMENTS = 5120 * 4


def _to_one_chip(measured: Meshes, known: Sequence[FabricCalibration]) -> list[Ratio]:
    """Whole layers with all tokens on the experts of one chip, over those with recorded routing."""
    laws = [law for each in known for law in each.endpoint if law.version == "model-2026-09-17"]
    found = []
    for name, chips, ratio in measured.zero_routing:
        if len(laws) != len({DISPATCH, COMBINE}):
            continue
        place = np.log2(chips / 8) / 2  # between 8 and 32 chips by logarithms
        rest, imbalance = (of[8] ** (1 - place) * of[32] ** place for of in (REST_MS, IMBALANCE))
        fixed = (sum(law.fixed_ns for law in laws) / 1e6 + EXPERTS_MS) * 8 / chips + rest
        away = 7 / 8  # of the assignments of a column
        per_vector = (sum(law.ns_per_vector["experts"] for law in laws) * away + EXPERT_NS) / 1e6
        zero, recorded = (fixed + per_vector * ASSIGNMENTS * share for share in (1.0, imbalance / chips))
        found.append(Ratio("all tokens to one chip", name, "layer", ratio, zero / recorded, 0.15 * ratio))
    return found


def _tpu_order(judged: Sequence[MeshCase]) -> list[MeasuredOrder]:
    own = [each for each in judged if each.case is not None and each.case.machine == TPU7X and "bf16" in each.name]
    return [_order("TPU v7x, bf16", own)] if len(own) > 1 else []


def _order(kind: str, own: Sequence[MeshCase]) -> MeasuredOrder:
    def by(key: Callable[[MeshCase], float]) -> tuple[str, ...]:
        return tuple(each.name for each in sorted(own, key=key))

    return MeasuredOrder(kind, by(lambda each: each.measured_ns), by(lambda each: each.simulated_ns))


def _judged_rates(measured: Meshes, known: Sequence[FabricCalibration]) -> list[MeshCase]:
    laws = [law for each in known for law in each.link_rate]
    found = []
    for rate in measured.rates:
        law = rate_law(laws, rate.machine, rate.pattern)
        if law is None:
            continue
        of_machine = [each.bytes_per_s for each in measured.rates if each.machine == rate.machine]
        peak = max(each.bytes_per_s for each in laws if each.machine == law.machine)
        per_byte = 1e9 / law.rate(rate.packet_bytes)
        nulls = (1e9 / peak, nan, 1e9 / float(np.mean(of_machine)))
        about = "fabric_bandwidth.csv", f"{rate.machine}: {rate.name}", "link", rate.machine
        found.append(MeshCase(*about, 1e9 / rate.bytes_per_s, per_byte, nulls=nulls, unit="ns/B"))
    return found


def rate_law(laws: Sequence[LinkRate], machine: str, pattern: str) -> LinkRate | None:
    """The law of a pattern of traffic; else the geometric mean of the machine's, else of machines of the same chip."""
    own = [law for law in laws if law.machine == machine]
    exact = [law for law in own if law.pattern == pattern]
    chip = [law for law in laws if law.machine.partition(" ")[0] == machine.partition(" ")[0]]
    # machines of the same chip: the same traffic, else all patterns of that which has most of them
    same_pattern = [law for law in chip if law.pattern == pattern]
    most = max((law.machine for law in chip), key=lambda name: sum(law.machine == name for law in chip), default="")
    near = exact or own or same_pattern or [law for law in chip if law.machine == most]
    if not near:
        return None
    packet, rate = (
        float(np.exp(np.mean(np.log([getattr(law, name) for law in near])))) for name in ("packet_ns", "bytes_per_s")
    )
    return LinkRate(near[0].machine, pattern, packet, rate)


def _judged_latencies(measured: Meshes, known: Sequence[FabricCalibration]) -> list[MeshCase]:
    laws = [law for each in known for law in each.hop_latency]
    found = []
    for each in measured.latencies:
        chip = each.machine.partition(" ")[0]
        near = [law for law in laws if law.machine == each.machine] or [
            law for law in laws if law.machine.partition(" ")[0] == chip
        ]
        if not near:
            continue
        mean = float(np.mean([other.ns for other in measured.latencies if other.machine == each.machine]))
        about = "fabric_latency.csv", f"{each.machine}: {each.name}", "hop", each.machine
        ns = near[0].of(each.payload_bytes, each.atomic)
        found.append(MeshCase(*about, each.ns, ns, nulls=(nan, nan, mean), unit="ns"))
    return found


# A block of a layer of experts with tensor parallelism of 4 along the second axis: an all-gather before and a
# reduce-scatter after attention and feed-forward each (Korthikanti et al., arXiv 2205.05198, section 4.2.2).
COLLECTIVES, TP = 4, 4
HIDDEN_BYTES = 7168 * 2
LARGE_PACKET = 15232  # bytes (hardware.csv)


def block_ns(fabric: FabricCalibration, mesh: str, name: str, tokens: int) -> float | None:
    """A block's time on 8 x 4 chips, measured on a line, a 2-D mesh, and with the axis of 8 a ring. Where the axis of 4
    is a ring, a collective's busiest link carries half as many shards. None for another mesh.
    """
    of = {(each, kind): ns for each, kind, ns in fabric.blocks}
    if mesh != "8x4":
        return None
    if (mesh, name) in of:
        return of[mesh, name]
    without = {"FABRIC_2D_TORUS_X": "FABRIC_2D", "FABRIC_2D_TORUS_XY": "FABRIC_2D_TORUS_Y"}.get(name)
    law = rate_law(fabric.link_rate, "BH Galaxy", "CustomMaxPacketSizeMesh")
    if without is None or (mesh, without) not in of or law is None:
        return None
    shard = tokens * HIDDEN_BYTES / TP
    saved = COLLECTIVES * (TP - 1) / 2 * shard / (2 * law.rate(LARGE_PACKET)) * 1e9
    return of[mesh, without] - saved


def _judged_blocks(
    blocks: Sequence[TransformerBlock], known: Sequence[FabricCalibration]
) -> tuple[list[MeshCase], list[MeasuredOrder], list[str]]:
    fabric = next((each for each in known if each.blocks), None)
    found, apart = [], []
    own = [block for block in blocks if block.kind == "moe"]
    for block in own:
        ns = None if fabric is None else block_ns(fabric, block.mesh, block.fabric, block.tokens)
        if ns is None or block.gate != "device":
            apart.append(f"block_by_topology.csv: {block.name}: only blocks of 8 x 4 chips with the gate on the device")
            continue
        # links only: the axes that are lines, at the bytes of a collective
        constant = float(np.mean([each[2] for each in fabric.blocks if each[0] == block.mesh])) if fabric else nan
        fitted = fabric is not None and any(each[:2] == (block.mesh, block.fabric) for each in fabric.blocks)
        about = "block_by_topology.csv", block.name + (" (in the fit)" if fitted else ""), "block", block.fabric
        found.append(MeshCase(*about, block.ns, ns, nulls=(nan, nan, constant), unit="ms"))
    dense = sum(block.kind == "dense" for block in blocks)
    if dense:
        apart.append(f"block_by_topology.csv: {dense} dense blocks: no experts, so nothing is dispatched")
    orders = []
    if fabric is not None and found:
        every = [(fabric_name, block_ns(fabric, "8x4", fabric_name, 3200)) for fabric_name in TORI]
        simulated = tuple(name for name, ns in sorted(every, key=lambda each: each[1] or 0.0))
        measured = tuple(each.version for each in sorted(found, key=lambda each: each.measured_ns))
        orders.append(MeasuredOrder("block on 8 x 4 (measured: those of this folder)", measured, simulated))
    return found, orders, apart


TORI = ("FABRIC_1D", "FABRIC_2D", "FABRIC_2D_TORUS_X", "FABRIC_2D_TORUS_Y", "FABRIC_2D_TORUS_XY")


SAME_ERROR = 1e-3  # a law whose mean error on as many cases is that of its fit was fitted to them


def _summaries(judged: Sequence[MeshCase], known: Sequence[EndpointLaw]) -> list[MeshSummary]:
    found = []
    for kernel, version in dict.fromkeys((each.kernel, each.version if each.case else each.file) for each in judged):
        own = [e for e in judged if e.kernel == kernel and (e.version if e.case else e.file) == version]
        errors = np.abs([each.error for each in own])
        out = np.abs([each.left_out_error for each in own])
        left, laws = bool(np.isfinite(out).all()), {(law.kernel, law.version): law.residuals for law in known}
        residuals = laws.get((kernel, version))
        fitted = residuals is None or (
            residuals.points == len(own) and abs(residuals.mean - float(errors.mean())) < SAME_ERROR
        )
        nulls = []
        for place in range(len(NULLS)):
            times = [(each.left_out_nulls if left and fitted else each.nulls)[place] for each in own]
            off = np.abs([ns / each.measured_ns - 1 for ns, each in zip(times, own, strict=True)])
            nulls.append(float(off.mean()))
        mean, most = float(errors.mean()), float(errors.max())
        left_out = float(out.mean()) if left else nan
        found.append(
            MeshSummary(
                kernel=kernel,
                version=version,
                cases=len(own),
                error=mean,
                most=most,
                left_out=left_out,
                nulls=tuple(nulls),
                fitted=fitted,
            )  # fmt: skip
        )
    return found


def names_of(kernel: str) -> str:
    return {DISPATCH: "dispatch", COMBINE: "combine", "link": "link rate", "hop": "hop latency"}.get(kernel, kernel)


def tables_of(found: MeshValidation) -> list[EvidenceTable]:
    head = ["case", "kernel", "version", "measured", "simulated", "error", "left out", *NULLS]
    cases = [[*_cells(each), *(_time(ns, each.unit) for ns in each.nulls)] for each in found.judged]
    ratios = [
        [each.kind, each.kernel, each.name, f"{each.measured:.3f}", f"{each.simulated:.3f}", f"{each.off:+.3f}",
         f"{each.bar:.2f}", "" if abs(each.off) <= each.bar else "missed"]
        for each in found.ratios
    ]  # fmt: skip
    kinds = []
    for kind, kernel in dict.fromkeys((each.kind, each.kernel) for each in found.ratios):
        own = [each for each in found.ratios if (each.kind, each.kernel) == (kind, kernel)]
        met = sum(abs(each.off) <= each.bar for each in own)
        kinds.append([f"{kind}, {kernel}", str(len(own)), str(met), f"{max(abs(each.off) for each in own):.3f}"])
    laws = [
        [names_of(of.kernel), of.version, ", ".join(of.beaten_by) or "–", str(of.cases),
         *map(_bare, (of.error, of.most, of.left_out, *of.nulls))]
        for of in found.summaries
    ]  # fmt: skip
    headings = ["cases", "error %", "at most %", "left out %", *(f"{each} %" for each in NULLS)]
    found_tables = [
        EvidenceTable("Cases", head, cases, 3),
        EvidenceTable("Ratios and changes", ["kind", "kernel", "case", *head[3:5], "difference", "bar", ""], ratios, 3),
        EvidenceTable("By kind", ["kind", "cases", "within the bar", "largest difference"], kinds, 1),
        EvidenceTable("Mean errors of the file, of cases left out of a fit, and of null models",
                      ["kernel", "version", "not better than", *headings], laws, 3),
    ]  # fmt: skip
    return [each for each in found_tables if each.rows]


def cases_of(found: MeshValidation) -> pandas.DataFrame:
    """Every case in ns, every ratio, and what null models and laws that the other cases give say of a case."""
    every = [
        EvidenceCase("ratios of meshes", f"{each.kind}, {each.kernel}", each.name, "×", each.measured, each.simulated)
        for each in found.ratios
    ]
    for each in found.judged:
        group, unit = f"{names_of(each.kernel)} {each.version}", "ns/B" if each.unit == "ns/B" else "ns"
        about = group, each.name, unit, each.measured_ns
        every += [EvidenceCase("meshes", *about, each.simulated_ns)]
        every += [EvidenceCase("meshes", *about, each.left_out_ns, seen=False)]
        every += [EvidenceCase(f"meshes, {name}", *about, ns) for name, ns in zip(NULLS, each.nulls, strict=True)]
    return frame_of(each for each in every if np.isfinite(each.predicted))


def law_lines(fabrics: Iterable[FabricCalibration]) -> list[str]:
    return [line for fabric in fabrics for line in _laws_of(fabric)]


def _laws_of(fabric: FabricCalibration) -> list[str]:
    lines = []
    for law in fabric.endpoint:
        parts = [f"{law.fixed_ns / 1e3:.1f} us"] if law.fixed_ns else []
        parts += [f"{ns:.1f} ns a vector ({term})" for term, ns in law.ns_per_vector.items()]
        parts += [f"bytes of the busiest link at {1 / law.link_ns_per_byte:.1f} GB/s"] if law.link_ns_per_byte else []
        residuals = law.residuals
        errors = ""
        if residuals is not None:
            out = "" if residuals.held_out_mean is None else f", left out {_percent(residuals.held_out_mean)}"
            errors = f"; {residuals.points} times of {residuals.cases} cases, error {_percent(residuals.mean)}{out}"
        lines.append(
            f"{fabric.machine} {law.kernel} {law.version} ({', '.join(law.topologies)}): {' + '.join(parts)}{errors}; "
            f"{law.note}"
        )
    for rate in fabric.link_rate:
        errors = "" if rate.residuals is None else f"; error {_percent(rate.residuals.mean)}"
        lines.append(
            f"{rate.machine} {rate.pattern}: a packet takes {rate.packet_ns:.0f} ns or more, a link passes "
            f"{rate.bytes_per_s / 1e9:.1f} GB/s or less{errors}"
        )
    for hop in fabric.hop_latency:
        errors = "" if hop.residuals is None else f"; error {_percent(hop.residuals.mean)}"
        lines.append(
            f"{hop.machine}: a hop takes {hop.ns:.0f} ns and {hop.ns_per_byte:.3f} ns/B, with an atomic "
            f"{hop.atomic_ns:.0f} ns more{errors}"
        )
    return lines


def page_of(found: MeshValidation, fabrics: Sequence[FabricCalibration]) -> str:
    """``docs/meshes.md``."""
    tables = {each.title: each for each in tables_of(found)}
    lines = [
        "# Measured meshes", "",
        "How far are the fitted curves of dispatch and combine from what was measured on real meshes of chips?",
        "`archsim calibrate --validate --mesh FOLDER --out docs/meshes.md` writes this page. It compares the shipped",
        "calibrations of fabrics with null models that have one constant each and are fitted to the same cases:",
        "*links only* (bytes over the busiest link), *endpoint only* (vectors of the busiest chip) and *constant*.",
        "*Left out* is the error of a curve that was fitted without the case. The table names each null model that a",
        "curve does not beat.", "",
        "`archsim/laws/mesh.py` has the curves, and `configs/fabrics/` their constants with residuals. For your own",
        "machine, run `archsim calibrate FOLDER` and `archsim calibrate --validate --mesh FOLDER` on CSV files with",
        "the columns [below](#files).", "",
        "For wafers, whose networks nobody measured, these errors are the nearest evidence.", "",
        "## Fitted curves against null models", "",
        *tables["Mean errors of the file, of cases left out of a fit, and of null models"].markdown(),
    ]  # fmt: skip
    if "By kind" in tables:
        lines += ["", "## Ratios and changes", "", *tables["By kind"].markdown()]
    for order in found.orders:
        lines += [
            "", f"Order of {order.kind}: measured {' < '.join(order.measured)}; simulated "
            f"{' < '.join(order.simulated)}.",
        ]  # fmt: skip
    lines += _fabric_alone(found)
    lines += ["", *BARS_MISSED, "", "## What is missing", "", f"- {capital(MISSING_SPREAD)}."]
    lines += [f"- {line}" for line in found.unread]
    lines += ["", "## The calibrations", "", *(f"- {line}" for line in law_lines(fabrics)), "", *_files()]
    return "\n".join(lines) + "\n"


BARS_MISSED = (
    "## What the curves do not say",
    "",
    "- *Other kernels and topologies.* A curve is a regression for one kernel on one topology. On columns left",
    "  out, a constant for each pick does as well: 14.8 against 14.4 %.",
    "- *All tokens to one chip.* By the endpoint curve a layer of 8 chips takes 2.2 times as long as with recorded",
    "  routing. Published are 134.89 ms against 152.88 ms for nine layers, 1.13 times; the source says neither which",
    "  is which nor whether kernels drop what their buffers do not hold. On 8 x 2 chips the curve says 2.8 times.",
    "- *Hot over even columns.* A column with 1.5 times the picks takes 1.5 times as long by the curve; measured",
    "  ratios go from 1.3 to 1.9, by how the picks spread over the chips of the column, which is not published.",
    "- *Hierarchical all-to-all* of a TPU is taken as two exchanges, each like a flat one: the order is right, and the",
    "  time is an upper end.",
    "- Curves with as many constants as settings (`uniform` dispatch, `in-kernel`, `flat`, `mori`) fit their own cases",
    "  exactly. Only ratios outside the fit test them: one link against two, FP8 against BF16.",
    "- One link against two on combine, 1.33 times on a line and 1.26 on a ring, follows from the nominal rate of a",
    "  link; published are 1.23 to 1.38.",
)


def _fabric_alone(found: MeshValidation) -> list[str]:
    """Flow-level simulation of links alone, for even traffic, under two values of the assumption ``arbitration``."""
    from archsim.engine.flows.simulation import simulate_flows
    from microarch.fabric.topology import build_topology

    def longest(name: str, x: int, y: int, arbitration: str) -> float:
        flows = [(s, d, 1e5, 0.0) for s in range(x * y) for d in range(x * y) if s != d]
        return float(
            simulate_flows(build_topology(name, x, y, "row_major"), flows, 1e9, 0.0, arbitration=arbitration).max()
        )

    lines = [
        "", "## Links alone, and buffers that hold up", "",
        "Even traffic between all chips, simulated as flows over the links, without endpoints. `head_of_line`: what a",
        "forwarding buffer holds waits for the first of it. Time over that of the line, or of the 8 x 4 mesh:", "",
        "| arbitration | ring of 8 over line | torus, axis of 8, over mesh | torus, axis of 4 | torus, both axes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for arbitration in ("fair", "head_of_line"):
        line, mesh = longest("mesh", 8, 1, arbitration), longest("mesh", 8, 4, arbitration)
        tori = [longest(name, 8, 4, arbitration) / mesh for name in ("torus_x", "torus_y", "torus")]
        cells = [longest("ring", 8, 1, arbitration) / line, *tori]
        lines.append(f"| `{arbitration}` | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    for kernel in (DISPATCH, COMBINE):
        own = [each.measured for each in found.ratios if (each.kind, each.kernel) == ("ring over line", kernel)]
        if own:
            span = f"{np.mean(own):.2f} ({min(own):.2f} to {max(own):.2f})"
            lines.append(f"| measured, {kernel}, {len(own)} cases | {span} | – | – | – |")
    return lines


def _files() -> list[str]:
    from calibration.measurements.mesh import COLUMNS

    lines = [
        "## Files", "",
        "CSV files of a folder, each of them optional; further columns are ignored. `python -m calibration.measure",
        "mesh` prints which points to take.", "", "| file | columns |", "| --- | --- |",
    ]  # fmt: skip
    return [
        *lines,
        *(f"| `{name}.csv` | {', '.join(f'`{column}`' for column in of)} |" for name, of in COLUMNS.items()),
    ]


def _cells(each: MeshCase) -> list[str]:
    return [
        each.name, names_of(each.kernel), each.version, _time(each.measured_ns, each.unit),
        _time(each.simulated_ns, each.unit), f"{100 * each.error:+.1f} %",
        f"{100 * each.left_out_error:+.1f} %" if np.isfinite(each.left_out_ns) else "–",
    ]  # fmt: skip


def _time(ns: float, unit: str) -> str:
    if not np.isfinite(ns):
        return "–"
    scale = {"us": 1e3, "ms": 1e6}.get(unit, 1.0)
    return f"{ns / scale:.4f} {unit}" if unit == "ns/B" else f"{ns / scale:,.1f} {unit}"


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f} %"


def _bare(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f}"
