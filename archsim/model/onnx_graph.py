"""An exported graph as lists of matrix products: which tensor is multiplied with which weights, in which layer.

Weights are never read: `onnx.load` skips external data, and only names, types and dimensions are used.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archsim.base.errors import ArchsimError, SpecError
from archsim.base.files import regular

try:
    import onnx
    from onnx import numpy_helper
except ModuleNotFoundError:
    raise ArchsimError("ONNX graphs need onnx: pip install 'archsim[onnx]'") from None

LAYER = re.compile(r"(?:^|[./_])(?:layers?|blocks?|h)[./_](\d+)(?=[./_]|$)")
MOST_SCALAR_BYTES = 64
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "MatMulNBits", "QLinearMatMul", "FusedMatMul", "Einsum"}
_ATTENTION = {"Attention", "GroupQueryAttention", "MultiHeadAttention", "PagedAttention"}
_INNER_OUTER = (True, False), (False, True)  # whether a letter is of the rows, and of the result
_KEEP_SHAPE = {"Cast", "Identity", "DequantizeLinear", "QuantizeLinear"}


@dataclass(frozen=True)
class GraphProduct:
    """A product of rows with weights."""

    node: str  # name of the node
    op: str  # its operator type
    weight: str  # name of the weight tensor
    source: str  # tensor of the rows
    output: str  # tensor that it makes
    layer: int | None  # of the model; None: outside any
    experts: int  # number of stacked weights, 1 if plain
    k: int  # values of a row that goes in
    n: int  # values of a row that comes out
    bits: int  # of a weight

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

    def name_of(self, node: onnx.NodeProto) -> str:
        return node.name or (node.output[0] if node.output else node.op_type)

    def layer_of(self, node: onnx.NodeProto) -> int | None:
        """The layer number in the name of a node, of its weights or of its outputs."""
        for name in (node.name, *node.input, *node.output):
            if found := LAYER.search(name):
                return int(found.group(1))
        return None

    def weight(self, tensor: str) -> tuple[str, tuple[int, ...], int] | None:
        """(name, shape as used, bits) of the weights behind a tensor; None if it does not come from weights alone."""
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
            node=self.name_of(node), op=node.op_type, weight=name, source=source, output=node.output[0], layer=layer,
            experts=experts, k=shape[-2], n=shape[-1], bits=bits,
        )  # fmt: skip

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
