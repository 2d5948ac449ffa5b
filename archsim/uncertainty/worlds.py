"""Worlds: scenarios whose uncertain numbers are drawn, the same draws for all policies, batches and systems.

What may be uncertain is found in a scenario (`quantities_of`): numbers with a range of their own; numbers without one
that have a default of their kind (configs/uncertainty/widths.yaml); kernels of a die that is no GPU
(`archsim.laws.die.kernel_bounds`); and what measured laws are off on points that no fit saw. What no run reads is left
out. A world is a scenario with other values: every engine runs it as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.base.fields import Spec
from archsim.base.uncertain import Quantity
from archsim.base.verbs import caller_name
from archsim.machine.system import SystemSpec
from archsim.runs.run import Run
from archsim.specs.scenario import Scenario
from archsim.specs.uncertainty import load_widths
from archsim.uncertainty.system_quantities import SystemQuantity, quantities_of

LEAST_SAMPLES = 16
TRAFFIC = "traffic"  # name of the draw of which traffic runs, and its key


def refuse_few(samples: int) -> None:
    """Raise ArchsimError for samples too few for ends of 5 %."""
    if samples < LEAST_SAMPLES:
        raise ArchsimError(
            f"{caller_name('samples')} {samples}: expected at least {LEAST_SAMPLES}, so that the 5 % ends are known"
        )


def draws_of(names: Sequence[str], samples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Name of a draw → float64[sample] in (0, 1), of a scrambled Sobol' sequence. Raises ArchsimError for few samples.

    Equal names, samples and seed give equal numbers. The first 2**k samples are themselves spread evenly.
    """
    refuse_few(samples)
    if not names:
        return {}
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(names), scramble=True, seed=np.random.default_rng(seed))
    power = int(np.ceil(np.log2(samples)))
    points = sequence.random_base2(power)[:samples]
    return dict(zip(names, np.clip(points, 1e-9, 1 - 1e-9).T, strict=True))


class Worlds:
    """``samples`` worlds of the scenarios of an experiment. ``draws``: name of a draw → float64[sample]."""

    def __init__(self, runs: Iterable[Run], samples: int, seed: int = 0) -> None:
        """Raises SpecError, and ArchsimError for few samples."""
        self.samples, self._widths = samples, load_widths()
        self._found: dict[tuple[int, ...], tuple[Scenario, list[SystemQuantity]]] = {}
        self._systems: dict[tuple, list[SystemSpec]] = {}
        self._runs: dict[tuple[object, ...], tuple[Run, list[Run]]] = {}
        runs = list(runs)
        names = {each.quantity.draws_as for run in runs for each in self.quantities(run, run.engine)}
        self.traffics = self._widths.traffic if any(_drawn_anew(run) for run in runs) else 0
        names |= {TRAFFIC} if self.traffics else set()
        self.draws = draws_of(sorted(names), samples, seed)

    def quantities(self, scenario: Scenario, engine: str) -> list[SystemQuantity]:
        """What is uncertain in a scenario of the experiment."""
        parts = scenario.system, scenario.model, scenario.assumptions, scenario.policy
        key = (*map(id, parts), hash(engine))
        if key not in self._found:
            self._found[key] = scenario, quantities_of(scenario, engine, self._widths)
        return self._found[key][1]

    def runs(self, run: Run, engine: str, most: int | None = None) -> list[Run]:
        """A run in every sample, or the first ``most``. ``engine``: of the experiment, which says what is read."""
        parts = run.system, run.model, run.policy, run.assumptions, run.workload
        key = (*map(id, parts), run.batch, run.engine, engine)
        if key not in self._runs:
            systems = self._drawn_systems(run, engine)
            made = [replace(run, system=system) for system in systems]
            self._runs[key] = run, made
        return self._runs[key][1][:most]

    def _drawn_systems(self, scenario: Scenario, engine: str) -> list[SystemSpec]:
        """The system in every world; one object where scenarios read the same of it."""
        found = self.quantities(scenario, engine)
        key = (id(scenario.system), *(each.quantity for each in found))
        if key not in self._systems:
            self._systems[key] = [drawn(scenario.system, found, self.draws, at) for at in range(self.samples)]
        return self._systems[key]


def _drawn_anew(run: Run) -> bool:
    """Whether another seed gives the run other traffic that is as likely. Of a recorded trace, other requests of it."""
    return run.cacheable


def drawn(
    system: SystemSpec, found: Sequence[SystemQuantity], draws: Mapping[str, np.ndarray], sample: int
) -> SystemSpec:
    """The system with the numbers of a world. ``draws``: as of `draws_of`."""
    factors: dict[tuple[str, ...], float] = {}
    for each in found:
        value = value_of(each.quantity, draws, sample)
        if each.factors:
            factors[each.path] = factors.get(each.path, float(_at(system, each.path))) * value
        else:
            system = system.with_value(each.path, value)
    for path, value in factors.items():
        system = system.with_value(path, value)
    return system


def value_of(quantity: Quantity, draws: Mapping[str, np.ndarray], sample: int) -> float:
    return float(quantity.distribution.at(draws[quantity.draws_as][sample : sample + 1])[0])


def _at(spec: Spec, path: tuple[str, ...]) -> float:
    value: object = spec
    for key in path:
        value = value[int(key)] if isinstance(value, tuple) else getattr(value, key)
    return float(value)  # type: ignore[arg-type]
