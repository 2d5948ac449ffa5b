"""The YAML file of a traffic preset: the names of its tables, or the statistics from which they are built."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from archsim.base import quantities, sums, validation
from archsim.base.fields import Name, Spec
from archsim.base.yaml import Tree, read_yaml
from archsim.specs.workload import DecodeSteps
from archsim.traffic.published import PublishedStatistic, check_contradictions, check_sources

Text = Annotated[str, Field(min_length=1)]


def _three_that_rise(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(values) != 3 or list(values) != sorted(values):
        raise ValueError(f"expected three numbers that do not fall: least, median and most; not {list(values)}")
    return values


class ComponentWeights(Spec):
    """Weights of the ways in which an expert, or the kind of a token, is chosen; not all 0."""

    popularity: Annotated[float, quantities.number(0, 1e6)]  # of the shares of all tokens of a phase
    task: Annotated[float, quantities.number(0, 1e6)]  # of the shares of the request's task
    taste: Annotated[float, quantities.number(0, 1e6)]  # of the few that the request prefers
    keep: Annotated[float, quantities.number(0, 1e6)]  # of what the previous token had
    kind: Annotated[float, quantities.number(0, 1e6)]  # of the token's kind; among kinds: of what follows the last one

    @model_validator(mode="after")
    def _some(self) -> ComponentWeights:
        if not sums.sum(self.values) > 0:
            raise ValueError("expected at least one weight above 0")
        return self

    @property
    def values(self) -> tuple[float, ...]:
        return self.popularity, self.task, self.taste, self.keep, self.kind


class _Head(Spec):
    name: Name  # of the preset
    # Name of the model; none: the model with the preset's name.
    model: Text | None = None
    source: Text  # where the numbers come from, in words
    # Of the recordings that it was fitted to.
    licence: Text | None = None
    # Equal groups of experts, and from how many of them a token may use experts; 1 and 1: no groups.
    groups: Annotated[int, quantities.count(1, 32767)]
    top_groups: Annotated[int, quantities.count(1, 32767)]  # of them, for a token
    # Decode steps after which loads are stationary; before, answers begin with a template. Runs start after them.
    settled_after: Annotated[int, quantities.count(0, 32765)] = 0
    # What is printed or recorded of the model's routing, with what this traffic gives of it, and by how much it misses.
    published: tuple[PublishedStatistic, ...] = ()

    @field_validator("top_groups")
    @classmethod
    def _within_groups(cls, top_groups: int, info: ValidationInfo) -> int:
        if top_groups > (groups := info.data.get("groups", top_groups)):
            raise ValueError(f"{top_groups} exceeds the {groups} groups")
        return top_groups


class TrafficTables(_Head):
    """Parameters fitted to a trace: arrays in the file ``tables`` beside this one."""

    top_k: Annotated[int, quantities.count(1, 32767)]
    tasks: tuple[Text, ...] = Field(min_length=1)
    tables: Text


class TrafficStatistics(_Head):
    """What is known about a model without a trace."""

    # .npz with layer_ids, loads [2, layer, expert] (prefill, decode) and acceptance, the same shape.
    loads: Text | None = None
    # Without loads: standard deviation of log popularity, and its correlation in prefill and decode.
    popularity_skew: Annotated[float, quantities.number(0, 10)] | None = None
    phase_agreement: Annotated[float, quantities.number(-1, 1)] | None = None  # correlation
    # Standard deviation of the log of that between layers; 0: all layers are as skewed.
    skew_spread: Annotated[float, quantities.number(0, 3)] = 0.0
    # Power of the loads that are taken for popularity; below 1: flatter than they were recorded.
    loads_power: Annotated[float, quantities.number(0, 4)] = 1.0
    # Token kinds; standard deviation of the log of a kind's share of an expert over the expert's popularity.
    kinds: Annotated[int, quantities.count(1, 1024)]
    kind_spread: Annotated[float, quantities.number(0, 10)]  # standard deviation
    # Of the components, the same for all layers; experts of a request's taste.
    weights: ComponentWeights
    taste_size: Annotated[float, quantities.number(1, 32767)]  # experts of a request's taste
    # The same of the kinds.
    kind_weights: ComponentWeights
    kind_taste_size: Annotated[float, quantities.number(1, 1024)]  # kinds of a request's taste
    # Shortest, median and longest prompt; fewest, median and most decode steps.
    prompt_tokens: Annotated[
        tuple[Annotated[int, quantities.count(0, 1_000_000)], ...], AfterValidator(_three_that_rise)
    ]
    decode_steps: Annotated[tuple[DecodeSteps, ...], AfterValidator(_three_that_rise)]  # fewest, median, most

    @model_validator(mode="after")
    def _has_loads(self) -> TrafficStatistics:
        if self.loads is None and (self.popularity_skew is None or self.phase_agreement is None):
            raise ValueError("needs popularity_skew and phase_agreement, or loads")
        return self


class SubjectPart(Spec):
    """A subject: the file of its traffic, beside this one, and its share of the requests."""

    like: Text
    share: Annotated[float, quantities.number(0, 1e9)]


class TrafficSubjects(Spec):
    """Traffic of several subjects, each with a file of its own."""

    name: Name  # of the preset
    model: Text | None = None  # name of the model; none: the model with the preset's name
    source: Text  # where the numbers come from, in words
    licence: Text | None = None  # of the recordings that it was fitted to
    subjects: Annotated[dict[Text, SubjectPart], Field(min_length=1)]  # by name of the subject
    # What is printed or recorded of the model's routing, with what this traffic gives of it, and by how much it misses.
    published: tuple[PublishedStatistic, ...] = ()
    # Standard deviation between the recorded subjects, in % of their mean: how far another subject may be off.
    spread: dict[Text, Annotated[float, quantities.number(0, 1e6)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _some(self) -> TrafficSubjects:
        if not sums.sum(each.share for each in self.subjects.values()) > 0:
            raise ValueError("expected a subject with a share above 0")
        return self


Head = TrafficTables | TrafficStatistics | TrafficSubjects


def read_head(file: Path) -> tuple[Head, Tree]:
    """The head in a file, and its tree for places in messages; neither is to be written. Raises SpecError."""
    found = file.stat() if file.is_file() else None
    return _read_once(file, found and (found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=32)
def _read_once(file: Path, stamp: tuple[int, int] | None) -> tuple[Head, Tree]:
    """``stamp``: of the file as it is now. Every batch of a sweep asks for it."""
    tree = read_yaml(file)
    if "subjects" in tree.data:
        return validation.validate(TrafficSubjects, tree), tree
    check_sources(tree)
    head: TrafficTables | TrafficStatistics
    if "tables" in tree.data:
        head = validation.validate(TrafficTables, tree)
    else:
        head = validation.validate(TrafficStatistics, tree)
    check_contradictions(head.published, tree)
    return head, tree


def stated_model(file: Path) -> Any:
    """What a file says its model is, or its own name. Raises SpecError for a file that is no mapping."""
    data = read_yaml(file).data
    return data.get("model", data.get("name"))
