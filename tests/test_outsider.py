"""Every addition that docs/architecture.md promises: a function in the user's own file, and one key in the YAML.

Nothing in the package is edited. Every addition must change the results it targets.
"""

import contextlib
import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from support.html_page import text_of_report
from support.own_scheduler import GENTLE
from support.tiny import TINY, archsim

import archsim as ar
from archsim.engine.fabrics import build_fabric, extent_of
from archsim.runs.results import Results
from archsim.specs.library import load_system
from microarch.fabric.grid import ROW_MAJOR

MINE = '''
from pathlib import Path

import numpy as np

from archsim.base.errors import SpecError
from archsim.engine.execution import GemmTime
from archsim.iteration.attention import Kind, Product, Work
from archsim.policies.allocation import Plan
from archsim.extend import FabricDescription, LinkClass


def crowded(experts, dies):
    """Placement: every expert on die 0."""
    return np.zeros(experts, np.int32)


def backwards(step):
    """Allocation: expert e on die (D - 1 - home)."""
    expert = np.flatnonzero(step.tokens)
    return Plan(expert, len(step.hops) - 1 - step.home[expert], step.tokens[expert])


def again(seen, most=3):
    """Prediction: the experts that most tokens of this iteration chose, in this layer and the one before."""
    loads = np.zeros(len(seen.heat), int)
    for chosen in (seen.tokens, seen.before):
        loads += np.bincount(chosen.ravel(), minlength=len(loads))
    assert seen.step > 0 and seen.scores is None and len(seen.request) == len(seen.tokens)
    assert (len(seen.before) > 0) == (seen.layer > 0)
    return loads >= np.sort(loads)[-most]


def star(dies):
    """Fabric: all dies on one switch, with links of 10 GB/s."""
    arm = LinkClass("arm", 10e9, 250.0)
    return FabricDescription(nodes=dies + 1, edges=[(die, dies) for die in range(dies)], classes=[arm])


def decompressor(n_bytes):
    """Block: expands every slice in 5 us."""
    return np.full(len(n_bytes), 5000.0)


def columns_of_numbers(path, model):
    """Trace format: one request per line, one prompt token; expert ids of every token, layer and rank."""
    for line in Path(path).read_text().splitlines():
        yield np.array(line.split(), int).reshape(-1, len(model.moe_layer_ids), model.top_k), 1


class OneByOne:
    """Every die computes its tokens one after the other, 10 ns each."""

    columns = {"idle_ns": "time that the mean die waits for the fullest"}

    def __init__(self, setup):
        self._dies, self._idle_ns = setup.machine.dies, 0.0

    def _load(self, order):
        return np.bincount(order.plan.die, order.plan.tokens, self._dies)

    def step(self, order, now_ns):
        load = self._load(order)
        self._idle_ns += 10.0 * (load.max() - load.mean())
        return now_ns + 10.0 * load.max()

    def gemm_time(self):
        return GemmTime(0.0, 0.0)

    def counted(self):
        return {"idle_ns": self._idle_ns}

    @staticmethod
    def bytes_per_die(system, model, batch):
        return 1e15 if batch > 12 else 1000

    @staticmethod
    def refuse_undeployed(scenario):
        if scenario.parallel.tp > 1:
            raise SpecError("OneByOne runs whole layers on a die: give attention: {tp: 1}")


class Averaged(Kind):
    """A cache of ``width`` values a token, of which decodes were measured: 5 us and 10 ns for a thousand tokens."""

    width: int
    measurements = [
        ("decode", requests, 1, context, 5.0 + 1e-5 * requests * context)
        for requests in (1, 8, 64) for context in (256, 4096)
    ]

    @property
    def split_heads(self):
        return 64

    def weights(self, hidden):
        return 2 * hidden * self.width

    def kv_bytes_per_token(self, value_bytes=2):
        return self.width * value_bytes

    def products(self, hidden, tp):
        return Product(self.width, hidden), Product(hidden, self.width, back=True)

    def work(self, phase, tp, requests, new, context, kv_dtype):
        seen = np.asarray(requests, float) * new * context
        return Work(2.0 * seen * self.width, 2.0 * seen * self.width)


def longest_step_ns(outcome, scenario) -> float:
    """The longest step."""
    return outcome.step_ns.max()
'''
SYSTEMS = TINY[TINY.index("systems:") : TINY.index("models:")]
ONE_SYSTEM = SYSTEMS[: SYSTEMS.index("- name: square")]
PLAIN = (
    TINY.replace(SYSTEMS, ONE_SYSTEM)
    .replace("batch: [12, 40]", "batch: [12]")
    .replace("policies: [base, ep, allo, pred, allo+pred]", "policies: [ep]")
    .replace("assumptions: published", "assumptions: physical")
)
SYSTEM_KEY = "  mesh: {x: 3, y: 2}\n"
# What is added → (text of the experiment, the same with one more key, result column that must change).
ADDITIONS = {
    "placement": ("policies: [ep]", "policies: [{name: ep, placement: 'mine:crowded', allocation: home}]",
                  "die_utilisation"),
    "allocation": ("policies: [ep]", "policies: [{name: ep, allocation: 'mine:backwards'}]", "remote_hbm_read_bytes"),
    "prediction": ("policies: [ep]",
                   "policies: [{name: ep, allocation: first_seen, prediction: {name: 'mine:again', most: 4}}]",
                   "local_hbm_write_bytes"),
    "fabric": (SYSTEM_KEY, SYSTEM_KEY + "  topology: 'mine:star'\n", "decode_ns"),
    "block": (SYSTEM_KEY, SYSTEM_KEY + "  blocks: ['mine:decompressor']\n", "decode_ns"),
    "trace format": ("trace: {synthetic: {prompt_tokens: 3}}", "trace: numbers.txt, reader: 'mine:columns_of_numbers'",
                     "trace"),
    "column": ("assumptions: physical", "assumptions: physical\ncolumns: ['mine:longest_step_ns']", "longest_step_ns"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A user's own folder: functions, a trace, experiments."""
    (tmp_path / "mine.py").write_text(MINE + GENTLE)
    requests = [" ".join(str((request + at) % 16) for at in range(5 * 2 * 2)) for request in range(12)]
    (tmp_path / "numbers.txt").write_text("\n".join(requests))
    return tmp_path


def ran(folder, text):
    """The only row of a run."""
    (folder / "run.yaml").write_text(text)
    with contextlib.chdir(folder):
        [row] = ar.run("run.yaml").runs.rows
    return row


def swept(folder, name, text):
    """The only row of the results."""
    (folder / f"{name}.yaml").write_text(text)
    process = archsim(folder, "sweep", f"{name}.yaml", "--jobs", "1", "--out", name)
    assert process.returncode == 0, process.stderr
    [row] = Results.load(folder / name).runs.rows
    return row


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The row of the experiment without additions."""
    return ran(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.mark.parametrize("addition", ADDITIONS)
def test_an_outsider_adds_one_function_and_one_key(folder, plain, addition):
    before, after, column = ADDITIONS[addition]
    assert PLAIN.count(before) == 1
    changed = ran(folder, PLAIN.replace(before, after))
    assert changed[column] != plain.get(column)
    assert changed["decode_ns"] > 0


@pytest.mark.parametrize("update", ["free", "limited"])
def test_an_outsider_predicts_with_a_heatmap_of_either_kind(folder, update):
    """Rows for every expert: those that are predicted by nobody else are copied."""
    (folder / "follow.py").write_text(
        "import numpy as np\n\n\ndef rows(seen, few=1):\n"
        "    return np.eye(len(seen.heat), dtype=bool)[:, ::-1] & (few > 0)\n"
    )
    policy = "{name: ep, allocation: first_seen, prediction: {name: 'follow:rows', few: FEW}}"
    assumptions = f"assumptions: {{set: physical, heatmap_update: {update}}}"
    text = PLAIN.replace("policies: [ep]", f"policies: [{policy}]").replace("assumptions: physical", assumptions)
    some, none = (ran(folder, text.replace("FEW", str(few))) for few in (1, 0))
    assert some["local_hbm_write_bytes"] > none["local_hbm_write_bytes"] == 0


def test_a_prediction_of_another_shape_is_refused_with_the_shapes_that_fit(folder):
    (folder / "odd.py").write_text("def loads(seen):\n    return [0.5, 0.5]\n")
    policy = "{name: ep, allocation: home, prediction: 'odd:loads'}"
    (folder / "odd.yaml").write_text(PLAIN.replace("policies: [ep]", f"policies: [{policy}]"))
    process = archsim(folder, "sweep", "odd.yaml", "--jobs", "1")
    assert process.returncode and "odd:loads: returns float64[2]; expected bool[16]" in process.stderr


def test_an_edited_function_runs_again(folder):
    """The key of a kept run also depends on the code of the user's functions."""
    before, after, _ = ADDITIONS["block"]
    text = PLAIN.replace(before, after)
    slow = swept(folder, "mine", text)
    (folder / "mine.py").write_text(re.sub("5000.0", "9000.0", MINE + GENTLE))
    assert swept(folder, "mine", text)["decode_ns"] > slow["decode_ns"]


def test_a_shipped_topology_takes_the_tables_of_its_recipe_alone(monkeypatch):
    """A new row in each table that docs/architecture.md names, equal to the ring's: a machine of it is the ring."""
    recipe = (Path(__file__).parents[1] / "docs/architecture.md").read_text().partition("### Add a machine kind")[2]
    shipped = recipe.partition("- Shipped:")[2].partition("\n")[0]
    system, machines = load_system("dojo"), {}
    for names, file in re.findall(r"((?:`[A-Z_]+`(?: and )?)+), `([a-z_/]+)\.py`", shipped):
        module = import_module(file.replace("/", "."))
        for name in re.findall(r"\w+", names.replace(" and ", " ")):
            table = getattr(module, name)
            more = (*table, "bow") if isinstance(table, tuple) else {**table, "bow": table.get("ring")}
            assert "bow" not in table
            monkeypatch.setattr(module, name, more)
    for name in ("ring", "bow"):
        made = type(system).model_validate(system.model_dump(by_alias=True) | {"topology": name})
        machines[name] = build_fabric(made, ROW_MAJOR), extent_of(made)
    ring, bow = machines["ring"], machines["bow"]
    assert np.array_equal(ring[0].hops, bow[0].hops) and ring[1] == bow[1]


EXECUTION = PLAIN.replace("assumptions: physical", "assumptions: {set: physical, execution: 'mine:OneByOne'}")


def test_an_outsider_adds_an_execution_with_columns_memory_sizes_and_page(folder, plain):
    changed = swept(folder, "mine", EXECUTION)
    assert changed["idle_ns"] > 0 and changed["decode_ns"] != plain["decode_ns"]
    page = text_of_report(folder / "mine")
    assert "Every die computes its tokens one after the other, 10 ns each." in page and "idle_ns" in page
    for key, told in (
        ("workload.batch=[13]", "does not fit on small: die 0 needs 1000000.0 GB of HBM .*execution 1000000.0 GB"),
        ("parallel={attention: {tp: 6}}", "OneByOne runs whole layers on a die"),
    ):
        process = archsim(folder, "check", "mine.yaml", "--set", key)
        assert process.returncode and re.search(told, process.stderr), process.stderr
    process = archsim(folder, "run", "mine.yaml", "--step", "1", "--layer", "1", "--timeline", "step.json")
    assert process.returncode and "OneByOne has no method 'log', which timelines need" in process.stderr, process.stderr


SERVE = """
system: h200_node
model: qwen3-30b-a3b
parallel: {attention: {dp: 2}}
requests: {concurrency: 8, input: {fixed: 100}, output: {fixed: 5}, count: 16}
scheduler: SCHEDULER
"""


def served(folder, name, scheduler="vllm_v1", model="qwen3-30b-a3b"):
    """The measures of a run, and its page."""
    (folder / f"{name}.yaml").write_text(SERVE.replace("SCHEDULER", scheduler).replace("qwen3-30b-a3b", model))
    process = archsim(folder, "serve", f"{name}.yaml", "--out", name)
    assert process.returncode == 0, process.stderr
    return json.loads((folder / name / "bench.json").read_text()), (folder / name / "index.html").read_text()


@pytest.mark.nightly
def test_an_outsider_adds_a_scheduler(folder):
    plain, _ = served(folder, "plain", "vllm_v1")
    mine, page = served(folder, "mine", "{name: 'mine:gentle', most: 1}")
    assert mine["mean_ttft_ms"] > plain["mean_ttft_ms"]
    assert "mine:gentle" in page


OWN_MODEL = """{name: averaged, source: mine, layers: 48, hidden: 2048, experts: 128, expert_ffn: 768, top_k: 8,
  vocabulary: 151936, moe_layers: {first: 0, last: 47}, attention: {kind: 'mine:Averaged', width: 256}}"""


def test_an_outsider_adds_a_measured_kind_of_attention(folder):
    plain, _ = served(folder, "plain")
    mine, page = served(folder, "mine", model=OWN_MODEL)
    assert mine["mean_tpot_ms"] < plain["mean_tpot_ms"]
    assert "mine:Averaged attention, decode: 6 points; 0\u00a0% off (median), each by the others" in page
    assert "mine:Averaged attention: a roofline, not measured" in page  # its prompts


CLUSTER = """
name: cluster
systems: [h100_node]
models: [OWN_MODEL]
workload: {trace: {synthetic: {prompt_tokens: 0}}, batch: 64, decode_steps: 2, layers: 1, context: 2000}
policies: [ep]
assumptions:
  {set: physical, execution: expert_parallel, gemm: grouped, combine: bf16, transfer_software: charged, memory: all}
engine: analytical
"""


def test_a_page_of_runs_tells_whose_attention_it_is(folder):
    row = swept(folder, "mine", CLUSTER.replace("OWN_MODEL", OWN_MODEL))
    assert row["iteration_attention_ns"] > 0
    assert ": 6 points; 0\u00a0% off" in (folder / "mine" / "index.html").read_text()
