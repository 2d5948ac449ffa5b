"""Output that commands share: tables, notes, and where an interrupted command resumes."""

from archsim.base.answer import Answer, Grid
from archsim.base.errors import spaced
from archsim.cli.printing import print_answer
from archsim.show.rendering import render

GIVEN = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"}, "engine": "none",
    "requests": {
        "arrivals": {"rate": "2/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 60,
        "sessions": {"turns": {"uniform": [1, 5]}, "think": "1 s", "think_cv": 1},
    },
    "slo": {"ttft": "1 s", "tpot": "50 ms"},
}  # fmt: skip


def test_json_says_why(tmp_path, monkeypatch):
    import yaml

    from archsim.cli.main import main

    lines = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("archsim.cli.printing.print_json", lines.append)
    given = {**GIVEN, "scheduler": {"name": "vllm_v1", "max_num_seqs": 1}}
    requests = {"concurrency": 4, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 12}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**given, "requests": requests}))
    assert main(["serve", str(tmp_path / "mine.yaml"), "--json", "--samples", "0"]) == 0
    (row,) = lines[0]["rows"]
    assert "a rank runs at most 1 request at a time" in row["why_slow"][0] and row["why_slow"][0] in row["notes"]


def test_a_percentage_has_a_blank_where_people_read_it(capsys, tmp_path):
    lines = ["71% of 3", "report: out/50%/index.html"]
    shown = Answer([*lines, Grid(("6%",), [("8%", "1")], ("7%",), title="5% of it")], ["a share of 9.5%"])
    print_answer(shown)
    out, err = capsys.readouterr()
    for text in (out, shown._repr_html_()):
        assert all(f"{each}\u00a0%" in text for each in (71, 8, 6, 7, 5)) and "out/50%/index.html" in text
    assert "9.5\u00a0%" in err and all(spaced(each) == each for each in ("a%20b", "50%.csv", "not '5%'"))
    page = (
        "<p style='width: 9%'>{{ text }}</p><a href='{{ text }}'></a><code class='a'>run {{ text }}</code>8% <b>x</b>"
    )
    (tmp_path / "page.j2").write_text(page)
    made = render("page.j2", {"text": "5% left"}, folder=tmp_path)
    assert made == page.replace("{{ text }}", "5% left").replace(">5%", ">5\u00a0%").replace("8%", "8\u00a0%")
