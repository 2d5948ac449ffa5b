"""Messages of commands besides their results: what they replace, what they kept, and notes."""

import pytest
from support.explorations import EXPLORED
from support.made_up_measurements import gemm, written
from support.tiny import TINY

import calibration.fit.fit
from archsim.cli.main import main
from archsim.cli.printing import print_compiling
from archsim.runs.notes import drawn_notes
from archsim.runs.simulator import Simulator


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with tiny.yaml in it."""
    (tmp_path / "tiny.yaml").write_text(TINY.replace("batch: [12, 40]", "batch: 12"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(*arguments: str) -> int:
    return main(["sweep", "tiny.yaml", "--set", "policies=[base, ep]", "--jobs", "1", *arguments])


def test_a_report_of_another_experiment_is_not_replaced_in_silence(here, capsys):
    assert sweep() == 0 and "replaces" not in capsys.readouterr().err
    assert sweep() == 0 and "replaces" not in capsys.readouterr().err  # the same again
    assert sweep("--set", "workload.seed=1") == 0
    assert "replaces the report of tiny in reports/tiny, which had other settings\n" in capsys.readouterr().err
    assert sweep("--set", "name=other", "--out", "reports/tiny") == 0
    assert "replaces the report of tiny in reports/tiny\n" in capsys.readouterr().err


def test_an_exploration_has_a_folder_of_its_own_and_is_repeated_from_its_manifest(here, capsys):
    text = EXPLORED.replace("policies: [base, ep, allo, pred, allo+pred]", "policies: [base, ep]").replace(
        "[12, 40]", "12"
    )
    (here / "tiny.yaml").write_text(text, encoding="utf-8")
    assert main(["explore", "tiny.yaml", "--jobs", "1"]) == 0
    folder = here / "reports" / "tiny-exploration"
    assert "report: reports/tiny-exploration/index.html" in capsys.readouterr().out
    assert 'href="manifest.yaml"' in (folder / "index.html").read_text(encoding="utf-8")
    first = {name: (folder / name).read_bytes() for name in ("front.csv", "index.html", "manifest.yaml")}
    assert main(["explore", str(folder / "manifest.yaml"), "--jobs", "1"]) == 0
    assert "replaces" not in capsys.readouterr().err
    assert main(["explore", str(folder / "manifest.yaml"), "--jobs", "1", "--out", "again"]) == 0
    for name, content in first.items():
        assert (folder / name).read_bytes() == content == (here / "again" / name).read_bytes()


def test_a_batch_that_is_larger_than_its_trace_is_reported(here, capsys):
    note = "12 requests are drawn from the 5 that there are, with replacement (by workload.seed)"
    assert sweep("--set", "workload.trace.synthetic.requests=5") == 0
    assert f"note: {note}" in capsys.readouterr().err
    assert note in (here / "reports" / "tiny" / "index.html").read_text(encoding="utf-8")
    assert main(["run", "tiny.yaml", "--set", "workload.trace.synthetic.requests=12"]) == 0
    assert "drawn" not in capsys.readouterr().err


def test_notes_of_many_batches_are_few():
    rows = [{"batch": batch, "drawn_from": 5 if batch > 5 else None} for batch in range(20)]
    notes = drawn_notes(rows)
    assert (
        len(notes) == 5
        and notes[0].startswith("6 requests")
        and notes[-1] == "so are 10 other batches (column drawn_from)"
    )
    assert drawn_notes(rows[:6]) == []


@pytest.mark.parametrize(("command", "hint"), [
    ("swep tiny.yaml", "; did you mean 'sweep'?"), ("trace imprt x", "; did you mean 'import'?"),
    ("sweep tiny.yaml --sett name=x", "; did you mean '--set'?"),
    ("sweep tiny.yaml another.yaml", "unrecognized arguments: another.yaml\n"),
])
def test_mistyped_words_get_the_nearest(here, capsys, command, hint):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2 and hint in capsys.readouterr().err


def test_numbers_get_no_nearest(here, capsys):
    assert main(["run", "tiny.yaml", "--batch", "13"]) == 2
    assert capsys.readouterr().err == "batch size 13 is not in the experiment (it has: 12)\n"


def test_a_set_is_named_once(here, capsys):
    assert main(["ablate", "tiny.yaml", "--from", "foo"]) == 2
    assert capsys.readouterr().err == "unknown assumption set 'foo' (known: physical, published)\n"


def test_folders_are_named_once(here, capsys):
    assert main(["check", "tiny.yaml", "--set", "workload.trace=nix"]) == 2
    looked = capsys.readouterr().err.partition("(searched ")[2].partition(")")[0].split(", ")
    assert looked[0] == "the current directory" and "." not in looked and len(set(looked)) == len(looked)


def test_a_comparison_tells_the_steps_that_it_takes(here, capsys):
    assert main(["engines", "tiny.yaml", "--set", "workload.decode_steps=1", "--sample", "1"]) == 0
    assert "at most 1 decode step\n" in capsys.readouterr().out


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", ["run", "optimum", "engines"])
def test_an_interrupted_command_says_so(here, capsys, monkeypatch, command):
    monkeypatch.setattr(Simulator, "_replay", interrupt)
    assert main([command, "tiny.yaml"]) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted; unfinished work is not kept\n")


def test_an_interrupted_calibration_names_the_files_that_are_whole(here, capsys, monkeypatch):
    written(
        here / "measured",
        gemm=gemm(),
        gemm_a100=[row.replace("NVIDIA H100", "NVIDIA A100-SXM4-80GB") for row in gemm()],
    )
    fitted = calibration.fit.fit.fit_measurements
    monkeypatch.setattr(
        calibration.fit.fit,
        "fit_measurements",
        lambda found, gpu, *how: fitted(found, gpu, *how) if gpu == "a100" else interrupt(),
    )
    assert main(["calibrate", "measured", "--out", "fits"]) == 130
    assert capsys.readouterr().err == "\ninterrupted; kept, complete: fits/a100.yaml\n"
    # Sections lie in the folder.
    assert sorted(file.name for file in (here / "fits").iterdir()) == ["a100", "a100.yaml"]
    assert main(["calibrate", "measured", "--out", "none", "--gpu", "h100"]) == 130
    assert capsys.readouterr().err == "\ninterrupted; no file was written\n" and not (here / "none").exists()


def test_validation_is_told_in_short(here, capsys):
    written(here / "measured", gemm=gemm(("1", "2"), m=tuple(range(1, 12))))
    assert main(["calibrate", "measured", "--out", "h100.yaml"]) == 0 and capsys.readouterr()
    assert main(["validate", "measured", "--with", "h100.yaml", "--out", "page"]) == 0
    out = capsys.readouterr().out
    assert "in its fit" not in out and "sweep left out" in out and out.endswith("report: page/index.html\n")


def test_compiling_is_told_where_nothing_is_compiled(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    print_compiling()
    assert capsys.readouterr().err == "compiling kernels, once: up to a minute\n"
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.nbc").touch()
    print_compiling()
    assert capsys.readouterr().err == ""
