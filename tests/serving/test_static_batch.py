"""A static batch: what it takes of HBM, and Libra's cells that ran out of memory (tables 4 to 13)."""

import pytest

from archsim.base.errors import CapacityError, SpecError
from archsim.serving.deployment import kv_blocks, kv_room
from archsim.serving.serving import engine_of
from archsim.serving.simulate import Scheduler
from archsim.specs.papers import load_paper
from archsim.studies.serving.runs import serve_plan

LENGTHS, BATCHES = (1024, 2048, 4096, 6144, 8192), (8, 16, 32, 48, 64)
# Of tables 4 to 13, output length 1: the batches from which on a system runs out of memory, by length of prompts.
NEVER = 1000
RUNS_OUT = {
    "qwen3": {"ep": (NEVER,) * 5, "lina": (NEVER, NEVER, 64, 48, 32), "libra": (NEVER, NEVER, NEVER, NEVER, 64)},
    "glm": {"ep": (NEVER, 64, 32, 16, 16), "lina": (NEVER, 48, 32, 16, 16), "libra": (NEVER, 48, 32, 16, 16)},
}


def engines(run: str):
    """(policy, engine) for every policy of a run of Libra's."""
    for each in serve_plan(load_paper("libra").runs[run].serve, ["sweep=null"]).runs():
        yield each.serving.policy.name, engine_of(each.serving, each.serving.spec.parallel)


def runs_out(engine, batch: int, length: int) -> bool:
    static = engine.static._replace(requests=batch, tokens=length + 1, prompt_tokens=batch * length)
    try:
        return kv_blocks(engine._replace(static=static), Scheduler()) < 1
    except CapacityError as error:
        assert f"a static batch of {batch} requests of {length + 1:,} tokens" in str(error)
        return True


def test_libras_cells_run_out_of_memory_as_published():
    right = wrong = 0
    for run, published in RUNS_OUT.items():
        for policy, engine in engines(run):
            for length, least in zip(LENGTHS, published[policy], strict=True):
                for batch in BATCHES:
                    agrees = runs_out(engine, batch, length) == (batch >= least)
                    right, wrong = right + agrees, wrong + (not agrees)
    assert right >= 143 and right + wrong == 150


def test_what_a_batch_takes_grows_with_its_tokens_and_with_the_stages_of_its_policy():
    found = dict(engines("glm"))
    one, two = found["lina"].static, found["libra"].static
    assert (one.stages, two.stages, found["ep"].static.gathered) == (1, 2, 0)

    def taken(engine, tokens):
        before, after = (
            kv_room(engine._replace(static=engine.static._replace(prompt_tokens=each)), Scheduler()).free_bytes
            for each in (0, tokens)
        )
        return before - after

    model = found["ep"].model
    vectors, pair = 2 * model.hidden * 2, (2 * model.hidden + 3 * model.expert_ffn) * 2
    assert taken(found["ep"], 8000) == pytest.approx(8000 * (vectors + 1.5 * pair * model.top_k / 8), abs=1)
    assert taken(found["libra"], 8000) == pytest.approx(8000 * (vectors + 3.0 * pair * model.top_k / 8), abs=1)


def test_a_batch_without_a_size_is_refused():
    given = dict(load_paper("libra").runs["glm"].serve) | {"requests": {"arrivals": {"rate": "1/s"}, "count": 8}}
    given["requests"] |= {"input": {"fixed": 64}, "output": {"fixed": 1}}
    (run, *_) = serve_plan(given, ["sweep=null"]).runs()
    with pytest.raises(SpecError, match=r"give requests: \{concurrency: 32"):
        engine_of(run.serving, run.serving.spec.parallel)
