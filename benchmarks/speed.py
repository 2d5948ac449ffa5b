"""Write docs/speed.csv and docs/speed.md: what a run costs by its size, and ratios to other simulators.

    python benchmarks/speed.py [--only dies layers …]

Every time is processor time of this process, after compilation, the least of three. Every figure is also given in
reference kernels (`benchmarks/timing.py`), which are timed just before and after it, so that figures of different
machines and hours can be compared. A series fits cost = a · size^b to the logarithms of its points. With ``--only`` the
other series stay as they are in the table. SimPy (``pip install simpy``) and Dask are compared where they are
installed. ``commands`` (`benchmarks/commands.py`) and ``before``, which times commands of an earlier commit, take many
minutes: only if they are named.
"""

import argparse
import csv
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from timing import heap_events_per_s, least_s, reference_s

ROOT = Path(__file__).resolve().parents[1]
TABLE, PAGE = ROOT / "docs" / "speed.csv", ROOT / "docs" / "speed.md"
MODEL, BATCH, MESH, LAYERS = "deepseek-v3", 4096, 5, 4
ENGINES = ("event shared", "event reserved", "analytical")
SIZES = {
    "dies": (16, 25, 64, 144, 256),
    "layers": (2, 4, 8, 16),
    "batch": (256, 1024, 4096, 16384),
    "points": (40, 120, 360),
    "requests": (2000, 8000, 32000),
}
ABOUT = {
    "dies": f"dies of a mesh; `ep`, {MODEL}, batch {BATCH:,}, {LAYERS} MoE layers, one decode step, building included",
    "layers": f"MoE layers that run; {MESH} × {MESH} dies, all else as above",
    "batch": f"requests of the batch; {MESH} × {MESH} dies, all else as above",
    "points": "points drawn from `configs/design_space.yaml` (analytical): checking all, running those that fit",
    "requests": "requests of `configs/serve_h200.yaml`: drawing, serving and measuring, on laws that are tabulated",
}

LONG = ("commands", "before")
RATIOS = {
    "ratio": "Ratios, in one run",
    "screening": "Screening: the whole command `archsim sweep --search` on 100,000 points, a processor second",
    "before": "Against itself before: processor time of a commit over now, compiled, in one run",
}


class Point(NamedTuple):
    """A row of the table: processor seconds of one size; a ratio (axes of ``RATIOS``, size 0); or what a command takes
    (``commands: wall s``, …), with its bound as size, 0 for none. ``reference_s``: of the reference kernel around it;
    0 where it was not timed.
    """

    axis: str
    series: str
    size: int
    value: float
    reference_s: float = 0.0

    @property
    def in_references(self) -> float | None:
        """The figure in reference kernels: how many it takes, or how much is done in the time of one; None where the
        reference was not timed, or where the figure has no unit of time.
        """
        if not self.reference_s:
            return None
        if "/s" in self.series:
            return self.value * self.reference_s
        if self.axis in SIZES or self.axis.endswith(" s"):
            return self.value / self.reference_s
        return None


def referenced(points: Iterator[Point]) -> Iterator[Point]:
    """The points, each with the mean time of the reference kernel before and after it was measured."""
    before_s = reference_s()
    for point in points:
        after_s = reference_s()
        yield point._replace(reference_s=(before_s + after_s) / 2)
        before_s = after_s


def step_runs(axis: str) -> Iterator[Point]:
    for series in ENGINES:
        for size in SIZES[axis]:
            at = {"dies": MESH * MESH, "layers": LAYERS, "batch": BATCH, axis: size}
            yield Point(axis, series, size, least_s(one_run(series, **at)[0]))


