"""The report page: complete, self-contained, and the same for the same inputs."""

import json
import re
from pathlib import Path

import pytest
from support.html_page import Page
from support.report_folder import read_csv, write_csv, write_folder

from archsim.report import data, figures
from archsim.report.data import ReportError, read_report, told
from archsim.report.figures import BOUND_NAMES
from archsim.report.page import PAGES, render, render_all, write_report
from archsim.report.sections import beyond_memory, copied, sentences
from archsim.report.tables import results, ties
from archsim.report.units import BYTE_UNITS, factor, plain_factor, prefixed, scaled, signed_percent, significant
from archsim.runs.columns import DIE_COLUMNS, LINK_COLUMNS, RUN_COLUMNS
from archsim.specs.library import load_assumptions

POLICIES = ("base", "ep", "allo", "allo-paper", "pred", "allo+pred")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_folder(
        tmp_path_factory.mktemp("report"),
        systems=("dojo", "tsmc_sow"),
        models=("deepseek-v3", "qwen3-235b-a22b"),
        batches=(4096, 16384),
        policies=POLICIES,
        assumptions=(
            load_assumptions("published"), load_assumptions("published", ties="sequence"), load_assumptions("physical")
        ),
    )


@pytest.fixture(scope="module")
def text(folder) -> str:
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def test_names_everything_that_was_run(page):
    for name in (
        *POLICIES, "dojo", "tsmc_sow", "deepseek-v3", "qwen3-235b-a22b", "published+ties=sequence", "physical"
    ):
        assert name in page.text
    assert "144 runs:" in page.text


def test_a_page_begins_with_three_sentences(tmp_path):
    """Which policy wins where and by how much, what limits it, how far it is from the bound; then one picture."""
    faster = {"base": 0.5, "ep": 1.0, "allo": 1.5}

    def gain(row: dict) -> float:
        return faster[row["policy"]] * (0.2 if (row["policy"], row["batch"]) == ("allo", 16384) else 1)

    write_folder(
        tmp_path, policies=("base", "ep", "allo"), batches=(4096, 8192, 16384),
        assumptions=(load_assumptions("physical"),),
        changes={"throughput_tokens_per_s": lambda row: 1e5 * gain(row), "speedup_vs_ep": gain, "over_roofline": 2.5},
    )  # fmt: skip
    first = sentences(read_report(tmp_path))
    assert first == [
        "On dojo, allo decodes deepseek-v3 1.50× faster than expert parallelism (ep). The exception is deepseek-v3 at "
        "batch 16,384, where ep wins. These numbers assume physical.",
        "At batch 16,384, a step of deepseek-v3 under ep spends 50\N{NO-BREAK SPACE}% of its time waiting for HBM and "
        "38\N{NO-BREAK SPACE}% multiplying.",
        "A step of deepseek-v3 takes 2.50× as long as the roofline allows.",
    ]
    page = render(read_report(tmp_path))
    assert page.index('class="answer"') < page.index('class="plot"') < page.index('class="go"') < page.index("<details")
    assert page[: page.index("<details")].count('class="plot"') == 1
    assert page.count("<details") - page.count("<details open") >= page.count('class="q"') >= 5


def test_details_have_pages_of_their_own(folder, page):
    """In every index; the first page has none of them."""
    report = read_report(folder)
    pages = {name: Page(text) for name, text in render_all(report).items()}
    assert tuple(pages) == PAGES
    for each in pages.values():
        assert set(PAGES) <= {attrs["href"] for tag, attrs in each.tags if tag == "a"}
    assert "in this folder: archsim sweep manifest.yaml" in pages["files.html"].text
    assert "where kernels" not in page.text and "Where the sets differ" in pages["assumptions.html"].text


def test_words_of_a_page_are_links_to_the_glossary(folder, page):
    glossary = Page(render_all(read_report(folder))["glossary.html"])
    ids = {attrs["id"] for tag, attrs in glossary.tags if tag == "dt"}
    terms = [attrs["href"] for tag, attrs in page.tags if attrs.get("class") == "term"]
    assert len(terms) > 20 and {to.removeprefix("glossary.html#") for to in terms} <= ids
    assert "glossary.html#policy" in terms


