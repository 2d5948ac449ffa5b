"""A placement from a file: what an engine would load is what runs."""

import numpy as np
import pytest
from support.small_runs import policy, small_model, small_system
from support.tiny import tiny

from archsim.base.errors import PlacementError
from archsim.policies.registry import place_experts
from archsim.runs.plan import prepare
from archsim.workload.placements.files import ENGINES, write_placement
from archsim.workload.placements.physical import PhysicalMap

SYSTEM, MODEL = small_system(), small_model(experts=20)
MODEL = MODEL.model_copy(update={"moe_layers": MODEL.moe_layers.model_copy(update={"last": 4})})
SLOTS = 24


def placed(seed=0):
    rng = np.random.default_rng(seed)
    layers = len(MODEL.moe_layer_ids)
    rows = [rng.permutation(np.r_[np.arange(20), rng.integers(0, 20, SLOTS - 20)]) for _ in range(layers)]
    return PhysicalMap(np.array(rows, np.int32), 20, SYSTEM.dies)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_engine_s_file_and_that_of_place_give_the_same_placement(engine, tmp_path):
    made = placed()
    write_placement(made, MODEL, tmp_path)
    (tmp_path / "placement.json").write_text("{}")
    for file in (engine.file, "placement.json", "."):
        spec = policy("ep", placement={"name": "from_file", "file": str(tmp_path / file)}, allocation="even")
        found = place_experts(spec, MODEL, SYSTEM.dies)
        assert (found.holds == (made.copies() > 0)).all()
        assert (found.layer_slots == SLOTS // SYSTEM.dies).all()
        first = [row.tolist().index(3) // made.slots_per_rank for row in made.experts]
        assert found.home[:, 3].tolist() == first


def test_a_file_that_is_missing_or_does_not_fit_is_refused(tmp_path):
    def place(dies=SYSTEM.dies, **params):
        return place_experts(policy("ep", placement={"name": "from_file", **params}), MODEL, dies)

    with pytest.raises(PlacementError, match="give `file`"):
        place()
    with pytest.raises(PlacementError, match="cannot be read"):
        place(file=str(tmp_path / "none.json"))
    write_placement(placed(), MODEL, tmp_path)
    with pytest.raises(PlacementError, match="do not divide among 7 ranks"):
        place(dies=7, file=str(tmp_path / ENGINES[0].file))


def test_a_run_is_another_when_the_content_of_its_file_changes(tmp_path):
    keys = []
    for text in ("one", "other"):
        (tmp_path / "map.json").write_text(text)
        rule = f"{{name: mine, placement: {{name: from_file, file: {tmp_path / 'map.json'}}}, allocation: even}}"
        keys.append([run.key for run in prepare(tiny(tmp_path, f"policies=[{rule}]")).runs])
    assert keys[0] and not set(keys[0]) & set(keys[1])
