"""A run at its limits: power and temperature of its dies, and the clock at which none is exceeded.

A limit is a closed loop: where it is exceeded the clock falls, with it the voltage (linear in the clock, so
that an operation takes V² of its energy), then steps take longer, and power falls by both. The loop is solved for
decode and for the prefill, each with one clock for all dies, in steps of a hundredth: the highest with which the
simulated run exceeds no limit. So a higher limit and better cooling never lower a clock. With ``clocks: each`` a die
that exceeds a limit lowers its own clock (`_SearchEach`). Power is the mean over a class of steps, as regulators of
GPUs average over milliseconds; it follows from the account of `archsim.runs.energy`, die by die. Without
``power`` and ``cooling`` in a system nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.errors import CapacityError, SpecError
from archsim.base.quantities import POWER, format_quantity
from archsim.base.sums import sum
from archsim.base.units import NS_PER_S
from archsim.engine.engine import EventEngine
from archsim.engine.fabrics import build_fabric, dies_together
from archsim.engine.loop import RunOutcome
from archsim.engine.pair_traffic import statistics_bytes
from archsim.engine.state import UNITS
from archsim.engine.step_counts import DECODE, PREFILL
from archsim.machine.built import places_of
from archsim.machine.system import SystemSpec
from archsim.runs.energy import FLOP_PER_WEIGHT, MATRICES, MW_PER_W, with_kernels
from archsim.runs.prices import AS_PUBLISHED, SystemHardware, build_costs
from archsim.specs.scenario import Scenario
from microarch.fabric.fabric import Fabric
from microarch.fabric.grid import ROW_MAJOR
from microarch.silicon.energy import Activity, run_energy
from microarch.silicon.heat import DieTemperatures, HeatEstimates, Temperatures, voltage
from microarch.silicon.memories import SRAM

STEPS = 100  # of a clock, as PLLs have them: 15 MHz of 1,980 on an H100
LOWEST = 20  # of these; NVIDIA's driver goes down to 345 of 1,500 MHz
CORE = ("compute", "llc")  # blocks whose energy follows the voltage of a die's array; PHYs and HBM have their own
IDLE, STACKS, BUSY = "idle", "hbm", "busy"
PHASES = ("prefill", "decode")
Clock = int | tuple[int, ...]  # of all dies, or of each, in STEPS
Clocks = tuple[Clock, Clock]  # in the prefill and in decode
FULL: Clocks = (STEPS, STEPS)
MACHINE_POWER, DIE_POWER = "power of the machine", "power of a die"
DIE_HEAT, HBM_HEAT = "temperature of a die", "temperature of HBM"

NOMINAL = HeatEstimates()
MAY_BE_0 = ("lowest_voltage",)  # coefficients: the voltage follows the clock
NO_PLACES: Mapping[tuple[str, str], str] = MappingProxyType({})


def heat_with(changes: Mapping[str, float]) -> HeatEstimates:
    """The coefficients of power and heat with a user's values. Raises SpecError for one that is not positive (of
    `MAY_BE_0`: negative), and for leakage and clock shares of more than 1 together.
    """
    for name, value in changes.items():
        if not (value >= 0 if name in MAY_BE_0 else value > 0):
            expected = "0 or above" if name in MAY_BE_0 else "above 0"
            raise SpecError(f"economics: {name} must be {expected}, got {value!r}")
    found = NOMINAL.change(changes)
    known = found.values()
    if (shares := known["leakage_share"] + known["clock_share"]) > 1:
        raise SpecError(f"economics: leakage_share and clock_share are {shares:g} together; expected at most 1")
    return found


class DieLoad(NamedTuple):
    """What dies do in a class of steps: ``time_ns`` of it; block → float64[die] J at full clock."""

    time_ns: float
    joule: Mapping[str, np.ndarray]


class ClassPower(NamedTuple):
    """Power and clocks of dies in a class of steps: means over the class."""

    time_ns: float  # that the class takes
    clock: float  # share of the full one, of the slowest die
    die_w: np.ndarray  # float64[die], W, its HBM included
    heat: Temperatures | None  # temperatures; None without cooling
    core_joule: float  # of all dies
    idle_joule: float  # of all dies
    exceeded: tuple[tuple[str, float], ...]  # limit → by which share, the worst first
    die_clock: np.ndarray  # float64[die], share of the full one
    die_exceeded: np.ndarray  # float64[die]: by which share the worst of its own limits is exceeded
    held_by: str = ""  # what holds the clock below the full one; "": nothing

    @property
    def machine_w(self) -> float:
        return float(self.die_w.sum())

    @property
    def within(self) -> bool:
        return not any(share > 0 for _, share in self.exceeded)


class PowerState(NamedTuple):
    """The classes of a run that took time, by PREFILL and DECODE; factors of the energies at full clock."""

    classes: Mapping[int, ClassPower]
    core_factor: float
    idle_factor: float

    @property
    def _time_ns(self) -> float:
        return sum(each.time_ns for each in self.classes.values())

    @property
    def throttled_share(self) -> float:
        """Share of the time in which the clock is below the full one."""
        slow = sum(each.time_ns for each in self.classes.values() if each.clock < 1)
        return slow / self._time_ns if self.classes else 0.0

    @property
    def held_by(self) -> str:
        """What holds the clock in decode, else in the prefill; '' for nothing."""
        return next((each.held_by for _, each in sorted(self.classes.items(), reverse=True) if each.held_by), "")

    def clock(self, phase: int) -> float | None:
        return self.classes[phase].clock if phase in self.classes else None

    def most(self, value: Callable[[ClassPower], np.ndarray | None]) -> np.ndarray | None:
        """float64[die]: the largest over classes; None where there is none."""
        found = [each for each in map(value, self.classes.values()) if each is not None]
        return np.max(found, axis=0) if found else None

    @property
    def die_w(self) -> np.ndarray:
        """float64[die], mean over the run."""
        return np.sum([each.time_ns * each.die_w for each in self.classes.values()], axis=0) / self._time_ns


def highest_clock(within: Callable[[int], bool], low: int, high: int) -> int:
    """The highest clock from ``low`` to ``high`` that is within, as all below are; ``low``, not asked, if none is."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if within(middle) else (low, middle - 1)
    return low


