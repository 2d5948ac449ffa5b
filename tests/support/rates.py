"""A machine of two GPUs at other rates, and what these move of an iteration."""

import pytest

RATES = "hbm", "flop", "link"
MOVED = RATES, *((each,) for each in RATES)
LINKED, GATHERED = {"transfers", "all_reduce", "dispatch", "combine"}, {"head", "lm_head"}  # the head gathers logits


def pair(hbm=1.0, flop=1.0, link=1.0):
    level = {"switch": 2, "bandwidth": f"{450 * link} GB/s", "hop_latency": "0.3 us", "law": "h100/intra_node"}
    return {
        "like": "h100_node", "name": "pair", "hbm": {"bandwidth": f"{3350 * hbm} GB/s"},
        "compute": {"peak": f"{1979 * flop} TFLOP/s"}, "fabric": {"levels": [level]},
    }  # fmt: skip


def rates_move_their_share(ns_of, rates):
    """``ns_of``: a machine's part → ns of one iteration. A collective takes latency + bytes / rate, and so does a
    kernel of all its rates: half of them add twice what twice of them take off where the same kernel is the fastest at
    all, and less where another one is. Of one of its rates it is no more than the whole, as FLOP hide bytes.
    """
    half, one, twice = (ns_of(pair(**dict.fromkeys(rates, times))) for times in (0.5, 1.0, 2.0))
    for part, ns in one.items():
        more, less = half[part] - ns, ns - twice[part]
        if len(rates) == 1 and (rates == ("link",)) != (part in LINKED) and part not in GATHERED:
            assert more == pytest.approx(0, abs=1e-9 * ns) and less == pytest.approx(0, abs=1e-9 * ns), part
        most = ns if rates in (("hbm",), ("flop",)) else 2 * less
        assert -1e-9 * ns <= less and -1e-9 * ns <= more <= most + 1e-5 * ns, (part, more, less)
    more, less = (sum(a.values()) - sum(b.values()) for a, b in ((half, one), (one, twice)))
    assert less > 0 and (rates != ("link",) or more == pytest.approx(2 * less, rel=1e-9))
