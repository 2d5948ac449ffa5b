"""The public Python API on a tiny experiment: what functions return, print, write and refuse."""

import doctest
import inspect
import json
import subprocess
import sys

import pytest
import yaml
from support.explorations import EXPLORED, SWEPT
from support.made_up_measurements import gemm, written
from support.tiny import TINY

import archsim as ar
from archsim.base.errors import ArchsimError, CapacityError, SpecError
from archsim.cli.main import main

EXPERIMENT = yaml.safe_load(TINY)
SMALL = EXPERIMENT | {"policies": ["base", "allo"], "systems": EXPERIMENT["systems"][:1]}
SMALL["workload"] = EXPERIMENT["workload"] | {"batch": 12, "decode_steps": 2}
MOST_CHARACTERS = 400  # of a repr


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, capsys):
    """An empty current directory; afterwards nothing was printed, and no report was written unasked."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert not (tmp_path / "reports").exists()


def written_file(folder, text):
    file = folder / "experiment.yaml"
    file.write_text(text, encoding="utf-8")
    return file


# load


def test_loaders_take_paths_as_names(here):
    written_file(here, yaml.safe_dump(EXPERIMENT["systems"][0]))
    assert ar.load_system(here / "experiment.yaml") == ar.load_system(str(here / "experiment.yaml"))
    with pytest.raises(SpecError, match="layers: required key is missing"):
        ar.load_model(here / "experiment.yaml")


def test_load_gives_the_same_experiment_of_a_file_and_a_mapping(here):
    loaded = ar.load(EXPERIMENT)
    assert loaded == ar.load(written_file(here, TINY)) == ar.load_experiment(EXPERIMENT)
    assert loaded.name == "tiny" and loaded.runs == 20
    assert yaml.safe_load(TINY) == EXPERIMENT  # the mapping itself is unchanged


def test_load_takes_overrides_as_strings_and_as_a_mapping():
    texts = ar.load(EXPERIMENT, overrides=["workload.batch=[3, 4]", "systems.0.hbm.bandwidth=4 TB/s"])
    assert texts == ar.load(EXPERIMENT, overrides={"workload.batch": [3, 4], "systems.0.hbm.bandwidth": "4 TB/s"})
    assert texts.workload.batch == (3, 4) and texts.systems[0].hbm.bandwidth_bytes_per_s == 4e12


@pytest.mark.parametrize(("part", "kind"), [
    (EXPERIMENT["systems"][0], "SystemSpec"),
    (EXPERIMENT["models"][0], "ModelSpec"),
    (yaml.safe_load(SWEPT), "SweepPlan"),
    (yaml.safe_load(EXPLORED), "ExplorationPlan"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_load_recognises_kinds_by_their_keys(part, kind):
    loaded = ar.load(part)
    assert type(loaded).__name__ == kind
    if kind.endswith("Plan"):
        assert len(repr(loaded)) < MOST_CHARACTERS


@pytest.mark.parametrize(("source", "message"), [
    ("nowhere.yaml", "nowhere.yaml: no such file"),
    (EXPERIMENT | {"polices": ["base"]}, "did you mean 'policies'?"),
    (EXPERIMENT | {"models": ["dbrk"]}, "mapping: models.0: unknown model 'dbrk'"),
    (EXPERIMENT | {1: 2}, "mapping: key 1: a key must be text"),
])  # fmt: skip
def test_load_says_what_is_wrong_and_where(source, message):
    with pytest.raises(SpecError) as refused:
        ar.load(source)
    assert message in str(refused.value)


def test_functions_take_overrides_of_what_is_not_loaded():
    few = {"policies": ["ep"]}
    assert {row["policy"] for row in ar.sweep(SMALL, jobs=1, overrides=few).runs.rows} == {"ep"}
    assert ar.run(SMALL, overrides=few).runs.rows[0]["policy"] == "ep"
    assert ar.why(SMALL, few).rows[0]["policy"] == "ep"
    with pytest.raises(SpecError, match="Give those of a loaded experiment to ar.load"):
        ar.run(ar.load(SMALL), overrides=few)


def test_overrides_as_one_string_are_refused():
    served = ar.serve, ar.serve_policies, ar.serve_plan, ar.serve_sure, ar.search_serving
    calls = [
        (ar.load, EXPERIMENT),
        *((each, "serve_olmoe") for each in served),
        (ar.worth, "eplb", None, "serve_olmoe"),
    ]
    for function, *given in [*calls, (ar.compare, SMALL, SMALL)]:
        with pytest.raises(SpecError, match="expected a list of strings or a mapping"):
            function(*given, overrides="name=x")


def test_a_deployment_takes_overrides_as_a_mapping():
    assert ar.serve("serve_olmoe", {"requests.count": 3}).measures.requests == 3


# run and sweep


@pytest.mark.parametrize("function", [ar.load, ar.run, ar.sweep, ar.ablate, ar.explore, ar.engines, ar.serve])
def test_what_is_no_experiment_is_refused(function):
    with pytest.raises(SpecError, match="42 is of type int; expected the path of a YAML file, the name of"):
        function(42)


def test_run_is_a_row_of_the_sweep():
    swept = ar.sweep(SMALL, jobs=1).runs.to_pandas().set_index("policy")
    own = ar.run(SMALL, policy="allo").runs.to_pandas().set_index("policy")
    assert list(swept.index) == ["base", "allo"] and list(own.index) == ["allo"]
    assert own.loc["allo", "decode_ns"] == swept.loc["allo", "decode_ns"] > 0
    assert swept.loc["allo", "speedup_vs_base"] > 0


def test_an_unknown_keyword_is_told_with_the_nearest():
    with pytest.raises(TypeError, match="^unexpected keyword 'polcy'; did you mean 'policy'"):
        ar.why(SMALL, polcy="allo")


def test_results_and_tables_have_a_short_repr():
    results = ar.run(SMALL)
    links = len(results.links)
    assert repr(results) == (
        f"Results(runs: 1 rows, dies: 6 rows, links: {links} rows, pairs: 30 rows, timings: 1 rows; "
        "system small, model toy, batch 12, policy base, assumptions published)"
    )
    assert repr(results.runs) == f"Table(1 rows × {len(results.runs.columns)} columns)"


def test_sweep_of_dies_without_coordinates_returns_every_table():
    switched = {key: value for key, value in SMALL["systems"][0].items() if key not in ("mesh", "d2d")}
    levels = [{"switch": 4, "bandwidth": "450 GB/s", "hop_latency": "300 ns"}]
    results = ar.sweep(SMALL | {"systems": [switched | {"fabric": {"levels": levels}}]}, jobs=1)
    assert {die["x"] for die in results.dies.rows} == {None} == {link["src_y"] for link in results.links.rows}
    assert results.dies.to_pandas()["x"].isna().all() and results.runs.rows[0]["decode_ns"] > 0


@pytest.mark.parametrize(("chosen", "message"), [
    ({"policy": "alo"}, "policy 'alo' is not in the experiment; did you mean 'allo'?"),
    ({"step": 1}, "a timeline needs step, layer and timeline, but layer and timeline are missing"),
    ({"step": 9, "layer": 1, "timeline": "t.json"}, "step 9: the run has iterations 0"),
])  # fmt: skip
def test_run_refuses(chosen, message):
    with pytest.raises(ArchsimError) as refused:
        ar.run(SMALL, **chosen)
    assert str(refused.value).startswith(message)


def test_run_refuses_what_does_not_fit():
    crowded = ar.load(SMALL, {"assumptions": "physical", "systems.0.hbm.capacity": "1MB"})
    with pytest.raises(CapacityError, match="toy does not fit on small"):
        ar.run(crowded)


def test_run_writes_a_timeline(here):
    ar.run(SMALL, step=1, layer=1, timeline=here / "step.json")
    assert (here / "step.json").stat().st_size > 100


def test_sweep_writes_a_report_only_with_out(here):
    results = ar.sweep(SMALL, here / "out", jobs=1)
    assert results.answer.split()[0] in (here / "out" / "index.html").read_text("utf-8") and results.answer
    assert (here / "out" / "index.html").is_file()
    assert ar.Results.load(here / "out").runs.rows == results.runs.rows
    assert ar.sweep(here / "out" / "manifest.yaml", jobs=1).runs.rows == results.runs.rows


def test_sweep_of_points_has_one_column_per_axis(here):
    swept = yaml.safe_load(SWEPT) | {"policies": ["base"], "systems": EXPERIMENT["systems"][:1]}
    swept["workload"] = SMALL["workload"]
    table = ar.sweep(swept, here / "out", jobs=1).runs.to_pandas()
    assert list(table["point"]) == list(range(6))
    assert sorted(set(table["axis.system.hbm.bandwidth_bytes_per_s"])) == [1e12, 2e12, 4e12]
    assert (here / "out" / "index.html").is_file()


# Studies


def test_ablate(here):
    small = SMALL | {"assumptions": ["physical", {"set": "physical", "activations": "ignored"}]}
    found = ar.ablate(small, "physical", "physical+activations=ignored", here / "out", jobs=1)
    table = found.to_pandas()
    assert found.closes and len(repr(found)) < MOST_CHARACTERS
    assert list(table["assumption"]) == [*(link.field for link in found.links), "endpoint"]
    assert table["factor"][:-1].prod() == pytest.approx(found.waterfalls[0].end / found.waterfalls[0].start)
    assert (here / "out" / "index.html").is_file() and (here / "out" / "ablation.csv").is_file()


@pytest.mark.parametrize(("start", "policies", "message"), [
    ("publishd", ["base", "allo"], "unknown assumption set 'publishd'; did you mean 'published'?"),
    ("physical", ["base", "allo"], "nothing to ablate: "),
    ("published", ["allo"], "an ablation compares policies with 'base'"),
])  # fmt: skip
def test_ablate_refuses(start, policies, message):
    with pytest.raises(ArchsimError) as refused:
        ar.ablate(SMALL | {"policies": policies}, start, "physical")
    assert str(refused.value).startswith(message)


def test_explore():
    explored = yaml.safe_load(EXPLORED) | {"policies": ["base"], "systems": EXPERIMENT["systems"][:1]}
    explored["workload"] = SMALL["workload"]
    found = ar.explore(explored, jobs=1)
    table = found.to_pandas()
    assert len(table) == 6 and table["front"].sum() == len(found.front) > 0
    assert set(table.loc[table["front"], "engine"]) == {"event"}
    assert {"throughput", "energy", "cost", "system.hbm.bandwidth"} <= set(table) and len(repr(found)) < MOST_CHARACTERS


@pytest.mark.parametrize(
    ("text", "missing"), [(TINY, "an exploration needs sweep:"), (SWEPT, "an exploration needs explore:")]
)
@pytest.mark.parametrize("loaded", [True, False])
def test_explore_needs_a_sweep_and_objectives(text, missing, loaded):
    source = yaml.safe_load(text)
    with pytest.raises(SpecError, match=missing):
        ar.explore(ar.load(source) if loaded else source)


def test_optimum(here):
    told = []
    found = ar.optimum(SMALL, here / "out", steps=2, report=told.append)
    table = found.to_pandas()
    assert len(told) == 2 and len(table) == 4 and (table["distance"] >= -1e-9).all()
    assert (here / "out" / "index.html").is_file() and repr(found) == "Optimum('tiny', 2 runs, 4 steps)"


def test_engines():
    found = ar.engines(SMALL, sample=1, steps=1)
    table = found.to_pandas()
    assert list(table) == ["run", "assumptions", "event_ns", "analytical_ns", "error", "reason"] and len(table) == 1
    assert found.drawn_from == 2 and found.errors["cases"][0] == 1
    assert table["error"][0] == pytest.approx(table["analytical_ns"][0] / table["event_ns"][0] - 1)
    assert repr(found) == "Comparison('tiny', 1 of 2 runs on both engines)"


# Calibrations


def test_calibrate_and_validate(here):
    written(here / "measured", gemm=gemm(("1", "2"), m=tuple(range(1, 12))))
    found = ar.calibrate(here / "measured", here / "h100.yaml")
    table = found.to_pandas()
    assert list(table["gpu"]) == ["h100"] and table["gemm"][0] == len(found["h100"].calibration.gemm) > 0
    assert ar.load(here / "h100.yaml").gpu == "h100" and len(repr(found)) < MOST_CHARACTERS
    judged = ar.validate(here / "measured", here / "h100.yaml", here / "page", quick=True)
    assert len(judged.to_pandas()) > 0 and len(repr(judged)) < MOST_CHARACTERS
    assert (here / "page" / "index.html").is_file()


def test_calibrate_writes_nothing_without_out(here):
    written(here / "measured", gemm=gemm())
    before = sorted(here.rglob("*"))
    assert ar.calibrate(here / "measured").fitted[0].path is None
    assert sorted(here.rglob("*")) == before


def test_calibrate_refuses(here):
    written(here / "measured", gemm=gemm())
    with pytest.raises(ArchsimError, match="no measurements of 'b200'"):
        ar.calibrate(here / "measured", gpu="b200")
    with pytest.raises(SpecError, match="unknown dtype 'bf61'"):
        ar.calibrate(here / "measured", peaks={"bf61": "600 TFLOP/s"})


# The module


def test_every_public_name_is_there():
    missing = [name for name in ar.__all__ if not hasattr(ar, name)]
    assert missing == [] and ar.__version__.count(".") == 2
    assert set(ar.__all__) <= set(dir(ar))


def test_simulate_flows_is_documented():
    finish_ns = ar.simulate_flows((2, 1), [(0, 1, 1000.0, 0.0)], link_bytes_per_s=1e9, hop_ns=5.0)
    assert finish_ns.tolist() == [1005.0]


def loaded_by(code):
    """Top-level modules loaded by ``code`` in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("code", ["import archsim", "import archsim; archsim.__version__"])
