"""The pages of a sweep in a real browser: what is folded, what a click tells, and that nothing is cut at 400 px."""

import json
import re
from itertools import product

import numpy as np
import pytest
from support.browser import chromium, run_in
from support.examples import sampled
from support.report_folder import write_folder

from archsim.base.tables import Table
from archsim.questions.exploration.candidates import Candidate, Exploration
from archsim.questions.exploration.page import render_points
from archsim.runs.columns import STEP_COLUMNS
from archsim.runs.results import Results, write_frames
from archsim.show.page import PAGES, write_report
from archsim.show.plot_parts import TEMPLATES
from archsim.show.plots import RAMP
from archsim.show.profile_page import heatmap
from archsim.show.report import Report
from archsim.specs.explore import ExploreSpec
from archsim.specs.library import load_assumptions

MOST_WORDS = 4000  # visible at first


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    chromium()
    folder = write_folder(
        tmp_path_factory.mktemp("browser"),
        models=("deepseek-v3", "qwen3-235b-a22b"),
        batches=(4096, 16384),
        assumptions=(load_assumptions("published"), load_assumptions("physical")),
    )
    return write_report(folder)


def test_few_words_are_visible_at_first(page):
    script = "return [document.body.innerText.split(/\\s+/).length, document.querySelectorAll('.q[open]').length]"
    found = run_in(page, script)
    assert 100 < found[0] <= MOST_WORDS and found[1] == 0


@pytest.mark.parametrize("name", sampled(PAGES, lambda name: name == "index.html"))
def test_nothing_is_cut_at_400_px(page, name):
    """With everything unfolded; what is wider scrolls inside its own frame."""
    script = """for (const each of document.querySelectorAll("details")) each.open = true;
    const frames = ".wide, nav, figure, noscript";
    const cut = [...document.querySelectorAll("main *")].filter((each) => !each.closest("svg svg *")
      && each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(frames));
    return [document.documentElement.scrollWidth <= innerWidth, cut.map((each) => each.outerHTML.slice(0, 80))];"""
    assert run_in(page.with_name(name), script, width=400) == [True, []]


@pytest.mark.nightly
def test_the_index_stays(page):
    assert run_in(page, "scrollTo(0, 600); return document.querySelector('nav').getBoundingClientRect().top") >= 0


def test_a_figure_is_drawn_and_a_choice_holds_for_all(page):
    """The first figure has a bar for every run that is chosen; figures have the width of the page."""
    script = """const figures = [...document.querySelectorAll("figure.plot")];
    for (const each of document.querySelectorAll("details")) each.open = true;
    return [figures.length, document.querySelectorAll("noscript").length, typeof vegaEmbed,
      figures.every((each) => each.clientWidth > 1000)];"""
    count, fallbacks, library, wide = run_in(page, script)
    assert count == fallbacks >= 10 and library == "function" and wide


@pytest.mark.nightly
def test_an_index_entry_unfolds_its_section(page):
    script = "location.hash = '#balance'; unfold(); return document.querySelector('#balance details').open"
    assert run_in(page, script) is True


def test_a_filter_leaves_rows_with_all_its_words(page):
    script = """const field = document.querySelector("input.filter");
    field.value = "allo+pred physical 16,384"; field.dispatchEvent(new Event("input"));
    const rows = [...document.querySelectorAll("#results tbody tr")];
    return rows.filter((row) => !row.hidden).map((row) => row.cells[3].innerText)"""
    assert run_in(page.with_name("results.html"), script) == ["allo+pred"] * 2


@pytest.mark.nightly
def test_the_filter_of_the_glossary_leaves_words_with_their_meaning(page):
    script = """const field = document.querySelector("input.filter");
    const shown = () => ["dt", "dd"].map((name) =>
      [...document.querySelectorAll(name)].filter((each) => each.getClientRects().length).length);
    const type = (words) => { field.value = words; field.dispatchEvent(new Event("input")); return shown(); };
    return [shown(), type("link"), type("zzzz")]"""
    every, some, none = run_in(page.with_name("glossary.html"), script)
    assert none == [0, 0] and 0 < some[0] == some[1] < every[0] == every[1]


