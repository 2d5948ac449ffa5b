"""Converts an exported graph to a ModelSpec and a table of its matrix products and attention operators.

Nothing is guessed: a field that the graph does not show must be given, and a given field must not contradict the graph.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.base.files import regular
from archsim.specs.model import ModelSpec

# ---- onnx_graph
# An exported graph as lists of matrix products: which tensor is multiplied with which weights, in which layer.
#
# Weights are never read: `onnx.load` skips external data, and only names, types and dimensions are used.

LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[./_](\d+)(?=[./_]|$)")
MOST_SCALAR_BYTES = 64
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "MatMulNBits", "QLinearMatMul", "FusedMatMul", "Einsum"}
_ATTENTION = {"Attention", "GroupQueryAttention", "MultiHeadAttention", "PagedAttention"}
_INNER_OUTER = (True, False), (False, True)  # whether a letter is of the rows, and of the result
_KEEP_SHAPE = {"Cast", "Identity", "DequantizeLinear", "QuantizeLinear"}


@dataclass(frozen=True)
class GraphProduct:
    """A product of rows with weights. k, n: maps a row of k to a row of n. experts: number of stacked weights, 1 if
    plain.
    """

    node: str
    op: str
    weight: str
    source: str
    output: str
    layer: int | None
    experts: int
    k: int
    n: int
    bits: int

    @property
    def label(self) -> str:
        """Every name that may identify the product, in lower case."""
        return f"{self.node} {self.weight}".lower()


class OnnxGraph:
    """A graph with queries on it. Raises SpecError for a file that is not an ONNX model."""

    def __init__(self, path: Path):
        try:
            model = onnx.load(regular(path), load_external_data=False)
        except Exception as error:  # protobuf's own errors have no common base
            raise SpecError(f"{path}: not a readable ONNX model ({error})") from error
        _refuse_unnamed(path, model.graph)
        if not model.graph.node:
            raise SpecError(f"{path}: not an ONNX model with a graph (it has no nodes)")
        self.path = path
        self.functions = [function.name for function in model.functions]
        self.nodes = [
            node for node in _nodes(model.graph) if node.output and (node.input or node.op_type == "Constant")
        ]
        self.weights = {tensor.name: tensor for graph in _graphs(model.graph) for tensor in graph.initializer}
        self.producer = {output: node for node in self.nodes for output in node.output if output}
        self.constants = {node.output[0]: node for node in self.nodes if node.op_type == "Constant"}

    def named(self, node: onnx.NodeProto) -> str:
        return node.name or (node.output[0] if node.output else node.op_type)

    def layer_of(self, node: onnx.NodeProto) -> int | None:
        """The layer number in the name of a node, of its weights or of its outputs."""
        for name in (node.name, *node.input, *node.output):
            if found := LAYER.search(name):
                return int(found.group(1))
        return None

    def weight(self, tensor: str) -> tuple[str, tuple[int, ...], int] | None:
        """(name, shape as used, bits) of the weights behind a tensor, or None if it does not come from
        weights alone.
        """
        if tensor in self.weights:
            found = self.weights[tensor]
            return tensor, tuple(found.dims), bits_of(found.data_type)
        node = self.producer.get(tensor)
        if node is None or not node.input or node.op_type not in {*_KEEP_SHAPE, "Transpose", "Gather"}:
            return None
        behind = self.weight(node.input[0])
        if behind is None or node.op_type in _KEEP_SHAPE:
            return behind
        name, shape, bits = behind
        if node.op_type == "Transpose":
            order = attribute(node, "perm", tuple(reversed(range(len(shape)))))
            return (name, tuple(shape[axis] for axis in order), bits) if len(order) == len(shape) else None
        if node.op_type == "Gather" and attribute(node, "axis", 0) == 0 and len(shape) == 3:
            return behind  # of one expert in a loop, or of those that tokens chose: the stack
        return None

    def scalar(self, tensor: str) -> int | None:
        """The integer in a constant or small initialiser, None if the graph computes it."""
        found = self.weights.get(tensor)
        if found is None and tensor in self.constants:
            found = attribute(self.constants[tensor], "value", None)
        external = found is not None and found.data_location == onnx.TensorProto.EXTERNAL
        if found is None or external or found.ByteSize() > MOST_SCALAR_BYTES + len(found.name):
            return None
        values = numpy_helper.to_array(found).ravel()
        return int(values[0]) if values.size == 1 and values.dtype.kind in "iu" else None

    @cached_property
    def products(self) -> list[GraphProduct]:
        return [product for node in self.nodes if node.op_type in _PRODUCTS and (product := self._product(node))]

    @cached_property
    def product_of(self) -> dict[str, GraphProduct]:
        """Output → the product that computes it."""
        return {product.output: product for product in self.products}

    @cached_property
    def attention(self) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if node.op_type in _ATTENTION]

    def _product(self, node: onnx.NodeProto) -> GraphProduct | None:
        """The product of a node that multiplies rows with weights; None for a product of two computed tensors."""
        place = 3 if node.op_type == "QLinearMatMul" else 1
        if len(node.input) <= place:
            return None
        found, source = self.weight(node.input[place]), node.input[0]
        if found is None:
            found, source = self.weight(source), node.input[place]
            if found is None or len(found[1]) < 2 or node.op_type in ("MatMulNBits", "Gemm", "Einsum"):
                return None
            found = found[0], (*found[1][:-2], *reversed(found[1][-2:])), found[2]
        name, shape, bits = found
        if node.op_type == "MatMulNBits":
            shape, bits = (attribute(node, "K", 0), attribute(node, "N", 0)), attribute(node, "bits", 4)
        elif node.op_type == "Gemm" and attribute(node, "transB", 0):
            shape = shape[::-1]
        elif node.op_type == "Einsum":
            shape = _einsum_shape(attribute(node, "equation", b"").decode(), shape)
        if len(shape) not in (2, 3) or min(shape) < 1:
            return None
        experts = shape[0] if len(shape) == 3 else 1
        layer = self.layer_of(node)
        return GraphProduct(
            self.named(node), node.op_type, name, source, node.output[0], layer, experts, shape[-2], shape[-1], bits
        )

    def upstream(self, tensor: str, until) -> Iterator[onnx.NodeProto]:
        """The ancestors of a tensor, nearest first; the search stops at nodes for which until(node) is true."""
        waiting, seen = deque([tensor]), set()
        while waiting:
            node = self.producer.get(waiting.popleft())
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            if not until(node):
                waiting.extend(node.input)


def attribute(node: onnx.NodeProto, name: str, default):
    for each in node.attribute:
        if each.name == name:
            value = onnx.helper.get_attribute_value(each)
            return tuple(value) if isinstance(value, list) else value
    return default


def bits_of(data_type: int) -> int:
    types = onnx.TensorProto
    if data_type in (types.INT4, types.UINT4):
        return 4
    wide: dict[int, int] = {types.DOUBLE: 64, types.INT64: 64, types.FLOAT16: 16, types.BFLOAT16: 16}
    return wide.get(data_type, 32 if data_type in (types.FLOAT, types.INT32) else 8)


def _einsum_shape(equation: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The weights' (experts, k, n) or (k, n) in an equation such as 'bth,ehf->btef'; () for more complex equations.

    Of weights that were gathered, such as [token, chosen, k, n] in 'td,tcdf->tcf', the last two letters are k and n.
    """
    operands, _, result = equation.replace(" ", "").partition("->")
    rows, _, weights = operands.partition(",")
    if len(shape) == 3 and len(weights) > 3 and result:
        size = dict(zip(weights[-2:], shape[-2:], strict=True))
        inner, outer = ([x for x in weights[-2:] if (x in rows, x in result) == way] for way in _INNER_OUTER)
        return (shape[0], size[inner[0]], size[outer[0]]) if len(inner) == len(outer) == 1 else ()
    if len(weights) != len(shape) or not result:
        return ()
    size = dict(zip(weights, shape, strict=True))
    inner = [letter for letter in weights if letter in rows and letter not in result]
    outer = [letter for letter in weights if letter in result and letter not in rows]
    shared = [letter for letter in weights if letter in result and letter in rows]
    if len(inner) == 1 and len(outer) == 2 and not shared:  # every expert on every row
        shared = [letter for letter in outer if letter == weights[0]]
        outer = [letter for letter in outer if letter not in shared]
    if len(inner) != 1 or len(outer) != 1 or len(shared) > 1:
        return ()
    return (*(size[letter] for letter in shared), size[inner[0]], size[outer[0]])


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the subgraphs inside its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for each in node.attribute:
            if each.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(each.g)


