"""A machine at its limits: the clock falls until nothing is exceeded, and nothing that helps lowers it."""

import pytest
from support.examples import examples
from support.report_folder import die_row
from support.tiny import TINY

from archsim import run as run_once
from archsim.base.errors import CapacityError, SpecError
from archsim.cli.main import main
from archsim.machine.system import PowerSpec
from archsim.runs.choice import choose
from archsim.runs.clocks import PowerLimits, full_load, loads_of
from archsim.runs.energy import activity_of, energy_of, full_load_w
from archsim.runs.notes import limit_notes
from archsim.runs.plan import select
from archsim.runs.prices import build_costs
from archsim.runs.simulator import Simulator
from archsim.show.maps import MappedRun, die_map
from archsim.specs.library import load_experiment, load_system

FILE = (
    TINY.replace("hidden: 512", "hidden: 4096")
    .replace("expert_ffn: 256", "expert_ffn: 2048")
    .replace("[12, 40]", "[40, 2000]")
    .replace("decode_steps: 4", "decode_steps: 2")
)
COOLED = "{coolant: 30 C, resistance: 0.2 K/W per die, lateral: silicon}"
SLOWEST = ["assumptions=[physical]", "workload.context=64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("power")


@pytest.fixture(scope="module")
def measured(folder):
    """The row of a run of the tiny wafer, after overrides; each is simulated once."""
    known = {}

    def of(*overrides, engine="analytical", batch=2000, policy="ep"):
        key = (overrides, engine, batch, policy)
        if key not in known:
            file = folder / "tiny.yaml"
            file.write_text(FILE, encoding="utf-8")
            experiment = load_experiment(file, [f"engine={engine}", *SLOWEST, *overrides])
            known[key] = run_once(experiment, batch=batch, policy=policy)
        return known[key]

    def row(*overrides, **chosen):
        return of(*overrides, **chosen).runs.rows[0]

    row.dies = lambda *overrides, **chosen: of(*overrides, **chosen).dies.rows
    return row


def limit(text):
    return f"systems.0.power={text}"


def cooling(text):
    return f"systems.0.cooling={text}"


OWN = ("clock", "prefill_clock", "held_by", "throttled_share", "die_power_max_w", "core_energy_factor",
       "idle_energy_factor", "run", "die_temperature_max_c", "hbm_temperature_max_c")  # fmt: skip


@pytest.mark.parametrize("engine", ["event", "analytical"])
def test_a_limit_that_nothing_reaches_changes_nothing(measured, engine):
    free, held = measured(engine=engine), measured(limit("{limit: 1 MW, die_limit: 100 kW}"), engine=engine)
    assert {name: held[name] for name in held if name not in OWN} == {
        name: free[name] for name in free if name not in OWN
    }
    assert held["clock"] == held["prefill_clock"] == 1 and not held["held_by"] and held["throttled_share"] == 0
    assert free["clock"] is None and free["die_power_max_w"] is None


def test_power_of_dies_adds_up_to_that_of_the_run(folder, measured):
    free = measured(batch=40, policy="allo")
    (run,) = select(
        choose(load_experiment(folder / "tiny.yaml", ["engine=analytical", *SLOWEST]), batch=40, policy="allo")
    ).runs()
    outcome = Simulator().replay(run).run()
    costs = build_costs(run.system)
    loads = loads_of(run, outcome, costs)
    joule = sum(float(each.sum()) for load in loads.values() for each in load.joule.values())
    activity = activity_of(run.model, Simulator().record(run, details=False)["row"])
    assert joule == pytest.approx(sum(energy_of(activity, costs).values()), rel=1e-9)
    assert free["power_w"] > 0 and len(loads) == 2


@pytest.mark.parametrize("engine", ["event", "analytical"])
def test_a_limit_is_kept_and_a_higher_one_lowers_no_clock(measured, engine):
    free = measured(engine=engine)
    idle_w = 0.55 * free["power_w"]
    shares = (0.7, 0.85, 1.1)
    rows = [measured(limit(f"{{limit: {share * free['power_w']:.6f} W}}"), engine=engine) for share in shares]
    assert all(row["power_w"] <= share * free["power_w"] for row, share in zip(rows, shares, strict=True))
    for name in ("clock", "prefill_clock"):
        clocks = [row[name] for row in rows]
        assert clocks == sorted(clocks) and clocks[-1] <= 1
    times = [row["decode_ns"] for row in rows]
    assert (
        times == sorted(times, reverse=True) and rows[0]["clock"] < 1 and rows[0]["held_by"] == "power of the machine"
    )
    assert rows[0]["power_w"] > idle_w and rows[0]["core_energy_factor"] < 1


def test_the_next_clock_would_exceed_the_limit(folder, measured):
    free = measured()
    limit_w = 0.85 * free["power_w"]
    row = measured(limit(f"{{limit: {limit_w:.6f} W}}"))
    (run,) = select(
        choose(
            load_experiment(
                folder / "tiny.yaml", ["engine=analytical", *SLOWEST, limit(f"{{limit: {limit_w:.6f} W}}")]
            ),
            batch=2000,
            policy="ep",
        )
    ).runs()
    simulator = Simulator()
    own = round(100 * row["prefill_clock"]), round(100 * row["clock"])
    above = tuple(min(100, clock + 1) for clock in own)
    limits = PowerLimits(run.system)
    drawn = {}
    for clocks in (own, above):
        outcome = simulator._replay(run, clocks).run()
        drawn[clocks] = {
            phase: limits.at(load, clocks[phase] / 100).machine_w
            for phase, load in loads_of(run, outcome, limits.costs).items()
        }
    for phase in (0, 1):
        assert drawn[own][phase] <= limit_w and (own[phase] == 100 or drawn[above][phase] > limit_w)


def test_a_limit_of_a_die_holds_the_one_that_draws_most(measured):
    most_w = measured(limit("{limit: 1 MW}"))["die_power_max_w"]
    held = measured(limit(f"{{die_limit: {0.85 * most_w:.6f} W}}"))
    assert (
        held["die_power_max_w"] <= 0.85 * most_w and held["held_by"] == "power of a die" and held["throttled_share"] > 0
    )


def test_better_cooling_lowers_no_clock_and_heat_holds_it(measured):
    rows = []
    for resistance, coolant in ((0.42, 30), (0.38, 30), (0.38, 10), (0.1, 10)):
        rows.append(measured(cooling(f"{{coolant: {coolant} C, resistance: {resistance} K/W per die, limit: 85 C}}")))
    clocks = [row["clock"] for row in rows]
    assert clocks == sorted(clocks) and clocks[0] < 1 and clocks[-1] == 1
    assert all(row["die_temperature_max_c"] <= 85 for row in rows)
    assert (
        rows[0]["held_by"] == "temperature of a die" and rows[-1]["idle_energy_factor"] < rows[1]["idle_energy_factor"]
    )
    assert all(row["decode_ns"] >= rows[-1]["decode_ns"] for row in rows)


def test_dies_and_hbm_have_temperatures(folder, measured):
    row = measured(cooling(COOLED[:-1] + ", cells: 2}"))
    assert 30 < row["hbm_temperature_max_c"] < row["die_temperature_max_c"] <= 105
    none = measured(limit("{limit: 1 MW}"))
    assert none["die_temperature_max_c"] is None


@pytest.mark.parametrize(("key", "value", "said"), [
    ("power", "{limit: 10 W}", ("power.limit: 10 W cannot be held", "nothing to do", "its 6 dies draw", "give more")),
    ("power", "{die_limit: 2 W}", ("power.die_limit: 2 W cannot", "a die draws", "give more than")),
    ("cooling", "{coolant: 30 C, resistance: 50 K/W per die}", ("cooling.limit: 105 C", "give a", "colder coolant")),
])  # fmt: skip
def test_limits_below_idle_are_refused_at_their_place_with_what_would_work(folder, capsys, key, value, said):
    file = folder / "idle.yaml"
    file.write_text(FILE.replace("  mesh: {x: 3, y: 2}", f"  mesh: {{x: 3, y: 2}}\n  {key}: {value}"), encoding="utf-8")
    assert main(["check", str(file), "--set", "assumptions=[physical]", "--set", "workload.context=64"]) != 0
    told = capsys.readouterr().err
    assert "idle.yaml:6: systems.0." in told and all(text in told for text in said)


def test_work_beyond_the_lowest_clock_is_refused_with_what_would_work(folder, measured):
    free = measured()
    idle_w = PowerLimits(load_experiment(folder / "tiny.yaml", [limit("{limit: 1 MW}")]).systems[0]).idle().machine_w
    with pytest.raises(
        CapacityError, match=r"power.limit: .* cannot be held: in (decode|the prefill), at 20% .*give more"
    ):
        measured(limit(f"{{limit: {1.02 * idle_w:.6f} W}}"))
    assert idle_w < free["power_w"]


def test_pages_and_commands_say_what_limits_the_clock(folder, capsys, measured):
    row = measured(limit(f"{{limit: {0.85 * measured()['power_w']:.6f} W}}"))
    (told,) = limit_notes([row, dict(row, policy="base")])
    assert told.startswith("On small, the power of the machine limits the clock. It runs at") and "(policy ep)" in told
    assert limit_notes([measured(), measured(limit("{limit: 1 MW}"))]) == []
    file, watt = folder / "said.yaml", f"{0.85 * measured()['power_w']:.6f}"
    power = f"  mesh: {{x: 3, y: 2}}\n  power: {{limit: {watt} W}}"
    file.write_text(FILE.replace("  mesh: {x: 3, y: 2}", power), encoding="utf-8")
    chosen = [str(file), *(f"--set={each}" for each in ("engine=analytical", *SLOWEST))]
    assert main(["check", *chosen]) == 0
    assert "small: With arrays alone, it stays within its limits." in capsys.readouterr().err
    assert main(["why", *chosen, "--batch", "2000", "--policy", "ep"]) == 0
    assert "The limit is the power of the machine." in capsys.readouterr().out


def test_a_map_shows_power_and_temperature():
    cooled = [die_row(n, x=n % 3, y=n // 3, power_w=100.0 + n, temperature_c=50.0 + n) for n in range(6)]
    found = die_map("heat", [MappedRun({}, cooled, ())])
    assert [metric.field for metric in found.metrics] == ["hbm", "array", "power", "heat"]
    assert [row["power"] for row in found.rows] == [100.0 + n for n in range(6)] and found.rows[5]["heat"] == 55.0


def test_full_load_falls_with_the_limit():
    found = [full_load(PowerLimits(_dojo(limit_w)), 1.0, 1.0) for limit_w in (3_000, 8_000, 12_000, 99_000)]
    assert [within for _, within in found] == [False, True, True, True]
    clocks = [each.clock for each, _ in found]
    assert clocks == sorted(clocks) and clocks[0] == 0.2 and clocks[-1] == 1
    assert found[1][0].machine_w <= 8_000
    assert found[-1][0].machine_w == pytest.approx(full_load_w(build_costs(_dojo(99_000))))


def _dojo(limit_w):
    return load_system("dojo").model_copy(update={"power": PowerSpec(limit=f"{limit_w} W")})


def test_heat_between_packages_is_refused(folder):
    file = folder / "ring.yaml"
    file.write_text(
        FILE.replace("  mesh: {x: 3, y: 2}", f"  fabric: {{levels: [{{switch: 6}}]}}\n  cooling: {COOLED}"),
        encoding="utf-8",
    )
    with pytest.raises(SpecError, match=r"cooling.lateral: heat flows .* Give lateral: none"):
        load_experiment(file)


EACH = "systems.0.power={clocks: each}"


def own_clocks(measured, resistance, *more, policy="ep", clocks="each", coolant=30):
    """(row, clock of every die in decode) of the cooled wafer."""
    heat = f"{{coolant: {coolant} C, resistance: {resistance} K/W per die, limit: 85 C}}"
    chosen = cooling(heat), *((EACH,) if clocks == "each" else ()), *more
    row = measured(*chosen, policy=policy)
    return row, [each["clock"] for each in measured.dies(*chosen, policy=policy)]


def test_a_die_that_gets_too_hot_lowers_its_own_clock_alone(measured):
    """The most loaded die is the hottest; others run faster, and the run takes no longer than with one clock."""
    common, same = own_clocks(measured, 0.42, clocks="common")
    row, own = own_clocks(measured, 0.42)
    assert len(set(same)) == 1 and same[0] == common["clock"] < 1
    assert max(own) > min(own) == row["clock"] and min(own) >= common["clock"]
    assert row["decode_ns"] <= common["decode_ns"] and row["prefill_ns"] <= common["prefill_ns"]
    assert row["die_temperature_max_c"] <= 85


def test_more_cooling_slows_no_run_with_clocks_of_their_own(measured):
    """Nor does it lower the least clock. That of another die may fall, which has less time for the same work then."""
    found = [own_clocks(measured, resistance) for resistance in (0.1, 0.42, 0.46)[: examples(3, 2)]]
    for (better, after), (worse, before) in zip(found, found[1:], strict=False):
        assert min(before) <= min(after) and better["decode_ns"] <= worse["decode_ns"]
    assert max(found[1][1]) > min(found[1][1]) and found[0][1] == [1] * 6


@pytest.mark.nightly
def test_a_faster_die_slows_no_run_with_clocks_of_their_own(measured):
    def times(speed):
        speeds = [[1, 1]] * 2 + [[speed, 1]] + [[1, 1]] * 3
        return own_clocks(measured, 0.42, f"systems.0.dies_as_built={{speed: {{table: {speeds}}}}}")[0]["decode_ns"]

    assert times(1.2) <= times(0.8) * 1.005


def test_a_rule_that_sees_speeds_sees_clocks_of_dies(folder):
    names = ("plain", "asks")
    policies = ("policies=[{name: plain, allocation: copy_aware}, "
                "{name: asks, allocation: {name: copy_aware, needs: speeds}}]")  # fmt: skip
    free = "assumptions=[{set: physical, decision_cost: free}]"
    experiment = load_experiment(folder / "tiny.yaml", ["engine=analytical", *SLOWEST[1:], policies, free])
    runs = [select(choose(experiment, batch=2000, policy=name)).runs()[0] for name in names]
    slow = (100, (50, 100, 100, 100, 100, 100))
    replays = [Simulator()._replay(run, slow) for run in runs]
    assert replays[1].engine.array_speeds(1).tolist() == [0.5, 1, 1, 1, 1, 1]
    plain, asks = (replay.run().decode_ns for replay in replays)
    assert asks < plain


def test_clocks_of_dies_need_a_limit(measured):
    with pytest.raises(SpecError, match="no limit lowers a clock. Give power a limit"):
        measured(EACH)