def specs(text: str) -> list[dict]:
    """The figures of a page, as Vega-Lite."""
    return [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)]


def rows_of(spec: dict, name: str = "rows") -> list[dict]:
    packed = spec["datasets"][name]
    return [dict(zip(packed["columns"], row, strict=True)) for row in packed["rows"]]


def test_a_cell_of_a_step_tells_what_why_says(text):
    """The slowest step of each cell, with cause and link."""
    (found,) = [spec for spec in specs(text) if spec["description"].startswith("Which steps are slow")]
    slowest = max(rows_of(found), key=lambda row: row["time"])
    assert slowest["cause"] == "HBM 100 %" and slowest["link"].startswith("1 → 2, busy")


def test_needs_no_network(page, text):
    loads = [(tag, attrs) for tag, attrs in page.tags if {"src", "href", "xlink:href", "data"} & set(attrs)]
    assert {tag for tag, _ in loads} == {"a"}
    assert {attrs["href"].partition("#")[0] for _, attrs in loads} - {""} == {"steps.parquet", *PAGES}
    own = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "url(" not in own and "@import" not in own and "//" not in own
    assert "fetch(" not in re.findall(r"<script>(.*?)</script>", text, re.S)[-1]  # what draws figures


def test_links_inside_the_page_have_targets(page):
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    targets = {attrs["href"][1:] for tag, attrs in page.tags if tag == "a" and attrs["href"].startswith("#")}
    assert targets and targets <= ids


def test_equal_inputs_give_equal_bytes(folder, text):
    assert write_report(folder).read_text(encoding="utf-8") == text
    assert len(text.encode()) < 3_000_000


def test_does_not_depend_on_the_order_of_rows(folder, text, tmp_path):
    for name in ("results", "dies", "links"):
        rows = read_csv(folder / f"{name}.csv")
        write_csv(tmp_path / f"{name}.csv", rows[::-1] if name == "results" else rows)
    for name in ("manifest.yaml", "steps.parquet"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert write_report(tmp_path).read_text(encoding="utf-8") == text


def test_leaves_no_draft_behind(folder, text):
    assert sorted(path.name for path in folder.iterdir()) == [
        "assumptions.html", "dies.csv", "files.html", "glossary.html", "index.html", "links.csv", "manifest.yaml",
        "results.csv", "results.html", "steps.parquet",
    ]  # fmt: skip


def test_every_figure_shows_every_run(text):
    found = {spec["description"].partition("?")[0]: spec for spec in specs(text)}
    for question in ("How much faster than base is each policy", "How evenly are the dies loaded"):
        assert len(rows_of(found[question])) == 2 * 2 * 2 * 2 * len(POLICIES)
        assert found[question]["usermeta"]["filters"] == ["assumptions", "system", "model", "batch"]
    for system, dies in (("dojo", 25), ("tsmc_sow", 24)):
        shown = found[f"Where is {system} busy"]
        assert len(rows_of(shown)) == dies * 2 * 2 * len(POLICIES)
        names = {param["name"] for param in shown["params"]}
        assert names == {"f_assumptions", "f_model", "f_policy", "show", "moment"}


def test_a_waterfall_ends_with_the_step(text):
    """Its causes follow each other without gaps, and their sum is the step."""
    (found,) = [spec for spec in specs(text) if spec["description"].startswith("Where does the time")]
    names = ("assumptions", "system", "model", "batch", "policy")
    runs: dict[tuple, list[dict]] = {}
    for row in rows_of(found):
        runs.setdefault(tuple(row[name] for name in names), []).append(row)
    for parts in runs.values():
        ends = [0.0, *(part["value"] for part in parts)]
        assert [part["begin"] for part in parts] == pytest.approx(ends[:-1], rel=1e-4)


def test_all_results_are_in_the_table(folder):
    page = Page(render_all(read_report(folder))["results.html"])
    rows = read_csv(folder / "results.csv")
    assert len(rows) == 144
    for row in rows:
        shown = page.row(row["system"], row["model"], f"{int(row['batch']):,}", row["policy"], row["assumptions"])
        assert factor(float(row["speedup_vs_base"])).rstrip("×") in shown


def test_reads_the_columns_that_a_sweep_writes(folder):
    assert set(data.RESULT_COLUMNS) <= set(RUN_COLUMNS)
    assert set(data.DIE_COLUMNS) <= set(DIE_COLUMNS)
    assert set(data.LINK_COLUMNS) <= set(LINK_COLUMNS)
    assert set(BOUND_NAMES) == {name for name in RUN_COLUMNS if name.startswith("bound_")}


def test_a_single_run_without_base(tmp_path):
    write_folder(tmp_path, policies=("ep",), assumptions=(load_assumptions("physical"),))
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "1 run:" in page.text and "no base run" in page.text


def test_no_prefill_and_nothing_simulated(tmp_path):
    empty = dict.fromkeys(data.OPTIONAL, "")
    write_folder(tmp_path, prefill_ns=0, changes=empty | {"decode_ns": 0, "hop_messages": 0})
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "What steps wait for was not recorded" in page.text
    whole = Page((tmp_path / "results.html").read_text(encoding="utf-8"))
    assert whole.row("dojo", "deepseek-v3", "4,096", "base")[6] == "0"


def test_a_mesh_of_one_die_has_no_links(tmp_path):
    write_folder(tmp_path, policies=("base", "allo"), changes={"mesh_x": 1, "mesh_y": 1})
    write_csv(tmp_path / "dies.csv", [row for row in read_csv(tmp_path / "dies.csv") if row["die"] == "0"])
    header = (tmp_path / "links.csv").read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "links.csv").write_text(header + "\n", encoding="utf-8")
    assert "busiest die 0" in Page(write_report(tmp_path).read_text(encoding="utf-8")).text


