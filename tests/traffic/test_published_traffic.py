"""Published statistics of routing: what they measure, what they exclude, and traffic that is fitted to them."""

import re
from pathlib import Path

import numpy as np
import pytest

from archsim.base.config_files import named_files
from archsim.base.errors import SpecError, TraceError
from archsim.cli.main import main
from archsim.specs.library import load_model
from archsim.specs.workload import SyntheticSpec
from archsim.traffic.preset_files import fit_preset
from archsim.traffic.published import STATISTICS, PublishedStatistic, measure_statistics, read_published
from archsim.traffic.trace import Trace
from archsim.traffic.traffic_head import write_head
from archsim.traffic.traffic_heads import TrafficStatistics, read_head
from archsim.traffic.traffic_presets import generated_traffic, load_traffic
from archsim.traffic.traffic_published import sample_of

# Two layers of five experts, top-2; a prompt of three tokens and two decode steps, and the same request again.
LAYERS = [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 2], [2, 4]], [[0, 1], [2, 3]], [[0, 3], [2, 3]]]


# Loads of layer 0: 10, 6, 2, 2, 0; of prompts 6, 4, 2, 0, 0, of decode steps 4, 2, 0, 2, 0. Of layer 1: 0, 0, 10, 8, 2;
# of prompts 0, 0, 6, 4, 2, of decode steps 0, 0, 4, 4, 0.


def trace():
    return Trace(
        experts=np.array(LAYERS * 2, np.int16), request_offsets=np.array([0, 5, 10]),
        iteration=np.array([0, 0, 0, 1, 2] * 2, np.int16), layer_ids=np.arange(2, dtype=np.int32), num_experts=5,
        top_k=2, model="m", source="s", request_subject=np.zeros(2, np.int16), subject_names=("a",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statistic", "at", "value"),
    [
        ("load_top20", 0, 0.5),  # one expert of five
        ("max_over_mean", 0, 2.5),
        ("top2_share_most", 0, 0.9),
        ("top_prefill_in_decode", 1, 1.0),
        ("popularity_accuracy", 0, (0.8 + 0.9) / 2),  # experts 0 and 1; 2 and 3
        ("path_accuracy", 1, 0.5),  # 2 follows always; then the lowest id
    ],
)
def test_a_statistic_is_what_it_says(statistic, at, value):
    found = STATISTICS[statistic].of_trace(trace(), at)
    assert found == pytest.approx(value)
    assert STATISTICS[statistic].low <= found <= STATISTICS[statistic].high


def test_what_is_dropped_counts_each_phase_by_its_own_loads():
    # above 2 × the mean: of prompts 6 − 4.8 of 12 in either layer; of decode steps 4 − 3.2 of 8, twice in layer 1
    prompts, decode = 1.2 / 12, np.mean([0.8 / 8, 1.6 / 8])
    assert STATISTICS["dropped"].of_trace(trace(), 2.0) == pytest.approx(0.6 * prompts + 0.4 * decode)


ROW = '- {{statistic: {}, value: {}, interval: [{}, {}], source: "A paper", place: "3"}}\n'


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([("load_top20", 0.15, 0.14, 0.16)], (3, 3)),  # a fifth of the experts has at least a fifth
        ([("load_top20", 0.6, 0.5, 0.7), ("max_over_mean", 2, 1.9, 2.1)], (3, 4)),  # at most 0.2 · 2
        ([("load_top20", 0.6, 0.59, 0.61), ("gini", 0.2, 0.19, 0.21)], (3, 4)),  # at least 0.4
        ([("gini", 0.2, 0.19, 0.21), ("gini", 0.3, 0.29, 0.31)], (3, 4)),
        ([("max_over_mean", 5, 4, 6), ("max_over_mean_most", 3, 2, 3.5)], (3, 4)),
    ],
)
def test_statistics_that_exclude_each_other_are_refused_with_both_lines(rows, lines, tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text("model: olmoe-1b-7b\npublished:\n" + "".join(ROW.format(*row) for row in rows))
    assert main(["trace", "fit", str(file), "--out", str(tmp_path / "x.yaml")]) == 2
    told = capsys.readouterr().err
    assert [int(line) for line in re.findall(r"bad\.yaml:(\d+): published", told)] == [*lines]
    assert not (tmp_path / "x.yaml").exists()


def test_a_source_without_a_place_is_refused_with_both_lines(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "model: m\npublished:\n- statistic: gini\n  value: 0.3\n  interval: [0.2, 0.4]\n  source: A paper\n"
    )
    with pytest.raises(SpecError, match=r"(?s)bad\.yaml:6: published\.0\.source.*place.*bad\.yaml:3: published\.0"):
        read_published(file)


@pytest.mark.parametrize("name", sorted(named_files("traffic")))
def test_a_preset_lists_what_it_misses(name):
    """A statistic is inside its interval, or the file says by how much it is not."""
    head, _ = read_head(named_files("traffic")[name])
    assert head.published
    for each in head.published:
        assert each.generated is not None
        assert each.miss == (None if (miss := each.miss_of(each.generated)) is None else pytest.approx(miss, abs=1e-4))


MEASURED = ("olmoe-1b-7b", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("mixtral-8x7b", "deepseek-v3")))