def _refuse_unnamed(path: Path, graph: onnx.GraphProto) -> None:
    """Raise SpecError for a node whose operator is no text: protobuf gives bytes where they are not UTF-8."""
    for number, node in enumerate(_nodes(graph)):
        for name in (node.op_type, node.name, *node.input, *node.output):
            if not isinstance(name, str):
                raise SpecError(f"{path}: node {number} ({node.op_type!r:.60}): the name {name!r:.60} is not UTF-8")


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for each in _graphs(graph):
        yield from each.node


# ---- onnx_moe
# Recognises MoE layers in an exported graph: fused operators, and routers with their experts.
#
# Fused: ``MoE`` and ``QMoE`` of com.microsoft (ONNX Runtime, ContribOperators.md). Decomposed: a TopK (or, of top-1
# models such as Switch, an ArgMax) whose values come from the product with a router's weights [hidden, experts];
# experts numbered by name, equal in shape, or stacked in weights with three axes, whole or gathered: by a loop, or by
# the tokens' choices. Products whose names have no layer belong to the router before them.

EXPERT = re.compile(r"(?<!shared_)experts?[./_](\d+)(?=[./_ ]|$)")
SHARED = re.compile(r"shared_?(experts?|mlp|ffn)")
NOT_FOUND = None
_CHOICES = ("TopK", "ArgMax")
# Operators of a graph that is one rank's share of a model (com.microsoft, ContribOperators.md).
_OF_ONE_RANK = re.compile(r"ShardedMoE|AllReduce|AllGather|AllToAll|Distributed\w+")