def test_names_are_escaped(tmp_path):
    write_folder(tmp_path, trace="recorded.npz", changes={"trace": "a <b>&'\".npz"})
    assert "recorded routing (a <b>&'\".npz)" in Page(write_report(tmp_path).read_text(encoding="utf-8")).text


# --- what is refused


@pytest.mark.parametrize("name", ["results.csv", "dies.csv", "links.csv", "manifest.yaml"])
def test_a_missing_file_is_reported(tmp_path, name):
    write_folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ReportError, match=rf"{name}: no such file"):
        write_report(tmp_path)
    assert not (tmp_path / "index.html").exists()


def test_missing_dies_are_reported(tmp_path):
    write_folder(tmp_path)
    write_csv(tmp_path / "dies.csv", read_csv(tmp_path / "dies.csv")[1:])
    with pytest.raises(
        ReportError,
        match=r"dies\.csv: 24 rows for run \w+ \(base, batch 4096, deepseek-v3 on dojo, published\), expected 25",
    ):
        write_report(tmp_path)


def test_missing_links_are_reported(tmp_path):
    write_folder(tmp_path)
    links = read_csv(tmp_path / "links.csv")
    write_csv(tmp_path / "links.csv", [row for row in links if row["policy"] != "pred"])
    with pytest.raises(ReportError, match=r"links\.csv: no rows for run \w+ \(pred, "):
        write_report(tmp_path)


@pytest.mark.parametrize(("change", "message"), [
    ({"decode_ns": "soon"}, "results.csv:2: decode_ns: 'soon' is not a number"),
    ({"decode_ns": ""}, "results.csv:2: decode_ns: '' is not a number"),
    (
        {"policy": "magic"},
        "results.csv:2: policy 'magic' is not in manifest.yaml (it has base, ep, allo, pred, allo+pred)",
    ),
])
def test_bad_rows_are_reported(tmp_path, change, message):
    write_folder(tmp_path)
    rows = read_csv(tmp_path / "results.csv")
    write_csv(tmp_path / "results.csv", [rows[0] | change, *rows[1:]])
    with pytest.raises(ReportError, match=re.escape(message)):
        write_report(tmp_path)


