"""The entry point to a calibration: evaluates every one of its tables, by name."""

import numpy as np
import pytest
from support.calibrations import GPUS, SECTIONS, laws_of, positive, who
from support.examples import examples, sampled

from archsim.base.units import VECTOR_BYTES
from archsim.laws.gemm import law_ns
from archsim.laws.laws import Times
from archsim.laws.moe import named_of
from archsim.laws.rank_load import rank_loads, routing_of
from archsim.laws.tables import TransferTable, shape_of
from archsim.laws.transfers import PAYLOAD_OF, law_of, payload_of

SAMPLED = sampled(GPUS, lambda gpu: gpu in ("h100", "gb200"))  # of the kinds of tables there are


def flagged(table, outside: list[bool]) -> list[bool]:
    """Every time of a scaled table is."""
    return [bool(table.scaled_from) or each for each in outside]


def asked_gemm(laws, table):
    n, k = table.sizes[len(table.sizes) // 2]
    m = np.array([1, 2, 64, 4096, 2**20])
    how = {"dtype": table.dtype, "quantisation": table.quantisation, **who(table)}
    times = laws.grouped_gemm(m, n, k, table.groups, **how) if table.groups > 1 else laws.gemm(m, n, k, **how)
    positive(times, m.shape)
    law = law_ns(table.law, m, n, k, table.dtype, table.groups)
    assert np.all(np.diff(law) >= 0) and times.ns[-1] > times.ns[0]
    assert times.extrapolated[-1]
    return times.table


def asked_moe(laws, table):
    ep, tp = shape_of(next(iter(table.ranks)))
    tokens = np.array([table.tokens[0], table.tokens[-1], 4 * table.tokens[-1]])
    how = {
        "model": table.model,
        "dtype": table.dtype,
        "distribution": table.distribution,
        "kernel": table.kernel,
        "eplb_slots": table.eplb_slots,
        **who(table),
    }
    times = laws.fused_moe(tokens, ep, tp, **how)
    positive(times, tokens.shape)
    assert times.extrapolated.tolist() == flagged(table, [False, False, True])
    points = np.array([float(ep)] * 3), np.array([float(tp)] * 3), tokens
    pairs, active = rank_loads(named_of(table), routing_of(table), table.law, points[0], tokens)
    given = laws.fused_moe(tokens, ep, tp, pairs=pairs, active_experts=active, **how)
    assert given.ns.tolist() == times.ns.tolist()
    more = laws.fused_moe(tokens, ep, tp, pairs=2 * pairs, active_experts=active, **how)
    assert np.all(more.ns >= given.ns)
    return times.table


def asked_attention(laws, table):
    heads, kv_heads = table.sizes[-1]
    how = {key: getattr(table, key) for key in ("phase", "kind", "dtype", "kv_dtype", "products", "head_dim", "window")}
    how |= {"heads": heads, "kv_heads": kv_heads, **who(table)}
    tokens = np.array([table.tokens[0], table.most_tokens[0], 4 * table.tokens[-1]])
    times = laws.attention(1 if table.phase == "decode" else tokens, tokens, table.batch[0], **how)
    positive(times, (3,))
    least = 0.8 if table.window else 0.9  # where a window reads no more, times step by 2 us (timers of sglang 0.5.14)
    assert times.extrapolated.tolist() == flagged(table, [False, False, True]) and times.ns[-1] > least * times.ns[0]
    return times.table


def sizes_of(table: TransferTable) -> np.ndarray:
    return np.array(
        [table.first_bytes / 2, table.first_bytes, table.last_bytes, 2 * table.last_bytes, 4 * table.last_bytes]
    )


def judged_transfer(times, table):
    """Monotone where the law is: held below the smallest size, never falling beyond the largest."""
    positive(times, (5,))
    assert times.ns[0] == times.ns[1] and np.all(np.diff(times.ns[2:]) >= 0)
    assert times.extrapolated.tolist() == flagged(table, [True, False, False, True, True])
    return times.table


def asked_copy(laws, table):
    of = {key: table.of[key] for key in ("placement", "direction", "concurrent_pairs", "method")}
    return judged_transfer(laws.copy(sizes_of(table), **of, **who(table)), table)


def asked_collective(laws, table):
    of, where = table.of, {"ranks": int(table.of["num_gpus"]), "nodes": int(table.of["nodes"])}
    if of["op"] not in PAYLOAD_OF:
        times = laws.collective(of["op"], sizes_of(table), **where, variant=of.get("variant"), **who(table))
        return judged_transfer(times, table)
    layer = {key: int(of[key]) for key in ("hidden", "top_k", "experts")}
    tokens = sizes_of(table) / (layer["hidden"] * layer["top_k"] * VECTOR_BYTES[payload_of(table)])
    tokens[1:3] = np.round(tokens[1:3])
    sms = int(of["sms"]) if "sms" in of else None
    how = {"kernel": of["variant"], "dtype": of["dtype"], "sms": sms, **where, **layer, **who(table)}
    times = laws.dispatch_combine(of["op"], tokens, **how)
    positive(times, (5,))
    assert times.ns[-1] >= times.ns[0]
    return times.table


def asked_host(laws, table):
    return judged_transfer(
        laws.host(sizes_of(table), table.of["direction"], method=table.of["method"], **who(table)), table
    )


def asked_memory(laws, table):
    if isinstance(table, TransferTable):
        law, sizes = law_of(table), sizes_of(table)
        return judged_transfer(Times(law.time_ns(sizes), law.extrapolates(sizes), table), table)
    found = laws.memory(table.of["level"], table.of["op"], table.of["quantity"], **who(table))
    assert found.low <= found.value <= found.high
    return found


def asked_launch(laws, table):
    return laws.launch(table.of["kind"])


ASK = dict(
    zip(
        SECTIONS,
        (asked_gemm, asked_moe, asked_attention, asked_copy, asked_collective, asked_host, asked_memory, asked_launch),
        strict=True,
    )
)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("gpu", SAMPLED)
def test_every_shipped_table_is_reached(gpu, section):
    """By its own names the door gives that very table (every fourth at a commit), and times that are positive."""
    laws = laws_of(gpu)
    tables = getattr(laws.calibration, section)[:: 1 if examples(100) == 100 else 4]
    assert [ASK[section](laws, table) is table for table in tables] == [True] * len(tables)