@dataclass
class MoeLayer:
    """What was found about one MoE layer; None: not found. how: how it was recognised. notes: what is unclear.
    unread: whether it has weights that are no experts of a known form, so that no option can say what they are.
    """

    layer: int | None
    how: str
    hidden: int | None = NOT_FOUND
    experts: int | None = NOT_FOUND
    top_k: int | None = NOT_FOUND
    expert_ffn: int | None = NOT_FOUND
    gated: bool | None = NOT_FOUND
    shared_experts: int | None = 0
    shared_ffn: int | None = NOT_FOUND
    unread: bool = False
    notes: list[str] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)


def moe_layers(graph: OnnxGraph) -> list[MoeLayer]:
    """All MoE layers, in graph order."""
    fused = [_fused(graph, node) for node in graph.nodes if node.op_type in ("MoE", "QMoE")]
    return fused + [_decomposed(graph, router, node) for router, node in _routers(graph)]


def _fused(graph: OnnxGraph, node) -> MoeLayer:
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
    _shared(graph, found, router)
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
        f"weights [{each.n}, …, …], no names experts.0 to experts.{each.n - 1}, no {each.n} equal groups of products"
        for each in candidates(graph)
    ]


def _expert_number(product: GraphProduct) -> int | None:
    found = EXPERT.search(product.label)
    return int(found.group(1)) if found and not SHARED.search(product.label) else None


def _decomposed(graph: OnnxGraph, router: GraphProduct, top) -> MoeLayer:
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
    _shared(graph, found, router)
    return found


def _top_k(graph: OnnxGraph, top) -> int | None:
    if top.op_type == "ArgMax":
        return 1
    if len(top.input) > 1:
        return graph.scalar(top.input[1])
    return attribute(top, "k", None)


def _width(products: list[GraphProduct], hidden: int, groups: int) -> tuple[int, bool] | None:
    """(f, whether there is a gate), if each of `groups` has gate and up (hidden → f twice, or hidden → 2f), or up alone
    (hidden → f), and down (f → hidden).
    """
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


def _shared(graph: OnnxGraph, found: MoeLayer, router: GraphProduct | None) -> None:
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


# ---- onnx_import

FLAGS = {
    "layers": "--layers",
    "moe_layers": "--moe-layers",
    "hidden": "--hidden",
    "expert_ffn": "--expert-ffn",
    "gated": "--gated",
    "experts": "--experts",
    "top_k": "--top-k",
    "shared_experts": "--shared-experts",
    "shared_ffn": "--shared-ffn",
}
"""Field of a ModelSpec → the option of ``archsim new --from`` that supplies it."""

OPERATOR_COLUMNS = (
    "node",
    "operator",
    "layer",
    "part",
    "weights",
    "experts",
    "k",
    "n",
    "flop_per_row",
    "weight_bytes",
    "flop_per_row_and_context_token",
    "kv_heads",
    "head_size",
)


_MOST_NAMED = 5  # candidates for a router


