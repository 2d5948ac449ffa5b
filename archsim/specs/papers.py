"""What a file of ``configs/papers`` holds: a paper's set-up, the runs that repeat it, and its numbers as rows.

Runs are written under ``physical``; ``rules`` are what the paper does otherwise, in order: all of them give the paper's
own experiment, the first few a step on the way there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import KeyProblem, Name, Spec, number
from archsim.base.yaml import read_yaml, validate
from archsim.specs.config_files import named_files
from archsim.specs.constraints import Expression, parse_expression
from archsim.specs.references import is_path

# ---- papers

OTHER = "other"  # in a quantity: columns of the row that a run is compared with
_RANGE = re.compile(r"h([0-9]{3})-h([0-9]{3})")

Text = Annotated[str, Field(min_length=1)]
Published = float | tuple[float, float] | str


def parsed_quantity(text: str) -> Expression:
    """A quantity: numbers, columns, ``other.column`` and + - * /. Raises ValueError for anything else."""
    found = parse_expression(text)
    for name in found.names:
        if "." in name.removeprefix(f"{OTHER}."):
            raise ValueError(f"{text!r}: {name}: expected columns, other.column, numbers and + - * /")
    if found.has_text:
        raise ValueError(f"{text!r}: expected columns, other.column, numbers and + - * / instead of text")
    return found


def listed_ids(ids: tuple[str, ...]) -> tuple[str, ...]:
    """``h001``, or all of ``h001-h036``."""
    found: list[str] = []
    for each in ids:
        bounds = _RANGE.fullmatch(each)
        found += [f"h{at:03}" for at in range(int(bounds[1]), int(bounds[2]) + 1)] if bounds else [each]
    return tuple(found)


class Said(Spec):
    """A field of the set-up. ``place``: where the paper says it."""

    value: Text = Field(alias="is")
    place: Text


class Rule(Spec):
    """What the paper does otherwise than ``physical``. ``runs``: name of a run → overrides, as of ``--set``."""

    name: Text
    why: Text
    runs: dict[str, tuple[Text, ...]] = Field(min_length=1)
    # Ids of the numbers on which its one constant was fitted.
    fitted: tuple[Text, ...] = ()


class RunSpec(Spec):
    """An experiment of ``archsim sweep``, or a file of ``archsim serve``."""

    sweep: dict[str, Any] | None = None
    serve: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> RunSpec:
        if (self.sweep is None) == (self.serve is None):
            raise ValueError("expected one of sweep and serve")
        return self


class ClaimRow(Spec):
    """A number. ``published``: a value, [low, high], or text such as OOM; ``at``: values of columns of its runs."""

    id: Text
    published: Published
    at: dict[str, Any] = Field(default_factory=dict)
    # Of all values: null, that of the group.
    take: Literal["mean", "most", "least"] | None = None
    # Its value was used to fit a rule's constant or the traffic, so that it is not judged.
    fit: bool = False
    # Why a run may not show it; null: that of the group.
    why: Text | None = None


class ClaimGroup(Spec):
    """Numbers with one quantity. ``at``, ``against``: values of columns of its rows, and of the rows that they are
    compared with, all else equal; null: that column may differ. ``within`` (of the unit), ``within_percent``: how far
    off is met. ``sign``: of the change must be right, too. ``take``: of the values of all rows.
    """

    what: Text
    run: Text
    quantity: Text
    unit: str
    at: dict[str, Any] = Field(default_factory=dict)
    against: dict[str, Any] = Field(default_factory=dict)
    within: Annotated[float, number(0, 1e9)] | None = None
    within_percent: Annotated[float, number(0, 100)] | None = None
    sign: bool = False
    take: Literal["mean", "most", "least"] = "mean"
    why: Text | None = None
    rows: tuple[ClaimRow, ...] = Field(min_length=1)

    @field_validator("quantity")
    @classmethod
    def _readable(cls, text: str) -> str:
        parsed_quantity(text)
        return text

    @model_validator(mode="after")
    def _one_tolerance(self) -> ClaimGroup:
        if (self.within is None) == (self.within_percent is None):
            raise ValueError("expected one of within and within_percent")
        return self


class Answer(Spec):
    """A question that the page answers first: a quantity by the values of a column, against several rows. ``says``: the
    sentence; of a name X of ``against``, ``{paper_X}`` are the values under the paper's rules, ``{physical_X_mean}`` is
    the mean under ``physical``.
    """

    question: Text
    run: Text
    by: Text
    at: dict[str, Any] = Field(default_factory=dict)
    against: dict[str, dict[str, Any]] = Field(min_length=1)
    quantity: Text
    unit: str
    says: Text


class Outside(Spec):
    """Numbers without a row, and why."""

    ids: tuple[Text, ...] = Field(min_length=1)
    why: Text


class PaperSpec(Spec):
    """A file of ``configs/papers``. ``numbers``: ids of all that the paper publishes."""

    paper: Name
    title: Text
    source: Text
    numbers: tuple[Text, ...] = Field(min_length=1)
    setup: dict[str, Said]
    assumed: tuple[Text, ...] = ()
    # Parts that runs share by YAML anchors; read by nothing else.
    shared: Any = None
    runs: dict[str, RunSpec] = Field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    answers: tuple[Answer, ...] = ()
    claims: tuple[ClaimGroup, ...] = ()
    outside: tuple[Outside, ...] = ()

    @model_validator(mode="after")
    def _runs_exist(self) -> PaperSpec:
        for key in ("claims", "answers"):
            for at, each in enumerate(getattr(self, key)):
                if each.run not in self.runs:
                    raise KeyProblem((key, at, "run"), f"no run {each.run!r}; it has {', '.join(self.runs)}")
        for at, rule in enumerate(self.rules):
            for name in rule.runs:
                if name not in self.runs:
                    raise KeyProblem(("rules", at, "runs", name), f"no such run; it has {', '.join(self.runs)}")
        return self

    @model_validator(mode="after")
    def _each_number_once(self) -> PaperSpec:
        known, seen = set(listed_ids(self.numbers)), set()
        outside = [each for part in self.outside for each in listed_ids(part.ids)]
        for name in [*(row.id for _, row in self.rows()), *outside]:
            if name not in known:
                raise ValueError(f"{name} is none of its numbers")
            if name in seen:
                raise ValueError(f"{name} is listed twice")
            seen.add(name)
        return self

    def rows(self) -> Iterator[tuple[ClaimGroup, ClaimRow]]:
        """Every row with its group, in order."""
        return ((group, row) for group in self.claims for row in group.rows)

    def overrides(self, run: str, rules: int) -> tuple[str, ...]:
        """What the first ``rules`` of its rules change in a run."""
        return tuple(text for rule in self.rules[:rules] for text in rule.runs.get(run, ()))

    def steps(self, run: str) -> Mapping[int, str]:
        """Number of rules → name of the last, of those that change a run; 0: none of them."""
        return {0: "physical"} | {at: rule.name for at, rule in enumerate(self.rules, 1) if run in rule.runs}


# ---- papers
# Files of ``configs/papers``, by name or path.

def paper_names() -> tuple[str, ...]:
    """Of all papers that ship or lie in ``./configs/papers``."""
    return tuple(named_files("papers"))


def load_paper(name: str | os.PathLike[str]) -> PaperSpec:
    """Raises SpecError for an unknown name, and with one line per problem of the file."""
    text = os.fspath(name)
    if is_path(text):
        return validate(PaperSpec, read_yaml(text))
    known = named_files("papers")
    if text not in known:
        raise SpecError(f"{text}: no paper of this name{did_you_mean(text, known)} (known: {', '.join(known)})")
    return validate(PaperSpec, read_yaml(known[text]))
