"""KV of outputs is found by the next turn, and requests share prefixes: cases derived by hand."""

import numpy as np
import pytest
from support.serving import opened, pool

from archsim.base.errors import SpecError
from archsim.serving.kv import pieces_of, with_outputs
from archsim.serving.requests import Requests, with_prefixes, without_hashes
from archsim.serving.serving import requests_of
from archsim.serving.simulate import Scheduler, simulate
from archsim.specs.serving_files import load_serving

BLOCK = 16


def asked(rows, ids) -> Requests:
    """(ms, input, output), and hash ids of each."""
    starts = np.concatenate([[0], np.cumsum([len(each) for each in ids])])
    flat = np.array([each for one in ids for each in one])
    return opened(rows)._replace(hash_ids=flat, hash_from=starts, hash_tokens=BLOCK)


# A prompt of 40 tokens (two full blocks, and one of 8) and an output of 24; the next turn has both, and 26 tokens more.
TURNS = asked([(0.0, 40, 24), (5e3, 90, 4)], [[0, 1, 2], [0, 1, 3, 4, 5, 6]])


def hits(requests: Requests, **changes) -> list[int]:
    scheduler = Scheduler("vllm_v1", 8, 1024, block_tokens=BLOCK, **changes)
    return simulate(requests, scheduler, pool(blocks=4000)).requests["hit"].tolist()


def test_a_turn_finds_what_the_one_before_has_computed():
    # KV of 40 + 24 - 1 = 63 tokens: the last output token has none. Three blocks of 16 are full.
    assert hits(TURNS) == [0, 48]
    assert hits(TURNS._replace(outputs_kept=False)) == [0, 32]
    assert hits(TURNS, prefix_caching=False) == [0, 0]


def test_ids_of_an_output_are_those_that_the_next_turn_has_there():
    chains = with_outputs(TURNS)
    assert chains.tokens.tolist() == [63, 90]
    assert chains.ids[: chains.first[1]].tolist() == [0, 1, 3, 4]
    found = pieces_of(TURNS, BLOCK)
    assert found.blocks[found.pieces[: found.first[1]]].sum() == 3


@pytest.mark.parametrize(
    "other",
    [
        asked([(0.0, 40, 24), (5e3, 60, 4)], [[0, 1, 2], [0, 1, 3, 4]]),  # too short for the output
        asked([(0.0, 40, 24), (5e3, 90, 4)], [[0, 1, 2], [0, 7, 3, 4, 5, 6]]),  # another conversation
        asked([(0.0, 20, 24), (5e3, 90, 4)], [[0, 2], [0, 1, 3, 4, 5, 6]]),  # one block alone is a system prompt
    ],
)
def test_what_is_no_later_turn_finds_no_output(other):
    assert with_outputs(other).tokens.tolist() == other.input.tolist()
    assert hits(other)[1] <= 32


def test_an_agent_of_many_turns_reuses_outputs_in_every_one():
    """Ten turns that each add 32 tokens of a tool to an output of 96: without them, only prompts are found."""
    rows, ids, tokens = [], [], 64
    for turn in range(10):
        rows.append((turn * 1e4, tokens, 96))
        ids.append(list(range(tokens // BLOCK)))
        tokens += 96 + 32
    requests = asked(rows, ids)
    kept, dropped = (np.array(hits(each)) for each in (requests, requests._replace(outputs_kept=False)))
    before = requests.input[:-1]
    assert dropped[1:].tolist() == before.tolist()
    assert kept[1:].tolist() == (before + 80).tolist()  # 95 tokens of the output have KV: five blocks of 16
    assert kept.sum() / requests.input.sum() > dropped.sum() / requests.input.sum() + 0.1


def test_requests_that_are_drawn_share_prefixes_in_blocks():
    plain = without_hashes(np.zeros(2000), np.full(2000, 100), np.full(2000, 4))
    found = with_prefixes(plain, np.array([50, 32]), 0.5, 1.0, 0)
    assert set(found.input.tolist()) == {100, 150, 132}
    share = float((found.input == 150).mean())
    assert share == pytest.approx(0.5 * 2 / 3, abs=0.04)  # of the first prefix: 1 to 1/2
    one, other = np.flatnonzero(found.input == 150)[:2]
    ids = [found.hash_ids[found.hash_from[r] : found.hash_from[r + 1]] for r in (one, other)]
    assert len(ids[0]) == 10 and ids[0][:3].tolist() == ids[1][:3].tolist()  # 48 of 50 tokens are full blocks
    assert not set(ids[0][3:].tolist()) & set(ids[1][3:].tolist())


PREFIXED = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"},
    "requests": {
        "arrivals": {"rate": "4/s"}, "input": {"fixed": 64}, "output": {"fixed": 4}, "count": 20,
        "prefixes": {"tokens": {"fixed": 160}, "count": 1},
    },
    "scheduler": {"name": "vllm_v1", "balance": "prefix_aware"},
}  # fmt: skip


def test_a_file_draws_prefixes_and_more_requests_begin_with_the_same():
    few = requests_of(load_serving(PREFIXED))
    many = requests_of(load_serving(PREFIXED, ["requests.count=50"]))
    assert few.input.tolist() == [224] * 20 and np.array_equal(many.input[:20], few.input)
    assert hits(few)[1:] == [160] * 19
    with pytest.raises(SpecError, match="prefixes: a trace has its hash ids"):
        load_serving({**PREFIXED, "requests": {"trace": "x.jsonl", "prefixes": {"tokens": {"fixed": 160}}}})
