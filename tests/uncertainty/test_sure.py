"""``ar.sure`` on a machine of four dies: its laws, its words and its files."""

import json
import math
import re
import shutil
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.toy import TOY

import archsim as ar
from archsim.base.config_files import shipped_configs
from archsim.base.errors import ArchsimError
from archsim.base.uncertain import Distribution, Quantity
from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.cli.printing import print_answer
from archsim.runs.plan import select
from archsim.uncertainty import propagation, ranges
from archsim.uncertainty.estimate import Interval, OptionPair, expand, indices, interval
from archsim.uncertainty.sure import _off_centre, measurements
from archsim.uncertainty.sure_answer import advice_sentences, measurement_sentence, order_of_options, share_text
from archsim.uncertainty.system_quantities import quantities_of
from archsim.uncertainty.worlds import Worlds

TRAFFIC = "traffic: 8"  # of the shipped widths


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sure") / "out"


@pytest.fixture(scope="module")
def found(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagation, "KEPT_FROM_S", 0.0)  # all that ran is kept for tests that need more of the same
        return ar.sure(TOY, 32, folder, jobs=1)


def toy(**changes):
    return deepcopy(TOY) | changes


def runs_of(experiment):
    return select(ar.load(experiment)).runs()


def test_an_answer_has_an_interval_an_order_and_what_it_hangs_on(found):
    (place,) = found.places
    assert re.match(r"ep\b.* 100.% .*\b32 samples\b", place.sentence)
    assert place.headline.sure
    low, middle, high = place.headline.ratio
    assert 1 < low < middle < high
    assert sum(option.fastest for option in place.options) == pytest.approx(1)
    assert all(0 <= each.first <= each.total + 1e-9 for each in place.indices)
    assert place.indices[0].total > 0.2
    assert all(each.narrowed.width < place.ratio.width * 1.01 for each in place.measurements)


def test_cases_with_the_same_numbers_share_them_below_the_answer(found):
    (place,) = found.places
    cases = [replace(place, of=place.of | {"system": f"toy.{digest}", "llc": size})
             for digest, size in (("0123456789", "1 MiB"), ("9876543210", "2 MiB"))]  # fmt: skip
    parts = replace(found, places=tuple(cases)).as_answer().parts
    assert "Of 2 cases, 2 have a sure winner" in parts[0] and parts[1] == place.sentence
    names = [each for each in parts if isinstance(each, str) and place.timed in each]
    assert len(names) == 2 and names[1].startswith("toy, ") and "2 MiB" in names[1]
    assert len(parts) == len(found.as_answer().parts) + 2


def test_its_files_say_the_same(found, folder):
    text = json.loads((folder / "sure.json").read_text())
    assert text["sentence"] == found.sentence
    row = found.to_pandas().set_index("policy").loc["ep"]
    assert row.decode_ns_p05 <= row.decode_ns_p50 <= row.decode_ns_p95
    assert row.throughput_tokens_per_s_p05 == pytest.approx(
        row.throughput_tokens_per_s * row.decode_ns / row.decode_ns_p95, rel=0.05
    )
    page = (folder / "sure.html").read_text()
    assert found.places[0].sentence in page and "whisker" in page and "calibration.measure" in page


def test_without_widths_the_interval_is_the_value_to_the_bit(tmp_path, monkeypatch):
    (tmp_path / "configs" / "uncertainty").mkdir(parents=True)
    exact = (shipped_configs() / "uncertainty" / "widths.yaml").read_text()
    lines = [
        "    range: [1.0, 1.0]" if line.startswith("    range:") else line
        for line in exact.splitlines()
    ]  # fmt: skip
    (tmp_path / "configs" / "uncertainty" / "widths.yaml").write_text("\n".join(lines).replace(TRAFFIC, "traffic: 0"))
    monkeypatch.chdir(tmp_path)
    experiment = toy(assumptions=[{"set": "physical", "gemm": "roofline"}])
    experiment["systems"][0]["hbm"]["efficiency"] = 0.9
    sure = ar.sure(experiment, 16, jobs=1)
    assert all(each.key.startswith("economics.") for each in sure.quantities)
    for option in sure.places[0].options:
        assert set(option.ns) == {option.value_ns}
        assert set(option.tokens_per_s) == {option.value_tokens_per_s}
    one = ar.run(experiment, policy="ep").runs.rows[0]
    assert {option.name: option.value_ns for option in sure.places[0].options}["ep"] == one["decode_ns"]


