"""Recognises MoE layers in an exported graph: fused operators, and routers with their experts.

Fused: ``MoE`` and ``QMoE`` of com.microsoft (ONNX Runtime, ContribOperators.md). Decomposed: a TopK (or, of top-1
models such as Switch, an ArgMax) whose values come from the product with a router's weights [hidden, experts]; experts
numbered by name, equal in shape, or stacked in weights with three axes, whole or gathered: by a loop, or by the tokens'
choices. Products whose names have no layer belong to the router before them.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from archsim.models.onnx_graph import Graph, Product, attribute

EXPERT = re.compile(r"(?<!shared_)experts?[./_](\d+)(?=[./_ ]|$)")
SHARED = re.compile(r"shared_?(experts?|mlp|ffn)")
NOT_FOUND = None
_CHOICES = ("TopK", "ArgMax")


@dataclass
class MoeLayer:
    """What was found about one MoE layer; None: not found. how: how it was recognised. notes: what is unclear."""

    layer: int | None
    how: str
    hidden: int | None = NOT_FOUND
    experts: int | None = NOT_FOUND
    top_k: int | None = NOT_FOUND
    expert_ffn: int | None = NOT_FOUND
    shared_experts: int | None = 0
    shared_ffn: int | None = NOT_FOUND
    notes: list[str] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)


def moe_layers(graph: Graph) -> list[MoeLayer]:
    """All MoE layers, in graph order."""
    fused = [_fused(graph, node) for node in graph.nodes if node.op_type in ("MoE", "QMoE")]
    return fused + [_decomposed(graph, router, node) for router, node in _routers(graph)]


def _fused(graph: Graph, node) -> MoeLayer:
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
        found.experts = None
    else:
        found.experts = shapes[0][0]
        _fused_width(found, shapes, pack)
    _shared(graph, found, router)
    return found


def _fused_width(found: MoeLayer, shapes: list, pack: int) -> None:
    """hidden and expert_ffn from fc1, fc2 (and fc3), in either orientation; the last axis is packed."""
    (_, a, b), (_, c, d), gate = shapes
    fits = set()
    for hidden, ffn in ((c, d * pack), (d * pack, c)):  # fc2: [hidden, ffn] or [ffn, hidden]
        first = (a, b * pack)
        if hidden in first and found.hidden in (None, hidden):
            wide = first[1 - first.index(hidden)]
            if wide == (2 * ffn if gate is None else ffn):
                fits.add((hidden, ffn))
    if len(fits) == 1:
        found.hidden, found.expert_ffn = fits.pop()
    elif fits:
        found.notes.append(f"hidden and expert_ffn may be any of {sorted(fits)}")
    else:
        found.notes.append(
            f"weights {shapes} are not gate, up and down of hidden size {found.hidden}; archsim expects three slices "
            f"per expert"
        )


def _routers(graph: Graph):
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


def _router_of(graph: Graph, tensor: str) -> Product | None:
    """The nearest product with plain weights upstream of a tensor."""
    for node in graph.upstream(tensor, _is_product):
        product = graph.product_of.get(node.output[0]) if node.output else None
        if product and product.experts == 1:
            return product
    return None


def _has_experts(graph: Graph, router: Product) -> bool:
    """Whether something downstream looks like as many experts as the router has outputs; a vocabulary head has none."""
    return (
        any(product.experts == router.n > 1 for product in _of_layer(graph, router))
        or any(_expert_number(product) is not None for product in _of_layer(graph, router))
        or bool(_by_shape(graph, router))
    )


def _of_layer(graph: Graph, router: Product) -> list[Product]:
    same = [product for product in graph.products if product.layer == router.layer and product.node != router.node]
    if router.layer is not None:
        return same
    order = {product.node: place for place, product in enumerate(graph.products)}
    others = [order[each.node] for each in candidates(graph) if each.layer is None]
    begin = order[router.node]
    end = min((place for place in others if place > begin), default=len(order))
    return [product for product in same if begin < order[product.node] < end]


def candidates(graph: Graph) -> list[Product]:
    """The products that may be routers: with plain weights, upstream of a choice; each once, in graph order."""
    found: dict[str, Product] = {}
    for node in graph.nodes:
        if node.op_type in _CHOICES and (router := _router_of(graph, node.input[0])):
            found[router.node] = router
    return list(found.values())


def not_routers(graph: Graph) -> list[str]:
    """For every candidate, what it lacks to be the router of an MoE layer."""
    return [
        f"{each.node} ({each.k} → {each.n}, before a choice of the best): no {each.n} experts after it, that is, no "
        f"weights [{each.n}, …, …], no names experts.0 to experts.{each.n - 1}, no {each.n} equal groups of products"
        for each in candidates(graph)
    ]


def _expert_number(product: Product) -> int | None:
    found = EXPERT.search(product.label)
    return int(found.group(1)) if found and not SHARED.search(product.label) else None


def _decomposed(graph: Graph, router: Product, top) -> MoeLayer:
    found = MoeLayer(router.layer, "", hidden=router.k, experts=router.n, top_k=_top_k(graph, top))
    found.roles[router.node] = "router"
    if found.top_k is None:
        found.notes.append(f"the graph computes the K of {graph.named(top)}")
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
            groups = 0
    else:
        found.how = "decomposed, experts recognised by shape"
        experts, groups = _by_shape(graph, router), router.n
    found.roles |= {product.node: "expert" for product in experts}
    found.expert_ffn = _width(experts, router.k, groups) if groups else None
    if groups and found.expert_ffn is None:
        shapes = dict(Counter((product.k, product.n) for product in experts))
        found.notes.append(
            f"experts' weights {shapes} are not gate, up and down of hidden size {router.k} for each expert"
        )
    _shared(graph, found, router)
    return found


def _top_k(graph: Graph, top) -> int | None:
    if top.op_type == "ArgMax":
        return 1
    if len(top.input) > 1:
        return graph.scalar(top.input[1])
    return attribute(top, "k", None)


def _width(products: list[Product], hidden: int, groups: int) -> int | None:
    """f, if each of `groups` has gate and up (hidden → f twice, or hidden → 2f) and down (f → hidden)."""
    count = Counter((product.k, product.n) for product in products)
    for ffn in {product.k for product in products if product.n == hidden}:
        apart = {(hidden, ffn): 2 * groups, (ffn, hidden): groups}
        if ffn == hidden:
            apart = {(hidden, ffn): 3 * groups}
        joined = {(hidden, 2 * ffn): groups, (ffn, hidden): groups}
        if count in (apart, joined):
            return ffn
    return None


def _by_shape(graph: Graph, router: Product) -> list[Product]:
    """Products in the layer that form exactly as many equal experts as the router has outputs, else none."""
    plain = [product for product in _of_layer(graph, router) if product.experts == 1]
    for ffn in sorted({product.k for product in plain if product.n == router.k}):
        same = [product for product in plain if (product.k, product.n) in _shapes_of(router.k, ffn)]
        if _width(same, router.k, router.n) == ffn:
            return same
    return []


def _shapes_of(hidden: int, ffn: int) -> set[tuple[int, int]]:
    return {(hidden, ffn), (ffn, hidden), (hidden, 2 * ffn)}


def _shared(graph: Graph, found: MoeLayer, router: Product | None) -> None:
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
    width = _width(named, found.hidden, len(downs)) if found.hidden else None
    if width is None:
        found.shared_experts = None
        found.notes.append(f"shared experts {[(product.k, product.n) for product in named]} are not gate, up and down")
    else:
        found.shared_experts, found.shared_ffn = len(downs), width