@dataclass(frozen=True)
class Imported:
    """spec: the model. found: what was recognised, as lines of text. operators: table rows with OPERATOR_COLUMNS."""

    spec: ModelSpec
    found: list[str]
    operators: list[dict]


def import_model(path: Path, name: str | None = None, given: dict | None = None) -> Imported:
    """Read a graph. given: fields of the ModelSpec that the caller knows. Raises SpecError that lists the missing
    ones.
    """
    graph, given = OnnxGraph(path), {field: value for field, value in (given or {}).items() if value is not None}
    if shares := sorted({node.op_type for node in graph.nodes if _OF_ONE_RANK.fullmatch(node.op_type)}):
        raise SpecError(f"{path}: {', '.join(shares)}: a graph of one rank of several; expected the graph of the model")
    try:
        layers = moe_layers(graph)
    except RecursionError as error:
        raise SpecError(f"{path}: not an ONNX graph: it has a cycle") from error
    if not layers:
        raise SpecError(_no_moe(graph))
    fields, problems = _fields(graph, layers, given)
    lines = _lines(graph, layers)
    if problems:
        raise SpecError("\n".join([*lines, *(f"{path}: {problem}" for problem in problems)]))
    try:
        spec = ModelSpec(name=name or path.stem, source=f"graph {path.name}, {len(graph.nodes)} nodes", **fields)
    except ValidationError as error:
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise SpecError(f"{path}: the fields found do not form a valid model: {text}") from error
    return Imported(spec, lines, operators(graph, layers))


def _no_moe(graph: OnnxGraph) -> str:
    routers = sum(node.op_type == "TopK" for node in graph.nodes)
    hint = (
        f"; it calls local functions ({', '.join(graph.functions[:3])}): inline them first" if graph.functions else ""
    )
    seen = "".join(f"\n{graph.path}: {each}" for each in not_routers(graph)[:_MOST_NAMED])
    return (
        f"{graph.path}: no MoE layer was recognised among {len(graph.nodes)} nodes ({len(graph.products)} products "
        f"with "
        f"weights, {routers} TopK, no MoE or QMoE operator){hint}; archsim models MoE layers only, and a dense model "
        f"has none{seen}"
    )


def _fields(graph: OnnxGraph, layers: list[MoeLayer], given: dict) -> tuple[dict, list[str]]:
    """(fields of the spec, problems)."""
    fields: dict[str, Any] = {}
    problems: list[str] = []
    if unread := any(layer.unread for layer in layers):
        problems.append("the weights of experts have a form that no option can say; see what is unclear")
    for name in ("hidden", "experts", "top_k", "expert_ffn", "gated", "shared_experts", "shared_ffn"):
        values = {getattr(layer, name): layer.layer for layer in layers}
        if len(values) > 1:
            listed = ", ".join(f"{value} in layer {layer}" for value, layer in values.items())
            problems.append(f"{name} differs between layers: {listed}; archsim expects identical MoE layers")
            continue
        (found,) = values
        if found is None and unread:
            continue  # what is given would be another model's
        _settle(name, found, given, fields, problems)
    if fields.get("shared_experts") == 0:
        fields.pop("shared_ffn", None)
    _settle("layers", _depth(graph), given, fields, problems)
    _settle("moe_layers", _spacing([layer.layer for layer in layers]), given, fields, problems)
    if None in (layer.layer for layer in layers) and "moe_layers" not in given:
        problems.append("names of nodes and weights contain no layer numbers")
    return {name: value for name, value in fields.items() if value is not None}, problems


def _settle(name: str, found, given: dict, fields: dict, problems: list[str]) -> None:
    """Take the value found, else the value given; report a problem if there is neither, or if the two differ."""
    stated = given.get(name)
    optional = name == "shared_ffn" and fields.get("shared_experts") == 0
    if found is not None and stated is not None and found != stated:
        problems.append(f"{name} is {found} in the graph; {FLAGS[name]} says {stated}")
    elif found is None and stated is None and not optional:
        problems.append(f"{name} was not found in the graph. Give it with {FLAGS[name]}")
    fields[name] = stated if found is None else found


def _depth(graph: OnnxGraph) -> int | None:
    """Number of layers, if names number them 0, 1, … without a gap."""
    numbers = {layer for node in graph.nodes if (layer := graph.layer_of(node)) is not None}
    return len(numbers) if numbers and numbers == set(range(len(numbers))) else None