def test_drawn_figures_fit_a_phone_and_can_be_used_by_the_keyboard(page):
    """At 390 px: nothing is cut, what a click highlights is also in a list, and the numbers unfold as a table."""
    script = """for (const each of document.querySelectorAll("details")) each.open = true;
    const figures = [...document.querySelectorAll("#answer figure, #bounds figure")];
    for (const figure of figures) await drawn(figure);
    const bar = figures[0].querySelectorAll("g.mark-rect path"), faint = () => [...bar].filter((each) =>
      Number(each.getAttribute("opacity")) < 1).length;
    const list = [...figures[0].querySelectorAll("select")].find((each) => each.name.startsWith("pick_"));
    list.selectedIndex = 1;
    for (const name of ["input", "change"]) list.dispatchEvent(new Event(name));
    await new Promise((done) => setTimeout(done, 500));
    const numbers = figures[0].querySelector("details.numbers");
    numbers.open = true;
    await new Promise((done) => setTimeout(done, 50));
    return [figures.length, faint() > 0, numbers.querySelectorAll("tr").length,
      document.documentElement.scrollWidth <= innerWidth];"""
    count, highlighted, rows, fits = run_in(page, script, width=390)
    assert count >= 3 and highlighted and rows > 2 and fits


# Per figure what is wrong with it: wider than its column, labels outside of it, a name that is not its question.
MEASURED = """for (const each of document.querySelectorAll("details")) each.open = true;
    const wrong = [];
    for (const figure of document.querySelectorAll("figure.plot")) {
      const box = (await drawn(figure)).getBoundingClientRect(), svg = figure.querySelector("svg.marks");
      const question = figure.querySelector("figcaption").textContent, all = svg?.getBoundingClientRect();
      if (!svg) { wrong.push([question, "not drawn", figure.dataset.drawn ?? ""]); continue; }
      if (all.right > box.right + 1) wrong.push([question, "wide", all.right - box.right]);
      if (!svg.getAttribute("aria-label").startsWith(question)) wrong.push([question, svg.getAttribute("aria-label")]);
      for (const each of svg.querySelectorAll("text")) {
        const own = each.getBoundingClientRect();
        if (each.textContent && (own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > all.bottom + 1))
          wrong.push([question, each.textContent]);
      }
    }
    return [document.querySelectorAll("figure.plot").length, wrong];"""


@pytest.mark.parametrize("width", (1440, 390))
def test_no_figure_is_wider_than_its_column_and_each_is_named_by_its_question(page, designs, width):
    found = run_in(page, MEASURED, width)
    assert isinstance(found, list), found
    count, wrong = found
    assert count >= 10 and wrong == []
    count, wrong = run_in(designs, MEASURED, width)
    assert count >= 6 and wrong == []


@pytest.fixture(scope="module")
def designs(tmp_path_factory):
    """The page of a sweep over one key, with effects of a factor of 20."""
    levels, policies = ("0.5 TB/s", "1 TB/s", "20 TB/s"), ("base", "ep")
    points = []
    for at, (level, policy) in enumerate(product(levels, policies)):
        rate = float(level.split()[0]) * (1e6 + 1e5 * at)
        values = {"throughput": rate, "energy": 1e-3 * (1 + at), "cost": 3e4 + at}
        axes = {"policy": policy, "system.d2d.bandwidth": level}
        band = (0.7 * rate, 1.2 * rate)
        points.append(Candidate(at, axes, values, values, "event", at > 2, True, ("hbm", 0.5), band, "", "m"))
    spec = ExploreSpec(objectives=["throughput", "energy", "cost"])
    found = Exploration("made", spec, tuple(points), 6, {}, 0, True, (), ("physical",), (), {"m": ((1,), 1)})
    folder = tmp_path_factory.mktemp("designs")
    (folder / "index.html").write_text(render_points(found, [], folder), encoding="utf-8")
    return folder / "index.html"


def test_a_click_on_the_legend_highlights_in_every_figure(page):
    script = """for (const each of document.querySelectorAll("details")) each.open = true;
    const figures = [...document.querySelectorAll("figure.plot")].slice(0, 2);
    for (const figure of figures) await drawn(figure);
    click(figures[0].querySelector(".role-legend-label text"));
    await new Promise((done) => setTimeout(done, 500));
    return figures.map((figure) => [...figure.querySelectorAll("g.mark-rect path")].some((each) =>
      Number(each.getAttribute("opacity")) < 1));"""
    assert run_in(page, script, 1440) == [True, True]


