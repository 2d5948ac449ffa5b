"""A report is run again from its manifest: what moved is told, and what was changed by hand is refused."""

import csv
import hashlib
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.examples import sampled
from support.tiny import TINY, archsim
from support.toy import SERVED

import archsim as ar
from archsim.base.errors import ArchsimError
from archsim.runs.results import _copy_code

OWN = """\
from beside import held
from archsim.policies.allocation import home

def mine(step, **params):
    return held(step)
"""
BESIDE = "from archsim.policies.allocation import home\ndef held(step):\n    return home(step)\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a report with an own policy."""
    here = tmp_path_factory.mktemp("verify")
    (here / "own.py").write_text(OWN)
    (here / "beside.py").write_text(BESIDE)
    tiny = yaml.safe_load(TINY)
    tiny["policies"] = ["ep", {"name": "mine", "allocation": "own:mine"}]
    tiny["workload"] |= {"batch": [12]}
    (here / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    done = archsim(here, "sweep", "tiny.yaml", "--out", "out", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    return here / "out"


@pytest.fixture
def report(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


def test_a_report_of_the_same_code_does_not_move(report):
    """The functions are those beside the manifest: elsewhere there are none."""
    assert {file.name for file in (report / "code").iterdir()} == {"own.py", "beside.py"}
    done = archsim(report.parent, "verify", "out", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Nothing has changed in out, of ")


def test_numbers_that_moved_are_told_with_version_and_code(report):
    """As if an older version had found another time in one run."""
    results, manifest = report / "results.csv", report / "manifest.yaml"
    rows = results.read_text().splitlines()
    at = rows[0].split(",").index("decode_ns")
    cells = rows[1].split(",")
    right, cells[at] = float(cells[at]), f"{float(cells[at]) * 2:g}"
    results.write_text("\n".join([rows[0], ",".join(cells), *rows[2:]]) + "\n")
    data = yaml.safe_load(manifest.read_text())
    from archsim.runs.results import seal

    seal(report, "results.csv")
    found = ar.verify(report, jobs=1)
    (moved,) = found.moved
    assert (moved.column, moved.rows, float(moved.after)) == ("decode_ns", 1, right)
    assert moved.change == pytest.approx(-0.5, rel=1e-4) and "small toy 12" in moved.at
    told = {name: (made, now) for name, made, now in found.facts()}
    assert told["version"][0] == data["manifest"]["version"] and told["code"][0] == told["code"][1]


@pytest.mark.parametrize(("file", "before", "after", "said"), [
    ("manifest.yaml", "decode_steps: 4", "decode_steps: 3", "experiment"),
    ("results.csv", "ep", "ap", "results.csv: "),
    ("code/beside.py", "return home(step)", "return  home(step)", "beside.py: "),
])  # fmt: skip
def test_what_was_changed_is_refused(report, file, before, after, said):
    text = (report / file).read_text()
    assert before in text
    (report / file).write_text(text.replace(before, after))
    with pytest.raises(ArchsimError, match=said):
        ar.verify(report)


def forged(report, change):
    """A report after a change of its manifest's facts, all its digests right."""
    data = yaml.safe_load((report / "manifest.yaml").read_text())
    change(data["manifest"])
    (report / "manifest.yaml").write_text(yaml.safe_dump(data, sort_keys=False))


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("left_out", sampled([[], ["decode_ns"]], lambda names: names == []))
def test_the_manifest_does_not_choose_what_is_judged(report, left_out):
    """All times are 1, and the manifest lists only the glossary; or the columns of times are gone."""
    rows = list(csv.DictReader((report / "results.csv").open()))
    forged(report, lambda facts: facts.update(results={"glossary.html": sha256(report / "glossary.html")}))
    for row in rows:
        row["decode_ns"] = "1"
    with (report / "results.csv").open("w", newline="") as stream:
        names = [name for name in rows[0] if name not in left_out]
        writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    moved = {each.column: each for each in ar.verify(report, jobs=1).moved if each.file == "results.csv"}
    assert moved["decode_ns"].rows == len(rows)


def cut(file):
    """A number of a file is another."""
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        at = next(at for at, each in enumerate(table.schema) if each.name == "decode_ns")
        table = table.set_column(at, "decode_ns", pa.array([1.5] * table.num_rows))
        pq.write_table(table, file)
    else:
        text = file.read_text()
        at = max(each.start() for each in re.finditer("[1-9]", text))
        file.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


def judged(folder):
    """(files that moved, those that were compared, those that were not)."""
    found = ar.verify(folder, jobs=1)
    return {each.file for each in found.moved}, set(found.files), found.not_compared


def test_every_file_of_a_sweep_is_compared_or_named(report):
    forged(report, lambda facts: facts.update(results={"glossary.html": sha256(report / "glossary.html")}))
    forging = ["results.parquet", "dies.csv", "links.csv", "frames.json"]
    for name in forging:
        cut(report / name)
    (report / "steps.parquet").unlink()
    (report / "extra.csv").write_text("a,b\n1,2\n")
    moved, compared, others = judged(report)
    assert moved == {*forging, "steps.parquet", "extra.csv"} and compared >= {*forging, "results.csv"}
    there = {each.relative_to(report).as_posix() for each in report.rglob("*") if each.is_file()}
    assert compared | set(others) | {"extra.csv", ".lock"} == there and all(others.values())
    assert {"timings.csv", "manifest.yaml", "index.html", "code/own.py"} <= set(others)


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    """The folder of an exploration of a few points."""
    out = tmp_path_factory.mktemp("explored") / "out"
    tree = yaml.safe_load(TINY) | {"policies": ["ep"], "explore": {"objectives": ["throughput", "cost"]}}
    tree["systems"] = tree["systems"][:1]
    tree["workload"] |= {"batch": [40], "decode_steps": 2}
    tree["sweep"] = {"grid": {"hbm.bandwidth": ["1 TB/s", "2 TB/s"]}}
    ar.explore(tree, out, jobs=1)
    return out


def test_every_file_of_an_exploration_is_compared_or_named(explored):
    assert judged(explored)[0] == set()
    design, *_ = sorted(explored.glob("designs/*.yaml"))
    tables = sorted(explored.glob("reports/*/dies.csv"))
    forging = design, tables[0], explored / "analytical" / "results.parquet"
    names = [each.relative_to(explored).as_posix() for each in forging]
    for name in names:
        cut(explored / name)
    gone = tables[0].with_name("links.csv")
    gone.unlink()
    (explored / "designs" / "point-999.yaml").write_text("name: added\n")
    expected = {*names, gone.relative_to(explored).as_posix(), "designs/point-999.yaml"}
    moved, compared, others = judged(explored)
    assert moved == expected
    there = {each.relative_to(explored).as_posix() for each in explored.rglob("*") if each.is_file()}
    hidden = {name for name in there if name.rpartition("/")[2].startswith(".")}
    assert compared | set(others) | {"designs/point-999.yaml"} == there - hidden


@pytest.mark.nightly
def test_every_file_of_a_deployment_is_compared_or_named(tmp_path):
    out = tmp_path / "out"
    ar.serve_plan(SERVED, out=out, jobs=1, samples=0)
    assert judged(out)[0] == set()
    every = [each for each in out.rglob("*.csv") if each.name not in ("results.csv", "sure.csv")]
    assert every
    for each in every:
        cut(each)
    assert judged(out)[0] == {each.relative_to(out).as_posix() for each in every}


@pytest.mark.nightly
def test_a_table_that_cannot_be_read_is_refused(report):
    forged(report, lambda facts: facts.update(results={"glossary.html": sha256(report / "glossary.html")}))
    (report / "results.csv").write_text("policy,model\nep\n")
    with pytest.raises(ArchsimError, match=r"results.csv: .*row 1 .*\b1 cells"):
        ar.verify(report, jobs=1)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "link", "a" * 5000, "a\0b"])
@pytest.mark.parametrize("listed", ["results", "functions"])
def test_nothing_outside_the_report_is_read(report, name, listed):
    (report.parent / "secret").write_text("mine")
    for folder in (report, report / "code"):
        (folder / "link").symlink_to(report.parent / "secret")
    forged(report, lambda facts: facts[listed].update({name: "0" * 64}))
    with pytest.raises(ArchsimError, match="leads out of the folder of the report|is no name of a file|no such file"):
        ar.verify(report)


@pytest.mark.parametrize("facts", [[], "x", {"digest": 1, "results": []}, {"functions": ["own.py"]}])
def test_facts_of_another_form_are_refused(report, facts):
    data = yaml.safe_load((report / "manifest.yaml").read_text())
    data["manifest"] = data["manifest"] | facts if isinstance(facts, dict) else facts
    (report / "manifest.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(ArchsimError, match="manifest.yaml"):
        ar.verify(report)


@pytest.mark.parametrize(("given", "found"), [(99, "found 99"), ("0.1.0", "found '0.1.0'"), (None, "it is missing")])
def test_a_manifest_of_another_version_is_refused_at_every_door(report, given, found):
    """Keys may mean something else there."""
    forged(report, lambda facts: facts.update(version=given))
    said = f"^{re.escape(str(report / 'manifest.yaml'))}:2: manifest.version: {found}; expected 0.2.0 to "
    for door in (ar.verify, ar.sweep, ar.load, ar.serve_plan):
        with pytest.raises(ArchsimError, match=said):
            door(report if door is ar.verify else report / "manifest.yaml")


def test_without_code_no_file_of_the_report_runs(report, monkeypatch):
    """Neither what the manifest names, nor files named like modules that libraries try."""
    for name in ("numpy", "coverage", "org", "colorama", "json"):
        (report / "code" / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    with (report / "code" / "own.py").open("a") as stream:
        stream.write("import pathlib; pathlib.Path('named_ran').touch()\n")
    forged(report, lambda facts: facts["functions"].update({"own.py": sha256(report / "code" / "own.py")}))
    monkeypatch.chdir(report.parent)
    monkeypatch.setenv("ARCHSIM_NO_CODE", "1")
    with pytest.raises(ArchsimError, match="own:mine is code"):
        ar.verify(report, jobs=2)
    monkeypatch.delenv("ARCHSIM_NO_CODE")
    assert ar.verify(report, jobs=1).moved == ()
    assert (report.parent / "named_ran").exists() and not (report.parent / "ran").exists()


def test_a_false_digest_of_a_trace_is_refused(report):
    """The digest of the experiment does not cover that of its traces: it is found by running."""
    text = (report / "manifest.yaml").read_text()
    digest = yaml.safe_load(text)["manifest"]["traces"]["toy"]
    (report / "manifest.yaml").write_text(text.replace(digest, digest[:-4] + "0000"))
    with pytest.raises(ArchsimError, match=r"\btoy\b"):
        ar.verify(report, jobs=1)


def test_of_pythons_own_modules_and_installed_ones_nothing_is_copied(tmp_path):
    assert _copy_code(["os:getcwd", "numpy:zeros"], tmp_path) == {} and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "told"), [
    ("nosuch", "nosuch: "),
    ("empty", "empty: .*manifest.yaml"),
    ("tiny.yaml", "tiny.yaml: .*manifest"),
])  # fmt: skip
def test_what_is_no_report_is_refused_by_its_name(tmp_path, monkeypatch, name, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "tiny.yaml").write_text(TINY)
    with pytest.raises(ArchsimError, match=f"^{told}"):
        ar.verify(name)
