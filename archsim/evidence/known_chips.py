"""Chips that exist beside what archsim says: area of their rates as if it were not known, pieces, price, power of one
chip at steady work or serving, and tokens/s of one user, with the range of what the machine's file assumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from archsim.base.case import Case, errors, frame_of
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.base.yaml import read_yaml
from archsim.evidence.page import Evidence, EvidenceTable
from archsim.evidence.power import gpu_power_w
from archsim.machine.system import PowerSpec, SystemSpec
from archsim.runs.clocks import NOMINAL, DieLoad, PowerLimits, heat_with
from archsim.runs.prices import Coefficients, build_costs
from archsim.show.units import interval, percent, plain, significant
from archsim.specs.library import load_experiment, load_system, tree_of
from microarch.silicon.energy import BOOST, EnergyEstimates

TERA = 1e12
ENDS = ("value", "low", "high")
BARS: Mapping[str, float] = {"mm2": 0.15, "W": 0.15, "USD": 0.25, "": 0.0, "%": 0.15}  # by unit
FACTOR = 2.0  # within which tokens per second and times of a layer are to be
# As InferenceX served it: lengths uniform from 0.8 of these, ten requests a client.
SERVED: Mapping[str, Any] = {
    "system": "b200_node", "model": "qwen3.5-397b-a17b", "engine": "sglang",
    "parallel": {"attention": {"tp": 8}, "experts": {"ep": 1, "tp": 8}},
    "precision": {"products": "fp8_block", "experts": "fp8_block", "kv": "bf16"},
    "requests": {"input": {"uniform": [6553, 8192]}, "output": {"uniform": [819, 1024]}},
    "scheduler": {"name": "vllm_v1"},
}  # fmt: skip


class KnownFigure(NamedTuple):
    """A public figure of a chip beside that of archsim."""

    chip: str
    what: str
    unit: str
    public: float
    public_range: tuple[float, float]
    found: float
    low: float  # all coefficients low
    high: float  # all coefficients high
    source: str  # of the public figure
    why: str  # what explains a figure outside its bar; ''

    @property
    def error(self) -> float:
        return self.found / self.public - 1

    @property
    def within(self) -> bool:
        """Whether the figure is within its bar, and a price within the range of its coefficients, too."""
        if self.unit not in BARS:
            return 1 / FACTOR <= self.found / self.public <= FACTOR
        inside = abs(self.error) <= BARS[self.unit] + 1e-9
        return inside and (self.unit != "USD" or self.low <= self.public <= self.high)


def known_figures(served: bool = True) -> Iterator[KnownFigure]:
    """All figures of all chips; without ``served``, those that are simulated are left out."""
    for chip in read_yaml(Path(__file__).with_suffix(".yaml")).data["chips"]:
        system = chip["system"]
        machine = _system(system) if isinstance(system, str) else SystemSpec.model_validate(system)
        for figure in chip["figures"]:
            if served or "serve" not in figure:
                found = _found(machine, chip, figure)
                ends = figure.get("range", [figure["value"]] * 2)
                yield KnownFigure(
                    chip["chip"], figure["what"], figure["unit"], float(figure["value"]), (ends[0], ends[1]), *found,
                    figure["source"], figure.get("why", ""),
                )  # fmt: skip


def served_figures() -> Iterator[KnownFigure]:
    """Tokens per second of one user of machines that exist, and times of their layers."""
    for each in read_yaml(Path(__file__).with_suffix(".yaml")).data["served"]:
        found = _layer_ms(each["experiment"]) if "experiment" in each else _tokens_per_s(each)
        ends = each.get("range", [each["value"]] * 2)
        yield KnownFigure(
            each["chip"], each["what"], each["unit"], float(each["value"]), (ends[0], ends[1]), *found, each["source"],
            each.get("why", ""),
        )  # fmt: skip


def _tokens_per_s(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Of one user: as the row says, and at both ends of the latency of its kernels and of what drafts are accepted."""
    from archsim.serving.serving import serve
    from archsim.specs.serving_files import load_serving

    given = dict(tree_of(row["file"]).data) | row.get("set", {})
    drafts, found = row.get("drafts"), []
    for latency, accepted in zip((None, *row["ends"]), drafts["acceptance"] if drafts else [None] * 3, strict=True):
        own = {"like": given["system"], "name": "at_an_end", "compute": {"kernel_latency": latency}}
        speculation = {"draft_tokens": drafts["tokens"], "acceptance": accepted} if drafts else "none"
        served = serve(load_serving(given | {"speculation": speculation} | ({"system": own} if latency else {})))
        found.append(1e3 / served.measures.tpot.mean)
    return found[0], found[1], found[2]


def _layer_ms(experiment: Mapping[str, Any]) -> tuple[float, float, float]:
    """Of an MoE layer in the decode step of an experiment's first run: the mean, and at the residuals of its GEMMs."""
    from archsim.runs.choice import choose
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator

    (run,) = select(choose(load_experiment(dict(experiment)))).runs()
    row = Simulator().record(run, details=False)["row"]
    layers = len(run.model.moe_layer_ids)
    found = [row[name] / layers / 1e6 for name in ("decode_ns", "decode_ns_low", "decode_ns_high")]
    return found[0], found[1], found[2]


@lru_cache(maxsize=16)
def _system(name: str) -> SystemSpec:
    return load_system(name)


