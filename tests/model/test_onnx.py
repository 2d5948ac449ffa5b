"""Models from exported graphs: every form in which exporters write MoE layers, at the shapes of real models."""

import csv
import sys
from pathlib import Path

import pytest
from support.onnx_graphs import (
    Builder,
    attention,
    batched,
    fused,
    gathered,
    looped,
    mlp,
    per_expert,
    quantised,
    router,
    switch,
    whole_model,
    without_names,
)

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.model.onnx import import_model
from archsim.specs.library import load_model

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = ("layers", "moe_layer_ids", "hidden", "expert_ffn", "experts", "top_k", "shared_experts", "shared_ffn")


def sizes(spec):
    return {name: getattr(spec, name) for name in SIZES}


def with_shared(layer_of, shared_ffn):
    def make(g, x, layer, model):
        routed = layer_of(g, x, layer, model)
        return g.node("Add", routed, mlp(g, x, f"model.layers.{layer}.mlp.shared_experts", model.hidden, shared_ffn))

    return make


# Model of configs/models → how a layer is written; all layers of the model are in the graph.
FORMS = {
    "DeepSeek-V3, batched, grouped routing, shared expert": (
        "deepseek-v3",
        with_shared(lambda *a: batched(*a, grouped=True), 2048),
    ),
    "Qwen3, fused MoE with three weights": ("qwen3-235b-a22b", fused),
    "Qwen3, fused MoE with gate and up joined": ("qwen3-235b-a22b", lambda *a: fused(*a, joined=True)),
    "OLMoE, QMoE of 4 bits": ("olmoe-1b-7b", quantised),
    "OLMoE, experts by number": ("olmoe-1b-7b", per_expert),
    "Mixtral, experts by number": ("mixtral-8x7b", per_expert),
    "Mixtral, experts by shape": ("mixtral-8x7b", lambda *a: per_expert(*a, named=False)),
    "Mixtral, batched": ("mixtral-8x7b", batched),
    "Llama-4, alternating dense and MoE, joined, shared": (
        "llama-4-maverick",
        with_shared(lambda *a: batched(*a, joined=True), 8192),
    ),
    "OLMoE, a loop over experts": ("olmoe-1b-7b", looped),
    "OLMoE, chosen experts gathered, Einsum": ("olmoe-1b-7b", gathered),
    "Llama-4, ArgMax as in Switch, shared": ("llama-4-maverick", with_shared(switch, 8192)),
    "Qwen1.5, wide shared expert": ("qwen1.5-moe-a2.7b", with_shared(batched, 5632)),
}


@pytest.mark.parametrize("form", FORMS)
def test_sizes_equal_those_of_the_shipped_model(form, tmp_path):
    name, layer_of = FORMS[form]
    model = load_model(name)
    path = whole_model(tmp_path / "m.onnx", model, lambda g, x, layer: layer_of(g, x, layer, model))
    assert sizes(import_model(path).spec) == sizes(model)


@pytest.fixture
def small():
    """Two layers of OLMoE's shape."""
    return load_model("olmoe-1b-7b").model_copy(
        update={"layers": 2, "moe_layers": load_model("olmoe-1b-7b").moe_layers.model_copy(update={"last": 1})}
    )


def test_a_shared_expert_without_a_telling_name_is_one_that_gets_what_the_router_gets(small, tmp_path):
    def layer_of(g, x, layer):
        routed = fused(g, x, layer, small)
        return g.node("Add", routed, mlp(g, x, f"model.layers.{layer}.mlp.always", small.hidden, 512))

    spec = import_model(whole_model(tmp_path / "m.onnx", small, layer_of)).spec
    assert (spec.shared_experts, spec.shared_ffn, spec.expert_ffn) == (1, 512, 1024)


@pytest.mark.parametrize("layer_of", [batched, looped, gathered, fused, lambda *a: per_expert(*a, named=False)])
def test_layers_without_names_are_told_apart_by_their_routers(layer_of, small, tmp_path, monkeypatch):
    save = Builder.save
    monkeypatch.setattr(Builder, "save", lambda g, path: without_names(g) or save(g, path))
    path = whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: layer_of(g, x, layer, small))
    with pytest.raises(SpecError, match="no layer numbers"):
        import_model(path)
    found = import_model(path, given={"layers": 2, "moe_layers": {"first": 0, "last": 1, "every": 1}})
    assert sizes(found.spec) == sizes(small)
    assert found.found[0].startswith("a layer without a number: MoE, ")


def test_what_might_be_a_router_is_named_with_what_it_lacks(small, tmp_path):
    def layer_of(g, x, layer):
        g.node("TopK", g.linear(x, f"model.layers.{layer}.mlp.gate", small.hidden, 64), g.number(8), outputs=2)
        return x

    said = r"/model/layers/1/mlp/gate/MatMul \(2048 → 64, before a choice of the best\): no 64 experts after it"
    with pytest.raises(SpecError, match=said):
        import_model(whole_model(tmp_path / "m.onnx", small, layer_of))