def test_layers_that_did_not_run_have_the_error_of_a_sample(tmp_path, monkeypatch):
    (tmp_path / "configs" / "uncertainty").mkdir(parents=True)
    exact = (shipped_configs() / "uncertainty" / "widths.yaml").read_text()
    lines = ["    range: [1.0, 1.0]" if line.startswith("    range:") else line for line in exact.splitlines()]
    (tmp_path / "configs" / "uncertainty" / "widths.yaml").write_text("\n".join(lines).replace(TRAFFIC, "traffic: 0"))
    monkeypatch.chdir(tmp_path)
    model = TOY["models"][0] | {"layers": 13, "moe_layers": {"first": 1, "last": 12}}
    traffic = {"synthetic": {"prompt_tokens": 3, "popularity_skew": 1.0}}
    experiment = toy(
        assumptions=[{"set": "physical", "gemm": "roofline"}], models=[model], engine="analytical",
        workload=TOY["workload"] | {"layers": 4, "trace": traffic},
    )  # fmt: skip
    experiment["systems"][0]["hbm"]["efficiency"] = 0.9
    sure = ar.sure(experiment, 256, jobs=1)
    error = ar.run(experiment, policy="ep").runs.rows[0]["layers_error"]
    ns = sure.places[0].samples["ep"]
    assert error > 0 and ns.std() / ns.mean() == pytest.approx(error, rel=0.2)
    assert any("standard error" in note for note in sure.notes)
    assert sure.places[0].indices[0].name == "layers that did not run" and sure.places[0].indices[0].total > 0.9


def test_traffic_is_drawn_the_same_for_all_options(found):
    drawn = {each.key for each in found.quantities}
    assert "traffic" in drawn and {"economics.flop_pj", "economics.hbm_pj_per_bit"} < drawn
    assert "traffic" in {each.name for each in found.places[0].indices}


def test_energy_and_price_have_intervals(found):
    for option in found.places[0].options:
        for name in ("energy_per_token_j", "cost_usd"):
            value, spread = option.economics[name]
            assert spread.p05 < value < spread.p95
    row = found.to_pandas().iloc[0]
    assert row.cost_usd_p05 < row.cost_usd_p50 < row.cost_usd_p95


