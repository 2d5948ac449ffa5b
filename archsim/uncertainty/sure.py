"""How sure an answer is: samples of runs that differ in their policy alone (of one policy: in their system) become
intervals, the probability of the order, what it depends on, and what to measure next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from archsim.base import errors, files, sums
from archsim.base.uncertain import Distribution, Quantity
from archsim.laws.calibration_files import DEFAULT_CALIBRATION
from archsim.runs.energy import activity_of, energy_of
from archsim.runs.plan import Selection, select
from archsim.runs.prices import Coefficients, build_costs
from archsim.runs.run import Run
from archsim.runs.run_cost import cost_of
from archsim.runs.sweep import Unwatched, Watcher
from archsim.show.units import TIME_UNITS, in_base_unit, percent, with_unit
from archsim.specs import experiment, plan, uncertainty
from archsim.uncertainty import estimate, sure_answer, sure_files
from archsim.uncertainty.propagation import FAST, InWorlds, plan_runs, propagate
from archsim.uncertainty.system_quantities import economics_of, exact_of
from archsim.uncertainty.worlds import TRAFFIC, Worlds, draws_of, refuse_few

SAMPLES = 256
_FOLDER = "worlds"
_OF = ("system", "model", "batch", "assumptions")


def find_sure(
    selection: Selection,
    samples: int,
    folder: Path | None,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    seed: int = 0,
) -> sure_answer.Sure:
    """Run the samples and say how sure the answer is. ``folder``: keeps the runs in ``worlds/``, where a later call
    finds them; ``seed``: another one gives other samples. Raises ArchsimError for too few samples; FailedRuns.
    """
    if folder is None:
        with TemporaryDirectory(prefix="archsim-") as made:
            return find_sure(selection, samples, Path(made), jobs, watcher, seed)
    runs, point = selection.runs(), selection.plan.point(selection.kept[0])

    name, traces = selection.plan.experiment.name, selection.maker.traces
    return _answer(name, runs, _places, point, traces, samples, folder, jobs, watcher or Unwatched(), seed)


def sure_of_sides(
    sides: Mapping[str, experiment.ExperimentSpec],
    samples: int,
    folder: Path,
    jobs: int | None = None,
    watcher: Watcher | None = None,
) -> sure_answer.Sure:
    """How sure the order of some single combinations is, by name; page and tables are written to the folder."""
    watcher = watcher or Unwatched()
    chosen = {name: select(each, watcher.phase) for name, each in sides.items()}
    runs = [each.runs()[0] for each in chosen.values()]
    traces = {key: trace for each in chosen.values() for key, trace in each.maker.traces.items()}
    title = " and ".join(sides)

    def places(found: Sequence[InWorlds]) -> Iterable[tuple[dict[str, Any], dict[str, InWorlds]]]:
        return [({"compared": title}, dict(zip(sides, found, strict=True)))]

    first = next(iter(chosen.values()))
    point = first.plan.point(first.kept[0])
    answer = _answer(title, runs, places, point, traces, samples, folder, jobs, watcher)
    sure_files.write_sure(answer, folder)
    return answer


def _answer(
    name: str,
    runs: Sequence[Run],
    places_of: Callable[[Sequence[InWorlds]], Iterable[tuple[dict, dict]]],
    point: plan.Point,
    traces: Any,
    samples: int,
    folder: Path,
    jobs: int | None,
    watcher: Watcher,
    seed: int = 0,
) -> sure_answer.Sure:
    """``places_of``: the runs that are compared; ``point``: of the first run, for what it costs."""
    refuse_few(samples)
    files.own_folder(folder)
    worlds = Worlds(runs, samples, seed)
    every = plan_runs(runs, worlds)
    watcher.phase(_estimate(point, every, samples))
    found = propagate(runs, worlds, folder / _FOLDER, traces, jobs, watcher)
    watcher.phase("finding what the answer depends on")
    named = {each.quantity.key: each.quantity for run in runs for each in worlds.quantities(run, run.engine)}
    places = tuple(_place(of, options, worlds, named) for of, options in places_of(found))
    exact = dict.fromkeys(key for run in runs for key in exact_of(run.system) if key not in named)
    others = [_of_traffic(worlds)] if worlds.traffics else []
    if any(option.economics for place in places for option in place.options):
        others += economics_of(Coefficients())
    return sure_answer.Sure(
        name, samples, places, (*named.values(), *others), tuple(exact),
        (*sure_answer._notes(runs, found, worlds), *(note for place in places for note in place.off_centre)),
    )  # fmt: skip


def sure_into(
    selection: Selection,
    samples: int,
    folder: Path,
    jobs: int | None,
    watcher: Watcher | None = None,
    seed: int = 0,
) -> sure_answer.Sure:
    """Like `find_sure`, but also writes the page and the tables to the folder."""
    found = find_sure(selection, samples, folder, jobs, watcher, seed)
    sure_files.write_sure(found, folder)
    return found


def _of_traffic(worlds: Worlds) -> Quantity:
    source = f"{worlds.traffics} samples of the traffic, the same machine (configs/uncertainty/widths.yaml, traffic)"
    return Quantity(TRAFFIC, 0.5, "", source, Distribution("uniform", 0.0, 0.5, 1.0))


def _estimate(point: plan.Point, every: Sequence[Run], samples: int) -> str:
    """What is ahead, by what `archsim check` expects of single runs."""
    whole = len(point.model.moe_layer_ids)
    ns = {
        key: cost_of(point._replace(engine=key[0])).host_ns * (key[1] or whole) / (point.workload.layers or whole)
        for key in {(run.engine, run.workload.layers) for run in every}
    }
    seconds = sums.sum(ns[run.engine, run.workload.layers] for run in every) / 1e9
    fast = sums.sum(run.engine == FAST for run in every)
    return (
        f"simulating {samples} samples, which take {fast:,} runs on the analytical engine and {len(every) - fast:,} on "
        f"others, about {errors.spoken(max(seconds, 1))} of processor time"
    )


def _places(found: Sequence[InWorlds]) -> Iterable[tuple[dict[str, Any], dict[str, InWorlds]]]:
    together: dict[tuple, tuple[dict[str, Any], dict[str, InWorlds]]] = {}
    several = len({each.run.policy.name for each in found}) > 1
    systems = len({each.run.system.name for each in found}) > 1
    for each in found:
        run = each.run
        of = {"system": run.system.name, "model": run.model.name, "batch": run.batch,
              "assumptions": run.assumptions.label}  # fmt: skip
        if several:
            option = run.policy.name
        else:
            option = str(of.pop("system")) if systems else run.policy.name
        of |= {"axes": run.axes} if run.axes and several else {}
        if not several and run.axes:
            option = run.axes
        together.setdefault(tuple(of.items()), (of, {}))[1][option] = each
    return together.values()


def _place(
    of: dict[str, Any], found: Mapping[str, InWorlds], worlds: Worlds, named: Mapping[str, Quantity]
) -> sure_answer.ComparedOptions:
    ns = {name: each.ns for name, each in found.items()}
    names = estimate.order(ns)
    pairs = tuple(estimate.pair(names[0], name, ns) for name in names[1:])
    further = tuple(estimate.pair(faster, slower, ns) for faster, slower in combinations(names[1:], 2))
    ties = [each for each in pairs if not each.sure]
    rest = [each for each in pairs if each.sure]
    headline = max(ties, key=lambda each: each.ratio.width) if ties else next(iter(rest), None)  # what is open
    shares = estimate.fastest_shares(ns)
    options = tuple(_option(name, found[name], shares[name], worlds) for name in names)
    values = ns[headline.slower] / ns[headline.faster] if headline else ns[names[0]]
    read = {
        each.quantity.draws_as for one in found.values()
        for each in worlds.quantities(one.run, one.run.engine)
    } | {TRAFFIC}  # fmt: skip
    draws = {name: drawn for name, drawn in worlds.draws.items() if name in read}
    clean = {name: each.ns if each.by_layers is None else each.ns / each.by_layers for name, each in found.items()}
    by_draws = clean[headline.slower] / clean[headline.faster] if headline else clean[names[0]]
    timed = _what_is_timed(found[names[0]])
    sentence = sure_answer.order_of_options(names, ties, rest, options, worlds.samples, timed)
    if unknown := estimate.refuse_shares(len(draws), worlds.samples):
        return sure_answer.ComparedOptions(
            of=of, options=options, pairs=pairs, headline=headline, sentence=sentence, indices=(), measurements=(),
            samples=ns, further=further, unknown=unknown, timed=timed,
        )  # fmt: skip
    expansion = estimate.expand(draws, by_draws)
    rates = {name: estimate.expand(draws, float(np.mean(each)) / each) for name, each in clean.items()}
    rates = {name: _scale(each, 1 / float(np.mean(ns[name]))) for name, each in rates.items()}
    measured = measurements(expansion, rates, draws, values, named)
    system = found[names[0]].run.system
    no_die = "" if system.launch == "gpu" else system.compute.calibration or DEFAULT_CALIBRATION
    measured = tuple(replace(each, no_die=no_die) for each in measured)
    off_centre = tuple(_off_centre(of, options, ns, rates, draws, named))
    found_indices = _with_layers(estimate.indices(expansion, draws, by_draws), by_draws, values)
    return sure_answer.ComparedOptions(
        of=of, options=options, pairs=pairs, headline=headline, sentence=sentence, indices=found_indices,
        measurements=measured, samples=ns, further=further, unknown="", timed=timed, off_centre=off_centre,
    )  # fmt: skip


_CENTRAL = 0.25  # of the worlds: a value beyond it, on either side, is not in their middle
_SHIFTED = 0.02  # of the time: a median that is closer agrees with the plain run


def _off_centre(
    of: Mapping[str, Any],
    options: Sequence[sure_answer.Option],
    ns: Mapping[str, np.ndarray],
    rates: Mapping[str, estimate.Expansion],
    draws: Mapping[str, np.ndarray],
    named: Mapping[str, Quantity],
) -> Iterable[str]:
    """Why the plain run of an option is not in the middle of its worlds: the number whose value in the file is farthest
    from the middle of its range, by what that does to the throughput. ``rates``: over the mean, as of `expand`.
    """
    shares = np.linspace(0.0005, 0.9995, 1000)
    at = {each.draws_as: float((each.distribution.at(shares) < each.value).mean()) for each in named.values()}
    known = [name for name in draws if name in at]
    for option in options:
        over = option.value_ns / option.ns.p50
        share = float((ns[option.name] < option.value_ns).mean())
        if abs(over - 1) < _SHIFTED or _CENTRAL <= share <= 1 - _CENTRAL or not known:
            continue
        expansion = rates[option.name]
        nominal = np.array([[at.get(name, 0.5) for name in expansion.names]])
        shifts = {name: float(expansion.of(nominal, [name])[0]) - float(expansion.coefficients[0]) for name in known}
        first = max(known, key=lambda name: shifts[name] * (1 if over < 1 else -1))
        key = next(each for each in named.values() if each.draws_as == first)
        side, value = "less" if over < 1 else "more", in_base_unit(key.value, key.unit)
        plain, middle = with_unit(option.value_ns, TIME_UNITS), with_unit(option.ns.p50, TIME_UNITS)
        low, high = (in_base_unit(end, key.unit) for end in (key.distribution.low, key.distribution.high))
        yield (
            f"{sure_answer.name_of(of)}: {option.name} takes {plain} as simulated, which is {side} than in "
            f"{percent(max(share, 1 - share))} of its samples (median {middle}). Most of that is {key.key}: its value, "
            f"{value}, is above {percent(at[first])} of its range ({low} to {high})."
        )


def _what_is_timed(found: InWorlds) -> str:
    """``time of decode in the 4 of 58 MoE layers that ran``: what a run's time is of."""
    run = found.run
    phase, every = "decode" if found.row["decode_ns"] else "prefill", len(run.model.moe_layer_ids)
    ran = every if run.workload.layers is None else min(run.workload.layers, every)
    return f"time of {phase}" if ran == every else f"time of {phase} in the {ran} of {every} MoE layers that ran"