def transposed(g, tensor, name, k, n):
    """A linear layer whose weights are kept as [n, k], as PyTorch has them."""
    weight = g.node("Transpose", g.weight(f"{name}.weight", n, k), perm=[1, 0])
    return g.node("MatMul", tensor, weight, name=f"/{name.replace('.', '/')}/MatMul")


def general(g, tensor, name, k, n):
    return g.node("Gemm", tensor, g.weight(f"{name}.weight", n, k), transB=1, name=f"/{name.replace('.', '/')}/Gemm")


def dequantised(g, tensor, name, k, n):
    weight = g.node("DequantizeLinear", g.weight(f"{name}.weight", k, n), g.weight(f"{name}.scale", n), axis=1)
    return g.node("MatMul", tensor, weight, name=f"/{name.replace('.', '/')}/MatMul")


def by_blocks(g, tensor, name, k, n):
    inputs = tensor, g.weight(f"{name}.weight", n, k // 32, 16), g.weight(f"{name}.scale", n * k // 32)
    node = f"/{name.replace('.', '/')}/MatMulNBits"
    return g.node("MatMulNBits", *inputs, name=node, domain="com.microsoft", K=k, N=n, bits=4, block_size=32)


@pytest.mark.parametrize("linear", [transposed, general, dequantised, by_blocks])
def test_linear_layers_as_exporters_write_them(linear, small, tmp_path, monkeypatch):
    monkeypatch.setattr(Builder, "linear", linear)
    spec = import_model(
        whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: per_expert(g, x, layer, small))
    ).spec
    assert sizes(spec) == sizes(small)


@pytest.mark.parametrize(
    "operator", ["MatMul", "Gemm", "TopK", "MoE", "QMoE", "Einsum", "GroupQueryAttention", "Transpose"]
)
def test_operators_without_their_inputs_are_no_moe(operator, tmp_path):
    g = Builder()
    g.node(operator)
    g.node(operator, "x")
    g.node(operator, "x", g.weight("w", 3))
    with pytest.raises(SpecError, match="m.onnx: "):
        import_model(g.save(tmp_path / "m.onnx"))


def test_a_dense_model_is_refused(tmp_path, capsys):
    g, x = Builder(), "x"
    for layer in range(2):
        x = mlp(g, attention(g, x, layer, 64), f"model.layers.{layer}.mlp", 64, 128)
    path = g.save(tmp_path / "dense.onnx")
    assert main(["model", "import", str(path), "--out", str(tmp_path / "m.yaml")]) == 2
    assert "MoE layer" in capsys.readouterr().err
    assert not (tmp_path / "m.yaml").exists()


def test_fields_missing_from_the_graph_must_be_given(small, tmp_path, capsys):
    def layer_of(g, x, layer):
        g.number = lambda value: g.node("ReduceMax", x)
        return batched(g, x, layer, small)

    path, out = whole_model(tmp_path / "m.onnx", small, layer_of), tmp_path / "m.yaml"
    assert main(["model", "import", str(path), "--out", str(out)]) == 2
    assert "--top-k" in capsys.readouterr().err
    assert not out.exists()
    assert main(["model", "import", str(path), "--out", str(out), "--top-k", "8"]) == 0
    assert load_model(str(out)).top_k == 8


def test_what_contradicts_the_graph_is_refused(small, tmp_path):
    path = whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: batched(g, x, layer, small))
    with pytest.raises(SpecError, match="top_k is 8 .*--top-k .*2"):
        import_model(path, given={"top_k": 2})


def test_layers_that_differ_are_refused(small, tmp_path):
    other = small.model_copy(update={"expert_ffn": 512})
    path = whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: batched(g, x, layer, (small, other)[layer]))
    with pytest.raises(SpecError, match="expert_ffn .*1024 in layer 0, 512 in layer 1"):
        import_model(path)


def test_experts_that_are_missing_are_told(small, tmp_path):
    fewer = small.model_copy(update={"experts": 60})

    def layer_of(g, x, layer):
        out = per_expert(g, x, layer, fewer)
        gate = next(weight for weight in g.weights if weight.name == f"model.layers.{layer}.mlp.gate.weight")
        gate.dims[1] = 64
        return out

    with pytest.raises(SpecError, match=r"\b60 .*\b64\b"):
        import_model(whole_model(tmp_path / "m.onnx", small, layer_of))