def has_limits(system: SystemSpec) -> bool:
    return system.power is not None or system.cooling is not None


def loads_of(scenario: Scenario, outcome: RunOutcome, costs: SystemHardware) -> Mapping[int, DieLoad]:
    """What dies do in every class of steps that took time. Links count for the die that sends; shared decision hardware
    for all dies, the same.
    """
    model, system, counts, fabric = scenario.model, scenario.system, outcome.counts, outcome.fabric
    dies = fabric.dies
    tokens = counts.tokens.sum(axis=1, keepdims=True)
    hbm_bytes, every = counts.hbm_bytes.astype(float), counts.hbm_bytes.sum(axis=0)
    reads = outcome.tally.dies["local_read_bytes"] + outcome.tally.dies["remote_read_bytes"]
    weights = float(model.expert_ffn)
    if scenario.assumptions.weights == "all":
        weights += model.shared_experts * model.shared_ffn / model.top_k
    times_ns = np.array([outcome.prefill_ns, outcome.decode_ns])
    decision_s = float(outcome.decision.states_ns.sum()) / NS_PER_S
    on_links = counts.resource_bytes[:, UNITS * dies :] + np.outer(
        times_ns / times_ns.sum(), statistics_bytes(outcome.machine, outcome.tally)
    )
    found = {}
    for phase in (PREFILL, DECODE):
        if not times_ns[phase] or not tokens[phase]:
            continue
        share = np.divide(hbm_bytes[phase], every, out=np.zeros(dies), where=every > 0)
        per_row = FLOP_PER_WEIGHT * MATRICES * model.hidden
        activity = Activity(
            time_s=times_ns[phase] / NS_PER_S,
            hbm_bytes=hbm_bytes[phase],
            d2d_byte_hops=_sent(on_links[phase], fabric),
            llc_bytes=2 * reads * share,
            flop=per_row * weights * counts.tokens[phase].astype(float),
            decision_s=decision_s * times_ns[phase] / times_ns.sum(),
            tokens=1.0,
            padded_flop=per_row * model.expert_ffn * counts.padded[phase].astype(float),
        )
        rows = scenario.batch / dies
        joule = run_energy(
            with_kernels(system, activity, 1, rows),
            dtype_bytes=system.compute.dtype_bytes, die_mm2=costs.powered_mm2, dies=1,
            decision_w=costs.decision.power_mw / MW_PER_W / dies, pieces=costs.pieces,
            estimates=AS_PUBLISHED.of(system).energy, cached=system.hbm.kind != SRAM,
        )  # fmt: skip
        found[phase] = DieLoad(
            float(times_ns[phase]), {name: np.broadcast_to(each, dies).astype(float) for name, each in joule.items()}
        )
    return found