@pytest.mark.parametrize("name", MEASURED)
def test_a_preset_gives_what_it_lists_and_meets_what_is_printed(name):
    head, _ = read_head(named_files("traffic")[name])
    again = measure_statistics(head.published, sample_of(load_traffic(name, load_model(name))))
    for listed, now in zip(head.published, again, strict=True):
        assert now.generated == pytest.approx(listed.generated, rel=1e-3), listed.label
    printed = [each for each in again if each.how == "printed"]
    assert printed and all(each.miss is None for each in printed)


def test_a_fit_meets_printed_statistics_and_predicts_one_that_it_has_not_seen(tmp_path, monkeypatch):
    """Made by a known skew: the statistics of its traffic give it back, and what is held out comes close."""
    monkeypatch.setattr("archsim.traffic.traffic_published.SAMPLE_REQUESTS", 24)
    model, true = load_model("mixtral-8x7b"), {"popularity_skew": 0.5}
    head, _ = read_head(named_files("traffic")["mixtral-8x7b"])
    assert isinstance(head, TrafficStatistics)
    rows = [PublishedStatistic(statistic=name, at=at, value=1.3, interval=(None, None), source="made", place="here")
            for name, at in (("max_over_mean", None), ("gini", None), ("dropped", 1.5))]  # fmt: skip
    made = tmp_path / "made.yaml"
    source = head.model_copy(update=true | {"published": ()})
    write_head(source, None, made, made, model.name)
    values = measure_statistics(tuple(rows), sample_of(load_traffic(str(made), model)))
    file = tmp_path / "published.yaml"
    file.write_text("model: mixtral-8x7b\npublished:\n" + "".join(
        f"- {{statistic: {each.statistic}, {f'at: {each.at}, ' if each.at else ''}value: {each.generated}, interval: "
        f"[{each.generated * 0.995}, {each.generated * 1.005}], source: made, place: here}}\n" for each in values
    ))  # fmt: skip
    out = tmp_path / "out.yaml"
    command = ["trace", "fit", str(file), "--hold-out", "gini", "--out", str(out)]
    assert main(command) == 0
    found = {each.statistic: each for each in read_head(out)[0].published}
    assert found["max_over_mean"].miss is None and found["gini"].held_out
    assert found["gini"].generated == pytest.approx(found["gini"].value, rel=0.05)
    with pytest.raises(TraceError, match="ginni.*did you mean 'gini'"):
        fit_preset(str(file), model, out, 0, None, ["ginni"])


def test_runs_begin_where_loads_are_settled_and_otherwise_where_answers_do():
    model = load_model("gpt-oss-20b")

    def active(phase, step):
        spec = SyntheticSpec(like="gpt-oss-20b", prompt_tokens=0, requests=32, phase=phase)
        source = generated_traffic(model, spec, 32, layers=4)
        for piece in source.steps(np.arange(32), step):
            if piece.iteration == step:
                return np.mean([len(np.unique(piece.experts[:, layer])) for layer in range(4)])

    assert active("start", 2) < 10 and active("settled", 1) > 20
    assert active("settled", 1) == pytest.approx(active("settled", 30), rel=0.15)


def test_the_phase_is_of_presets(tmp_path: Path):
    with pytest.raises(ValueError, match="phase"):
        SyntheticSpec(phase="start")
