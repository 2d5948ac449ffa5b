"""Sentences of pages, as they read for one, two and many cases."""

from dataclasses import fields

import pytest

from archsim.report.data import Place
from archsim.report.sections import Winner, _distances, _faster_systems, _limits, _won
from archsim.report.units import listed

MODELS = ("deepseek-v3", "qwen3-235b-a22b")


class Run(dict):
    def __init__(self, policy, batch, **values):
        super().__init__(values)
        self.policy, self.batch = policy, batch


def place(model="deepseek-v3", system="dojo"):
    values = {"model": model, "system": system, "assumptions": "physical"}
    return Place(**{each.name: values.get(each.name, "") for each in fields(Place)})


def wins(*each):
    """(model, batch, policy, gain) → winners by place."""
    found = {}
    for model in dict.fromkeys(model for model, *_ in each):
        mine = [Winner(batch, Run(policy, batch), gain) for at, batch, policy, gain in each if at == model]
        found[place(model)] = mine
    return found


V3, QWEN = MODELS
SAID = {
    "On dojo, expert parallelism (ep) decodes deepseek-v3 the fastest at batch 64.": [(V3, 64, "ep", 1.0)],
    "On dojo, expert parallelism (ep) decodes deepseek-v3 the fastest.": [(V3, 64, "ep", 1.0), (V3, 512, "ep", 1.0)],
    "On dojo, allo decodes deepseek-v3 1.30× faster than expert parallelism (ep) at batch 8,192.": [
        (V3, 8192, "allo", 1.3)
    ],
    "On dojo, allo decodes deepseek-v3 and qwen3-235b-a22b 1.10× to 1.70× faster than expert parallelism (ep).": [
        (V3, 4096, "allo", 1.1), (V3, 8192, "allo", 1.3), (QWEN, 4096, "allo", 1.7),
    ],
    "On dojo, allo decodes deepseek-v3 and qwen3-235b-a22b 1.10× to 1.70× faster than expert parallelism (ep). The "
    "exception is deepseek-v3 at batch 16,384, where base wins by 1.51×.": [
        (V3, 4096, "allo", 1.1), (V3, 16384, "base", 1.51), (QWEN, 4096, "allo", 1.7),
    ],
    "On dojo, allo decodes deepseek-v3 and qwen3-235b-a22b 1.30× to 1.77× faster than expert parallelism (ep). The "
    "exceptions are deepseek-v3 at batch 512 and qwen3-235b-a22b at batch 512, where ep wins.": [
        (V3, 512, "ep", 1.0), (V3, 8192, "allo", 1.3), (V3, 16384, "allo", 1.5), (QWEN, 512, "ep", 1.0),
        (QWEN, 8192, "allo", 1.77),
    ],
    "On dojo, allo decodes deepseek-v3 1.30× faster than expert parallelism (ep). The exceptions are deepseek-v3 at "
    "batch 64, where ep wins; and deepseek-v3 at batch 16,384, where base wins by 1.20×.": [
        (V3, 64, "ep", 1.0), (V3, 4096, "allo", 1.3), (V3, 8192, "allo", 1.3), (V3, 16384, "base", 1.2),
    ],
    "On dojo, allo decodes deepseek-v3 1.30× faster than expert parallelism (ep). In 5 of 11 places another policy "
    "wins (ep and base); the table below has them.": [
        *((V3, 2**n, "ep", 1.0) for n in range(4)), *((V3, 2**n, "allo", 1.3) for n in range(4, 10)),
        (V3, 4096, "base", 1.1),
    ],
    "On dojo, harmoeny decodes deepseek-v3 the fastest at batch 64.": [(V3, 64, "harmoeny", None)],
}  # fmt: skip


@pytest.mark.parametrize("said", SAID, ids=range(len(SAID)))
def test_what_wins(said):
    assert _won("dojo", wins(*SAID[said])) == said


def test_what_limits_and_how_far_it_is():
    run = Run("allo", 8192, bound_compute=0.0, over_roofline=3.22, load_max_over_mean=1.8, load_ceiling_slots=1.0)
    assert _limits({place(): run}, False)[0].endswith("has no record of what it waited for.")
    assert _distances({place(): run}, True)[0] == (
        "A step of deepseek-v3 on dojo takes 3.22× as long as the roofline allows and its busiest die has 1.80× the "
        "load that the best placement would give it."
    )
    run["load_max_over_mean"] = 0.9
    assert _distances({place(): run}, False)[0].endswith(
        "no placement of whole experts would balance it better, as the policy splits experts over dies."
    )
    assert _distances({place(): Run("ep", 1)}, False) == []


def test_steps_that_wait_for_the_same_share_a_sentence():
    runs = {
        place(model, system): Run("allo", 64, bound_hbm=share, bound_compute=0.3, over_roofline=4.0)
        for model, system, share in ((V3, "dojo", 0.5), (QWEN, "dojo", 0.55), (V3, "sow", 0.6), (QWEN, "sow", 0.5))
    }
    said = _limits(runs, several=True)
    assert [each.replace("\N{NO-BREAK SPACE}", " ") for each in said] == [
        "At batch 64, steps of deepseek-v3 and qwen3-235b-a22b on dojo and sow under allo spend 50 % to 60 % of their "
        "time waiting for HBM and 30 % multiplying."
    ]
    assert _distances(runs, several=True) == [
        "Steps of deepseek-v3 and qwen3-235b-a22b on dojo and sow take 4.00× as long as the roofline allows."
    ]


def test_two_systems_are_compared_first_of_all():
    def rates(fast):
        runs = ((batch, Run("allo", batch, throughput_tokens_per_s=fast * batch)) for batch in (64, 512))
        return [Winner(batch, run, None) for batch, run in runs]

    found = {"dojo": {place(): rates(1.0)}, "mine": {place(V3, "mine"): rates(3.3)}}
    assert _faster_systems(found) == ["mine decodes deepseek-v3 3.30× as fast as dojo."]
    found["slow"] = {place(V3, "slow"): rates(0.5)}
    assert _faster_systems(found) == ["mine decodes deepseek-v3 3.30× as fast as dojo and 6.60× as fast as slow."]
    assert _faster_systems({"dojo": found["dojo"]}) == []


def test_lists_read_as_people_write_them():
    assert [listed(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