def one_run(series: str, dies: int, layers: int, batch: int, policy: str = "ep", **changes: str):
    """A function that builds and runs, returning its outcome; and the demand. ``changes``: of assumptions."""
    from support.small_runs import replay

    from archsim.engine.analytic.engine import AnalyticalEngine
    from archsim.engine.demand import build_run_demand
    from archsim.engine.engine import EventEngine
    from archsim.specs.library import load_assumptions, load_model, load_system
    from archsim.specs.policies import PRESETS, PolicySpec
    from archsim.specs.workload import SyntheticSpec
    from archsim.traffic.synthetic import SyntheticTraffic

    side = int(dies**0.5)
    system, model = load_system("dojo"), load_model(MODEL)
    system = system.model_copy(update={"mesh": system.mesh.model_copy(update={"x": side, "y": side})})
    moe = model.moe_layers.model_copy(update={"last": model.moe_layers.first + layers - 1})
    model = model.model_copy(update={"layers": model.moe_layers.first + layers, "moe_layers": moe})
    published = series == "event reserved"
    assumptions = load_assumptions("published" if published else "physical", capacity="unbounded", **changes)
    traffic = SyntheticTraffic(model, SyntheticSpec(prompt_tokens=0, decode_steps=1), batch)
    demand = build_run_demand(traffic, batch, 1, 0, origin_dies=dies, routing=not published)
    engine = AnalyticalEngine if series == "analytical" else EventEngine
    spec = PolicySpec(name=policy, **PRESETS[policy])
    return lambda: replay(system, model, spec, assumptions, demand, engine=engine).run(), demand


def points() -> Iterator[Point]:
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator
    from archsim.specs.library import load_planned

    def explore(combinations: int) -> None:
        changed = [f"sweep.sample.count={combinations // 8}", "systems=[{like: dojo, name: dojo-2}]"]
        selection = select(load_planned(ROOT / "configs" / "design_space.yaml", changed))
        simulator = Simulator()
        for run in sorted(selection.runs(), key=lambda run: str(run.demand.key)):
            simulator.record(run, details=False)

    for size in SIZES["points"]:
        yield Point("points", "analytical", size, least_s(partial(explore, size), 1))


def requests() -> Iterator[Point]:
    from archsim.serving.file_requests import requests_of
    from archsim.serving.serving import deploy, serve_requests
    from archsim.specs.serving_files import load_serving

    file = ROOT / "configs" / "serve_h200.yaml"
    deployment = deploy(load_serving(file))

    def serve(count: int) -> None:
        serving = load_serving(file, [f"requests.count={count}"])
        serve_requests(serving, deployment, requests_of(serving))

    for size in SIZES["requests"]:
        yield Point("requests", "serving", size, least_s(partial(serve, size), 1))


def ratios() -> Iterator[Point]:
    """Events and steps a second, each over another way to do the same, in this process."""
    from event_engine import reference_events_per_s

    run, _ = one_run("event reserved", MESH * MESH, 16, BATCH)
    ours = int(run().tally.events[0]) / least_s(run)
    yield Point("ratio", "events/s of `contention: reserved`, plan and work included", 0, ours)
    yield Point("ratio", "the same over a bare loop of `heapq` in Python", 0, ours / heap_events_per_s())
    yield Point("ratio", "the same over the published rules in plain Python", 0, ours / reference_events_per_s())
    if (theirs := simpy_events_per_s()) is not None:
        yield Point("ratio", "the same over SimPy, a resource held and a timeout an event", 0, ours / theirs)
    event, walk = (least_s(one_run(name, MESH * MESH, 16, BATCH)[0]) for name in ("event shared", "analytical"))
    paced = least_s(one_run("event shared", MESH * MESH, 16, BATCH, rate_updates="per_round_trip")[0])
    yield Point("ratio", "layer-steps/s of `contention: shared`", 0, 16 / event)
    yield Point("ratio", "the same under `rate_updates: per_round_trip`", 0, 16 / paced)
    yield Point("ratio", "layer-steps/s of the analytical engine", 0, 16 / walk)
    yield Point("ratio", "the analytical engine over the event engine", 0, event / walk)
    yield from screening()
    yield from dask_overhead()


