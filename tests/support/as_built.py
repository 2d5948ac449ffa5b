"""A small machine of made-up dies, and runs of it with keys of machines as they are built."""

from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_experiment

TOY = {
    "name": "toy", "source": "made up", "layers": 2, "moe_layers": {"first": 1, "last": 1}, "hidden": 1024,
    "expert_ffn": 2048, "experts": 24, "top_k": 2, "shared_experts": 1,
}  # fmt: skip


SYSTEM = {
    "name": "small", "source": "made up", "mesh": {"x": 3, "y": 2}, "hbm": {"bandwidth": "2 TB/s", "capacity": "4 GB"},
    "d2d": {"bandwidth": "1 TB/s"}, "compute": {"peak": "50 TFLOP/s", "dtype": "fp16"},
}  # fmt: skip


ROOFLINE = {"set": "physical", "gemm": "roofline", "memory": "experts"}


def experiment_of(policies=("ep",), engine="analytical", assumptions=ROOFLINE, **keys):
    return {
        "name": "as_built", "systems": [SYSTEM | keys], "models": [TOY], "policies": list(policies),
        "workload": {"trace": {"synthetic": {"prompt_tokens": 0}}, "batch": [600], "decode_steps": 2},
        "assumptions": [assumptions], "engine": engine,
    }  # fmt: skip


def rows(policies=("ep",), engine="analytical", assumptions=ROOFLINE, **keys):
    """Results of every policy: row, and columns of dies."""
    found = prepare(load_experiment(experiment_of(policies, engine, assumptions, **keys)))
    simulator = Simulator(found.traces)
    return [simulator.record(run) for run in found.runs]


def decode_ns(**keys):
    return [each["row"]["decode_ns"] for each in rows(**keys)]


def table(*speeds):
    return {"dies_as_built": {"speed": {"table": [list(each) for each in speeds]}}}
