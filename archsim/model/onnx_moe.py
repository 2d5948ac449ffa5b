"""Recognises MoE layers in an exported graph: fused operators, and routers with their experts.

Fused: ``MoE`` and ``QMoE`` of com.microsoft (ONNX Runtime, ContribOperators.md). Decomposed: a TopK (or, of top-1
models such as Switch, an ArgMax) whose values come from the product with a router's weights [hidden, experts];
experts numbered by name, equal in shape, or stacked in weights with three axes, whole or gathered: by a loop, or by
the tokens' choices. Products whose names have no layer belong to the router before them.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from archsim.model.onnx_graph import GraphProduct, OnnxGraph, attribute

EXPERT = re.compile(r"(?<!shared_)experts?[./_](\d+)(?=[./_ ]|$)")
SHARED = re.compile(r"shared_?(experts?|mlp|ffn)")
NOT_FOUND = None
_CHOICES = ("TopK", "ArgMax")
# Operators of a graph that is one rank's share of a model (com.microsoft, ContribOperators.md).
OF_ONE_RANK = re.compile(r"ShardedMoE|AllReduce|AllGather|AllToAll|Distributed\w+")


@dataclass
class MoeLayer:
    """What was found about one MoE layer; None: not found."""

    layer: int | None  # its number in the model
    how: str  # how it was recognised
    hidden: int | None = NOT_FOUND  # values of a row
    experts: int | None = NOT_FOUND  # routed ones
    top_k: int | None = NOT_FOUND  # experts of a token
    expert_ffn: int | None = NOT_FOUND  # inner width of an expert
    gated: bool | None = NOT_FOUND  # whether experts have a gate matrix
    shared_experts: int | None = 0  # that all tokens pass
    shared_ffn: int | None = NOT_FOUND  # their inner width
    # Whether it has weights that are no experts of a known form, so that no option can say what they are.
    unread: bool = False
    notes: list[str] = field(default_factory=list)  # what is unclear
    roles: dict[str, str] = field(default_factory=dict)  # node of the graph → its part in the layer


def moe_layers(graph: OnnxGraph) -> list[MoeLayer]:
    """All MoE layers, in graph order."""
    fused = [_fused_layer(graph, node) for node in graph.nodes if node.op_type in ("MoE", "QMoE")]
    return fused + [_layer_of_products(graph, router, node) for router, node in _routers(graph)]


def _fused_layer(graph: OnnxGraph, node) -> MoeLayer:
    quantised = node.op_type == "QMoE"
    stride = 3 if quantised else 2  # weights, (scales,) bias
    pack = 8 // attribute(node, "expert_weight_bits", 4) if quantised else 1
    inputs = dict(enumerate(node.input))
    weights = [graph.weight(inputs.get(2 + stride * n, "")) for n in range(3)]
    router = _router_of(graph, inputs.get(1, ""))
    found = MoeLayer(graph.layer_of(node), f"fused {node.op_type}", top_k=attribute(node, "k", 1))
    if router:
        found.hidden, found.experts = router.k, router.n
        found.roles[router.node] = "router"
    else:
        found.notes.append("found no router weights upstream of router_probs")
    shapes = [weight[1] if weight and len(weight[1]) == 3 else None for weight in weights]
    if shapes[0] is None or shapes[1] is None:
        found.notes.append("weights of the experts are not initialisers [experts, …, …]")
    elif found.experts not in (None, shapes[0][0]) or shapes[1][0] != shapes[0][0]:
        found.notes.append(f"router has {found.experts} experts, weights {shapes[0][0]} and {shapes[1][0]}")
        found.unread = True
    else:
        found.experts = shapes[0][0]
        _fused_width(found, shapes, pack, attribute(node, "activation_type", b"") == b"swiglu")
    _find_shared(graph, found, router)
    return found


def _fused_width(found: MoeLayer, shapes: list, pack: int, swiglu: bool) -> None:
    """hidden and expert_ffn from fc1, fc2 (and fc3), in either orientation; the last axis is packed. Without fc3, fc1
    has gate and up if it is twice as wide as fc2, else the up matrix alone, which SwiGLU cannot have.
    """
    (_, a, b), (_, c, d), gate = shapes
    fits = set()
    for hidden, ffn in ((c, d * pack), (d * pack, c)):  # fc2: [hidden, ffn] or [ffn, hidden]
        first = (a, b * pack)
        if hidden in first and found.hidden in (None, hidden):
            wide = first[1 - first.index(hidden)]
            if wide == ffn and not (gate is None and swiglu):
                fits.add((hidden, ffn, gate is not None))
            if wide == 2 * ffn and gate is None:
                fits.add((hidden, ffn, True))
    if len(fits) == 1:
        found.hidden, found.expert_ffn, found.gated = fits.pop()
    elif fits:
        found.notes.append(f"hidden, expert_ffn and gated may be any of {sorted(fits)}")
    else:
        found.unread = True
        found.notes.append(
            f"weights {shapes} are not (gate,) up and down of hidden size {found.hidden}; archsim expects three slices "
            f"per expert, or two without a gate"
        )


def _routers(graph: OnnxGraph):
    """(router, its last TopK) of every router with separate experts. An earlier TopK may select groups."""
    chosen: dict[str, list] = {}
    for node in graph.nodes:
        if node.op_type in _CHOICES and (router := _router_of(graph, node.input[0])):
            chosen.setdefault(router.node, []).append((router, node))
    for candidates in chosen.values():
        earlier = set()
        for _, node in candidates:
            for before in graph.upstream(node.input[0], lambda each: _is_product(each)):
                if before.op_type in _CHOICES:
                    earlier.add(before.output[0])
        last = [(router, node) for router, node in candidates if node.output[0] not in earlier]
        if _has_experts(graph, last[0][0]):
            yield last[-1]


def _is_product(node) -> bool:
    return node.op_type in ("MatMul", "Gemm", "MatMulNBits", "FusedMatMul", "Einsum", "MoE", "QMoE")


def _router_of(graph: OnnxGraph, tensor: str) -> GraphProduct | None:
    """The nearest product with plain weights upstream of a tensor."""
    for node in graph.upstream(tensor, _is_product):
        product = graph.product_of.get(node.output[0]) if node.output else None
        if product and product.experts == 1:
            return product
    return None


def _has_experts(graph: OnnxGraph, router: GraphProduct) -> bool:
    """Whether something downstream looks like as many experts as the router has outputs; a vocabulary head has none."""
    return (
        any(product.experts == router.n > 1 for product in _of_layer(graph, router))
        or any(_expert_number(product) is not None for product in _of_layer(graph, router))
        or bool(_by_shape(graph, router))
    )


def _of_layer(graph: OnnxGraph, router: GraphProduct) -> list[GraphProduct]:
    same = [product for product in graph.products if product.layer == router.layer and product.node != router.node]
    if router.layer is not None:
        return same
    order = {product.node: place for place, product in enumerate(graph.products)}
    others = [order[each.node] for each in candidates(graph) if each.layer is None]
    begin = order[router.node]
    end = min((place for place in others if place > begin), default=len(order))
    return [product for product in same if begin < order[product.node] < end]


def candidates(graph: OnnxGraph) -> list[GraphProduct]:
    """The products that may be routers: with plain weights, upstream of a choice; each once, in graph order."""
    found: dict[str, GraphProduct] = {}
    for node in graph.nodes:
        if node.op_type in _CHOICES and (router := _router_of(graph, node.input[0])):
            found[router.node] = router
    return list(found.values())


def not_routers(graph: OnnxGraph) -> list[str]:
    """For every candidate, what it lacks to be the router of an MoE layer."""
    return [
        f"{each.node} ({each.k} → {each.n}, before a choice of the best): no {each.n} experts after it, that is, no "
        f"weights [{each.n}, …, …], no names experts.0 to experts.{each.n - 1}, no {each.n} equal groups of GEMMs"
        for each in candidates(graph)
    ]


def _expert_number(product: GraphProduct) -> int | None:
    found = EXPERT.search(product.label)
    return int(found.group(1)) if found and not SHARED.search(product.label) else None


def _layer_of_products(graph: OnnxGraph, router: GraphProduct, top) -> MoeLayer:
    found = MoeLayer(router.layer, "", hidden=router.k, experts=router.n, top_k=_top_k(graph, top))
    found.roles[router.node] = "router"
    if found.top_k is None:
        found.notes.append(f"the graph computes the K of {graph.name_of(top)}")
    others = [product for product in _of_layer(graph, router) if not SHARED.search(product.label)]
    stacked = {product.weight: product for product in others if product.experts == router.n > 1}  # once, if gathered
    batched = list(stacked.values())
    numbered = [product for product in others if _expert_number(product) is not None]
    if batched:
        found.how = "decomposed, experts stacked in three axes"
        experts, groups = batched, 1
    elif numbered:
        found.how = "decomposed, experts numbered by name"
        experts, groups = numbered, router.n
        numbers = {_expert_number(product) for product in numbered}
        if numbers != set(range(router.n)):
            found.notes.append(f"{len(numbers)} experts are named; the router has {router.n}")
            groups, found.unread = 0, True
    else:
        found.how = "decomposed, experts recognised by shape"
        experts, groups = _by_shape(graph, router), router.n
    found.roles |= {product.node: "expert" for product in experts}
    if groups:
        found.expert_ffn, found.gated = _width(experts, router.k, groups) or (None, None)
    if groups and found.expert_ffn is None:
        found.unread = True
        shapes = dict(Counter((product.k, product.n) for product in experts))
        found.notes.append(
            f"experts' weights {shapes} are not (gate,) up and down of hidden size {router.k} for each expert"
        )
    _find_shared(graph, found, router)
    return found


def _top_k(graph: OnnxGraph, top) -> int | None:
    if top.op_type == "ArgMax":
        return 1
    if len(top.input) > 1:
        return graph.scalar(top.input[1])
    return attribute(top, "k", None)


def _width(products: list[GraphProduct], hidden: int, groups: int) -> tuple[int, bool] | None:
    """(f, whether gated), if each of `groups` has gate and up (hidden → f twice or 2f) or up, and down (f → hidden)."""
    count = Counter((product.k, product.n) for product in products)
    for ffn in {product.k for product in products if product.n == hidden}:
        for before, wide in ((2, ffn), (1, 2 * ffn), (1, ffn)):
            if count == Counter({(hidden, wide): before * groups}) + Counter({(ffn, hidden): groups}):
                return ffn, before * wide == 2 * ffn
    return None


def _by_shape(graph: OnnxGraph, router: GraphProduct) -> list[GraphProduct]:
    """Products in the layer that form exactly as many equal experts as the router has outputs, else none."""
    plain = [product for product in _of_layer(graph, router) if product.experts == 1]
    for ffn in sorted({product.k for product in plain if product.n == router.k}):
        same = [product for product in plain if (product.k, product.n) in _shapes_of(router.k, ffn)]
        if (found := _width(same, router.k, router.n)) and found[0] == ffn:
            return same
    return []


def _shapes_of(hidden: int, ffn: int) -> set[tuple[int, int]]:
    return {(hidden, ffn), (ffn, hidden), (hidden, 2 * ffn)}


def _find_shared(graph: OnnxGraph, found: MoeLayer, router: GraphProduct | None) -> None:
    """Shared experts: named as such, or with the same input as the router."""
    plain = [product for product in graph.products if product.layer == found.layer and product.node not in found.roles]
    named = [product for product in plain if SHARED.search(product.label) and product.n > 1]
    if not named and router:
        first = [product for product in plain if product.source == router.source and product.n > 1]
        widths = {product.n for product in first} | {product.n // 2 for product in first}
        last = [product for product in plain if product.n == router.k and product.k in widths]
        named = first + [product for product in last if product not in first]
    if not named:
        return
    found.roles |= {product.node: "shared expert" for product in named}
    downs = [product for product in named if product.n == found.hidden and product.k != found.hidden] or named[-1:]
    width, gated = (_width(named, found.hidden, len(downs)) if found.hidden else None) or (None, None)
    if width is None or (found.gated is not None and gated != found.gated):
        found.shared_experts = None
        found.unread = True
        shapes = [(product.k, product.n) for product in named]
        found.notes.append(f"shared experts {shapes} are not gate, up and down, as routed ones are, or up and down")
    else:
        found.shared_experts, found.shared_ffn = len(downs), width