def _with_layers(
    found: Sequence[estimate.Index], by_draws: np.ndarray, values: np.ndarray
) -> tuple[estimate.Index, ...]:
    """Indices of a value, float64[world], of which ``by_draws`` is what draws decide, with that of the sample of layers
    (error: of a ratio of two variances of so many worlds, each known to the root of 2 / worlds).
    """
    whole, drawn = float(np.var(values)), float(np.var(by_draws))
    if whole == drawn or not whole > 0:
        return tuple(found)
    others = min(1.0, drawn / whole)
    error = others * 2 / float(np.sqrt(len(values)))
    layers = estimate.Index(sure_answer.LAYERS, 1 - others, error, 1 - others, error)
    with_unit = [each._replace(**{name: value * others for name, value in each._asdict().items() if name != "name"})
              for each in found]  # fmt: skip
    return tuple(sorted([*with_unit, layers], key=lambda each: (-each.total, each.name)))


def _scale(expansion: estimate.Expansion, by: float) -> estimate.Expansion:
    return estimate.Expansion(expansion.names, expansion.degrees, expansion.coefficients * by, expansion.left * by * by)


def _option(name: str, found: InWorlds, fastest: float, worlds: Worlds) -> sure_answer.Option:
    rate = found.row["throughput_tokens_per_s"]
    tokens, paid = estimate.interval(found.tokens_per_s) if rate else None, _economics(found, worlds)
    return sure_answer.Option(
        name=name, value_ns=found.value_ns, ns=estimate.interval(found.ns), value_tokens_per_s=rate,
        tokens_per_s=tokens, fastest=fastest, agreement=found.agreement, economics=paid,
    )  # fmt: skip


