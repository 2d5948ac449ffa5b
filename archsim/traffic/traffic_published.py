"""A traffic model fitted at once to what is published and recorded of a model, by few numbers of its preset.

The numbers of a file of statistics (`KNOBS`) are moved until generated traffic measures like the statistics, by least
squares of the logarithm of each over the half width of its interval: what was recorded or printed precisely weighs
most. A bound weighs only where it is broken. What no traffic of this kind meets is left with its miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from archsim.base.errors import TraceError, did_you_mean
from archsim.model.spec import ModelSpec
from archsim.traffic import traffic_model
from archsim.traffic.layer_subset import spread_layers
from archsim.traffic.published import HOW, SAMPLE_REQUESTS, PublishedStatistic, measure_statistics
from archsim.traffic.subjects import collect, traffic_of
from archsim.traffic.trace import Trace
from archsim.traffic.traffic_fit import first_acceptance, fit_loads
from archsim.traffic.traffic_heads import TrafficStatistics
from archsim.traffic.traffic_presets import Parameters, from_statistics, of_layers, shape_of

KNOBS = {
    "popularity_skew": (0.01, 4.0),
    "loads_power": (0.05, 2.0),
    "skew_spread": (0.01, 1.5),
    "kind_spread": (0.05, 2.5),
}
"""What is moved, from where to where. Loads that were recorded have a power, others a skew."""

TYPICAL = {"popularity_skew": 0.75, "loads_power": 1.0, "skew_spread": 0.3, "kind_spread": 0.9}
"""Of DeepSeek-V3's recorded loads, and of fits to recorded tokens (`archsim.traffic.preset_files.ASSUMED`)."""

KNOB_PRIOR = {"popularity_skew": 10.0, "loads_power": 10.0, "skew_spread": 1.0, "kind_spread": 1.0}
"""Standard deviation of the log of each before anything is published, in half widths of 1: those of kinds and of
differences between layers are typical of fits to recorded tokens, and stay there unless a statistic says otherwise."""

FIT_LAYERS = 12  # that stand for all in a fit; statistics of the most or least skewed layer need all
ROUNDS, STEP = 10, 0.08  # of Gauss and Newton; of the log of a knob, in a difference quotient