def _sent(link_bytes: np.ndarray, fabric: Fabric) -> np.ndarray:
    """float64[die]: bytes times links, of the die where a link begins, else ends; half of each end if both hold it."""
    sent = np.zeros(fabric.dies)
    if len(link_bytes) == fabric.links:
        ends = [(fabric.link_src, fabric.link_dst, 1.0)]
    else:
        first = np.zeros(fabric.edges, np.int64)
        first[fabric.link_edge[::-1]] = np.arange(len(fabric.link_edge))[::-1]
        src, dst = fabric.link_src[first], fabric.link_dst[first]
        ends = [(src, dst, 0.5), (dst, src, 0.5)]
    for src, dst, share in ends:
        at = np.where(src < fabric.dies, src, dst)
        ours = (at < fabric.dies) & (src != dst)  # ports are no links
        np.add.at(sent, at[ours], share * link_bytes[ours])
    return sent


class PowerLimits:
    """What a system may draw and how hot it may get; asked whether a load at a clock is within."""

    def __init__(self, system: SystemSpec, estimates: HeatEstimates = NOMINAL):
        self.system, self.costs, self._known = system, build_costs(system), estimates.values()
        self._heat = _heat_of(system, self.costs, estimates) if system.cooling is not None else None

    def at(self, load: DieLoad, clock: float | np.ndarray) -> ClassPower:
        """Power and temperatures with ``clock`` (share, or float64[die]), at which ``load`` was simulated."""
        known, seconds = self._known, load.time_ns / NS_PER_S
        volt = voltage(np.asarray(clock), known["lowest_voltage"])
        blocks = {name: joule * (volt**2 if name in CORE else 1.0) / seconds for name, joule in load.joule.items()}
        idle_w = blocks.pop(IDLE)
        leakage_w = known["leakage_share"] * idle_w * volt
        blocks[""] = known["clock_share"] * idle_w * clock * volt**2 + blocks.pop("decision")
        blocks[""] = blocks[""] + blocks.pop(BUSY) * clock * volt**2
        blocks[""] = blocks[""] + (1 - known["leakage_share"] - known["clock_share"]) * idle_w
        heat = None
        if self._heat is not None:
            stacks_w = known["stack_share"] * blocks[STACKS] if self.costs.stacks_per_die else 0.0 * idle_w
            on_die = blocks | {STACKS: blocks[STACKS] - stacks_w}
            heat = self._of_dies(on_die, stacks_w, leakage_w)
            leakage_w = heat.leakage_w
        die_w = sum(blocks.values()) + leakage_w
        core_w = np.sum([blocks[name] for name in CORE], axis=0)
        idle_now_w = die_w - sum(blocks[name] for name in blocks if name)
        idle_joule = float((idle_now_w - load.joule["decision"] / seconds).sum()) * seconds
        of_dies = self._of_each(die_w, heat)
        found = [(name, float(each.max())) for name, each in of_dies.items()]
        if self.system.power is not None and self.system.power.limit_w is not None:
            found.insert(0, (MACHINE_POWER, float(die_w.sum()) / self.system.power.limit_w - 1))
        exceeded = tuple(sorted(found, key=lambda each: -each[1]))
        die_exceeded = np.max([np.full(len(die_w), -np.inf), *of_dies.values()], axis=0)
        return ClassPower(
            time_ns=load.time_ns, clock=float(np.min(clock)), die_w=die_w, heat=heat,
            core_joule=float(core_w.sum()) * seconds, idle_joule=idle_joule, exceeded=exceeded,
            die_clock=np.broadcast_to(clock, len(die_w)), die_exceeded=die_exceeded,
        )  # fmt: skip

    def _of_dies(self, blocks_w: Mapping[str, np.ndarray], stacks_w: np.ndarray, leakage_w: np.ndarray) -> Temperatures:
        """Temperatures of the dies in use; others draw nothing."""
        assert self._heat is not None
        built, sites = self.system.built, self.system.sites
        if built is None:
            return self._heat.of(blocks_w, stacks_w, leakage_w)
        at = np.array(built.living)

        def on_sites(watt: np.ndarray) -> np.ndarray:
            every = np.zeros(sites)
            every[at] = watt
            return every

        blocks_w = {name: on_sites(watt) for name, watt in blocks_w.items()}
        found = self._heat.of(blocks_w, on_sites(stacks_w), on_sites(leakage_w))
        return Temperatures(*(each[at] for each in found))

    def _of_each(self, die_w: np.ndarray, heat: Temperatures | None) -> dict[str, np.ndarray]:
        """float64[die]: by which share each limit is exceeded, for heat of the span from coolant to limit."""
        power, cooling, found = self.system.power, self.system.cooling, {}
        if power is not None and power.die_limit_w is not None:
            found[DIE_POWER] = die_w / power.die_limit_w - 1
        if cooling is not None and heat is not None:
            for name, celsius, limit_c in (
                (DIE_HEAT, heat.die_c, cooling.limit_c),
                (HBM_HEAT, heat.hbm_c, cooling.hbm_limit_c),
            ):
                if not np.isnan(celsius).any():
                    found[name] = (celsius - limit_c) / (limit_c - cooling.coolant_c)
        return found

    def idle(self) -> ClassPower:
        """The machine at its lowest clock with nothing to do."""
        nothing = np.zeros(self.system.dies)
        blocks = dict.fromkeys((*CORE, STACKS, BUSY, "d2d", "pieces", "decision"), nothing)
        of_die = run_energy(
            Activity(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
            dtype_bytes=1,
            die_mm2=self.costs.powered_mm2,
            dies=1,
            decision_w=0.0,
        )[IDLE]
        return self.at(DieLoad(NS_PER_S, blocks | {IDLE: nothing + of_die}), LOWEST / STEPS)

    def describe(self, found: ClassPower, doing: str, places: Mapping[tuple[str, str], str] = NO_PLACES) -> str:
        """Limits that hold at no clock, where they are written (``places``: of ``limits_at``), what would work."""
        (what, _), *_ = found.exceeded
        key, limit, reached, hint = self._problem(what, found, doing)
        at = places.get((self.system.name, key), f"{self.system.name}: {key}")
        return f"{at}: {limit} cannot be held: {reached}; {hint}"

    def _problem(self, what: str, found: ClassPower, doing: str) -> tuple[str, str, str, str]:
        """(key, limit, what is reached at the lowest clock, what would work)."""
        power, cooling, at_lowest = (
            self.system.power,
            self.system.cooling,
            f"{doing}, at {LOWEST / STEPS:.0%} of the clock",
        )
        if what in (MACHINE_POWER, DIE_POWER) and power is not None:
            whole = what == MACHINE_POWER
            limit_w = (power.limit_w if whole else power.die_limit_w) or 0.0
            drawn_w = found.machine_w if whole else float(found.die_w.max())
            who = f"its {self.system.dies} dies draw" if whole else "a die draws"
            reached = f"{at_lowest}, the lowest, {who} {_watt(drawn_w)}"
            hint = f"give more than {_watt(1.01 * drawn_w)}, or less work at a time"
            return f"power.{'limit' if whole else 'die_limit'}", format_quantity(limit_w, POWER), reached, hint
        assert cooling is not None and found.heat is not None
        of_die = what == DIE_HEAT
        celsius, limit_c = (found.heat.die_c, cooling.limit_c) if of_die else (found.heat.hbm_c, cooling.hbm_limit_c)
        hottest = float(np.max(celsius))
        runaway = "is never steady, as leakage grows faster than heat leaves"
        said = f"is {hottest:.0f} C" if np.isfinite(hottest) else runaway
        better = cooling.resistance_k_per_w * (limit_c - cooling.coolant_c) / (hottest - cooling.coolant_c)
        hint = f"give a resistance of about {better:.2g} K/W per die" if better > 0 else "give a much lower resistance"
        reached = f"{at_lowest}, the lowest, the {what} {said}"
        return f"cooling.{'limit' if of_die else 'hbm_limit'}", f"{limit_c:g} C", reached, f"{hint}, or colder coolant"


def _watt(watt: float) -> str:
    return f"{watt / 1000:.3g} kW" if watt >= 1000 else f"{watt:.3g} W"


def _heat_of(system: SystemSpec, costs: SystemHardware, estimates: HeatEstimates) -> DieTemperatures:
    """Of all sites of a wafer: dead dies and spare ones conduct, too."""
    cooling, together = system.cooling, dies_together(system) or 1
    assert cooling is not None
    places: list[tuple[int, int] | None] = [None] * system.sites
    at = places_of(system) if cooling.lateral != "none" else None
    if at is not None:
        places = [(int(x), int(y)) for x, y in zip(*at, strict=True)]
    carriers = (np.arange(system.sites) // together).tolist()
    return DieTemperatures(
        places, carriers, dict(costs.area_mm2), costs.stacks_per_die, cooling.resistance_k_per_w, cooling.coolant_c,
        cooling.cells, at is not None, estimates,
    )  # fmt: skip


def refuse_unpowered(system: SystemSpec, places: Mapping[tuple[str, str], str] = NO_PLACES) -> None:
    """Raise SpecError for limits that the machine exceeds with nothing to do, with their place and what would work."""
    if not has_limits(system):
        return
    limits = PowerLimits(system)
    idle = limits.idle()
    if idle.exceeded and idle.exceeded[0][1] > 0:
        raise SpecError(limits.describe(idle, "with nothing to do", places))


WORKS = {
    "all at once": (1.0, 1.0),
    "arrays alone": (1.0, 0.0),
    "HBM and links alone": (0.0, 1.0),
}  # share of the peak of arrays, and of the bandwidths of HBM and links


def full_load(limits: PowerLimits, arrays: float, bandwidths: float) -> tuple[ClassPower, bool]:
    """(the machine at these shares of its peaks, at the highest clock within its limits, else the lowest; whether it is
    within them). A lower clock slows arrays, not HBM and links.
    """
    system, costs = limits.system, limits.costs
    links = build_fabric(system, ROW_MAJOR).link_bytes_per_ns.sum() / system.d2d.efficiency * NS_PER_S / system.dies
    read = bandwidths * system.hbm.bandwidth_bytes_per_s * system.hbm.efficiency

    def at(clock: int) -> ClassPower:
        flop = arrays * system.compute.peak_flop_per_s * clock / STEPS
        joule = run_energy(
            Activity(1.0, read, bandwidths * float(links), 2 * read, flop, 1.0, 1.0),
            dtype_bytes=system.compute.dtype_bytes, die_mm2=costs.powered_mm2, dies=1,
            decision_w=costs.decision.power_mw / MW_PER_W / system.dies, pieces=costs.pieces,
            estimates=AS_PUBLISHED.of(system).energy, cached=system.hbm.kind != SRAM,
        )  # fmt: skip
        load = DieLoad(NS_PER_S, {name: np.full(system.dies, float(each)) for name, each in joule.items()})
        return limits.at(load, clock / STEPS)

    clock = highest_clock(lambda clock: at(clock).within, LOWEST, STEPS)
    found = at(clock)
    held_by = at(clock + 1).exceeded[0][0] if found.within and clock < STEPS else ""
    return found._replace(held_by=held_by), found.within


def full_load_note(system: SystemSpec, estimates: HeatEstimates = NOMINAL) -> Iterator[str]:
    """A sentence for each of WORKS: the clock of a machine with limits at full load, one for all dies."""
    if not has_limits(system):
        return
    limits = PowerLimits(system, estimates)
    for what, (arrays, bandwidths) in WORKS.items():
        found, within = full_load(limits, arrays, bandwidths)
        heat = "" if found.heat is None else f", with dies at {found.heat.die_c.max():.0f} C"
        if within:
            held = f", limited by the {found.held_by}" if found.held_by else ""
            yield (
                f"With {what}, it stays within its limits. It runs at {found.clock:.0%} of the full clock{held}, and "
                f"draws {_watt(found.machine_w)}{heat}."
            )
        else:
            yield (
                f"With {what}, it exceeds its limits. Even at the lowest clock, {found.clock:.0%}, it draws "
                f"{_watt(found.machine_w)}{heat} ({found.exceeded[0][0]}). HBM and links cannot be used at full rate."
            )


def within_limits(scenario: Scenario, run: Callable[[Clocks], RunOutcome]) -> tuple[RunOutcome, Clocks, PowerState]:
    """The outcome at the highest clocks within all limits. ``run``: simulates. Raises CapacityError for none."""
    limits = PowerLimits(scenario.system)
    outcomes: dict[Clocks, RunOutcome] = {}

    def loads_at(clocks: Clocks) -> Mapping[int, DieLoad]:
        if clocks not in outcomes:
            outcomes[clocks] = run(clocks)
        return loads_of(scenario, outcomes[clocks], limits.costs)

    searches: dict[int, _Search] = _search_all({phase: _Search() for phase in loads_at(FULL)}, loads_at, limits)
    for phase, search in searches.items():
        if search.best is None:
            raise CapacityError(
                limits.describe(search.worst, f"in the {PHASES[phase]}" if phase == PREFILL else "in decode")
            )
    if scenario.system.power is not None and scenario.system.power.clocks == "each":
        each = {phase: _SearchEach(search) for phase, search in searches.items()}
        searches = {**_search_all(each, loads_at, limits)}
    clocks = _with(searches)
    loads = loads_at(clocks)
    held = {phase: search.held_by for phase, search in searches.items()}
    classes = {
        phase: limits.at(load, share_of(clocks[phase]))._replace(held_by=held[phase]) for phase, load in loads.items()
    }
    return outcomes[clocks], clocks, PowerState(classes, *_factors(loads, classes))


def _search_all(
    searches: Mapping[int, _Search], loads_at: Callable[[Clocks], Mapping[int, DieLoad]], limits: PowerLimits
) -> dict[int, _Search]:
    """The same, done."""
    while not all(search.done for search in searches.values()):
        clocks = _with(searches)
        loads = loads_at(clocks)
        for phase, search in searches.items():
            if not search.done:
                search.add(clocks[phase], loads[phase], limits)
    return dict(searches)


def share_of(clock: Clock) -> float | np.ndarray:
    """A clock as a share of the full one; float64[die] where each has its own."""
    return np.array(clock) / STEPS if isinstance(clock, tuple) else clock / STEPS


def set_clocks(engine: EventEngine, clocks: Clocks) -> None:
    """Have the arrays of an engine run at these clocks. Raises SpecError for an execution without clocks."""
    if not hasattr(engine.execution, "clocks"):
        raise SpecError(
            f"{engine.scenario.system.name}: power and cooling need an execution whose GEMMs follow a clock: "
            "weight_streaming, expert_parallel, or one of your own with an attribute clocks: (prefill, decode), shares "
            "of the full one, each a number or, with clocks: each, float64[die]; "
            f"{engine.scenario.assumptions.execution} has none"
        )
    engine.execution.clocks = tuple(map(share_of, clocks))
    engine.clocks = engine.execution.clocks


def _with(searches: Mapping[int, _Search]) -> Clocks:
    found: list[Clock] = [searches[phase].guess if phase in searches else STEPS for phase in (PREFILL, DECODE)]
    return found[0], found[1]


def _factors(loads: Mapping[int, DieLoad], classes: Mapping[int, ClassPower]) -> tuple[float, float]:
    """Energy of arrays, and of waiting, over that at full clock and without regard to temperature."""
    core = sum(float(sum(load.joule[name].sum() for name in CORE)) for load in loads.values())
    idle = sum(float((load.joule[IDLE] + load.joule[BUSY]).sum()) for load in loads.values())
    if all(each.clock == 1 and each.heat is None for each in classes.values()):
        return 1.0, 1.0
    now = [sum(getattr(each, name) for each in classes.values()) for name in ("core_joule", "idle_joule")]
    return (now[0] / core if core else 1.0), (now[1] / idle if idle else 1.0)


class _Search:
    """The highest clock of a class that exceeds no limit: between one that was simulated and is within, and the next,
    which was simulated and is not. Guesses by the two nearest simulated clocks, as time is a + b / clock.
    """

    def __init__(self) -> None:
        self.guess: Clock = STEPS
        self.held_by, self._above = "", STEPS + 1
        self.best: int | None = None
        self.worst: ClassPower
        self.loads: dict[int, DieLoad] = {}

    @property
    def done(self) -> bool:
        return self._above == (self.best or LOWEST - 1) + 1

    def add(self, clock: Clock, load: DieLoad, limits: PowerLimits) -> None:
        """What was simulated with the clock of ``guess``."""
        assert isinstance(clock, int)
        self.loads[clock] = load
        found = limits.at(load, clock / STEPS)
        if not found.within:
            self._above, self.held_by, self.worst = clock, found.exceeded[0][0], found
        else:
            self.best = clock
        self.guess = self._next(limits) if not self.done else (self.best or LOWEST)

    def _next(self, limits: PowerLimits) -> int:
        def would_be(clock: int) -> bool:
            return limits.at(self._predict(clock), clock / STEPS).within

        return highest_clock(would_be, (self.best or LOWEST - 1) + 1, self._above - 1)

    def _predict(self, clock: int) -> DieLoad:
        """The load at a clock that was not simulated: as that of the nearest, in the time that two of them give."""
        near = sorted(self.loads, key=lambda each: abs(each - clock))[:2]
        load = self.loads[near[0]]
        if len(near) == 1:
            return load
        one, other = (self.loads[each].time_ns for each in near)
        inverse = [1 / each for each in (*near, clock)]
        time_ns = one + (other - one) * (inverse[2] - inverse[0]) / (inverse[1] - inverse[0])
        share = max(time_ns, 1e-3 * load.time_ns) / load.time_ns
        return DieLoad(load.time_ns * share, {**load.joule, IDLE: load.joule[IDLE] * share})


class _SearchEach(_Search):
    """Clocks of their own, where a die that exceeds one of its limits lowers its clock alone, and an exceeded limit of
    the machine lowers the highest clocks.

    Power is a mean over time, so for a time that is assumed the clocks follow (`_clocks_in`), and the longer the time,
    the higher they are; with these clocks the run takes a time. The time that is assumed rises, by bisection, as long
    as the run takes no less and nothing is exceeded. What one clock for all gives is kept where it is faster.
    """

    ROUNDS = 8  # of bisection: a 256th of what lies between the full clock and the first guess
    HALVES = 4  # of what clocks are raised above one for all dies

    def __init__(self, common: _Search) -> None:
        super().__init__()
        assert common.best is not None
        self.best, self.held_by, self.loads = common.best, common.held_by, common.loads
        self._fastest: Clock = common.best
        self.guess = self._fastest
        self._time_ns, self._load = self.loads[common.best].time_ns, self.loads[STEPS]
        self._low_ns, self._high_ns, self._assumed_ns = [self._load.time_ns] * 3
        self._rounds = self._halves = 0
        self._known: dict[Clock, tuple[bool, float]] = {}  # clocks: whether nothing is exceeded, and the time
        self._done = common.best == STEPS

    @property
    def done(self) -> bool:
        return self._done

    def add(self, clock: Clock, load: DieLoad, limits: PowerLimits) -> None:
        """See ``_Search.add``; what is added first is known: one clock for all."""
        within = limits.at(load, share_of(clock)).within
        self._known[clock] = within, load.time_ns
        if within and load.time_ns <= self._time_ns:
            self._fastest, self._time_ns = clock, load.time_ns
        while self._rounds < self.ROUNDS:
            self.guess = self._clocks_in(self._assumed_ns, limits)
            if self.guess not in self._known:
                return
            within, took_ns = self._known[self.guess]
            if not within:
                self._high_ns = self._assumed_ns
            elif self._rounds == 0:
                self._high_ns = max(took_ns, self._assumed_ns)
            if within:
                self._low_ns = self._assumed_ns
                self._high_ns = max(self._low_ns, min(self._high_ns, took_ns))
            self._rounds += 1
            self._assumed_ns = (self._low_ns + self._high_ns) / 2
        if isinstance(self._fastest, int) and self._halves < self.HALVES:  # from one clock up, as far as is within
            raised = np.array(self._clocks_in(self._time_ns, limits)) - self._fastest
            while self._halves < self.HALVES:
                more = np.maximum(raised, 0) // 2**self._halves
                self._halves += 1
                self.guess = _told_apart(self._fastest + np.broadcast_to(more, limits.system.dies))
                if self.guess not in self._known:
                    return
        self.guess, self._done = self._fastest, True

    def _clocks_in(self, time_ns: float, limits: PowerLimits) -> Clock:
        """The clocks with which a class of steps that takes so long exceeds nothing, each die's its own.

        From full clocks down, all dies that exceed a limit of their own at a time, so that a die counts on the heat of
        its neighbours as they end up; a die that its neighbours heat even at its lowest clock lowers theirs. While
        leakage runs away, no die has a temperature: those that draw most are lowered, and raised again where they can.
        """
        longer = time_ns / self._load.time_ns
        load = DieLoad(time_ns, {**self._load.joule, IDLE: self._load.joule[IDLE] * longer})
        clocks, ran_away = np.full(limits.system.dies, STEPS), False
        while not (found := limits.at(load, clocks / STEPS)).within:
            above = clocks > LOWEST
            if not np.isfinite(found.die_exceeded).all() and np.isinf(found.exceeded[0][1]):
                ran_away, steps = True, np.full(len(clocks), 4)
                lower = above & (found.die_w >= 0.95 * found.die_w[above].max(initial=0.0))
            else:
                lower, over = above & (found.die_exceeded > 0), found.die_exceeded
                if not lower.any():  # of the machine, or by heat of neighbours
                    lower, over = above & (clocks == clocks.max()), np.asarray(found.exceeded[0][1])
                steps = np.maximum(1, np.floor(STEPS / 8 * np.clip(over, 0.0, 1.0))).astype(int)  # power falls faster
            if not lower.any():
                return _told_apart(clocks)
            clocks = np.where(lower, np.maximum(clocks - steps, LOWEST), clocks)
        for die in np.argsort(found.die_exceeded, kind="stable") if ran_away else ():

            def alone(clock: int, die: int = die) -> bool:
                return limits.at(load, np.where(np.arange(len(clocks)) == die, clock, clocks) / STEPS).within

            clocks[die] = highest_clock(alone, int(clocks[die]), STEPS)
        return _told_apart(clocks)


def _told_apart(clocks: np.ndarray) -> Clock:
    return int(clocks[0]) if (clocks == clocks[0]).all() else tuple(clocks.tolist())