def test_a_missing_column_and_no_rows_are_reported(tmp_path):
    write_folder(tmp_path)
    rows = read_csv(tmp_path / "results.csv")
    write_csv(tmp_path / "results.csv", [{key: row[key] for key in row if key != "decode_ns"} for row in rows])
    with pytest.raises(ReportError, match=r"results\.csv:1: column 'decode_ns' is missing"):
        write_report(tmp_path)
    (tmp_path / "results.csv").write_text(",".join(rows[0]) + "\n", encoding="utf-8")
    with pytest.raises(ReportError, match="no runs"):
        write_report(tmp_path)


# --- layers


def test_layers_that_did_not_run_are_reported(tmp_path, text):
    """In the header, and beside the throughput."""
    write_folder(tmp_path, changes={"layers": 3})
    page = render(read_report(tmp_path))
    assert "10 runs: 3 of 58 MoE layers of deepseek-v3 on dojo" in " ".join(page.split()).replace("runs:\n", "runs: ")
    assert "some layers ran, and the others are taken to be like them (3 of 58 of deepseek-v3)" in page
    assert "MoE layers of deepseek-v3, qwen3-235b-a22b on" in text and "throughput of all MoE layers" not in text


def test_layers_are_listed_for_every_model():
    parts = {"a": ((3,), 58), "b": ((48,), 48), "c": ((1, 2, 4), 4)}
    assert told(parts) == "3 of 58 MoE layers of a, all MoE layers of b, 1, 2 or 4 of 4 MoE layers of c"
    assert told({"b": ((48,), 48), "d": ((1,), 1)}) == "MoE layers of b, d"


# --- ties


def test_ties_compare_runs_that_differ_in_nothing_else(folder):
    report = read_report(folder)
    rows = ties(report)
    assert len(rows) == 2 * 2 * 2 * len(POLICIES)
    row = next(each for each in rows if each["policy"] == "pred")
    own = {
        run.place.assumptions: run["decode_ns"]
        for run in report.runs
        if (run.place.system, run.place.model, run.batch, run.policy)
        == (row["system"], row["model"], int(row["batch"].replace(",", "")), "pred")
    }
    assert row["change"] == signed_percent(own["published+ties=sequence"] / own["published"] - 1)


def test_no_section_on_ties_without_such_a_pair(tmp_path):
    write_folder(tmp_path)
    assert 'id="ties"' not in write_report(tmp_path).read_text(encoding="utf-8")


# --- drawing


def test_map_draws_each_direction_where_links_are_shared(folder):
    (found, _) = figures.maps(read_report(folder))
    for label, links in (("published", 40), ("physical", 80)):
        chosen = {"assumptions": label, "policy": "base", "model": "deepseek-v3"}
        own = [link for link in found.links if all(link[name] == value for name, value in chosen.items())]
        assert len({(each["x_at"], each["y_at"], each["x_to"], each["y_to"]) for each in own}) == links


def test_dies_stand_under_their_roof(tmp_path):
    """25 dies of three policies in two phases, of two assumption sets."""
    found = figures.roofline(read_report(write_folder(tmp_path, policies=("base", "ep", "allo"))))
    assert len(found.rows) == 2 * 3 * 2 * 25
    roofs = {curve["place"]: max(each["tflop_per_s"] for each in found.curves) for curve in found.curves}
    assert all(row["tflop_per_s"] <= roofs[row["place"]] for row in found.rows)


def test_many_iterations_share_columns_of_a_chart(tmp_path):
    report = read_report(write_folder(tmp_path, policies=("base", "ep"), decode_steps=126))
    columns = {row["iteration"] for row in figures.steps(report).rows}
    assert columns == set(range(0, 127, 4))


