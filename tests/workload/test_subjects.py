"""Traffic of several subjects, a model of each: what is generated is like the subject that is asked for."""

from dataclasses import replace

import numpy as np
import pytest

from archsim.base.errors import TraceError
from archsim.base.yaml import read_yaml
from archsim.specs.library import TRAFFIC, kind_of, load_model
from archsim.specs.workload import SyntheticSpec
from archsim.workload import open_trace, statistics
from archsim.workload import traffic_fit as fit_module
from archsim.workload.generated import collect, own_subjects, subject_figures, traffic_of
from archsim.workload.traffic_presets import fit_preset, generated_traffic, load_traffic, model_of

MODEL = "mixtral-8x7b"
REQUESTS = {"flat": 36, "steep": 40, "few": 5}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A file of three subjects: uniform experts; experts 0 to 2, and all requests begin alike; and 5 requests."""
    draw, folder = np.random.default_rng(1), tmp_path_factory.mktemp("subjects")
    steep = np.concatenate([np.full(3, 0.3), np.full(5, 0.02)])
    rows, lengths = [], []
    for name, count in REQUESTS.items():
        share = steep if name == "steep" else np.full(8, 1 / 8)
        for _ in range(count):
            chosen = np.array([[draw.choice(8, 2, replace=False, p=share) for _ in range(2)] for _ in range(12)])
            if name == "steep":
                chosen[2:5] = (0, 1)
            rows.append(chosen)
            lengths.append(12)
    names = list(REQUESTS)
    np.savez(
        folder / "all.npz", experts=np.concatenate(rows).astype(np.int16),
        request_offsets=np.concatenate([[0], np.cumsum(lengths)]), iteration=np.tile([0, 0, *range(1, 11)], len(rows)),
        layer_ids=np.arange(2), num_experts=8, top_k=2, num_layers_total=2, model=MODEL,
        request_subject=np.repeat(np.arange(3), list(REQUESTS.values())), subject_names=np.array(names),
    )  # fmt: skip
    model = load_model(MODEL)
    two = model.moe_layers.model_copy(update={"last": 1})
    return folder, model.model_copy(update={"layers": 2, "moe_layers": two})


@pytest.fixture(scope="module")
def fitted(recorded):
    folder, model = recorded
    return fit_preset(str(folder / "all.npz"), model, folder / "mine.yaml", 0), open_trace(folder / "all.npz", model)


def drawn(fitted, model, mix, seed=3, requests=40):
    return collect(traffic_of(load_traffic(str(fitted[0]), model), requests, seed, mix))


def test_a_subject_is_generated_as_it_was_recorded(recorded, fitted):
    """Largest load and active experts of the first steps within 10 %, of subjects that differ by half."""
    _, model = recorded
    trace = fitted[1]
    for at, name in enumerate(("flat", "steep")):
        real = subject_figures(statistics.subset(trace, np.flatnonzero(trace.request_subject == at)))
        made = subject_figures(drawn(fitted, model, {name: 1}, requests=REQUESTS[name]))
        for figure in ("largest over mean load", "active experts at step 1", "active experts at step 3"):
            assert made[figure] == pytest.approx(real[figure], rel=0.1), (name, figure)


def test_a_file_states_shares_and_the_spread_between_subjects(recorded, fitted):
    _, model = recorded
    found = load_traffic(str(fitted[0]), model)
    assert list(found.models) == ["flat", "steep"] and found.shares == (36, 40)  # five requests are too few
    assert 30 < found.spread["largest over mean load"] < 60 and found.spread["active experts at step 1"] > 50
    assert kind_of(read_yaml(fitted[0]).data) == TRAFFIC and model_of(str(fitted[0])) == MODEL


def test_an_unknown_subject_is_like_one_of_them(recorded, fitted):
    """By its name: the same each time, and over many names as often as their shares."""
    _, model = recorded
    found = load_traffic(str(fitted[0]), model)
    names = [found.named(f"subject {number}")[0] for number in range(200)]
    assert names == [found.named(f"subject {number}")[0] for number in range(200)]
    assert 60 < names.count("flat") < 130
    made = subject_figures(drawn(fitted, model, {"subject 1": 1}))["largest over mean load"]
    known = subject_figures(drawn(fitted, model, {names[1]: 1}))["largest over mean load"]
    assert made == pytest.approx(known, rel=0.1)


def test_routing_of_a_request_depends_on_its_number_alone(recorded, fitted):
    _, model = recorded
    spec = SyntheticSpec(like=str(fitted[0]), requests=30, seed=5)
    source = generated_traffic(model, spec, 30)
    whole = {}
    for piece in source.steps(np.arange(30), 6):
        for request, experts in zip(piece.request.tolist(), piece.experts, strict=True):
            whole.setdefault(request, []).append(experts.tolist())
    order = np.array([17, 4, 17])
    some = {}
    for piece in source.steps(order, 6):
        assert (np.diff(piece.request) >= 0).all()
        for place, experts in zip(piece.request.tolist(), piece.experts, strict=True):
            some.setdefault(place, []).append(experts.tolist())
    assert [some[place] for place in range(3)] == [whole[int(request)] for request in order]
    assert source.longest(order, 6) == max(len(rows) for rows in some.values())
    assert source.digest != generated_traffic(model, spec.model_copy(update={"seed": 6}), 30).digest


def test_few_requests_a_subject_are_fitted_together(recorded, fitted, monkeypatch):
    trace = fitted[1]
    few = replace(trace, request_subject=np.arange(trace.requests).astype(np.int16) // 9,
                  subject_names=tuple(f"s{number}" for number in range(9)))  # fmt: skip
    assert list(own_subjects(few)) == ["other"]
    monkeypatch.setattr(fit_module, "fit_trace", lambda *args, **_: args)
    assert fit_module.fit_subjects(few, "n", "")[0] is few


def test_files_that_name_one_another_are_refused(recorded, fitted, tmp_path):
    _, model = recorded
    text = f"name: loop\nmodel: {MODEL}\nsource: x\nsubjects: {{a: {{like: loop.yaml, share: 1}}}}\n"
    (tmp_path / "loop.yaml").write_text(text)
    with pytest.raises(TraceError, match=r"loop.yaml:4: subjects.a: .*has subjects, too"):
        load_traffic(str(tmp_path / "loop.yaml"), model)
