"""What a file of ``configs/papers`` holds: a paper's set-up, the runs that repeat it, and its numbers as rows.

Runs are written under ``physical``; ``rules`` are what the paper does otherwise, in order: all of them give the paper's
own experiment, the first few a step on the way there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from archsim.base import config_files, errors, fields, quantities, sums, validation, yaml
from archsim.specs import constraints, references

NO_ROOM = "OOM"  # published or simulated: it does not fit
OTHER = "other"  # in a quantity: columns of the row that a run is compared with
_RANGE = re.compile(r"h([0-9]{3})-h([0-9]{3})")

Text = Annotated[str, Field(min_length=1)]


class PublishedBound(fields.Spec):
    """A published inequality: ``{less_than: 20}`` or ``{more_than: 3}``."""

    less_than: float | None = None
    more_than: float | None = None

    @model_validator(mode="after")
    def _one(self) -> PublishedBound:
        if (self.less_than is None) == (self.more_than is None):
            raise ValueError("expected one of less_than and more_than")
        return self

    @property
    def value(self) -> float:
        return self.less_than if self.less_than is not None else self.more_than  # type: ignore[return-value]


Published = float | tuple[float, float] | PublishedBound | str


def _middle(value: Any) -> float | None:
    """The middle of a range, the end of an inequality, a number; None for anything else."""
    if isinstance(value, tuple):
        return sums.sum(value) / 2
    if isinstance(value, PublishedBound):
        return value.value
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def parsed_quantity(text: str) -> constraints.Expression:
    """A quantity: numbers, columns, ``other.column`` and + - * /. Raises ValueError for anything else."""
    found = constraints.parse_expression(text)
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


class PaperField(fields.Spec):
    """A field of the set-up. ``place``: where the paper says it."""

    value: Text = Field(alias="is")
    place: Text


class PaperDifference(fields.Spec):
    """What the paper does otherwise than ``physical``. ``runs``: name of a run → overrides, as of ``--set``.

    ``ends``: the same for both ends of the interval that a constant has which was fitted on a rounded number.
    """

    name: Text  # of the rule
    why: Text  # in words
    runs: dict[str, tuple[Text, ...]] = Field(min_length=1)  # name of a run → overrides, as of ``--set``
    # Ids of the numbers on which its one constant was fitted.
    fitted: tuple[Text, ...] = ()
    # The same for both ends of a fitted constant.
    ends: tuple[dict[str, tuple[Text, ...]], dict[str, tuple[Text, ...]]] | None = None


class TableSpec(fields.Spec):
    """Rows that a function of Python gives: ``function`` (``package.module:function``), called with ``given``."""

    function: Text
    given: dict[str, Any] = Field(default_factory=dict)


class RunSpec(fields.Spec):
    """An experiment of ``archsim sweep``, a file of ``archsim serve``, or a table of a function."""

    sweep: dict[str, Any] | None = None
    serve: dict[str, Any] | None = None
    table: TableSpec | None = None

    @model_validator(mode="after")
    def _one(self) -> RunSpec:
        if [self.sweep, self.serve, self.table].count(None) != 2:
            raise ValueError("expected one of sweep, serve and table")
        return self


class ClaimRow(fields.Spec):
    """A number. ``published``: a value, [low, high], an inequality ({less_than: 20}), or text such as OOM; ``at``:
    values of columns of its runs.
    """

    id: Text  # unique in its paper
    published: Published  # a value, [low, high], an inequality or text
    at: dict[str, Any] = Field(default_factory=dict)  # values of columns of its runs
    # The null model: what a reader would say without archsim. Null: that of the group.
    guess: float | Text | None = None
    # By how much the published value was rounded, at most, in its unit: half of its last printed digit; 0 for a count
    # and for what is no number of its own. Null: that of the group.
    rounded: Annotated[float, quantities.number(0, 1e9)] | None = None
    # Of all values: null, that of the group.
    take: Literal["mean", "most", "least", "total"] | None = None
    # Its value was used to fit a rule's constant or the traffic, so that it is not judged.
    fit: bool = False
    # Ids of the rows that it is arithmetic on, as a gain on two throughputs: it is shown, and does not count again.
    follows: tuple[Text, ...] = ()
    # Why a run may not show it; null: that of the group.
    why: Text | None = None


class SignSpec(fields.Spec):
    """Which of two rows that differ in these values of columns is larger. ``guess``: what a reader would say of the
    first without archsim: that it is ``below`` the other, ``above`` or ``equal``.
    """

    of: dict[str, Any] = Field(min_length=1)
    over: dict[str, Any] = Field(min_length=1)
    guess: Literal["below", "equal", "above"]


class NullSpec(fields.Spec):
    """A further null model: of all that a row has, the best counts. Its ``guess`` is arithmetic as that of a group;
    or ``guesses`` has one for each value that a column ``by`` of ``at`` takes; or it is the mean of what is published
    in the ``others``, the group's other rows that have the same value of that column.
    """

    name: Text  # what is guessed, in words
    guess: float | Text | None = None
    by: Text | None = None  # a column of ``at``
    guesses: dict[str, float | Text] = Field(default_factory=dict)  # value of ``by`` → guess
    others: Text | None = None  # a column of ``at``

    @model_validator(mode="after")
    def _one(self) -> NullSpec:
        if [self.guess, self.by, self.others].count(None) != 2 or bool(self.by) != bool(self.guesses):
            raise ValueError("expected one of guess, others, and by with guesses")
        return self


class ClaimGroup(fields.Spec):
    """Numbers with one quantity. ``at``, ``against``: values of columns of its rows, and of the rows that they are
    compared with, all else equal; null: that column may differ. ``take``: of the values of all rows; ``total``: the
    quantity of their sums. A mapping in ``against`` is looked up with the row's own value. ``guess``: the first null
    model: a number, or arithmetic on published values (by id) and on values of ``at``; ``nulls``: further ones.
    ``within`` (of the unit), ``within_percent``: how far the paper's own numbers of one thing lie apart, which
    ``spread`` says in words; 0: its rounding alone. ``rounded``: half of the last printed digit, so that the published
    value is an interval, for null models as well. ``signs``: pairs of its rows, whose order is judged as a row of its
    own.
    """

    what: Text  # the claim, in words
    run: Text  # name of the run
    quantity: Text  # arithmetic on columns
    unit: str  # of the published numbers
    at: dict[str, Any] = Field(default_factory=dict)  # column → value of its rows
    # Column → value of the rows that they are compared with; null: may differ.
    against: dict[str, Any] = Field(default_factory=dict)
    within: Annotated[float, quantities.number(0, 1e9)] = 0.0  # the paper's spread, in the unit
    within_percent: Annotated[float, quantities.number(0, 100)] = 0.0  # the paper's spread
    spread: Text | None = None  # what shows that spread, with its place in the paper
    scale: Literal["linear", "log"] = "linear"  # log: errors are those of the logarithm
    # Whether it tests what a mechanism changes; or values of columns of ``at`` of the rows that do.
    mechanism: bool | dict[str, Any] = False
    take: Literal["mean", "most", "least", "total"] = "mean"  # of the values of all rows
    why: Text | None = None  # a run may not show it
    guess: float | Text | None = None  # null model: a number or arithmetic
    # What the guess is, in words; the page prints it.
    guessed: Text | None = None
    nulls: tuple[NullSpec, ...] = ()  # further null models
    rounded: Annotated[float, quantities.number(0, 1e9)] = 0.0  # half of the last printed digit
    signs: tuple[SignSpec, ...] = ()  # pairs of rows whose order is judged
    rows: tuple[ClaimRow, ...] = Field(min_length=1)  # its numbers

    @field_validator("quantity")
    @classmethod
    def _readable(cls, text: str) -> str:
        parsed_quantity(text)
        return text

    def guess_of(self, row: ClaimRow) -> float | str:
        found = row.guess if row.guess is not None else self.guess
        assert found is not None  # checked below
        return found

    @model_validator(mode="after")
    def _check_guesses(self) -> ClaimGroup:
        for at, row in enumerate(self.rows):
            if row.guess is None and self.guess is None:
                raise fields.KeyProblem(
                    ("rows", at),
                    f"{row.id} has no guess: say what a reader would expect without archsim, so that the row can count "
                    "(guess: 1 for equal times, or arithmetic on published ids and values of `at`)",
                )
        return self

    @model_validator(mode="after")
    def _check_spread(self) -> ClaimGroup:
        if self.within and self.within_percent:
            raise ValueError("expected one of within and within_percent")
        if bool(self.within or self.within_percent) != bool(self.spread):
            raise ValueError("expected within or within_percent together with spread, which says where the paper shows "
                             "that its numbers differ so much")  # fmt: skip
        return self


class Answer(fields.Spec):
    """A question that the page answers first: a quantity by the values of a column, against several rows. ``says``: the
    sentence; of a name X of ``against``, ``{paper_X}`` are the values under the paper's rules, ``{physical_X_mean}`` is
    the mean under ``physical``.
    """

    question: Text  # that the page answers first
    run: Text  # name of the run
    by: Text  # column whose values are compared
    at: dict[str, Any] = Field(default_factory=dict)  # column → value of its rows
    against: dict[str, dict[str, Any]] = Field(min_length=1)  # name → column → value of the rows compared with
    quantity: Text  # arithmetic on columns
    unit: str  # of the quantity
    says: Text  # the sentence, with names in braces


class FigureSpec(fields.Spec):
    """A figure of the paper that its page draws again, as bars: one a value of a column, of stacked parts."""

    name: Text  # as ``Figure 13: accesses of DRAM``
    place: Text  # the paper's
    run: Text  # name of the run
    by: Text  # column whose values are bars
    parts: dict[str, Text] = Field(min_length=1)  # name of a part → arithmetic on columns
    unit: str  # of the quantities
    at: dict[str, Any] = Field(default_factory=dict)  # column → value of its rows
    against: dict[str, Any] = Field(default_factory=dict)  # as of a group


class Outside(fields.Spec):
    """Numbers without a row, and why."""

    ids: tuple[Text, ...] = Field(min_length=1)
    why: Text


class PaperSpec(fields.Spec):
    """A file of ``configs/papers``. ``numbers``: ids of all that the paper publishes."""

    paper: fields.Name  # its short name
    title: Text  # of the publication
    source: Text  # where it is published
    numbers: tuple[Text, ...] = Field(min_length=1)  # ids of all that the paper publishes
    setup: dict[str, PaperField]  # key → what the paper says of it
    assumed: tuple[Text, ...] = ()  # what it leaves open, in words
    # What a reader calls a column of `at`, by the last part of its name, or its values: `{fixed: tokens a prompt,
    # popularity_skew: {"0.4": MMLU}}`.
    names: dict[Text, Text | dict[Text, Text]] = Field(default_factory=dict)
    # Parts that runs share by YAML anchors; read by nothing else.
    shared: Any = None
    runs: dict[str, RunSpec] = Field(default_factory=dict)  # name → experiment, serve file or table
    rules: tuple[PaperDifference, ...] = ()  # what it does otherwise than ``physical``
    answers: tuple[Answer, ...] = ()  # questions that the page answers first
    figure: FigureSpec | None = None  # of the paper, drawn again
    claims: tuple[ClaimGroup, ...] = ()  # its numbers, by quantity
    outside: tuple[Outside, ...] = ()  # numbers that no run can show

    @model_validator(mode="after")
    def _runs_exist(self) -> PaperSpec:
        given: list[tuple[tuple[str | int, ...], str]] = [(("figure", "run"), self.figure.run)] if self.figure else []
        given += [(("claims", at, "run"), each.run) for at, each in enumerate(self.claims)]
        given += [(("answers", at, "run"), each.run) for at, each in enumerate(self.answers)]
        for keys, run in given:
            if run not in self.runs:
                raise fields.KeyProblem(keys, f"no run {run!r}; it has {', '.join(self.runs)}")
        for at, rule in enumerate(self.rules):
            for name in rule.runs:
                if name not in self.runs:
                    raise fields.KeyProblem(("rules", at, "runs", name), f"no such run; it has {', '.join(self.runs)}")
        return self

    @model_validator(mode="after")
    def _each_number_once(self) -> PaperSpec:
        known, seen = set(listed_ids(self.numbers)), set()
        outside = [each for part in self.outside for each in listed_ids(part.ids)]
        for name in [*(row.id for _, row in self.rows()), *outside]:
            if name not in known:
                raise ValueError(f"{name} is not one of its numbers")
            if name in seen:
                raise ValueError(f"{name} is listed twice")
            seen.add(name)
        rows = {row.id: row for _, row in self.rows()}
        for at, rule in enumerate(self.rules):
            for name in rule.fitted:
                if name in rows and not rows[name].fit:
                    raise fields.KeyProblem(("rules", at, "fitted"), f"{name} is tested: its row lacks fit: true")
        for row in rows.values():
            if gone := [name for name in row.follows if name not in rows or name == row.id]:
                raise ValueError(f"{row.id} follows from {', '.join(gone)}: expected ids of other rows")
        return self

    @model_validator(mode="after")
    def _guesses_readable(self) -> PaperSpec:
        for at, group in enumerate(self.claims):
            for place, row in enumerate(group.rows):
                try:
                    for null in (None, *group.nulls):
                        self.guess_of(group, row, null)
                except ValueError as error:
                    raise fields.KeyProblem(("claims", at, "rows", place), f"{row.id}: guess: {error}") from None
        return self

    def guesses_of(self, group: ClaimGroup, row: ClaimRow) -> dict[str, float | str]:
        named = [(group.guessed or "the null model", None), *((null.name, null) for null in group.nulls)]
        found = {name: self.guess_of(group, row, null) for name, null in named}
        return {name: guess for name, guess in found.items() if guess is not None}

    def guess_of(self, group: ClaimGroup, row: ClaimRow, null: NullSpec | None = None) -> float | str | None:
        """The null model's value of a row, or OOM; of a further null model None where a row has no others. Raises
        ValueError for what is neither.
        """
        guess: Any = group.guess_of(row) if null is None else null.guess
        if null is not None and null.others is not None:
            like = [
                each for each in group.rows if each is not row and each.at.get(null.others) == row.at.get(null.others)
            ]
            values = [value for value in map(_middle, (each.published for each in like)) if value is not None]
            return sums.sum(values) / len(values) if values else None
        if null is not None and null.by is not None:
            by = str((group.at | row.at).get(null.by))
            if by not in null.guesses:
                raise ValueError(f"{null.name} has no guess for {null.by} {by!r}; it has {', '.join(null.guesses)}")
            guess = null.guesses[by]
        if not isinstance(guess, str) or guess == NO_ROOM:
            return guess
        published, at = {each.id: each.published for _, each in self.rows()}, group.at | row.at

        def lookup(name: str) -> float | None:
            return _middle(published.get(name, at.get(name)))

        expression = constraints.parse_expression(guess)
        for name in expression.names:
            if lookup(name) is None:
                raise ValueError(f"{name} is neither a published number of this file nor a number of `at`")
        value = expression.value(lookup)
        if value != value:
            raise ValueError(f"{guess!r} has no value")
        return float(value)

    def rows(self) -> Iterator[tuple[ClaimGroup, ClaimRow]]:
        return ((group, row) for group in self.claims for row in group.rows)

    def name_of(self, column: str, value: Any) -> str:
        """A value of a column as a reader of the paper calls it: ``policy ep``, or `names` of this file."""
        key = column.rpartition(".")[2]
        name = self.names.get(key, key)
        if isinstance(value, list):
            return " or ".join(self.name_of(column, each) for each in value)
        return f"{name} {value}" if isinstance(name, str) else name.get(str(value), f"{key} {value}")

    def overrides(self, run: str, rules: int, end: int | None = None) -> tuple[str, ...]:
        """What the first ``rules`` rules change in a run. ``end``: 0 or 1, for fitted constants at that end."""

        def of(rule: PaperDifference) -> tuple[str, ...]:
            taken = rule.runs if end is None or rule.ends is None else rule.ends[end]
            return taken.get(run, ())

        return tuple(text for rule in self.rules[:rules] for text in of(rule))

    def has_ends(self, run: str) -> bool:
        return any(run in end for rule in self.rules for end in rule.ends or ())

    def steps(self, run: str) -> Mapping[int, str]:
        """Number of rules → name of the last, of those that change a run; 0: none of them."""
        return {0: "physical"} | {at: rule.name for at, rule in enumerate(self.rules, 1) if run in rule.runs}


# Files of ``configs/papers``, by name or path.


def paper_names() -> tuple[str, ...]:
    """The names of all papers that ship with archsim or lie in ``./configs/papers``."""
    return tuple(config_files.named_files("papers"))


def load_paper(name: str | os.PathLike[str]) -> PaperSpec:
    """Raises SpecError for an unknown name, and with one line per problem of the file."""
    text = os.fspath(name)
    if references.is_path(text):
        return validation.validate(PaperSpec, yaml.read_yaml(text))
    known = config_files.named_files("papers")
    if text not in known:
        raise errors.SpecError(
            f"{text}: no paper of this name{errors.did_you_mean(text, known)} (known: {', '.join(known)})"
        )
    return validation.validate(PaperSpec, yaml.read_yaml(known[text]))


def recorded_values() -> dict[str, Any]:
    """Paper → ``code`` and ``rows`` of values by id, as a checkout simulated them (`archsim compare --papers`)."""
    return json.loads((config_files.shipped_configs() / "papers" / "recorded.json").read_text(encoding="utf-8"))