def _found(system: SystemSpec, chip: Mapping[str, Any], figure: Mapping[str, Any]) -> tuple[float, float, float]:
    """The figure as archsim has it: with all coefficients at their values, low and high."""
    if "serve" in figure:
        return _served_w(figure["serve"]["concurrency"])
    if "full_w" in figure:
        return _at_limit(system, figure["full_w"], figure["limit_w"])
    found = [_at(system, chip, figure, end) for end in ENDS]
    return found[0], found[1], found[2]


def _at(system: SystemSpec, chip: Mapping[str, Any], figure: Mapping[str, Any], end: str) -> float:
    known = Coefficients() if end == "value" else Coefficients().at(end)
    chips = 1 if chip.get("whole") else system.sites
    if figure["what"] == "area":
        made = system.made.model_copy(update={"area_mm2": None}) if system.made is not None else None
        free = build_costs(system.model_copy(update={"made": made}), known)
        return free.die_mm2 * system.sites / chips
    machine = build_costs(system, known)
    if figure["what"] == "pieces":
        return float(machine.pieces)
    if figure["what"] == "price":
        return sum(machine.usd.values()) / chips
    rates = TERA * figure.get("read_tb_per_s", 0.0), TERA * figure.get("tflop_per_s", 0.0)
    watt, _ = gpu_power_w(
        *rates, figure.get("bytes", 2), machine.powered_mm2 * system.sites / chips, known.of(system).energy,
        figure.get("rows", 8192), chip.get("limit_w", np.inf), BOOST if chip.get("limit_w") else 1.0,
    )  # fmt: skip
    return watt


def _at_limit(system: SystemSpec, full_w: float, limit_w: float) -> tuple[float, float, float]:
    """Percent of the rate of its products that a die keeps at a limit which draws ``full_w`` at the full clock: by the
    law of `archsim.runs.clocks`, and with the lowest voltage high and low.
    """
    found, waiting_w = [], EnergyEstimates().idle_w_per_mm2.value * build_costs(system).powered_mm2
    for end in ("value", "high", "low"):
        ends = NOMINAL.by_name()["lowest_voltage"]
        limits = PowerLimits(
            system.model_copy(update={"power": PowerSpec(die_limit_w=limit_w)}),
            heat_with({"lowest_voltage": getattr(ends, end)}),
        )
        joule = dict.fromkeys(("llc", "hbm", "busy", "d2d", "pieces", "decision"), 0.0)
        joule |= {"idle": waiting_w, "compute": full_w - waiting_w}
        load = DieLoad(NS_PER_S, {name: np.full(system.dies, each) for name, each in joule.items()})

        def above_w(clock: float, load: DieLoad = load, limits: PowerLimits = limits) -> float:
            done = {**load.joule, "compute": load.joule["compute"] * clock}  # in a second
            return float(limits.at(DieLoad(load.time_ns, done), clock).die_w[0]) - limit_w

        found.append(100 * brentq(above_w, 0.0, 1.0))
    return found[0], found[1], found[2]


def _served_w(clients: int) -> tuple[float, float, float]:
    from archsim.serving.serving import serve
    from archsim.specs.serving_files import load_serving

    requests = SERVED["requests"] | {"concurrency": clients, "count": max(10 * clients, 20)}
    measures = serve(load_serving({**SERVED, "requests": requests})).measures
    return measures.device_w, measures.device_w_low, measures.device_w_high


def known_evidence(sources: bool = False) -> Evidence:
    """Every public figure beside archsim's, what explains those outside their bar, and with ``sources`` all sources."""
    chips, served = list(known_figures()), list(served_figures())
    every, titles = chips + served, ("chips that exist", "machines that exist, serving one user")
    cases = frame_of(
        Case(titles[each in served], each.unit or "number", f"{each.chip}, {each.what}", each.unit, each.public,
             each.found, None, each.low, each.high)
        for each in every
    )  # fmt: skip
    head = ["chip", "figure", "unit", "public", "archsim", "low", "high", "error"]
    tables = (EvidenceTable(title, head, [_texts(each) for each in figures], 3)
              for title, figures in zip(titles, (chips, served), strict=True))  # fmt: skip
    sentence = (
        f"archsim reproduces {sum(each.within for each in chips)} of {len(chips)} public figures of chips within "
        f"{percent(BARS['mm2'])} (area, power, rate at a limit) or {percent(BARS['USD'])} and the range (price), and "
        f"{sum(each.within for each in served)} of {len(served)} rates of machines within a factor of {FACTOR:g}. "
        "Low and high: all coefficients at these ends; of machines, what their files assume. Drafts of WSE-3 are those "
        "that others published for each model; Cerebras does not state its own."
    )
    far = [f"{each.chip}, {each.what}: {each.error:+.0%}: {each.why or 'not explained'}." for each in every
           if not each.within]  # fmt: skip
    said = [f"{each.chip}, {each.what}: {_ends(each)}{each.source}." for each in every] if sources else []
    return Evidence(
        "Chips that exist",
        (sentence,),
        cases,
        errors(cases, ["source", "group"]),
        tuple(tables),
        tuple(said),
        tuple(far),
    )


def _texts(each: KnownFigure) -> list[str]:
    """The error is that of the numbers as they are shown."""
    _, low, high = interval(each.found, each.low, each.high) if each.unit else ("", "", "")
    found = significant(each.found) if each.unit else plain(each.found)
    error = f"{float(found.replace(',', '')) / each.public - 1:+.1%}"
    return [each.chip, each.what, each.unit, plain(each.public), found, low, high, error]


def _ends(each: KnownFigure) -> str:
    low, high = map(plain, each.public_range)
    return f"{low} to {high} {each.unit}; " if low != high else ""