def without_gate(g, x, layer, model, form):
    """Up and down matrices alone: in a fused operator, stacked, by number, or without telling names."""
    name, e, h, f = f"model.layers.{layer}.mlp", model.experts, model.hidden, model.expert_ffn
    if form == "fused":
        weights = g.weight(f"{name}.fc1", e, f, h), "", g.weight(f"{name}.fc2", e, h, f)
        inputs = x, g.linear(x, f"{name}.gate", h, e), *weights
        return g.node("MoE", *inputs, name=f"/{name}/MoE", domain="com.microsoft", k=8, activation_type="silu")
    g.node("TopK", router(g, x, layer, model), g.number(model.top_k), outputs=2)
    if form == "stacked":
        up = g.node("MatMul", x, g.weight(f"{name}.experts.up", e, h, f), name=f"/{name}/experts/up")
        return g.node("MatMul", up, g.weight(f"{name}.experts.down", e, f, h), name=f"/{name}/experts/down")
    for expert in range(e):
        own = f"{name}.experts.{expert}" if form == "numbered" else f"{name}.w{expert}"
        out = g.linear(g.node("Relu", g.linear(x, f"{own}.up", h, f)), f"{own}.down", f, h)
    return out


@pytest.mark.parametrize("form", ["fused", "stacked", "numbered", "by shape"])
def test_experts_without_a_gate_have_two_matrices(form, small, tmp_path):
    small = small.model_copy(update={"expert_ffn": 768, "shared_ffn": 768})  # products of attention have 1024
    path = whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: without_gate(g, x, layer, small, form))
    found = import_model(path, given={"expert_ffn": small.expert_ffn}).spec
    assert sizes(found) == sizes(small) and not found.gated and found.routed_weights * 3 == small.routed_weights * 2
    with pytest.raises(SpecError, match="gated is False .*--gated .*True"):
        import_model(path, given={"gated": True})


@pytest.mark.parametrize("wide", [3, 5])
def test_experts_of_another_form_are_refused_whatever_is_given(wide, small, tmp_path):
    def layer_of(g, x, layer):
        name, e, h, f = f"model.layers.{layer}.mlp", small.experts, small.hidden, small.expert_ffn
        weights = g.weight(f"{name}.fc1", e, wide * f, h), "", g.weight(f"{name}.fc2", e, h, f)
        return g.node("MoE", x, g.linear(x, f"{name}.gate", h, e), *weights, name=f"/{name}/MoE", k=8)

    path = whole_model(tmp_path / "m.onnx", small, layer_of)
    for given in ({}, {"expert_ffn": small.expert_ffn, "gated": True}):
        with pytest.raises(SpecError, match="a form that no option can say") as refused:
            import_model(path, given=given)
        assert "three slices" in str(refused.value) and "--expert-ffn" not in str(refused.value)


@pytest.mark.parametrize("operator", ["ShardedMoE", "AllReduce", "DistributedMatMul"])
def test_a_graph_of_one_rank_is_refused_by_its_operator(operator, small, tmp_path):
    def layer_of(g, x, layer):
        return g.node(operator, fused(g, x, layer, small), domain="com.microsoft")

    with pytest.raises(SpecError, match=f"{operator}: a graph of one rank"):
        import_model(whole_model(tmp_path / "m.onnx", small, layer_of))


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07\x12\xff\xff\xff"])
def test_a_file_that_is_no_model(content, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="m.onnx: not "):
        import_model(path)


def test_table_of_operators(small, tmp_path):
    path = whole_model(tmp_path / "m.onnx", small, lambda g, x, layer: quantised(g, x, layer, small))
    out, table = tmp_path / "m.yaml", tmp_path / "operators.csv"
    assert main(["model", "import", str(path), "--out", str(out), "--operators", str(table)]) == 0
    rows = list(csv.DictReader(table.open()))
    down = next(row for row in rows if row["weights"] == "model.layers.1.mlp.fc2")
    assert (down["layer"], down["part"], down["experts"], down["k"], down["n"]) == ("1", "expert", "64", "2048", "1024")
    assert int(down["flop_per_row"]) == 2 * 2048 * 1024
    assert int(down["weight_bytes"]) == 64 * 2048 * 1024 // 2, "4 bits a weight"
    attended = [row for row in rows if row["part"] == "attention"]
    assert len(attended) == 2
    assert {(row["kv_heads"], row["head_size"], row["flop_per_row_and_context_token"]) for row in attended} == {
        ("8", "128", "4096")
    }
    routers = [row for row in rows if row["part"] == "router"]
    assert [(row["k"], row["n"], row["weight_bytes"]) for row in routers] == [("2048", "64", str(2048 * 64 * 2))] * 2


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch, capsys):
    """And a config.json needs none."""
    for name in [each for each in sys.modules if each.startswith(("onnx", "archsim.model.onnx"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--from", str(EXAMPLES / "config.json"), "--out", "model.yaml"]) == 0
    assert main(["new", "--from", str(EXAMPLES / "model.onnx")]) == 2
    assert "pip install 'archsim[onnx]'" in capsys.readouterr().err
