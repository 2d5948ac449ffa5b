"""Graphs of MoE models as exporters write them, at full shapes, without weights."""

from onnx import TensorProto, helper, save

FLOAT, FLOAT16, UINT8, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT64


class Builder:
    """Nodes and weights; a weight is a name, a type and dimensions, its data in a file that does not exist."""

    def __init__(self):
        self.nodes, self.weights, self._made = [], [], 0

    def weight(self, name, *dims, data_type=FLOAT16):
        tensor = TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="weights.bin")
        self.weights.append(tensor)
        return name

    def node(self, op, *inputs, name="", outputs=1, domain="", **attributes):
        self._made += 1
        names = [f"t{self._made}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=name, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, tensor, name, k, n):
        return self.node(
            "MatMul", tensor, self.weight(f"{name}.weight", k, n), name=f"/{name.replace('.', '/')}/MatMul"
        )

    def number(self, value):
        tensor = helper.make_tensor(f"n{self._made}", INT64, [1], [value])
        return self.node("Constant", value=tensor)

    def save(self, path, function=None):
        shape = helper.make_tensor_value_info("x", FLOAT16, ["tokens", "hidden"])
        end = helper.make_tensor_value_info(self.nodes[-1].output[0], FLOAT16, None)
        graph = helper.make_graph(self.nodes, "model", [shape], [end], self.weights)
        save(
            helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
            ),
            path,
        )
        return path


def attention(g, x, layer, hidden):
    name = f"model.layers.{layer}.self_attn"
    q, k, v = (g.linear(x, f"{name}.{part}_proj", hidden, 1024) for part in "qkv")
    attended = g.node(
        "GroupQueryAttention", q, k, v, name=f"/{name}/GQA", domain="com.microsoft", num_heads=8, kv_num_heads=8
    )
    return g.linear(attended, f"{name}.o_proj", 1024, hidden)


def mlp(g, x, name, hidden, ffn):
    gate, up = g.linear(x, f"{name}.gate_proj", hidden, ffn), g.linear(x, f"{name}.up_proj", hidden, ffn)
    return g.linear(g.node("Mul", g.node("Sigmoid", gate), up), f"{name}.down_proj", ffn, hidden)


def router(g, x, layer, model, softmax=True):
    logits = g.linear(x, f"model.layers.{layer}.mlp.gate", model.hidden, model.experts)
    return g.node("Softmax" if softmax else "Sigmoid", logits)


def grouped_top_k(g, scores, model, groups=8, keep=4):
    """DeepSeek-V3: the best groups by their two best experts, then the best experts in them."""
    apart = g.node("Reshape", g.node("Add", scores, g.weight("bias", model.experts)), g.number(groups))
    best, _ = g.node("TopK", apart, g.number(2), outputs=2)
    chosen, _ = g.node("TopK", g.node("ReduceSum", best), g.number(keep), outputs=2)
    masked = g.node("Where", chosen, scores, scores)
    return g.node("TopK", masked, g.number(model.top_k), outputs=2)


def fused(g, x, layer, model, joined=False):
    name, e, h, f = f"model.layers.{layer}.mlp", model.experts, model.hidden, model.expert_ffn
    logits = g.linear(x, f"{name}.gate", h, e)
    fc1 = g.weight(f"{name}.fc1", e, 2 * f if joined else f, h)
    fc2 = g.weight(f"{name}.fc2", e, h, f)
    fc3 = "" if joined else g.weight(f"{name}.fc3", e, f, h)
    return g.node("MoE", x, logits, fc1, "", fc2, "", fc3, name=f"/{name}/MoE", domain="com.microsoft", k=model.top_k)


