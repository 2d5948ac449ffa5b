"""Fitted constants of serving engines: the host's time, and how far scaled laws of experts are off."""

from __future__ import annotations

from functools import lru_cache

from archsim.base.errors import SpecError
from archsim.engine.iteration_parts import has_experts
from archsim.serving.tables import Host
from archsim.specs.loading.config_files import search_folders
from archsim.specs.model import ModelSpec
from archsim.specs.text.fields import Spec, count
from archsim.specs.text.quantities import TIME, quantity
from archsim.specs.text.validation import validate
from archsim.specs.text.yaml import read_yaml

NONE = "none"
Time = quantity(TIME, "0 ns", "1000 s", zero=True)


class HostRow(Spec):
    """Constants of an engine with MoE or dense models. ``prompt_layer``: of a layer, in an iteration with a prompt."""

    engine: str
    experts: bool
    iteration: Time
    sequence: Time
    prompt_layer: Time
    request: Time
    first_after: count(1, 1000) = 1


class ExpertRow(Spec):
    """Time of expert layers on a GPU with weights of a dtype, relative to the law."""

    gpu: str
    dtype: str
    factor: float


class HostFile(Spec):
    """``fitted_on``: groups of measurements that the constants were fitted on."""

    source: str
    fitted_on: tuple[str, ...]
    hosts: tuple[HostRow, ...]
    experts: tuple[ExpertRow, ...]


@lru_cache
def host_file() -> HostFile:
    """The shipped constants. Raises SpecError."""
    for folder in search_folders("serving", None):
        if (folder / "hosts.yaml").is_file():
            return validate(HostFile, read_yaml(folder / "hosts.yaml", "configs/serving/hosts.yaml"))
    raise SpecError("configs/serving/hosts.yaml is missing")


def host_of(engine: str, model: ModelSpec, gpu: str, dtype: str) -> Host:
    """The constants of an engine that serves a model on a GPU; zeros for the engine ``none``."""
    if engine == NONE:
        return Host()
    moe = has_experts(model)
    row = next(each for each in host_file().hosts if (each.engine, each.experts) == (engine, moe))
    factors = [each.factor for each in host_file().experts if (each.gpu, each.dtype) == (gpu, dtype)]
    return Host(
        row.iteration,
        row.sequence,
        row.prompt_layer * model.layers,
        row.request,
        row.first_after,
        factors[0] if moe and factors else 1.0,
    )
