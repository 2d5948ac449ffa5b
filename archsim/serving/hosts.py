"""Fitted constants of serving engines: the host's time, and how far scaled laws of experts are off."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from archsim.base.errors import SpecError
from archsim.base.text.fields import Spec, count
from archsim.base.text.quantities import TIME, quantity
from archsim.base.text.validation import validate
from archsim.base.text.yaml import read_yaml
from archsim.iteration.layers import has_experts
from archsim.serving.tables import Host
from archsim.specs.loading.config_files import search_folders
from archsim.specs.model import ModelSpec

NONE = "none"
Time = Annotated[float, quantity(TIME, "0 ns", "1000 s", zero=True)]


class HostRow(Spec):
    """Constants of an engine with MoE or dense models. ``eager_layer``: of a layer, in an iteration that no captured
    graph covers; ``captured``, ``front_end``: as in ``Host``; ``first_after``: engines choose an iteration while the
    one before runs, so that a new request waits for one more, and its client sees the first token about when the second
    is out, and all others as late (SGLang's dense models even later, by the fit alone).
    """

    engine: str
    experts: bool
    iteration: Time
    sequence: Time
    eager_layer: Time
    request: Time
    front_end: Time
    captured: Annotated[int, count(0, 1_000_000)]
    first_after: Annotated[int, count(1, 1000)]


class FactorRow(Spec):
    """Time of layers on a GPU with weights of a dtype, relative to the law."""

    gpu: str
    dtype: str
    factor: float


class ResidualRow(Spec):
    """80 % of measured times, relative to simulated ones, of an engine with MoE or dense models on a GPU with experts
    (products) of a dtype; ``any``: of the engine on all. ``groups``: of measurements, on which constants were fitted.
    """

    engine: str
    experts: bool
    gpu: str
    dtype: str
    groups: Annotated[int, count(1, 1_000_000)]
    ttft: tuple[float, float]
    tpot: tuple[float, float]


class HostFile(Spec):
    """``fitted_on``: groups of measurements that the constants were fitted on. ``experts``: factors on expert layers;
    ``products``: on projections and dense layers.
    """

    source: str
    fitted_on: tuple[str, ...]
    hosts: tuple[HostRow, ...]
    experts: tuple[FactorRow, ...]
    products: tuple[FactorRow, ...] = ()
    residuals: tuple[ResidualRow, ...] = ()


@lru_cache
def host_file() -> HostFile:
    """The shipped constants. Raises SpecError."""
    for folder in search_folders("serving", None):
        if (folder / "hosts.yaml").is_file():
            return validate(HostFile, read_yaml(folder / "hosts.yaml", "configs/serving/hosts.yaml"))
    raise SpecError("configs/serving/hosts.yaml is missing")


def host_of(engine: str, model: ModelSpec, gpu: str, experts: str, products: str) -> Host:
    """The constants of an engine that serves a model on a GPU, with experts and products of these dtypes; zeros for the
    engine ``none``.
    """
    if engine == NONE:
        return Host()
    moe, known = has_experts(model), host_file()
    row = next(each for each in known.hosts if (each.engine, each.experts) == (engine, moe))
    return Host(
        row.iteration,
        row.sequence,
        row.eager_layer * model.layers,
        row.request,
        row.front_end,
        row.captured,
        row.first_after,
        experts=_factor(known.experts, gpu, experts) if moe else 1.0,
        products=_factor(known.products, gpu, products),
    )


def residual_of(engine: str, model: ModelSpec, gpu: str, experts: str, products: str) -> ResidualRow | None:
    """How far measurements of such an engine are from what is simulated: its own cell's, else the engine's."""
    moe = has_experts(model)
    mine = [row for row in host_file().residuals if (row.engine, row.experts) == (engine, moe)]
    asked = (gpu, experts if moe else products)
    return next((row for each in (asked, ("any", "any")) for row in mine if (row.gpu, row.dtype) == each), None)


def _factor(rows: tuple[FactorRow, ...], gpu: str, dtype: str) -> float:
    return next((each.factor for each in rows if (each.gpu, each.dtype) == (gpu, dtype)), 1.0)