def fit_published(
    head: TrafficStatistics, file: Path, model: ModelSpec, held_out: Sequence[str] = ()
) -> tuple[TrafficStatistics, traffic_model.TrafficModel]:
    """The head with the knobs that its ``published`` statistics give, each with what is generated; and its traffic.

    file: where its loads lie, if it has any. held_out: names of statistics that the fit does not see. Raises TraceError
    for a name that is not among them, and if nothing is left.
    """
    names = sorted({each.statistic for each in head.published})
    if unknown := [name for name in held_out if name not in names]:
        raise TraceError(
            f"--hold-out {unknown[0]}: not among them{did_you_mean(unknown[0], names)} ({', '.join(names)})"
        )
    seen = tuple(each for each in head.published if each.statistic not in held_out)
    if not seen:
        raise TraceError("--hold-out leaves no statistic to fit; expected at least one")
    of_all = any(each.statistic.endswith(("_most", "_least")) for each in seen)
    moved = ["popularity_skew" if head.loads is None else "loads_power", "kind_spread"]
    if of_all and head.loads is None:
        moved.append("skew_spread")

    def generate(knobs: np.ndarray, layers: int | None, final: bool = False) -> traffic_model.TrafficModel:
        values = {name: float(np.exp(value)) for name, value in zip(moved, knobs, strict=True)}
        found = from_statistics(head.model_copy(update=values), file, shape_of(model))
        if layers is not None and layers < len(found.layer_ids):
            found = of_layers(found, found.layer_ids[spread_layers(len(found.layer_ids), layers)], file)
        if head.loads is not None:
            found = replace(found, acceptance=first_acceptance(found.popularity, found.top_k))
        return fit_loads(found) if final and head.loads is not None else found

    def logs_of(knobs: np.ndarray, layers: int | None, final: bool = False) -> np.ndarray:
        trace = sample_of(generate(knobs, layers, final))
        return _logs(np.array([each.measure(trace) for each in seen]))

    prior = np.log([TYPICAL[name] for name in moved])  # where the fit begins, whatever the file has
    limits, widths = np.log([KNOBS[name] for name in moved]).T, np.array([KNOB_PRIOR[name] for name in moved])
    layers, knobs, correction = None if of_all else FIT_LAYERS, prior, np.zeros(len(seen))
    for rounds in (ROUNDS, ROUNDS // 2, ROUNDS // 2):
        if rounds < ROUNDS:  # all layers are a little more or less skewed than some, and acceptance is only now fitted
            correction = logs_of(knobs, None, final=True) - logs_of(knobs, layers)
            if not np.nan_to_num(correction).any():
                break

        def off(at: np.ndarray, by: np.ndarray = correction) -> np.ndarray:
            return residuals(logs_of(at, layers) + by, seen)

        knobs = _gauss_newton(off, knobs, prior, widths, limits, rounds)
    values = {name: float(f"{np.exp(value):.4g}") for name, value in zip(moved, knobs, strict=True)}
    head = head.model_copy(update=values)
    traffic = generate(np.log([values[name] for name in moved]), None, final=True)
    found = tuple(
        each.model_copy(update={"held_out": each.statistic in held_out})
        for each in measure_statistics(head.published, sample_of(traffic))
    )
    return head.model_copy(update={"published": found}), traffic


def sample_of(parameters: Parameters, seed: int = 0) -> Trace:
    """Generated requests of a model of traffic that are measured, from the start of their answers."""
    return collect(traffic_of(parameters, SAMPLE_REQUESTS, seed))


def residuals(logs: np.ndarray, seen: Sequence[PublishedStatistic]) -> np.ndarray:
    """float64[statistic]: log distance from its value in half widths; of a bound, by how much it is broken."""
    found = np.zeros(len(seen))
    for index, (log, each) in enumerate(zip(logs, seen, strict=True)):
        low, high = (np.log(max(end, 1e-9)) if np.isfinite(end) else end for end in each.ends)
        if not np.isfinite(log):
            continue
        if np.isfinite(low) and np.isfinite(high):
            half = (high - low) / 2 / (3**0.5 if each.how == "printed" else 1)  # a rounding is uniform
            found[index] = (log - np.log(max(each.value, 1e-9))) / max(half, HOW[each.how])
        else:
            found[index] = (min(log - low, 0.0) if np.isfinite(low) else max(log - high, 0.0)) / HOW[each.how]
    return found


def _logs(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), np.log(np.maximum(np.nan_to_num(values), 1e-4)), np.nan)


def _gauss_newton(
    of: Callable[[np.ndarray], np.ndarray], knobs: np.ndarray, prior: np.ndarray, widths: np.ndarray,
    limits: np.ndarray, rounds: int,
) -> np.ndarray:  # fmt: skip
    """Knobs (logarithms) of least squares of ``of(knobs)`` and of their distance from the prior; damped."""

    def everything(at: np.ndarray) -> np.ndarray:
        return np.concatenate([of(at), (at - prior) / widths])

    here = everything(knobs)
    damping = 1e-2
    for _ in range(rounds):
        slope = np.stack([(everything(knobs + STEP * one) - here) / STEP for one in np.eye(len(knobs))], axis=1)
        better = False
        for _ in range(4):
            scale = damping * np.diag((slope**2).sum(axis=0) + 1e-9)
            step = np.linalg.solve(slope.T @ slope + scale, -slope.T @ here)
            tried = np.clip(knobs + np.clip(step, -0.7, 0.7), *limits)
            there = everything(tried)
            if (there**2).sum() < (here**2).sum():
                better, damping = True, damping / 5
                break
            damping *= 8
        if not better:
            return knobs
        gained = (here**2).sum() - (there**2).sum()
        knobs, here = tried, there
        if gained < 1e-3 * (1 + (here**2).sum()):
            break
    return knobs
