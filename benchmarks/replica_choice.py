"""How uneven ranks are by the way in which tokens choose among the replicas of an expert.

    python benchmarks/replica_choice.py TRACE.npz EXPERTS [--ranks 8] [--slots 1] [--tokens 2048]

EPLB places by the first half of the requests, ``--slots`` further slots a rank; steps of ``--tokens`` drawn from the
second half are judged. Prints the mean of the largest over the mean load of a rank, over steps and layers: tokens
divided exactly (`even`), by a hash (`hashed`), and by the position of the pair in the flattened top-k, modulo the
number of replicas, as vLLM did before pull request 40810.
"""

import argparse
from pathlib import Path

import numpy as np

from archsim.balancers import eplb, imbalance

MOST_STEPS = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("experts", type=int)
    for name, default in (("ranks", 8), ("slots", 1), ("tokens", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    columns, random = np.load(given.trace), np.random.default_rng(0)
    chosen, offsets = columns["experts"].astype(int), columns["request_offsets"]
    half = offsets[len(offsets) // 2]
    load = np.stack([np.bincount(each.ravel(), minlength=given.experts) for each in chosen[:half].swapaxes(0, 1)])
    slots = given.experts + given.slots * given.ranks
    slot_of = eplb(load.astype(float), slots, 1, 1, given.ranks).logical_to_physical
    later = random.permutation(chosen[half:])
    found: dict[str, list[float]] = {"even": [], "hashed": [], "position": []}
    for at in range(0, min(len(later) - given.tokens, MOST_STEPS * given.tokens) + 1, given.tokens):
        for experts, slot in zip(later[at : at + given.tokens].swapaxes(0, 1), slot_of, strict=True):
            for name, each in loads(experts, slot, slots // given.ranks, given.ranks, random).items():
                found[name].append(float(imbalance(each)))
    print(", ".join(f"{name} {np.mean(each):.3f}" for name, each in found.items()))
    return 0


def loads(experts: np.ndarray, slot: np.ndarray, per_rank: int, ranks: int, random) -> dict[str, np.ndarray]:
    """Loads of ranks by choice. ``experts``: int[token, k]; ``slot``: int[expert, replica], -1 after the last."""
    replicas = (slot >= 0).sum(axis=1)
    position = np.arange(experts.size).reshape(experts.shape)
    drawn = {"hashed": random.integers(0, 1 << 30, experts.shape), "position": position}
    rank = {name: slot[experts, each % replicas[experts]] // per_rank for name, each in drawn.items()}
    tokens = np.bincount(experts.ravel(), minlength=len(slot)) / replicas
    there = slot >= 0
    even = np.bincount((slot // per_rank)[there], np.broadcast_to(tokens[:, None], slot.shape)[there], ranks)
    return {"even": even} | {name: np.bincount(each.ravel(), minlength=ranks) for name, each in rank.items()}


if __name__ == "__main__":
    raise SystemExit(main())
