# ruff: noqa: E501  (one row a case: a table is read across)
"""Kinds of attention: published geometry by hand, what their work obeys, hybrids by layer, and a user's own kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples, sampled

from archsim.base.errors import SpecError
from archsim.iteration.attention import DECODE, PHASES, PREFILL
from archsim.iteration.layers import count_operators, program
from archsim.iteration.times import batches_of, iteration_laws, iteration_times
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.model.attention import KINDS, read_kind
from archsim.model.spec import ModelSpec
from archsim.specs.deployment import Parallelism, refuse_uneven
from archsim.specs.library import load_model

INDEXER = {"index_heads": 64, "index_head_dim": 128, "index_topk": 2048}
MLA = {"heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
       "v_head_dim": 128}  # fmt: skip
V4 = {"heads": 64, "head_dim": 512, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "window": 128}
# Keys, hidden size; bytes a token, of a state, and weights of one attention. Sources: config.json and modeling files.
GEOMETRY = {
    "grouped": ({"heads": 64, "kv_heads": 4, "head_dim": 128}, 4096, 2048, 0, 4096 * 128 * (64 + 64 + 8)),
    "latent": (MLA, 7168, 1152, 0, 187105280),  # DeepSeek-V3's tensors, but for norms
    "sparse": (MLA | INDEXER, 7168, 1152 + 132, 0, 187105280 + 13959168),
    "block_sparse": ({"heads": 64, "kv_heads": 4, "head_dim": 128} | INDEXER, 4096, 2048 + 256, 0, 4096 * 128 * (64 + 64 + 8) + 4096 * (65 * 128 + 64)),
    "compressed": (V4 | {"ratio": 128}, 4096, 1032, 0, 4096 * (1024 + 512 + 1024) + 1024 * 32768 + 1024 * 32768 + 8192 * 4096),
    "gated_delta_net": ({"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128}, 2048, 0, 39_518_208 // 36, 2048 * (8192 + 4096 + 64) + 8192 * 4 + 4096 * 2048),
    "kda": ({"heads": 32, "head_dim": 128}, 2304, 0, 3 * 4096 * 3 * 2 + 4096 * 128 * 4, 2304 * (3 * 4096 + 2 * 128 + 32) + 2 * 128 * 4096 + 3 * 4096 * 4 + 4096 * 2304),
    "lightning": ({"heads": 64, "head_dim": 128}, 6144, 0, 146_800_640 // 70, 5 * 6144 * 8192),
    "short_conv": ({"width": 2048}, 2048, 0, 2048 * 2 * 2, 2048 * 4 * 2048 + 2048 * 3),
    "mamba": ({"inner": 8192, "state": 16, "dt_rank": 256}, 4096, 0, 8192 * (3 + 16) * 2, 4096 * 16384 + 8192 * (256 + 32) + 256 * 8192 + 8192 * 4096 + 8192 * (4 + 16)),
    "mamba2": (
        {"heads": 64, "head_dim": 64, "groups": 8, "state": 128, "state_value_bytes": 4}, 2688, 0, 49_082_368 // 23,
        2688 * (2 * 4096 + 2 * 1024 + 64) + 6144 * 4 + 4096 * 2688,
    ),
}  # fmt: skip
SMALL = {"name": "small", "source": "made up", "layers": 4, "moe_layers": {"first": 0, "last": 3}, "hidden": 1024,
         "expert_ffn": 512, "experts": 8, "top_k": 2, "vocabulary": 1000}  # fmt: skip


def kind_of(name):
    return read_kind({"kind": name, **GEOMETRY[name][0]})


def test_every_kind_has_a_case():
    assert set(GEOMETRY) == set(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_bytes_and_weights_by_hand(name):
    _, hidden, kv_bytes, state_bytes, weights = GEOMETRY[name]
    kind = kind_of(name)
    found = kind.kv_bytes_per_token(), kind.state_bytes, kind.weights(hidden)
    assert found == (kv_bytes, state_bytes, weights)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(30))
@given(phase=st.sampled_from(PHASES), before=st.integers(0, 10**5), new=st.integers(1, 8192), more=st.integers(1, 4000))
def test_more_work_with_more_context_and_requests(name, phase, before, new, more):
    kind, new = kind_of(name), 1 if phase == DECODE else new
    less = np.array(kind.work(phase, 1, 2, new, before + new, "bf16"))
    later = np.array(kind.work(phase, 1, 2, new, before + new + more, "bf16"))
    twice = np.array(kind.work(phase, 1, 4, new, before + new, "bf16"))
    assert (less > 0).all() and (later >= less - 1e-6 * less).all()
    assert twice == pytest.approx(2 * less)
    assert (np.array(kind.work(phase, 4, 2, new, before + new, "bf16")) <= less).all()


@pytest.mark.parametrize("name", KINDS)
def test_weights_of_ranks_sum_to_the_whole(name):
    kind, hidden = kind_of(name), GEOMETRY[name][1]
    whole = sum(each.n * each.k for each in kind.products(hidden, 1))
    split = sum(each.n * each.k for each in kind.products(hidden, 2))
    assert whole / 2 <= split < whole


def test_sparse_work_stops_growing_with_what_is_chosen():
    """Beyond 2048 tokens only the indexer's work grows: 2 x 64 x 128 FLOP and 132 bytes a token."""
    kind = kind_of("sparse")
    near, far = (kind.work(DECODE, 1, 1, 1, context, "bf16") for context in (4096, 8192))
    assert far.flop - near.flop == 4096 * 2 * 64 * 128
    assert far.moved_bytes - near.moved_bytes == 4096 * 132