def test_a_summary_has_one_throughput_and_the_use_of_the_machine(tmp_path):
    report = read_report(write_folder(tmp_path, decode_steps=4))
    page, whole = Page(render(report)), Page(render_all(report)["results.html"])
    heads = next(row for row in whole.rows if "policy" in row)
    rows = [row for row in whole.rows if row[0] == "dojo"]
    assert len(rows) == 10 and {row[heads.index("MFU [%]")] for row in rows} == {"25.0"}
    assert "over 3 times the roofline" in page.text and "MFU 25.0%" in page.text


def test_columns_that_no_run_has_are_left_out(tmp_path):
    write_folder(tmp_path)
    headers = [header["text"] for header in results(read_report(tmp_path))[0]]
    assert not any(name.startswith(("decode, low", "GEMMs", "copies extrapolated")) for name in headers)
    write_folder(tmp_path, changes={"gemm_extrapolated": lambda row: 0.5 if row["policy"] == "ep" else ""})
    assert "GEMMs extrapolated [%]" in [header["text"] for header in results(read_report(tmp_path))[0]]


def test_copies_beyond_memory_are_told_where_nothing_bounds_them(tmp_path):
    """A die of dojo has 72 GB; ten or eleven experts of 58 layers, 44 MB each, are its homes."""
    homes = 256 // 25 * 58 * 3 * 7168 * 2048
    room = int(80e9 * 0.9) - homes
    for held, seen in ((room, False), (room + 1, True)):
        write_folder(
            tmp_path,
            changes={"replicas_max_bytes_per_die": lambda row, held=held: held if row["policy"] == "pred" else 0},
        )
        found = list(beyond_memory(read_report(tmp_path)))
        assert [each.policies for each in found] == [("pred",)] * seen
        assert [(each.place.assumptions, each.room_bytes) for each in found] == [("published", room)] * seen
        assert (
            "copies of experts exceed HBM capacity: pred" in " ".join(Page(render(read_report(tmp_path))).text.split())
        ) == seen


def test_what_copies_cost_and_save_is_told_of_runs_that_made_some(tmp_path):
    """Folders of older versions, without these columns, have no such table."""
    write_folder(tmp_path)
    assert copied(read_report(tmp_path)) == [] and "What copies cost" not in render(read_report(tmp_path))
    parts = {"saved": 2e12, "evicted_unused": 3e12, "evicted_used": 1e12, "held": 4e12}
    changes = {f"copies_{name}_bytes": n_bytes for name, n_bytes in parts.items()}
    write_folder(tmp_path, changes=changes | {"decode_ns": 8e6, "decode_steps": 4})
    found = copied(read_report(tmp_path))
    assert {each.run.policy for each in found} == {"pred", "allo+pred"}
    assert {each.saved for each in found} == {2e12}
    assert {(each.evicted_unused, each.evicted_used, each.decode_step_ns) for each in found} == {(3e12, 1e12, 2e6)}
    page = render(read_report(tmp_path))
    assert "What copies cost and save" in page and page.count("4.00\u00a0TB</td>") == len(found)


def test_numbers_are_written_for_people():
    assert [significant(value) for value in (1234.5, 12.345, 0.0123, 0, 999.9, 0.99996, 99.99)] == [
        "1,234", "12.3", "0.0123", "0", "1,000", "1.00", "100"
    ]
    assert [prefixed(value) for value in (4.35e12, 33, 0)] == ["4.35\u00a0T", "33", "0"]
    assert scaled(1.24e12, BYTE_UNITS) == "1.24\u00a0TB"
    assert scaled(-42300.0, ((1e3, "µs"), (1.0, "ns"))) == "−42.3\u00a0µs"  # a minus, no hyphen
    assert (factor(5.3), plain_factor(5.3)) == ("5.30×", "5.3×")
    assert [signed_percent(change).replace("\u00a0", " ") for change in (0.031, -0.0042, 0)] == [
        "+3.1 %", "−0.42 %", "0 %"
    ]
