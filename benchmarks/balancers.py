"""CPU time of the balancers that run during serving: ``python benchmarks/balancers.py``.

Loads are log-normal (sigma 1.2). Each row is the lowest CPU time of several runs, without compilation, and its limit.
"""

import time

import numpy as np

from archsim import balancers
from archsim.policies.craft import craft_gain

RUNS = 7


def _cpu_ms(function, *arguments):
    """Lowest CPU time of a call in ms."""
    function(*arguments)
    times = []
    for _ in range(RUNS):
        started = time.process_time()
        function(*arguments)
        times.append(time.process_time() - started)
    return min(times) * 1e3


def _holders(load, slots, gpus):
    """GPUs of every expert's replicas, placed by EPLB for the load."""
    placed = balancers.eplb(load[None], slots, 1, 1, gpus).logical_to_physical[0]
    return [(row[row >= 0] // (slots // gpus)).tolist() for row in placed]


def _print(what, ms, limit_ms=None):
    print(f"{what:68s} {ms:9.3f} ms" + (f"   limit {limit_ms:g} ms" if limit_ms else ""))


def main():
    rng = np.random.default_rng(0)
    load = rng.lognormal(0, 1.2, (61, 256)) * 1000
    for gpus, groups, nodes in ((32, 8, 4), (32, 1, 1), (96, 1, 1), (288, 1, 1)):
        policy = "hierarchical" if nodes > 1 else "global"
        ms = _cpu_ms(balancers.eplb, load, 288, groups, nodes, gpus)
        _print(f"EPLB, 61 layers x 256 experts x 288 slots, {gpus} GPUs, {policy}", ms, 50)
    for slots in (256 + 64, 512):
        holders = _holders(load[0], slots, 64)
        for what, live in (
            ("as placed", load[0]),
            ("drifted", load[0] * rng.lognormal(0, 0.5, 256)),
            ("another", load[1]),
        ):
            ms = _cpu_ms(balancers.lplb, live, holders, 64)
            _print(f"LPLB, one layer, 256 experts x {slots} slots, 64 GPUs, load {what}", ms, 1)
    batches = rng.lognormal(0, 1.2, (32, 58, 256)) * 1000
    gain = craft_gain(batches, 64, 8)
    _print("CRAFT, gains of 58 layers x 32 batches, 64 GPUs", _cpu_ms(craft_gain, batches, 64, 8), 10_000)
    _print("CRAFT, budget of 58 layers, 512 replicas", _cpu_ms(balancers.craft_budget, gain, 512), 10_000)
    ids = [rng.integers(0, 256, (512, 8)) for _ in range(16)]
    _print("Waterfill, 16 ranks x 512 tokens", _cpu_ms(balancers.waterfill, ids, 16, 16))
    wanted = rng.poisson(load[0] / 64, (8, 256))
    home = np.repeat(np.arange(8), 32)
    plan = balancers.libra_plan(wanted, home, 8, 4)
    stay = np.where(plan.holds, wanted, 0)
    away = (wanted - stay).sum(axis=0) * (home == np.arange(8)[:, None])
    bound = wanted.sum() / 8
    _print("Libra, plan, 8 GPUs x 256 experts", _cpu_ms(balancers.libra_plan, wanted, home, 8, 4))
    _print(
        "Libra, sharding, 8 GPUs x 256 experts",
        _cpu_ms(balancers.libra_shard, plan.holds, stay.sum(axis=1), away, bound, 0.01),
    )
    _print("HarMoEny, 8 GPUs x 256 experts", _cpu_ms(balancers.harmoeny, wanted, 8, 150))
    scores = rng.dirichlet(np.ones(64), 4096)
    capacity = balancers.expert_capacity(1.5, 4096, 8, 64)
    _print("Token drop, 4096 tokens x 64 experts", _cpu_ms(balancers.drop, scores, 8, capacity))
    _print("Token reroute, 3 rounds", _cpu_ms(balancers.reroute, scores, 8, capacity, 3))


if __name__ == "__main__":
    main()
