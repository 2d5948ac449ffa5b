"""Messages of commands besides their results: what they replace, what they kept, and notes."""

import re
from types import SimpleNamespace

import pytest
from support.explorations import EXPLORED
from support.html_page import Page
from support.made_up_measurements import gemm, written
from support.tables import read_beside
from support.tiny import TINY

import calibration.fit.calibrate
from archsim.base.code_digest import KERNELS
from archsim.cli.main import main
from archsim.cli.printing import print_compiling
from archsim.runs.simulator import Simulator
from archsim.show.answers import Winner, _distances, _limits, _won
from archsim.show.own_answers import system_sentences
from archsim.show.report import Panel
from archsim.show.units import listing
from archsim.specs.library import load_experiment


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with tiny.yaml in it."""
    (tmp_path / "tiny.yaml").write_text(TINY.replace("batch: [12, 40]", "batch: 12"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(*arguments: str) -> int:
    return main(["sweep", "tiny.yaml", "--set", "policies=[base, ep]", "--jobs", "1", "--samples", "0", *arguments])


def test_a_report_of_another_experiment_is_not_replaced_in_silence(here, capsys):
    assert sweep() == 0 and "replaces" not in capsys.readouterr().err
    assert sweep() == 0 and "replaces" not in capsys.readouterr().err  # the same again
    assert sweep("--set", "workload.seed=1") == 0
    assert "This replaces the report of tiny in reports/tiny, which had other settings.\n" in capsys.readouterr().err
    assert sweep("--set", "name=other", "--out", "reports/tiny") == 0
    assert "This replaces the report of tiny in reports/tiny.\n" in capsys.readouterr().err


def test_an_exploration_has_a_folder_of_its_own(here, capsys):
    text = EXPLORED.replace("[base, ep, allo, pred, allo+pred]", "[ep]").replace("[12, 40]", "12")
    (here / "tiny.yaml").write_text(text, encoding="utf-8")
    few = ["--set", "explore.event_runs=2"]
    assert main(["explore", "tiny.yaml", "--jobs", "1", *few]) == 0
    folder = here / "reports" / "tiny-exploration"
    assert "report: reports/tiny-exploration/index.html" in capsys.readouterr().out
    assert 'href="manifest.yaml"' in (folder / "index.html").read_text(encoding="utf-8")
    assert main(["explore", str(folder / "manifest.yaml"), "--jobs", "1"]) == 0
    assert "replaces" not in capsys.readouterr().err


def test_a_batch_that_is_larger_than_its_trace_is_reported(here, capsys):
    note = "The 12 requests are sampled with replacement from the 5 of the trace, by workload.seed."
    assert sweep("--set", "workload.trace.synthetic.requests=5") == 0
    assert f"note: {note}" in capsys.readouterr().err
    assert note in Page((here / "reports" / "tiny" / "index.html").read_text(encoding="utf-8")).text
    assert main([*"run tiny.yaml --samples 0 --set".split(), "workload.trace.synthetic.requests=12"]) == 0
    assert "drawn" not in capsys.readouterr().err


@pytest.mark.parametrize(("words", "facts"), [
    ("run tiny.yaml --batch 13", ("13", "12")), ("ablate tiny.yaml --from foo", ("'foo'", "physical, published")),
])  # fmt: skip
def test_what_is_unknown_is_named_once_beside_what_is_known(here, capsys, words, facts):
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert [said.count(each) for each in facts] == [1] * len(facts) and said.count("\n") == 1


def test_folders_are_named_once(here, capsys):
    assert main(["check", "tiny.yaml", "--set", "workload.trace=nix"]) == 2
    looked = capsys.readouterr().err.partition("(searched ")[2].partition(")")[0].split(", ")
    assert looked[0] == "the current directory" and "." not in looked and len(set(looked)) == len(looked)


def test_a_comparison_tells_the_steps_that_it_takes(here, capsys):
    assert main(["engines", "tiny.yaml", "--set", "workload.decode_steps=1", "--sample", "1"]) == 0
    assert "with at most 1 decode step." in " ".join(capsys.readouterr().out.split())


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", ["run", "optimum", "engines"])
def test_an_interrupted_command_says_so(here, capsys, monkeypatch, command):
    monkeypatch.setattr(Simulator, "_replay", interrupt)
    assert main([command, "tiny.yaml"]) == 130
    assert capsys.readouterr().err.endswith("\nInterrupted. Unfinished work is not kept.\n")


def test_an_interrupted_calibration_names_the_files_that_are_whole(here, capsys, monkeypatch):
    written(
        here / "measured",
        gemm=gemm(),
        gemm_a100=[row.replace("NVIDIA H100", "NVIDIA A100-SXM4-80GB") for row in gemm()],
    )
    fitted = calibration.fit.calibrate.fit_measurements
    monkeypatch.setattr(
        calibration.fit.calibrate,
        "fit_measurements",
        lambda found, gpu, *how: fitted(found, gpu, *how) if gpu == "a100" else interrupt(),
    )
    assert main(["calibrate", "measured", "--out", "fits"]) == 130
    assert capsys.readouterr().err == "\nInterrupted. These files are complete and kept: fits/a100.yaml\n"
    # Sections lie in the folder.
    assert sorted(file.name for file in (here / "fits").iterdir()) == ["a100", "a100.yaml"]
    assert main(["calibrate", "measured", "--out", "none", "--gpu", "h100"]) == 130
    assert capsys.readouterr().err == "\nInterrupted. No file was written.\n" and not (here / "none").exists()


def test_validation_is_told_in_short(here, capsys):
    written(here / "measured", gemm=gemm(("1", "2"), m=tuple(range(1, 12))))
    assert main(["calibrate", "measured", "--out", "h100.yaml"]) == 0 and capsys.readouterr()
    assert main(["validate", "measured", "--with", "h100.yaml", "--out", "page"]) == 0
    out = capsys.readouterr().out
    assert "in its fit" not in out and "sweep left out" in out and out.endswith("report: page/index.html\n")


def test_compiling_is_told_where_nothing_is_compiled(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("archsim.base.code_digest._shipped_names", frozenset)  # by no installation, either
    experiment = load_experiment("dojo", ["policies=[ep]", "assumptions=[physical]", "engine=event"])
    print_compiling(of=experiment)
    said = capsys.readouterr().err
    assert re.fullmatch(r"compiling kernels, once: about \d\d s of one core\n", said)
    print_compiling(of=load_experiment("dojo"))
    both = capsys.readouterr().err  # reserved links, and predictions, too
    assert int(re.search(r"\d+", both)[0]) > int(re.search(r"\d+", said)[0]) + 10
    (tmp_path / "kernels").mkdir()
    for group in ("runs", "shared"):
        for name in KERNELS[group]:
            (tmp_path / "kernels" / f"{name}-1.py311.1.nbc").touch()
    print_compiling(of=experiment)
    assert capsys.readouterr().err == ""


# ---- Sentences of pages, as they read for one, two and many cases.

MODELS = ("deepseek-v3", "qwen3-235b-a22b")


def run_of(policy, batch, **values):
    return {"policy": policy, "batch": batch} | values


def place(model="deepseek-v3", system="dojo"):
    return Panel("physical", system, model)


def wins(*each):
    """(model, batch, policy, gain) → winners by place."""
    found = {}
    for model in dict.fromkeys(model for model, *_ in each):
        mine = [Winner(batch, run_of(policy, batch), gain) for at, batch, policy, gain in each if at == model]
        found[place(model)] = mine
    return found


V3, QWEN = MODELS
TOLD = read_beside(__file__, "tables.yaml")


def test_what_wins():
    for case in TOLD["won"]:
        assert _won({"dojo": wins(*case["wins"])}) == [case["said"]]


def test_systems_on_which_the_same_policy_wins_share_a_sentence():
    def on(system, policy, *gains):
        return {place(V3, system): [Winner(2**at, run_of(policy, 2**at), gain) for at, gain in enumerate(gains, 6)]}

    same = {name: on(name, "allo", 1.1, last) for name, last in (("dojo", 1.3), ("sow", 1.7))}
    (one,) = _won(same)
    assert "both systems" in one and "1.10×" in one and "1.70×" in one
    assert len(_won(same | {"mine": on("mine", "allo", 1.5)})) == 1
    both, other = _won(same | {"mine": on("mine", "ep", 1.0)})
    assert "dojo and sow" in both and other.startswith("On mine, ") and "batch 64" in other
    slow = {place(V3, "mine"): [*on("mine", "allo", 1.2, 1.2)[place(V3, "mine")], Winner(512, run_of("ep", 512), 1.0)]}
    (text,) = _won(same | {"mine": slow})
    assert "exception" in text and "mine at batch 512" in text


def test_what_limits_and_how_far_it_is():
    run = run_of("allo", 8192, bound_compute=0.0, over_roofline=3.22, load_max_over_mean=1.8, load_ceiling_slots=1.0)
    assert "no record" in _limits({place(): run}, False)[0]
    assert "3.22×" in _distances({place(): run}, True)[0] and "1.80×" in _distances({place(): run}, True)[0]
    run["load_max_over_mean"] = 0.9
    assert "splits experts over dies" in _distances({place(): run}, False)[0]
    assert _distances({place(): run_of("ep", 1)}, False) == []


def test_steps_that_wait_for_the_same_share_a_sentence():
    runs = {
        place(model, system): run_of("allo", 64, bound_hbm=share, bound_compute=0.3, over_roofline=4.0)
        for model, system, share in ((V3, "dojo", 0.5), (QWEN, "dojo", 0.55), (V3, "sow", 0.6), (QWEN, "sow", 0.5))
    }
    for said, number in ((_limits(runs, several=True), "50\N{NO-BREAK SPACE}% to 60\N{NO-BREAK SPACE}%"),
                         (_distances(runs, several=True), "4.00×")):  # fmt: skip
        (text,) = said
        assert number in text and all(each in text for each in (*MODELS, "dojo and sow", "batch 64"))


def test_two_systems_are_compared_at_every_batch_with_the_range_of_their_pair():
    def rates(name, fast):
        return [
            dict(run_of("allo", batch, throughput_tokens_per_s=fast * batch), run=f"{name}-{batch}")
            for batch in (64, 512)
        ]

    pair = {"faster_run": "mine-64", "slower_run": "dojo-64", "ratio": 3.3, "ratio_p05": 2.0, "ratio_p95": 4.0}
    report = SimpleNamespace(ranges={"samples": 32, "pairs": [pair | {"tie": False}]})
    found = {place(): rates("dojo", 1.0), place(V3, "mine"): rates("mine", 3.3)}
    (said,) = system_sentences(report, found)
    assert said.replace("\N{NO-BREAK SPACE}", " ") == (
        "mine decodes deepseek-v3 3.3 × (2.0–4.0 in 90 % of 32 samples) as fast as dojo at batch 64 and 3.30× as "
        "fast as dojo at batch 512, in MoE layers."
    )
    whole = {"whole_ratio": 0.9, "whole_ratio_p05": 0.8, "whole_ratio_p95": 1.0, "whole_tie": False}
    report.ranges["pairs"] = [pair | whole | {"tie": False}]
    for rows, ns in zip(found.values(), (90.0, 100.0), strict=True):
        rows[:] = [row | {"iteration_ns": ns} for row in rows]
    (said,) = system_sentences(report, found)
    assert said.startswith("dojo decodes deepseek-v3 1.1") and "in whole iterations" in said  # though its layers lose
    tied = pair | whole | {"tie": False, "whole_tie": True}
    report.ranges["pairs"] = [tied, tied | {"faster_run": "mine-512", "slower_run": "dojo-512"}]
    assert next(system_sentences(report, found)).startswith("dojo and mine are a tie for deepseek-v3: dojo is 1.1")
    assert list(system_sentences(report, {place(): found[place()]})) == []


def test_lists_read_as_people_write_them():
    assert [listing(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