def screening() -> Iterator[Point]:
    """Points a second of spaces that share their plans."""
    from analytical import LATENCIES, SPACES, screened_per_s, space

    for (name, arguments), latency in product(SPACES.items(), LATENCIES):
        rate = screened_per_s(space(*arguments, latency))[1]
        yield Point("ratio", f"points/s that `explore` screens: {name}, 20 values of `{latency}`", 0, rate)


def screening_command() -> Iterator[Point]:
    """Points a processor second of `benchmarks/screening_command.py`, from the file to the page."""
    from screening_command import POINTS, SHAPES, screened

    for shape in SHAPES:
        yield Point("screening", f"points/s, {shape}", 0, screened(shape, POINTS).per_s)


def before() -> Iterator[Point]:
    from before import ratios as of_commit

    for series, ratio in of_commit():
        yield Point("before", series, 0, ratio)


def commands() -> Iterator[Point]:
    from commands import COMMANDS, taken

    for name, command in COMMANDS.items():
        found = taken(command)
        yield Point("commands: wall s", name, round(command.most_s or 0), found.wall_s)
        yield Point("commands: CPU s", name, 0, found.processor_s)
        yield Point("commands: memory MB", name, round((command.most_bytes or 0) / 1e6), found.held_bytes / 1e6)
        yield Point("commands: shared pages once MB", name, 0, found.pss_bytes / 1e6)
        yield Point("commands: first line s", name, 3, found.first_s)
        yield Point("commands: longest silence s", name, 0, found.silent_s)


def simpy_events_per_s(processes: int = 100, turns: int = 200) -> float | None:
    try:
        import simpy
    except ImportError:
        return None
    environment, events = simpy.Environment(), 0
    resources = [simpy.Resource(environment) for _ in range(25)]

    def process(number: int):
        nonlocal events
        for turn in range(turns):
            with resources[(number + turn) % len(resources)].request() as held:
                yield held
                yield environment.timeout(1 + (number * turn) % 89)
            events += 2

    for number in range(processes):
        environment.process(process(number))
    begin = time.process_time()
    environment.run()
    return events / (time.process_time() - begin)


def dask_overhead(runs: int = 120) -> Iterator[Point]:
    """Wall time a run that a cluster of one worker adds to runs of a few milliseconds, between the least of five sweeps
    here and there. It is negative where the worker simulates while this process sends and reads.
    """
    try:
        import distributed  # noqa: F401
    except ImportError:
        return
    from support.dask_processes import Cluster

    from archsim.runs.cluster import simulate_on_cluster
    from archsim.runs.plan import select
    from archsim.runs.pool import simulate_all
    from archsim.runs.run import Workspace
    from archsim.specs.library import load_planned

    plan = load_planned(ROOT / "configs" / "design_space.yaml", [f"sweep.sample.count={runs}"])
    chosen = select(plan).runs()[:runs]
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), workers=1)
        try:
            cluster.wait()
            there = partial(simulate_on_cluster, address=cluster.address)
            here = partial(simulate_all, processes=1, workspace=Workspace())
            for simulate in (there, here):
                list(simulate(chosen))
            taken = [min(wall_s(lambda each=each: list(each(chosen))) for _ in range(5)) for each in (there, here)]
        finally:
            cluster.end()
    name = "ms of wall time a run that Dask adds, one worker (negative: it simulates while this process sends)"
    yield Point("ratio", name, 0, 1e3 * (taken[0] - taken[1]) / runs)


