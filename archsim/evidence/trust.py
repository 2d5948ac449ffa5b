"""How far the time of a machine can be trusted: the error of the nearest measured machine by part of an iteration (over
predicted times that no fit saw, configs/uncertainty/widths.yaml), and the share of the time that rests on it. Links of
a mesh have the errors of cases left out. Parts are taken as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archsim.base.answer import Answer, Grid
from archsim.base.sums import sum
from archsim.iteration.machine import is_measured
from archsim.laws.calibration_files import DEFAULT_CALIBRATION
from archsim.machine.fabric_calibrations import fabric_calibration
from archsim.runs.choice import choose
from archsim.runs.plan import select
from archsim.runs.run import Run
from archsim.runs.simulator import Simulator
from archsim.show.units import listing, percent, significant
from archsim.specs.experiment import ExperimentSpec
from archsim.specs.uncertainty import load_widths
from archsim.uncertainty.estimate import SURE, Interval, interval
from archsim.uncertainty.ranges import shorten
from archsim.uncertainty.worlds import draws_of, quantities_of

SAMPLES = 1024
MESH = "blackhole"  # the mesh that was measured
_LEAST = 0.005  # share of an iteration below which a part is not named
# Part → columns of an iteration, and the table of measured laws that times it.
_REST: Mapping[str, tuple[tuple[str, ...], str]] = {
    "other GEMMs": (("projections", "dense", "head"), "gemm"),
    "attention": (("attention",), "attention"),
    "all-reduces": (("all_reduce",), "collectives"),
    "the host": (("host",), "launches"),
}
_LINKS, _DECIDING = ("link", "activations"), ("decision",)  # causes in MoE layers; all others are kernels


@dataclass(frozen=True)
class TrustedPart:
    """A part of an iteration."""

    name: str
    share: float  # of its time
    source: str  # what its time rests on, and how many points say how far that is off
    off: Interval | None  # measured over predicted time, less one; None: nobody measured anything like it
    factors: np.ndarray  # float64[sample] measured over predicted; ones where nobody measured

    @property
    def typical(self) -> float:
        return float(np.median(np.abs(self.factors - 1)))

    @property
    def told(self) -> str:
        """``53 % on kernels of experts (h100, scaled: off by 17 %, −48 to +92 %)``."""
        if self.off is None:
            return f"{percent(self.share)} on {self.name}, {self.source}"
        source = self.source.rpartition(", ")[0] if self.source.endswith(" points") else self.source  # in the table
        return f"{percent(self.share)} on {self.name} ({source}: off by {percent(self.typical)}, {_ends(self.off)})"


@dataclass(frozen=True)
class Trust:
    """How far one run can be trusted."""

    run: str
    system: str
    measured: bool  # whether the machine itself was measured
    parts: tuple[TrustedPart, ...]  # the largest first
    factors: np.ndarray  # float64[sample] measured over predicted time of the whole, less one
    whole: str  # what the shares are of

    @property
    def off(self) -> Interval:
        """Of the whole."""
        return interval(self.factors)

    @property
    def sentence(self) -> str:
        scaled = any(_WAYS["scaled"] in each.source for each in self.parts if each.share >= _LEAST)
        own = "was not measured" if not self.measured else "was measured in part" if scaled else "was measured"
        rest = listing(each.told for each in self.parts if each.share >= _LEAST)
        typical = percent(float(np.median(np.abs(self.factors))))
        return (
            f"{self.whole} is off by {typical} in the median ({_ends(self.off)} in {percent(SURE)} of samples), as "
            f"{self.system} {own}: its time rests {rest}."
        )

    def as_answer(self) -> Answer:
        rows = [
            (
                each.name, percent(each.share, 1),
                *(("–",) * 3 if each.off is None else map(percent, (each.typical, each.off.p05, each.off.p95))),
                each.source,
            )
            for each in self.parts
        ]  # fmt: skip
        table = Grid(
            ("part of the time",), rows, ("share", "median error", "5 %", "95 %"), more=("rests on",)
        )  # fmt: skip
        return Answer((self.sentence, table), result=self.plain())

    def plain(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return {
            "answer": self.sentence, "run": self.run, "measured": self.measured, "off": self.off._asdict(),
            "parts": [
                {"part": each.name, "share": each.share, "rests_on": each.source,
                 "median_error": None if each.off is None else each.typical,
                 "off": None if each.off is None else each.off._asdict()}
                for each in self.parts
            ],
        }  # fmt: skip


def trust(experiment: ExperimentSpec, chosen: Mapping[str, Any]) -> Trust:
    """Of one run on the analytical engine: under ``physical`` where given, at the largest batch, under ep, unless
    ``chosen`` says other. Raises ArchsimError.
    """
    labels, policies = ([getattr(each, name) for each in parts] for parts, name in (
        (experiment.assumptions, "label"), (experiment.policies, "name"),
    ))  # fmt: skip
    default = {
        "assumptions": next((each for each in labels if each.startswith("physical")), labels[0]),
        "batch": max(experiment.workload.batch), "policy": "ep" if "ep" in policies else policies[0],
    }  # fmt: skip
    one = choose(experiment, **{**chosen, **{name: chosen.get(name) or value for name, value in default.items()}})
    selection = select(one)
    run = shorten(selection.runs()[0])
    return _trust_run(run, Simulator(selection.maker.traces).record(run)["row"])


def _trust_run(run: Run, row: Mapping[str, Any]) -> Trust:
    whole_ns, system = row.get("iteration_ns"), run.system
    moe = (row["iteration_experts_ns"] + row["iteration_transfers_ns"]) / whole_ns if whole_ns else 1.0
    bound = {name.removeprefix("bound_"): share for name, share in row.items() if name.startswith("bound_") and share}
    bound = {name: share for name, share in bound.items() if isinstance(share, float)}
    links, deciding = (sum(bound.get(name, 0.0) for name in names) for names in (_LINKS, _DECIDING))
    ways, widths = _ways(run), load_widths().measured
    shares = [("kernels of experts", moe * max(0.0, 1 - links - deciding), "moe"), ("links", moe * links, "links"),
              ("decisions", moe * deciding, "")]  # fmt: skip
    if whole_ns:
        shares += [
            (name, sum(row[f"iteration_{each}_ns"] or 0.0 for each in columns) / whole_ns, table)
            for name, (columns, table) in _REST.items()
        ]
    shares = [each for each in shares if each[1] > 0]
    draws = draws_of([f"{name} {level}" for name, _, _ in shares for level in ("common", "shape")], SAMPLES)
    parts = []
    for name, share, table in shares:
        if table == "links" and system.launch != "gpu" and (errors := _mesh_errors(system)):
            sign = np.where(draws[f"{name} shape"] < 0.5, -1.0, 1.0)
            factors = 1 + sign * np.quantile(errors, draws[f"{name} common"])
            mesh = system.endpoint.rpartition("/")[0] if system.endpoint else MESH
            source = f"curves of {len(errors)} kernels on {mesh}, cases left out"
            parts.append(TrustedPart(name, share, source, interval(factors - 1), factors))
            continue
        if table == "links":
            table = "collectives" if system.launch == "gpu" else ""
        if table in ("gemm", "attention") and system.compute.kernel_latency_ns is not None:
            table = ""  # a roofline and a latency, of no measured curve
        if table not in widths:
            parts.append(TrustedPart(name, share, "which nobody measured", None, np.ones(SAMPLES)))
            continue
        way = ways.get(table, ways[""])
        way = way if way in widths[table] else "fit" if way != "scaled" else next(iter(widths[table]))
        levels = widths[table][way]
        factors = np.ones(SAMPLES)
        for level in ("common", "shape"):
            factors = factors * levels.level(level).at(draws[f"{name} {level}"])
        named = system.compute.calibration or DEFAULT_CALIBRATION
        if way == "scaled" and ways[""] != "scaled":
            named = "another GPU"
        source = f"{named}, {_WAYS.get(way, way)}, {levels.points:,} points"
        parts.append(TrustedPart(name, share, source, interval(factors - 1), factors))
    total = sum(each.share for each in parts)
    found = np.add.reduce([each.share / total * each.factors for each in parts])
    what = "decode iteration" if whole_ns else "decode step of MoE layers"
    return Trust(
        run=run.name, system=system.name, measured=run.system.launch == "gpu" and is_measured(run.system),
        parts=tuple(sorted(parts, key=lambda each: -each.share)), factors=found - 1,
        whole=f"A {what} of {run.model.name} on {system.name} (batch {run.batch:,}, {run.policy.name})",
    )  # fmt: skip


_WAYS: Mapping[str, str] = {
    "fit": "as measured", "nearest_shape": "of the nearest shape", "sibling_gpu": "of a GPU of the same generation",
    "scaled": "scaled by rates",
}  # fmt: skip


def _ways(run: Run) -> dict[str, str]:
    """Table → how its law was had, as `quantities_of` says; '' of all others."""
    found = {}
    for each in quantities_of(run, run.engine):
        parts = each.quantity.key.split(".")
        if parts[0] == "measured" and len(parts) > 2:
            found[parts[1]] = parts[2]
    own = run.system.launch == "gpu" and is_measured(run.system)
    return {"": "fit" if own else "scaled", **found}


def _mesh_errors(system: Any) -> Sequence[float]:
    """Errors of fitted dispatch and combine on cases left out, as shares, of the machine's mesh or the measured one."""
    machine = Path(system.endpoint.rpartition("/")[0]) if system.endpoint else MESH
    laws = fabric_calibration(machine).endpoint
    return sorted(law.residuals.held_out_mean for law in laws if law.residuals and law.residuals.held_out_mean)


def _ends(off: Interval) -> str:
    """``−48 to +92 %``."""
    low, high = (f"{'−' if each < 0 else '+'}{significant(abs(100 * each), 2)}" for each in (off.p05, off.p95))
    return f"{low} to {high} %"