def test_the_front_of_three_objectives_has_no_line_and_one_key_has_a_band_a_policy(designs):
    text = designs.read_text(encoding="utf-8")
    specs = [json.loads(each) for each in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    marks = [[layer["mark"]["type"] for layer in spec.get("spec", spec)["layer"]] for spec in specs]
    assert marks[0][:2] == ["area", "line"] and specs[0]["description"].startswith("How does d2d.bandwidth change")
    for spec in specs[1:3]:  # no interval leaves the figure
        scale, rows = spec["layer"][-1]["encoding"]["y"]["scale"], spec["datasets"]["rows"]
        low, high = (sorted(row[rows["columns"].index(name)] for row in rows["rows"]) for name in ("low", "high"))
        assert scale["domainMin"] <= low[0] and scale["domainMax"] >= high[-1]
    assert all("line" not in each for each in marks[1:]) and all("curves" not in spec["datasets"] for spec in specs)


# ---- contrast


def _schemes():
    """The colours of the light and of the dark scheme: name → (red, green, blue), from 0 to 1."""
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    roots = re.findall(r":root \{(.*?)\}", css, re.S)
    light, dark = (dict(re.findall(r"(--[\w-]+): ([^;]+);", each)) for each in roots)
    for scheme in (light, light | dark):
        colours = {name: value for name, value in scheme.items() if re.fullmatch(r"#[0-9a-f]{6}", value)}
        rgb = {name: [int(value[at : at + 2], 16) / 255 for at in (1, 3, 5)] for name, value in colours.items()}
        yield rgb, float(scheme["--on-dark-from"])


def _contrast(one, other):
    """Of two colours, as WCAG 2.2 defines it: 1 to 21."""
    high, low = sorted(
        (
            sum(
                weight * (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4)
                for weight, each in zip((0.2126, 0.7152, 0.0722), colour, strict=True)
            )
            for colour in (one, other)
        ),
        reverse=True,
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("colours", "dark_from"), list(_schemes()), ids=("light", "dark"))
def test_text_has_a_contrast_of_at_least_4_5(colours, dark_from):
    texts = ("--ink", "--soft", "--link", "--good", "--bad", "--warn")
    low = [
        (text, ground) for text in texts for ground in ("--page", "--shade")
        if _contrast(colours[text], colours[ground]) < 4.5
    ]  # fmt: skip
    assert low == []
    ramp = [colours[name] for name in RAMP]
    for shade in np.linspace(0, 1, 201):
        at = min(int(shade * 4), 3)
        under = [a + (b - a) * (4 * shade - at) for a, b in zip(ramp[at], ramp[at + 1], strict=True)]
        assert _contrast(colours["--on-dark" if shade > dark_from else "--on-light"], under) >= 4.5, shade
    for name, opacity in (("up", (18, 34, 50, 70)), ("down", (18, 34, 50, 70))):
        tint = {"up": (0, 158, 115), "down": (213, 94, 0)}[name]
        for percent in opacity:
            share = percent / 100
            over = zip(tint, colours["--page"], strict=True)
            under = [share * each / 255 + (1 - share) * ground for each, ground in over]
            assert _contrast(colours["--ink"], under) >= 4.5, (name, percent)


# ---- the timeline of layer-steps chooses what the map, the waterfall and the traffic show


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A page of two policies, whose dies are busy for 10 % of the prefill and 10 % more in every iteration after it. A
    quarter of every layer-step is compute; it reads as many MB as the number of its iteration.
    """
    folder = write_folder(
        tmp_path_factory.mktemp("followed"), policies=("ep", "allo"), assumptions=(load_assumptions("physical"),)
    )
    steps = [
        row | {"bound_compute_ns": 0.25 * row["time_ns"], "bound_hbm_ns": 0.75 * row["time_ns"], "tokens": 100}
        | {"hbm_local_read_bytes": 10**6 * row["step"], "die": row["step"] % 3, "die_tokens": 10}
        for row in Results.load(folder).steps.rows
    ]  # fmt: skip
    Table(STEP_COLUMNS, steps).write_parquet(folder / "steps.parquet")
    links = Report(folder).links
    busy = [0.1 * (at + 1) for at in range(5)]
    frames = {"last": list(range(5)), "time_ns": [1e6] * 5, "tokens": [[1] * 25] * 5, "queue": [[None] * 25] * 5}
    frames |= {name: [[each] * 25 for each in busy] for name in ("hbm", "array")}
    of_links = {key: [[each] * len(own.rows) for each in busy] for key, own in links.items()}
    of_runs = ({"run": key, "frames": frames | {"link": own, "link_queue": own}} for key, own in of_links.items())
    write_frames(folder / "frames.json", of_runs)
    return write_report(folder)


CHOOSE = """for (const each of document.querySelectorAll("details")) each.open = true;
    const named = (name) => document.querySelector(`figure.plot[data-name="${name}"]`);
    const names = ["steps", "dies", "critical_path", "traffic"];
    for (const name of names) await drawn(named(name));
    const marks = (name) => [...named(name).querySelectorAll("g.mark-rect path")];
    const data = (name) => marks(name).map((each) => each.__data__.datum);
    const cell = (iteration, policy) => marks("steps").find(({ __data__: { datum } }) =>
      datum.iteration === iteration && datum.layer === 4 && datum.policy === policy);
    const point = (kind, mark) => mark.dispatchEvent(new PointerEvent(kind, { bubbles: true }));
    const shown = async () => {
      await new Promise((done) => setTimeout(done, 300));
      return {
        told: names.map((name) => named(name).querySelector(".span")?.textContent ?? ""),
        faint: marks("steps").filter((each) => Number(each.getAttribute("opacity") ?? 1) < 1).length,
        dies: [...new Set(data("dies").map((each) => each.value).filter(Number.isFinite))],
        map: named("dies").querySelector("svg").textContent,
        bars: data("critical_path").filter((each) => each.policy === "allo").map((each) => [each.cause, each.label]),
        bytes: data("traffic").filter((each) => each.policy === "allo").map((each) => each.label),
      };
    };
    const found = [await shown()];
"""


def test_what_is_chosen_in_the_timeline_is_what_the_map_the_waterfall_and_the_traffic_show(followed):
    """A click chooses a layer-step, and pulling over iterations all layers of these; a button shows the run again."""
    script = f"""{CHOOSE}
    for (const kind of ["pointerdown", "pointerup"]) point(kind, cell(2, "allo"));
    found.push(await shown());
    point("pointerdown", cell(1, "ep"));
    for (const iteration of [2, 3]) point("pointermove", cell(iteration, "ep"));
    point("pointerup", cell(3, "ep"));
    found.push(await shown());
    named("traffic").querySelector(".span button").click();
    found.push(await shown());
    return found;"""
    before, one, some, after = run_in(followed, script, 1440)
    assert set(before["told"] + after["told"]) == {""} and before["faint"] == after["faint"] == 0
    assert before["bars"] == after["bars"] and before["bytes"] == after["bytes"]
    cells = 2 * 5 * 3  # of two policies, each with a prefill and four decode steps of three layers
    assert set(one["told"]) == {"Layer 4, iteration 2 show the whole run"} and one["faint"] == cells - 2
    assert one["dies"] == pytest.approx([30]) and "layer 4, iteration 2: 3.00" in one["map"]
    assert dict(one["bars"])["multiply"] == "751 ns" and dict(one["bars"])["HBM"] == "2.25 µs"  # of 3,004 ns
    assert set(one["bytes"]) == {"2 MB"}
    assert set(some["told"]) == {"All layers, iterations 1 to 3 show the whole run"} and some["faint"] == 2 * 2 * 3
    assert some["dies"] == pytest.approx([30])
    # 2,000 + 3,000 + 4,000 ns, and as many ns as the numbers of the layers 3, 4 and 5: a mean of 9,012 an iteration
    assert dict(some["bars"])["multiply"] == "2.25 µs" and dict(some["bars"])["HBM"] == "6.76 µs"
    assert set(some["bytes"]) == {"18 MB"}


def test_a_click_on_a_die_leaves_the_layer_steps_whose_most_loaded_die_it_is(followed):
    script = f"""{CHOOSE}
    click(marks("dies").find((each) => each.__data__.datum.die === 1));
    found.push(await shown());
    return [data("steps").filter((each) => [0, 2].includes(each.iteration % 3)).length, found];"""
    others, (before, after) = run_in(followed, script, 1440)
    assert before["faint"] == 0 and after["faint"] == others == 18


def test_a_heatmap_names_the_experts_and_the_layer_where_one_points(tmp_path):
    """Below few columns each has its number."""
    shares = np.arange(12).reshape(2, 6) / 100
    script = (TEMPLATES / "heat.js").read_text(encoding="utf-8")
    style = "<style>img { width: 600px; height: 200px; }</style>"
    page = tmp_path / "index.html"
    images = "".join(f"<figure>{heatmap(shares, of)}</figure>" for of in ((3, 7), ()))
    page.write_text(f"<body>{style}{images}<script>{script}</script></body>", encoding="utf-8")
    told = run_in(
        page,
        """const point = (image, x, y) => { const box = image.getBoundingClientRect();
      image.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y })); };
    const images = [...document.querySelectorAll("img.heat")];
    for (const image of images) point(image, 450, 150);
    return [...document.querySelectorAll(".pointed, .each")].map((each) => each.innerText.replaceAll("\\n", ""));""",
    )
    assert told == ["012345", "expert 4, layer 7: about 0.10", "012345", "expert 4 after or with expert 1: about 0.10"]
