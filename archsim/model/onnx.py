"""Converts an exported graph to a ModelSpec and a table of its matrix products and attention operators.

Nothing is guessed: a field that the graph does not show must be given, and a given field must not contradict the graph.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from archsim.base.errors import SpecError
from archsim.base.files import write_draft
from archsim.model.config_keys import FLAGS
from archsim.model.onnx_graph import OnnxGraph, attribute
from archsim.model.onnx_moe import OF_ONE_RANK, MoeLayer, moe_layers, not_routers
from archsim.model.spec import ModelSpec

OPERATOR_COLUMNS = (
    "node", "operator", "layer", "part", "weights", "experts", "k", "n", "flop_per_row", "weight_bytes",
    "flop_per_row_and_context_token", "kv_heads", "head_size",
)  # fmt: skip


_MOST_NAMED = 5  # candidates for a router


@dataclass(frozen=True)
class Imported:
    """spec: the model. found: what was recognised, as lines of text. operators: table rows with OPERATOR_COLUMNS."""

    spec: ModelSpec
    found: list[str]
    operators: list[dict]


def import_model(path: Path, name: str | None = None, given: dict | None = None) -> Imported:
    """Read a graph. given: fields of the ModelSpec that the caller knows. SpecError lists the missing ones."""
    graph, given = OnnxGraph(path), {field: value for field, value in (given or {}).items() if value is not None}
    if shares := sorted({node.op_type for node in graph.nodes if OF_ONE_RANK.fullmatch(node.op_type)}):
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
        f"{graph.path}: no MoE layer was recognised among {len(graph.nodes)} nodes ({len(graph.products)} GEMMs "
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
    lines.append(f"other GEMMs with weights (attention, dense layers, head): {len(other)}")
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
                "node": graph.name_of(node),
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
            about = {"node": graph.name_of(node), "operator": node.op_type, "layer": graph.layer_of(node)}
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


def write_operators(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write a table of the columns ``OPERATOR_COLUMNS`` as a whole."""
    with write_draft(path) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, OPERATOR_COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