def wall_s(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def fitted(sizes, values) -> tuple[float, float]:
    """(a, b) of a · size^b, by least squares of logarithms."""
    b, log_a = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(np.exp(log_a)), float(b)


def page(table: list[Point], machine: str) -> str:
    """docs/speed.md of a table."""
    parts = [HEAD.format(machine=machine)]
    for axis, about in ABOUT.items():
        here = [point for point in table if point.axis == axis]
        if not here:
            continue
        sizes = sorted({point.size for point in here})
        rows = [
            f"| | {' | '.join(f'{size:,}' for size in sizes)} | cost grows as |",
            f"|---|{'---:|' * len(sizes)}---|",
        ]
        for series in dict.fromkeys(point.series for point in here):
            own = [point for point in here if point.series == series]
            relative = [point.in_references for point in own]
            exponent = fitted(sizes, relative if all(relative) else [point.value for point in own])[1]
            cells = " | ".join(map(both, own))
            rows.append(f"| {series} | {cells} | {axis}^{exponent:.2f} |")
        parts.append(f"## By {axis}\n\nSeconds by {about}.\n\n" + "\n".join(rows))
    if sentence := of_commands([point for point in table if kind_of(point) == "commands"]):
        parts.append(sentence)
    for axis, title in RATIOS.items():
        rows = [f"| {point.series} | {both(point)} |" for point in table if point.axis == axis]
        if not rows:
            continue
        parts.append(f"## {title}\n\n| | |\n|---|---:|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def of_commands(points: list[Point]) -> str:
    """The section of commands, '' without any; bounds in brackets."""
    axes = list(dict.fromkeys(point.axis for point in points))
    cells = {(point.series, point.axis): point for point in points}
    rows = [f"| | {' | '.join(axis.partition(': ')[2] for axis in axes)} |", f"|---|{'---:|' * len(axes)}"]
    for name in dict.fromkeys(point.series for point in points):
        own = (cells[name, axis] for axis in axes)
        texts = (both(each) + (f" (bound {each.size:,})" if each.size else "") for each in own)
        rows.append(f"| {name} | {' | '.join(texts)} |")
    about = "`python benchmarks/commands.py`, which says what each runs: two cores."
    return f"## Commands\n\n{about}\n\n" + "\n".join(rows) if points else ""


HEAD = """# Speed

How long does a simulation take, and how does that grow? This page is written by `python benchmarks/speed.py` from
`docs/speed.csv`, which was measured on {machine}. Times are processor seconds of one process after compilation, the
least of a few. Figures with *ref* are relative to a reference kernel (`benchmarks/timing.py`) that was timed just
before and after: compare these between machines. The last column is a power law that is fitted to the row."""


def both(point: Point) -> str:
    """The figure, and the same in reference kernels."""
    relative = point.in_references
    return shown(point.value) + (f" ({shown(relative)} ref)" if relative is not None else "")


def shown(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def kept() -> tuple[str, list[Point]]:
    """The machine and the points of the table."""
    with TABLE.open(newline="") as stream:
        machine, *rows = csv.reader(stream)
    return machine[0], [Point(row[0], row[1], int(row[2]), *map(float, row[3:])) for row in rows]


def main() -> None:
    kinds = {axis: partial(step_runs, axis) for axis in ("dies", "layers", "batch")}
    kinds |= {"points": points, "requests": requests, "commands": commands, "ratio": ratios}
    kinds |= {"screening": screening_command, "before": before}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=kinds, default=[kind for kind in kinds if kind not in LONG])
    only = parser.parse_args().only
    for kind in only:
        found = []
        for point in referenced(kinds[kind]()):
            print(point.axis, point.series, point.size, both(point), flush=True)
            found.append(point)
        others = [point for point in kept()[1] if kind_of(point) != kind] if TABLE.exists() else []
        table = sorted(others + found, key=lambda point: list(kinds).index(kind_of(point)))
        write(table, f"{processor()}, Python {platform.python_version()}")


def kind_of(point: Point) -> str:
    return point.axis.partition(":")[0]


def write(table: list[Point], machine: str) -> None:
    """The table, and the page of what the table holds."""
    with TABLE.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([machine])
        writer.writerows([*point[:3], f"{point.value:.4g}", f"{point.reference_s:.4g}"] for point in table)
    machine, table = kept()
    PAGE.write_text(page(table, machine))


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