def _economics(found: InWorlds, worlds: Worlds) -> dict[str, tuple[float, estimate.Interval]]:
    """Energy of a token and price of the machine, in all worlds: bytes and FLOP are those of the run, its time that of
    the world, coefficients are drawn beside (`archsim.uncertainty.system_quantities.economics_of`), and so is the
    machine.
    """
    run, row = found.run, found.row
    if any(row.get(name) is None for name in sure_answer.ECONOMICS):
        return {}
    activity, coefficients = activity_of(run.model, row), Coefficients()
    quantities = economics_of(coefficients)
    draws = draws_of([each.key for each in quantities], worlds.samples, seed=1)
    drawn = {each.key.partition(".")[2]: each.distribution.at(draws[each.key]) for each in quantities}
    values: dict[str, list[float]] = {name: [] for name in sure_answer.ECONOMICS}
    for at, world in enumerate(worlds.runs(run, run.engine)):
        known = coefficients.change({name: float(each[at]) for name, each in drawn.items()})
        slower = replace(activity, time_s=activity.time_s * found.ns[at] / found.value_ns)
        machine = build_costs(world.system, known)
        values["energy_per_token_j"].append(sums.sum(energy_of(slower, machine, known).values()) / activity.tokens)
        values["cost_usd"].append(sums.sum(machine.usd.values()))
    return {name: (float(row[name]), estimate.interval(np.array(each))) for name, each in values.items()}


def measurements(
    expansion: estimate.Expansion,
    rates: Mapping[str, estimate.Expansion],
    draws: Mapping[str, np.ndarray],
    values: np.ndarray,
    named: Mapping[str, Quantity],
) -> tuple[sure_answer.Measurement, ...]:
    """What each command would tell of a value, the most for an hour of measuring first. Those that neither narrow its
    interval nor could change which option is chosen are left out. ``expansion``: of the value; ``rates``: of the
    throughput of each option; ``named``: by key.
    """
    found, before = [], estimate.interval(values)
    for name, command in uncertainty.load_widths().commands.items():
        known = sorted({each.draws_as for each in named.values() if each.measured_by == name} & set(draws))
        if known:
            after, worth = estimate.narrow(expansion, draws, values, known), estimate.worth_knowing(rates, draws, known)
            if after.width < sure_answer.NARROWER * before.width or worth > sure_answer._LEAST_WORTH:
                found.append(sure_answer.Measurement(command, tuple(known), after, worth))
    return tuple(sorted(found, key=lambda each: (each.narrowed.width - before.width) / each.command.minutes))