def test_the_mean_of_two_engines_is_that_of_the_event_engine(found, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(propagation, "CORRECTING", 32)
    again = shutil.copytree(folder, tmp_path / "again")
    every = ar.sure(TOY, 32, again, jobs=1).places[0].samples
    for name, ns in found.places[0].samples.items():
        error = np.std(every[name]) / math.sqrt(16)
        assert ns.mean() == pytest.approx(every[name].mean(), abs=error)
        assert np.array_equal(ns[:16], every[name][:16])


def test_ratios_have_common_draws(found):
    samples = found.places[0].samples
    together = np.ptp(np.quantile(samples["base"] / samples["ep"], (0.05, 0.95)))
    apart = np.ptp(np.quantile(np.roll(samples["base"], 5) / samples["ep"], (0.05, 0.95)))
    assert together < apart


def test_what_no_run_reads_is_not_drawn():
    system = deepcopy(TOY["systems"][0])
    system["decision"] = {"host": {"launch": {"value": "2 us", "range": [1, 4]}}}
    (run, *_) = runs_of(toy(systems=[system]))
    keys = [each.quantity.key for each in quantities_of(run)]
    assert "system.hbm.efficiency" in keys and not any("host" in key or "firmware" in key for key in keys)
    system["decision"]["executor"] = "host"
    system["decision"]["host"]["time"] = "3 us"
    (run, *_) = runs_of(toy(systems=[system]))
    assert "system.decision.host.launch" in [each.quantity.key for each in quantities_of(run)]


def test_policies_batches_and_systems_share_their_draws():
    other = deepcopy(TOY["systems"][0]) | {"name": "other"}
    runs = runs_of(toy(systems=[TOY["systems"][0], other]))
    worlds = Worlds(runs, 16)
    drawn = [[each.system.hbm.efficiency for each in worlds.runs(run, run.engine)] for run in runs]
    assert len(runs) == 4 and all(each == drawn[0] for each in drawn)
    assert len(set(drawn[0])) == 16 and all(0.6 <= each <= 0.95 for each in drawn[0])


def test_a_group_shares_one_draw():
    system = deepcopy(TOY["systems"][0])
    system["hbm"]["bandwidth"] = {"value": "1 TB/s", "range": [0.8, 1.2], "group": "memory"}
    system["d2d"]["bandwidth"] = {"value": "200 GB/s", "range": [160, 240], "group": "memory"}
    (run, *_) = runs_of(toy(systems=[system]))
    for each in Worlds([run], 16).runs(run, run.engine):
        ratio = each.system.hbm.bandwidth_bytes_per_s / each.system.d2d.bandwidth_bytes_per_s
        assert ratio == pytest.approx(5)


def test_one_policy_alone_has_an_interval_of_its_time():
    sure = ar.sure(toy(engine="analytical"), 16, policy="ep", jobs=1)
    assert sure.places[0].headline is None and "90 %" in sure.sentence


def file_of(experiment, tmp_path):
    (tmp_path / "toy.yaml").write_text(dump_yaml(experiment))
    return str(tmp_path / "toy.yaml")


def test_a_sweep_with_samples_says_the_sentence_and_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = file_of(toy(engine="analytical"), tmp_path)
    assert main(["sweep", file, "--samples", "16", "--jobs", "1", "--out", "swept", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)
    page = re.sub("<[^>]*>", "", (tmp_path / "swept" / "index.html").read_text())  # words are links to the glossary
    assert text["sure"]["places"][0]["told"] in page


def test_a_sweep_gives_the_runs_that_it_names_a_range(tmp_path, monkeypatch, capsys):
    """By default; the ends are those of `ar.sure`, whose engine and worlds are others. 0 samples leave them out."""
    monkeypatch.chdir(tmp_path)
    file = file_of(toy(engine="analytical"), tmp_path)
    assert main(["sweep", file, "--jobs", "1", "--out", "swept"]) == 0
    printed = " ".join(capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").split())
    (told,) = json.loads((tmp_path / "swept" / "ranges.json").read_text())["pairs"]
    assert told["ratio_p05"] < told["ratio"] < told["ratio_p95"] or told["tie"]
    rows = ar.Results.load(tmp_path / "swept").runs.rows
    named = {told["faster_run"], told["slower_run"]}
    for row in rows:
        assert (row["tokens_per_s_p05"] is not None) == (row["run"] in named)
        if row["run"] in named:
            assert (
                row["tokens_per_s_p05"] < row["tokens_per_s"] * 1.02
                and row["tokens_per_s"] < row["tokens_per_s_p95"] * 1.02
            )
    header = (tmp_path / "swept" / "results.csv").read_text().partition("\n")[0]
    assert header.endswith("tokens_per_s_p05,tokens_per_s_p95,speedup_vs_ep_p05,speedup_vs_ep_p95")
    assert "32 samples" in printed or not told["tie"]
    sure = ar.sure(toy(engine="analytical"), 32, jobs=1).places[0].samples
    ends = np.quantile(sure[told["slower"]] / sure[told["faster"]], (0.05, 0.95))
    assert [told["ratio_p05"], told["ratio_p95"]] == pytest.approx(list(ends), rel=0.1)
    assert main(["sweep", file, "--jobs", "1", "--out", "swept", "--samples", "0"]) == 0
    assert not (tmp_path / "swept" / "ranges.json").exists()
    assert "p05" not in (tmp_path / "swept" / "results.csv").read_text().partition("\n")[0]


def test_a_run_that_is_shortened_still_has_a_step_to_count():
    """A step after those that warm up: without one, times are 0 and the page of a sweep is refused by JSON."""
    (run, *_) = runs_of(toy(engine="analytical"))
    workload = run.workload.model_copy(update={"warmup_steps": 2, "decode_steps": 6})
    short = ranges.shorten(replace(run, workload=workload)).workload
    assert short.decode_steps == short.warmup_steps + 1 == 3


@pytest.mark.nightly
def test_a_report_with_ranges_is_the_same_again(tmp_path):
    ar.sweep(TOY, tmp_path / "swept", jobs=1, samples=32)
    assert ar.verify(tmp_path / "swept", jobs=1).moved == ()


@pytest.mark.nightly
def test_run_and_compare_with_samples_say_the_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = file_of(toy(engine="analytical"), tmp_path)
    assert main(["run", file, "--policy", "ep", "--samples", "16"]) == 0
    assert "90 %" in capsys.readouterr().out
    assert main(["compare", "base", "ep", "--in", file, "--samples", "16", "--out", "compared"]) == 0
    assert "of 16 samples" in capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")


def test_a_block_is_worth_it_in_a_share_of_the_worlds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = file_of(toy(engine="analytical", policies=["ep", "allo"]), tmp_path)
    assert main(["compare", "--without", "allocator", "--in", file, "--samples", "16", "--jobs", "1"]) == 0
    assert " of 16 samples. In 90 % of " in capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")


def test_shares_add_up_or_are_not_known(found, tmp_path, capsys):
    (place,) = found.places
    assert sum(each.first for each in place.indices) <= 1 + 1e-9 and not place.unknown
    few = ar.sure(toy(engine="analytical"), 16, tmp_path, jobs=1)
    (unknown,) = few.places
    least = 2 * len({each.name for each in place.indices})
    assert 16 < least <= 32, "as many draws as the runs read"
    assert not unknown.indices and not unknown.measurements
    assert re.search(rf"\b16 samples\b.*--samples {least}\b", unknown.unknown)
    print_answer(few.as_answer())
    assert f"--samples {least} " in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "sure.html").read_text()
    assert f"{unknown.unknown}." in page
    print_answer(found.as_answer())
    assert "share of the variance, alone" in capsys.readouterr().out


def test_few_samples_are_refused(capsys):
    with pytest.raises(ArchsimError, match=r"\b16\b"):
        ar.sure(TOY, 15)
    with pytest.raises(SystemExit):
        main(["sure", "dojo", "--samples", "8"])
    assert "16" in capsys.readouterr().err


CLUSTER = {
    "name": "gpus", "systems": ["h100_node"], "models": ["mixtral-8x7b"], "policies": ["ep"],
    "workload": {
        "trace": {"synthetic": {"prompt_tokens": 0}}, "batch": 64, "decode_steps": 1, "layers": 1, "context": 0,
    },
    "assumptions": [{
        "set": "physical", "execution": "expert_parallel", "gemm": "grouped", "transfer_software": "charged",
    }], "engine": "analytical",
}  # fmt: skip


def test_measured_transfers_are_drawn_and_one_factor_slows_them():
    (run,) = runs_of(CLUSTER)
    keys = [each.quantity.key for each in quantities_of(run)]
    assert any(key.startswith("measured.dispatch.") for key in keys)
    times = []
    for factor in (1.0, 2.0):
        system = {"like": "h100_node", "name": "mine", "d2d": {"bandwidth": "450 GB/s", "measured_factor": factor}}
        times.append(ar.run(CLUSTER | {"systems": [system]}).runs.rows[0]["decode_ns"])
    assert times[1] > 1.01 * times[0]


def test_the_share_of_hbm_is_sampled_unless_kernels_were_measured_with_it():
    """It would make measured kernels slower alone, and never faster; a range that the user gives is taken."""
    ranged = {"efficiency": {"value": 0.82, "range": [0.7, 0.9]}}
    for hbm, sampled in (({}, False), ({"efficiency": 0.6}, True), (ranged, True)):
        system = {"like": "h100_node", "name": "mine", "hbm": hbm}
        (run,) = runs_of(CLUSTER | {"systems": [system]})
        assert ("system.hbm.efficiency" in [each.quantity.key for each in quantities_of(run)]) is sampled


@pytest.mark.parametrize(("system", "dispatch", "tables"), [
    ("h100_node", "all_gather", {"nccl.fit"}), ("h800_cluster", "all_gather", {"nccl.sibling_gpu"}),
    ("h100_node", "all_to_all", {"nccl.fit"}), ("h100_node", "per_rank", {"dispatch.fit"}),
])  # fmt: skip
def test_widths_of_transfers_are_those_of_their_kernel_and_gpu(system, dispatch, tables):
    """NCCL has its own also in an all-to-all; an H800 has an H100's all-gather, scaled."""
    changed = [CLUSTER["assumptions"][0] | {"dispatch": dispatch}]
    (run,) = runs_of(CLUSTER | {"systems": [system], "assumptions": changed})
    keys = [each.quantity.key.split(".") for each in quantities_of(run)]
    assert {".".join(key[1:3]) for key in keys if key[1] in ("nccl", "dispatch")} == tables


def test_a_measurement_narrows_or_says_what_choosing_is_worth():
    command = SimpleNamespace(of="reads of your HBM", run="measure memory", minutes=5)
    place = SimpleNamespace(ratio=Interval(1.27, 1.3, 1.35), headline=True)
    same = SimpleNamespace(command=command, narrowed=place.ratio, worth=0.0012, no_die="")
    said = measurement_sentence(same, place).replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(r"reads of your HBM .*\b5 minutes \(`measure memory`\).* 0.1 %", said)
    less = SimpleNamespace(command=command, narrowed=Interval(1.28, 1.3, 1.34), worth=0.0, no_die="")
    assert measurement_sentence(less, place).endswith(" 1.270–1.350 to 1.280–1.340.")
    command.simulated = "them from a simulator"
    nowhere = SimpleNamespace(**vars(less) | {"no_die": "h100", "names": ("system.hbm.bandwidth",)})
    said = measurement_sentence(nowhere, place)
    assert re.search(r"h100.*`measure memory`.*a simulator.*system\.hbm\.bandwidth .* to 1\.280–1\.340", said)


def test_the_pair_that_is_open_is_explained():
    """Of two ties the wider one, not the pair that is sure; a share of worlds is told with its error."""
    ties = [
        OptionPair("a", "b", Interval(0.999, 1.0, 1.001), 0.2, 0.1),
        OptionPair("a", "c", Interval(0.9, 1.1, 1.3), 0.8, 0.2),
    ]
    rest = [OptionPair("a", "d", Interval(1.2, 1.3, 1.4), 1.0, 0.0)]
    said = order_of_options(["a", "b", "c", "d"], ties, rest, [], 256, "time").replace("\N{NO-BREAK SPACE}", " ")
    assert "a is faster than c in 80 % of 256 samples (± 5 points)" in said and "1.30× faster than d" in said
    assert share_text(1.0, 64).endswith("(± 4 points)") and share_text(0.9, 256).endswith("(± 4 points)")


def test_another_seed_draws_other_worlds():
    runs = runs_of(TOY)
    first, again, other = (Worlds(runs, 16, seed).draws["system.hbm.efficiency"] for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_a_plain_run_off_its_median_says_which_number_is():
    """A time of 1 / efficiency, which is 0.9 of 0.6 to 0.95; another number decides nothing."""
    keys = {"system.hbm.efficiency": (0.6, 0.9, 0.95), "system.hbm.latency": (1.0, 1.5, 2.0)}
    named = {key: Quantity(key, ends[1], "", "made up", Distribution("uniform", *ends)) for key, ends in keys.items()}
    draws = {key: np.random.default_rng(at).random(256) for at, key in enumerate(named)}
    ns = 1e6 / named["system.hbm.efficiency"].distribution.at(draws["system.hbm.efficiency"])
    option = SimpleNamespace(name="ep", value_ns=1e6 / 0.9, ns=interval(ns))
    rates = {"ep": expand(draws, float(np.mean(ns)) / ns)}
    (said,) = _off_centre({"system": "die"}, [option], {"ep": ns}, rates, draws, named)
    assert re.search(r"less than in 8\d.% of its samples.* system\.hbm\.efficiency: .* above 86.% ", said)
    middle = SimpleNamespace(name="ep", value_ns=float(np.median(ns)), ns=interval(ns))
    assert list(_off_centre({"system": "die"}, [middle], {"ep": ns}, rates, draws, named)) == []


def test_only_what_narrows_or_could_decide_is_advised(found):
    """An answer that hangs on one number alone: measuring that one is advised, and of another nothing is said."""
    commands = {each.measured_by: each for each in found.quantities if each.measured_by}
    (name, asked), (_, other), *_ = commands.items()
    named = {each.key: each for each in (asked, other)}
    rng = np.random.default_rng(0)
    draws = {each.draws_as: rng.random(256) for each in named.values()}
    values = 1 + draws[asked.draws_as]
    told = measurements(expand(draws, values), {"a": expand(draws, values)}, draws, values, named)
    assert [each.names for each in told] == [(asked.draws_as,)]
    free = {"free": rng.random(256)} | draws
    own = 1 + free["free"]
    assert measurements(expand(free, own), {"a": expand(free, own)}, free, own, named) == ()
    (index,) = [each for each in indices(expand(free, own), free, own) if each.name == "free"]
    assert len(advice_sentences([], [index])) == 1
    layers = index._replace(name="layers that did not run")
    assert "workload.layers" in advice_sentences([], [layers])[0] and advice_sentences([], []) == ()


def test_times_say_which_layers_they_are_of(capsys):
    some = ar.sure(toy(engine="analytical", workload=TOY["workload"] | {"layers": 1}), 16, policy="ep", jobs=1)
    every = len(ar.load(TOY).models[0].moe_layer_ids)
    assert f" for decode in the 1 of {every} MoE layers that ran. In 90 %" in some.sentence
    print_answer(some.as_answer())
    assert f": time of decode in the 1 of {every} MoE layers that ran" in " ".join(capsys.readouterr().out.split())
    assert some.plain()["places"][0]["timed"] == f"time of decode in the 1 of {every} MoE layers that ran"