def test_every_latent_model_has_its_own_work():
    other = read_kind({**MLA, "kv_lora_rank": 256, "heads": 64, "v_head_dim": 256, "qk_nope_head_dim": 192})
    flop = [kind.work(PREFILL, 1, 1, 1, 1, "bf16").flop for kind in (kind_of("latent"), other)]
    assert flop == [2 * 128 * (192 + 128), 2 * 64 * (256 + 256)]


def test_a_hybrid_is_a_list_by_layer(tmp_path):
    grouped = {"kind": "grouped", "heads": 8, "kv_heads": 2, "head_dim": 64}
    delta = {"kind": "gated_delta_net", "k_heads": 4, "v_heads": 8, "k_dim": 64, "v_dim": 64}
    model = ModelSpec(**SMALL, attention=[delta, grouped | {"layers": [3]}])
    [(first, three), (last, one)] = model.attention_layers
    assert (first.kind, three, last.kind, one) == ("gated_delta_net", 3, "grouped", 1)
    assert iteration_laws(model, calibration_named("h200"), experts=None).notes == ()
    assert model.kv_bytes_per_token() == 2 * 2 * 64 * 2
    assert model.state_bytes == 3 * ((2 * 256 + 512) * 3 * 2 + 8 * 64 * 64 * 2)
    assert ModelSpec.model_validate(model.model_dump(mode="json")) == model
    with pytest.raises(SpecError, match="tp 8 .*4 heads.*4 or 2"):
        refuse_uneven(model, Parallelism(tp=8, ep=8))


def test_what_was_not_measured_is_a_roofline_and_says_so():
    lightning = {"kind": "lightning", "heads": 8, "head_dim": 64}
    model = ModelSpec(**SMALL, attention=lightning)
    laws = iteration_laws(model, calibration_named("h100"), experts=None)
    times = iteration_times(laws, batches_of([1, 1, 1], [2000, 3000, 4000]))
    assert times.ns["attention"] > 0 and 0 < times.extrapolated <= 1
    assert [note.startswith("lightning attention") and "roofline" in note for note in laws.notes] == [True]


MEASURED = ["sparse", "block_sparse", "compressed", "gated_delta_net", "kda"]


@pytest.mark.parametrize(
    "gpu", sampled(["h100", "h200", "b200", "gb200", "b300", "gb300"], lambda gpu: gpu[-4:] == "h100" or gpu == "gb200")
)
@pytest.mark.parametrize("name", MEASURED)
def test_measured_kinds_grow_with_requests_and_context(name, gpu):
    kind, hidden, laws = kind_of(name), GEOMETRY[name][1], Laws(calibration_named(gpu))
    for phase, new in ((DECODE, 1), (PREFILL, 512)):
        times = kind.times(laws, phase, hidden)
        assert times.library == "vllm" and not times.note and times.whole == (name not in ("gated_delta_net", "kda"))
        grid = times.ns(np.array([1, 2, 8, 32])[:, None], new, np.array([512, 1024, 2048, 4096, 32768]))
        assert (np.diff(grid, axis=0) >= 0).all() and (np.diff(grid, axis=1) >= 0).all() and (grid > 1e3).all()
        assert times.ns(0, new, 512) == 0 and times.outside(10**6, 512)