def quantised(g, x, layer, model):
    name, e, h, f = f"model.layers.{layer}.mlp", model.experts, model.hidden, model.expert_ffn
    logits = g.linear(x, f"{name}.gate", h, e)
    fc1, fc2 = (
        g.weight(f"{name}.{n}", e, *dims, data_type=UINT8)
        for n, dims in (("fc1", (2 * f, h // 2)), ("fc2", (h, f // 2)))
    )
    s1, s2 = g.weight(f"{name}.s1", e, 2 * f), g.weight(f"{name}.s2", e, h)
    inputs = (x, logits, fc1, s1, "", fc2, s2)
    return g.node("QMoE", *inputs, name=f"/{name}/QMoE", domain="com.microsoft", k=model.top_k, expert_weight_bits=4)


def per_expert(g, x, layer, model, named=True):
    scores = router(g, x, layer, model)
    g.node("TopK", scores, g.number(model.top_k), outputs=2)
    for expert in range(model.experts):
        rows = g.node("Gather", x, scores)
        name = f"model.layers.{layer}.mlp.experts.{expert}" if named else f"model.layers.{layer}.mlp.w{expert}"
        out = mlp(g, rows, name, model.hidden, model.expert_ffn)
    return out


def batched(g, x, layer, model, joined=False, grouped=False):
    name, e, h, f = f"model.layers.{layer}.mlp.experts", model.experts, model.hidden, model.expert_ffn
    scores = router(g, x, layer, model, softmax=not grouped)
    if grouped:
        grouped_top_k(g, scores, model)
    else:
        g.node("TopK", scores, g.number(model.top_k), outputs=2)
    rows = g.node("Expand", x, scores)
    ups = [("gate_up_proj", 2 * f)] if joined else [("gate_proj", f), ("up_proj", f)]
    for part, wide in ups:
        inner = g.node("MatMul", rows, g.weight(f"{name}.{part}", e, h, wide), name=f"/{name}/{part}")
    return g.node("MatMul", inner, g.weight(f"{name}.down_proj", e, f, h), name=f"/{name}/down_proj")


def whole_model(path, model, layer_of, dense_ffn=4096):
    """layer_of(builder, tensor, layer) makes an MoE layer; the others are dense."""
    g, x = Builder(), "x"
    for layer in range(model.layers):
        x = attention(g, x, layer, model.hidden)
        if layer in model.moe_layer_ids:
            x = layer_of(g, x, layer)
        else:
            x = mlp(g, x, f"model.layers.{layer}.mlp", model.hidden, dense_ffn)
    logits = g.linear(x, "lm_head", model.hidden, 32000)
    g.node("TopK", logits, g.number(50), outputs=2)
    return g.save(path)


def looped(g, x, layer, model):
    """Every expert in turn: its matrices are gathered from the stacks, as the body of a loop does."""
    name, e, h, f = f"model.layers.{layer}.mlp.experts", model.experts, model.hidden, model.expert_ffn
    scores = router(g, x, layer, model)
    g.node("TopK", scores, g.number(model.top_k), outputs=2)
    inner = x
    for part, dims in (("gate", (h, f)), ("up", (h, f)), ("down", (f, h))):
        one = g.node("Gather", g.weight(f"{name}.{part}", e, *dims), "expert", axis=0)
        inner = g.node("MatMul", inner if part == "down" else x, one, name=f"/{name}/{part}")
    return inner


def gathered(g, x, layer, model):
    """The matrices of the experts that each token chose, gathered for it, and Einsum."""
    name, e, h, f = f"model.layers.{layer}.mlp.experts", model.experts, model.hidden, model.expert_ffn
    scores = router(g, x, layer, model)
    _, chosen = g.node("TopK", scores, g.number(model.top_k), outputs=2)

    def product(rows, part, equation, *dims):
        own = g.node("Gather", g.weight(f"{name}.{part}", e, *dims), chosen, axis=0)
        return g.node("Einsum", rows, own, equation=equation, name=f"/{name}/{part}")

    up, gate = (product(x, part, "th,tkhf->tkf", h, f) for part in ("up", "gate"))
    return product(g.node("Mul", up, gate), "down", "tkf,tkfh->tkh", f, h)


def switch(g, x, layer, model):
    """Top-1 by ArgMax, as Switch Transformers have it, over experts stacked in three axes."""
    name, e, h, f = f"model.layers.{layer}.mlp.experts", model.experts, model.hidden, model.expert_ffn
    g.node("ArgMax", router(g, x, layer, model), axis=-1)
    for part in ("gate_proj", "up_proj"):
        inner = g.node("MatMul", x, g.weight(f"{name}.{part}", e, h, f), name=f"/{name}/{part}")
    return g.node("MatMul", inner, g.weight(f"{name}.down_proj", e, f, h), name=f"/{name}/down_proj")


def without_names(builder):
    """The same graph with weights called w0, w1, … and nodes without names."""
    new = {tensor.name: f"w{place}" for place, tensor in enumerate(builder.weights)}
    for tensor in builder.weights:
        tensor.name = new[tensor.name]
    for node in builder.nodes:
        node.name = ""
        for place, name in enumerate(node.input):
            node.input[place] = new.get(name, name)
