"""The compiled loop against a slow and obvious one: every time, hit and preemption of random cases is the same.

``ARCHSIM_ORACLE_CASES=1000`` runs as many; each commit runs a sample of the three schedulers.
"""

import os

import numpy as np
import pytest
from reference import serving_oracle
from support.serving import pool

from archsim.serving.kv import with_outputs
from archsim.serving.requests import Requests
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.serving import SCHEDULERS

CASES = int(os.environ.get("ARCHSIM_ORACLE_CASES", "24"))


def case(seed):
    """(rows of (arrival, prompt, output, ids), rules, blocks of a rank, ranks, instances, clients)."""
    draw = np.random.default_rng(seed)
    name = sorted(SCHEDULERS)[seed % len(SCHEDULERS)]
    block = int(draw.choice([1, 4, 16]))
    rules = {
        "name": name, "max_num_seqs": int(draw.integers(1, 12)), "max_num_batched_tokens": int(draw.integers(8, 200)),
        "chunked_prefill": bool(draw.random() < (0.5 if name == "trtllm" else 0.9)),
        "prefix_caching": bool(draw.random() < 0.5), "block_tokens": block,
        "reserve_full_isl": int(draw.random() < 0.7), "poll_every": int(draw.choice([1, 1, 5])),
        "kept_share": float(draw.choice([0.0, 0.7, 1.0])),
    }  # fmt: skip
    longest = 150 if rules["chunked_prefill"] else rules["max_num_batched_tokens"] // 2
    count, clients = int(draw.integers(2, 40)), int(draw.choice([0, 0, 3]))
    rows, known = [], []
    for at in range(count):
        prompt, output = int(draw.integers(1, longest + 1)), int(draw.integers(1, 40 if longest > 40 else longest + 1))
        full = prompt // block
        ids = list(range(1000 * at, 1000 * at + full))
        if known and draw.random() < 0.6:  # as an earlier prompt begins
            like = known[draw.integers(len(known))]
            kept = int(draw.integers(0, len(like) + 1))
            ids = [*like[:kept], *ids][:full]
        known.append(ids)
        rows.append((0 if clients else int(draw.integers(0, 400)) * 1_000_000, prompt, output, ids))
    rows.sort(key=lambda row: row[0])
    most = max(-(-(prompt + output) // block) for _, prompt, output, _ in rows)
    return rows, rules, int(most * draw.uniform(1, 4)), int(draw.integers(1, 3)), int(draw.integers(1, 3)), clients


def asked(rows, block, clients):
    """A block that is not full has an id of its own, which nothing shares."""
    own = iter(range(10**6, 2 * 10**6))
    ids = [[*row[3], *([next(own)] if row[1] % block else [])] for row in rows]
    flat = np.array([each for row in ids for each in row], np.int64)
    first = np.cumsum([0, *map(len, ids)])
    dense = np.unique(flat, return_inverse=True)[1].astype(np.int64)
    arrival, prompt, output = (np.array([row[at] for row in rows]) for at in range(3))
    return Requests(arrival.astype(float), prompt, output, dense, first, block, clients)


def with_ids_of_outputs(rows, block, clients):
    """The rows with the ids of full blocks of outputs that later turns repeat (test_agentic.py has cases by hand)."""
    chains = with_outputs(asked(rows, block, clients))
    ids = [chains.ids[chains.first[r] :][: tokens // block].tolist() for r, tokens in enumerate(chains.tokens)]
    return [(*row[:3], each) for row, each in zip(rows, ids, strict=True)]


def served(rows, rules, blocks, ranks, instances, clients):
    known = SCHEDULERS[rules["name"]].parameters
    params = {key: rules[key] for key in known}
    names = [key for key in rules if key in Scheduler._fields]
    scheduler = Scheduler(**{key: rules[key] for key in names}, balance="least_loaded", params=params)
    machine = pool(blocks, instances, ranks, attention_ns=1.0)
    return simulate(asked(rows, rules["block_tokens"], clients), scheduler, machine).requests


FIELDS = {"arrival_ns": "arrival", "scheduled_ns": "scheduled", "first_ns": "first", "last_ns": "last", "hit": "hit",
          "preempted": "preempted"}  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_every_request_is_served_as_the_rules_say(part):
    wrong = {}
    for seed in range(part, CASES, 3):
        rows, rules, *sizes, clients = case(seed)
        fast = served(rows, rules, *sizes, clients)
        known = with_ids_of_outputs(rows, rules["block_tokens"], clients)
        slow = serving_oracle.serve(known, rules, *sizes, clients)
        off = [name for name, other in FIELDS.items() if fast[name].tolist() != [getattr(each, other) for each in slow]]
        if off:
            wrong[seed] = rules["name"], off
    assert not wrong, f"{len(wrong)} of {len(range(part, CASES, 3))}: {dict(list(wrong.items())[:5])}"