def test_what_a_gpu_lacks_comes_from_the_nearest_that_has_it_and_is_flagged():
    """Mamba-2's scan was measured on B200 alone; B300 without tables of its own takes B200's or GB200's, at its rates."""
    times = kind_of("mamba2").times(Laws(calibration_named("h100")), PREFILL, 2688)
    assert times.library == "trtllm" and "the curve of b200" in times.note and times.outside(1, 512)
    b300 = calibration_named("b300")
    for name in MEASURED:
        own, kind = Laws(b300), kind_of(name)
        without = Laws(b300.model_copy(update={"blocks": ()}))
        for phase, new in ((DECODE, 1), (PREFILL, 2048)):
            mine, theirs = (kind.times(each, phase, GEOMETRY[name][1]) for each in (own, without))
            assert not mine.outside(8, 4096) and theirs.outside(8, 4096) and "the curve of b200" in theirs.note
            if name != "block_sparse":  # B200's law has no step at 2,048 tokens, where B300's kernels change
                assert theirs.ns(8, new, 4096) == pytest.approx(mine.ns(8, new, 4096), rel=0.3)


def test_few_tokens_of_a_prompt_take_the_floor_of_their_library():
    """The host launches a sparse block of vLLM kernel by kernel: 1.7 ms on B200 (the set's README), 2 times more on
    GB300, however few tokens there are; TensorRT-LLM's takes 0.1 ms."""
    kind, at = kind_of("sparse"), (1, np.array([1, 16, 64]), 64)
    for library, gpu, low, high in (
        ("vllm", "b200", 1.1e6, 2.5e6), ("vllm", "gb300", 2.2e6, 5e6), ("trtllm", "b200", 6e4, 1.6e5)
    ):  # fmt: skip
        found = kind.times(Laws(calibration_named(gpu)), PREFILL, 7168, library=library).ns(*at)
        assert (found > low).all() and (found < high).all()


def test_blocks_of_unseen_heads_are_within_twenty_percent():
    """Of most tables; prompts of SGLang's sparse blocks are bound by the host (the set's README) and miss it."""
    gpus = "h100", "h200", "b200", "gb200", "b300", "gb300"
    tables = [table for gpu in gpus for table in calibration_named(gpu).blocks]
    good = [table for table in tables if abs(table.unseen.p50) < 0.1]
    assert len(tables) > 150 and len(good) > 0.9 * len(tables)


@pytest.mark.parametrize(
    ("attention", "problem"),
    [
        ([{"layers": [0, 1]}, {"layers": [1]}], "layer 1 "),
        ([{"layers": [7]}], "layer 7 .*0 to 3"),
        ([{}, {}], "one entry alone may have the remaining layers"),
        ([{"layers": [1, 1]}], "a layer is listed twice"),
    ],
)
def test_layers_that_do_not_fit_are_refused(attention, problem):
    grouped = {"heads": 8, "kv_heads": 2, "head_dim": 64}
    with pytest.raises(ValueError, match=problem):
        ModelSpec(**SMALL, attention=[grouped | each for each in attention])


OWN = '''
import numpy as np

from archsim.iteration.attention import Kind, Product, Work


class Averaged(Kind):
    """Every head averages its values: one key and value a token, whatever the heads."""

    width: int

    @property
    def split_heads(self):
        return 64

    def weights(self, hidden):
        return 2 * hidden * self.width

    def kv_bytes_per_token(self, value_bytes=2):
        return self.width * value_bytes

    def products(self, hidden, tp):
        return Product(self.width, hidden), Product(hidden, self.width, back=True)

    def work(self, phase, tp, requests, new, context, kv_dtype):
        seen = np.asarray(requests, float) * context
        return Work(2.0 * seen * self.width, 2.0 * seen * self.width)
'''


def test_a_user_adds_a_kind_in_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_attention.py").write_text(OWN, encoding="utf-8")
    model = ModelSpec(**SMALL, attention={"kind": "own_attention:Averaged", "width": 256})
    assert model.kv_bytes(1000) == 4 * 1000 * 512 and model.attention_weights == 4 * 2 * 1024 * 256
    assert [each.n for each in count_operators(program(model, Parallelism())) if each.cause == "projections"] == [
        256,
        1024,
    ]
    laws = iteration_laws(model, calibration_named("h100"), experts=None)
    assert iteration_times(laws, batches_of([1], [4096])).ns["attention"] > 0


def test_shipped_models_keep_their_windows():
    model = load_model("gpt-oss-20b")
    assert [(kind.window, layers) for kind, layers in model.attention_layers] == [(128, 12), (None, 12)]
    assert model.kept_bytes_per_token() == 12 * 2048 and model.kv_bytes_per_token() == 24 * 2048