def _spacing(numbers: list[int | None]) -> dict | None:
    """first, last and every of evenly spaced layer numbers; None if they are unevenly spaced or unknown."""
    known = sorted({number for number in numbers if number is not None})
    if len(known) < len(numbers):
        return None
    every = known[1] - known[0] if len(known) > 1 else 1
    even = known == list(range(known[0], known[-1] + 1, every))
    return {"first": known[0], "last": known[-1], "every": every} if even else None


def _lines(graph: OnnxGraph, layers: list[MoeLayer]) -> list[str]:
    """What was recognised and what was not, as lines of text."""
    lines = []
    for layer in layers:
        named = "a layer without a number" if layer.layer is None else f"layer {layer.layer}"
        shared = f", {layer.shared_experts} shared of {layer.shared_ffn}" if layer.shared_experts else ""
        lines.append(
            f"{named}: MoE, {layer.how}: top-{layer.top_k} of {layer.experts} experts, "
            f"{layer.hidden} → {layer.expert_ffn}{' without a gate' if layer.gated is False else ''}{shared}"
        )
        lines += [f"{named}: unclear: {note}" for note in layer.notes]
    known = {layer.layer for layer in layers}
    dense = sorted({p.layer for p in graph.products if p.layer is not None} - known)
    if dense:
        lines.append(f"dense layers: {', '.join(map(str, dense))}")
    roles = {node for layer in layers for node in layer.roles}
    other = [product for product in graph.products if product.node not in roles]
    lines.append(f"other products with weights (attention, dense layers, head): {len(other)}")
    lines.append(f"attention operators: {len(graph.attention)}")
    if graph.functions:
        lines.append(f"functions not searched: {', '.join(graph.functions)}")
    return lines


def operators(graph: OnnxGraph, layers: list[MoeLayer]) -> list[dict]:
    """One row per product with weights, per weight of a fused MoE operator, and per attention operator.

    flop_per_row: 2·k·n, for one expert if there are several. flop_per_row_and_context_token: attention, products
    with keys and with values, 4·heads·head_size.
    """
    roles = {node: role for layer in layers for node, role in layer.roles.items()}
    rows = []
    for product in graph.products:
        place = {"node": product.node, "operator": product.op, "layer": product.layer}
        part = roles.get(product.node, "")
        rows.append(_row(place, part, product.weight, product.experts, product.k, product.n, product.bits))
    for node in graph.nodes:
        if node.op_type in ("MoE", "QMoE"):
            rows += _fused_rows(graph, node)
    for node in graph.attention:
        heads, size = attribute(node, "num_heads", attribute(node, "q_num_heads", None)), _head_size(graph, node)
        rows.append(
            dict.fromkeys(OPERATOR_COLUMNS)
            | {
                "node": graph.named(node),
                "operator": node.op_type,
                "layer": graph.layer_of(node),
                "part": "attention",
                "flop_per_row_and_context_token": 4 * heads * size if heads and size else None,
                "kv_heads": attribute(node, "kv_num_heads", heads),
                "head_size": size,
            }
        )
    return rows


def _fused_rows(graph: OnnxGraph, node) -> list[dict]:
    quantised = node.op_type == "QMoE"
    pack = 8 // attribute(node, "expert_weight_bits", 4) if quantised else 1
    rows = []
    for place in range(2, min(len(node.input), 11 if quantised else 8), 3 if quantised else 2):
        found = graph.weight(node.input[place])
        if found and len(found[1]) == 3:
            (experts, k, n), bits = found[1], found[2] // pack
            about = {"node": graph.named(node), "operator": node.op_type, "layer": graph.layer_of(node)}
            rows.append(_row(about, "expert", found[0], experts, k, n * pack, bits))
    return rows


def _row(place: dict, part: str, weight: str, experts: int, k: int, n: int, bits: int) -> dict:
    sizes = {"experts": experts, "k": k, "n": n, "flop_per_row": 2 * k * n, "weight_bytes": experts * k * n * bits // 8}
    return dict.fromkeys(OPERATOR_COLUMNS) | place | {"part": part, "weights": weight} | sizes


def _head_size(graph: OnnxGraph, node) -> int | None:
    """Columns of the query divided by its heads, if a product with weights computes the query."""
    heads = attribute(node, "num_heads", attribute(node, "q_num_heads", None))
    for before in graph.upstream(node.input[0], lambda each: each.output[0] in graph.product_of) if node.input else ():
        product = graph.product_of.get(before.output[0])
        if product and heads and product.n % heads == 0:
            return product.n // heads
    return None