def test_import_loads_nothing_heavy(code):
    loaded = loaded_by(code)
    assert "archsim" in loaded
    assert not loaded & {"numba", "pandas", "numpy", "pyarrow", "scipy", "pydantic", "yaml", "rich"}


def test_importing_a_function_loads_no_engine():
    names = "load, run, sweep, ablate, explore, optimum, compare, engines, calibrate, Results"
    loaded = loaded_by(f"from archsim import {names}")
    assert "archsim" in loaded and not loaded & {"numba", "pandas", "pyarrow", "scipy", "rich"}


def test_check_and_figure_are_doors_of_python_too(tmp_path, capsys):
    """They say and draw what the commands do."""
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    found = ar.check(file)
    assert main(["check", str(file)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"{file}: {found!r}\n--verbose lists the numbers")
    assert all(f"note: {note}" in told.err for note in found.notes)
    assert main(["check", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["summary"] == found.summary and said["details"] == [*found.details, *found.ranges]
    assert main(["check", str(file), "--verbose"]) == 0
    assert capsys.readouterr().out == "\n".join((f"{file}: {found!r}", *found.ranges)) + "\n"
    ar.sweep(file, out=tmp_path / "report")
    assert ar.figure(tmp_path / "report", "speedup", tmp_path / "s.svg").read_text(encoding="utf-8").startswith("<svg")
    capsys.readouterr()


# docstrings


def test_every_function_has_an_example_and_the_examples_run():
    functions = {name: getattr(ar, name) for name in ar.__all__ if inspect.isfunction(getattr(ar, name))}
    finder, runner, said = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False), []
    for name, function in functions.items():
        (found,) = finder.find(function, name, globs={"ar": ar, name: function})
        assert found.examples, f"{name} has no example"
        runner.run(found, out=said.append)
    assert len(functions) > 30 and not said, "".join(said)
