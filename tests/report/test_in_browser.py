"""The pages of a sweep in a real browser: what is folded, what a click tells, and that nothing is cut at 400 px."""

import pytest
from support.browser import chromium, run_in
from support.examples import sampled
from support.report_folder import write_folder

from archsim.report.page import PAGES, write_report
from archsim.specs.library import load_assumptions

MOST_WORDS = 4000  # visible at first


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    chromium()
    folder = write_folder(
        tmp_path_factory.mktemp("browser"), models=("deepseek-v3", "qwen3-235b-a22b"), batches=(4096, 16384),
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
