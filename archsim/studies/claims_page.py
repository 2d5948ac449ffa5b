"""The page of a paper's claims, and the summary over all papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.errors import capital, sentence
from archsim.base.files import own_folder, write_text
from archsim.base.sums import sum
from archsim.base.tables import REAL, TEXT, Table
from archsim.report import plots, rendering, units
from archsim.specs import papers
from archsim.studies.claims import OWN, PHYSICAL, Claims
from archsim.studies.judged_claims import AnswerCells, JudgedClaim, JudgedSign, Value

LARGEST = 3  # misses that a summary names
_SHOWN_STEPS = 2  # assumptions beside a difference
COLUMNS = MappingProxyType(
    {
        "paper": TEXT, "id": TEXT, "what": TEXT, "at": TEXT, "unit": TEXT, "published": TEXT, "null": TEXT,
        "simulated": TEXT, "lowest": TEXT, "highest": TEXT, "physical": TEXT, "off": REAL, "verdict": TEXT,
        "moved_most": TEXT, "why": TEXT,
    }
)  # fmt: skip

VERDICTS = MappingProxyType(
    {
        "better": "met and better than the null", "as null": "met, as the null is", "missed": "not met", "fit": "fit",
        "none": "no value",
    }
)  # fmt: skip


class VerdictCounts(NamedTuple):
    """The counts of one paper, or of all."""

    numbers: int  # that the papers publish
    rows: int  # judged, and fitted ones
    better: int  # rows that are met where the null model is not
    as_null: int  # rows that both meet
    missed: int  # rows that are not met
    fit: int  # rows that a constant was fitted on
    none: int  # rows of which the runs show no value
    outside: int  # numbers that are out of scope
    signs: int  # orders of two systems
    signs_better: int  # right where the null model's is wrong
    signs_met: int  # right ones, all


def counts_of(claims: Sequence[Claims]) -> VerdictCounts:
    better, as_null, missed, fit, none = (sum(len(each.of(kind)) for each in claims) for kind in VERDICTS)
    outside = sum(len(each.outside) for each in claims)
    signs = [each.kind for paper in claims for each in paper.signs if each.kind != "none"]
    signs_better = signs.count("better")
    return VerdictCounts(
        numbers=sum(each.numbers for each in claims), rows=better + as_null + missed + fit, better=better,
        as_null=as_null, missed=missed, fit=fit, none=none, outside=outside, signs=len(signs),
        signs_better=signs_better, signs_met=signs_better + signs.count("as null"),
    )  # fmt: skip


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, JudgedClaim]]:
    """The rows that are farthest from the published value, measured in tolerances. A ratio would mean nothing for a
    gain near 0.
    """

    def far(found: tuple[Claims, JudgedClaim]) -> float:
        return found[1].tolerances

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def summary_sentence(claims: Sequence[Claims]) -> str:
    """How many of the published numbers are met where a null model does not meet them, and what the others are."""
    found = counts_of(claims)
    judged = found.better + found.as_null + found.missed
    said = [
        f"{found.better} of {judged} published numbers that were tested are met and better than a null model.",
        f"{found.as_null} are met as well as the null model meets them, and {found.missed} are not met.",
        f"{found.fit} further numbers were fitted, and {found.outside} of all {found.numbers} are out of scope.",
    ]
    if found.signs:
        said.append(
            f"Of {found.signs} orders of two systems, {found.signs_met} are right, {found.signs_better} of them where "
            "the null model is wrong."
        )
    return " ".join(said)


def answer_sentence(found: AnswerCells) -> str:
    """The answer's sentence, with what was simulated."""
    values = {}
    for key, name in (("paper", OWN), ("physical", PHYSICAL)):
        for what, cells, mean in found.rows:
            if what.endswith(name):
                at = what.removesuffix(f", {name}").replace(" ", "_")
                listed = [shown(each, found.answer.unit) for each in cells]
                values[f"{key}_{at}"] = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
                values[f"{key}_{at}_mean"] = shown(mean, found.answer.unit)
    return found.answer.says.format_map(values)


def write_claims(claims: Claims, folder: Path) -> Path:
    """``index.html`` and ``claims.csv`` of one paper."""
    own_folder(folder)
    table_of([claims]).write_csv(folder / "claims.csv")
    context = {
        "claims": claims, "paper": claims.paper, "counts": counts_of([claims]), "groups": claims.groups,
        "sentence": summary_sentence([claims]), "picture": picture_of(claims),
        "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", rendering.rendered("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


_LEAST, _MOST = 0.1, 10.0  # ends of the figure's axis; what lies beyond is drawn at the end
_DOT = MappingProxyType({"better": "--p4", "as null": "--p0", "missed": "--p7", "fit": "--p6"})


def picture_of(claims: Claims) -> plots.Points | None:
    """Simulated over published, a row for each group of values; None where no value is a positive number."""
    rows: list[dict[str, Any]] = []
    for judged in (each for _, of_group in claims.groups for each in of_group if each.kind in _DOT):
        if (ratio := _ratio(judged, judged.simulated)) is not None:
            guess = _ratio(judged, judged.guess)
            rows.append({
                "group": judged.group.what, "ratio": min(max(ratio, _LEAST), _MOST), "kind": judged.kind,
                "row": f"{judged.row.id} {judged.place}", "published": published_text(judged),
                "simulated": shown(judged.simulated, ""), "null": "–" if guess is None else f"{guess:.3g}×",
            })  # fmt: skip
    if not rows:
        return None
    return plots.Points(
        question="How near are simulated values to published ones?", rows=rows, named="group",
        x=plots.PlotAxis("ratio", "simulated over published, ×", "~g", log=True, low=_LEAST, high=_MOST),
        y=plots.PlotAxis("group", ""),
        colours=plots.Colours("kind", _DOT, "against the null model"),
        tips=(
            ("row", "value"), ("published", "published"), ("simulated", "simulated"), ("kind", "verdict"),
            ("null", "null model"),
        ),
    )  # fmt: skip


def _ratio(judged: JudgedClaim, value: Value) -> float | None:
    nearest = judged.nearest(value)
    if nearest is None or not isinstance(value, float) or nearest == 0 or value / nearest <= 0:
        return None
    return value / nearest


def write_summary(claims: Sequence[Claims], folder: Path) -> Path:
    """``index.html`` and ``claims.csv`` over all papers."""
    own_folder(folder)
    table_of(claims).write_csv(folder / "claims.csv")
    context: Mapping[str, Any] = {
        "sentence": summary_sentence(claims),
        "papers": [(each, counts_of([each])) for each in claims],
        "total": counts_of(claims),
        "misses": largest_misses(claims),
        "answers": [(answer, answer_sentence(answer)) for each in claims for answer in each.answers],
    }
    write_text(folder / "index.html", rendering.rendered("claims_summary.html.j2", context, _FILTERS))
    return folder / "index.html"


def table_of(claims: Sequence[Claims]) -> Table:
    """A row a number, then a row a sign of a difference."""
    rows: list[dict[str, Any]] = []
    for each in claims:
        for judged in each.judged:
            both = interval(judged)
            rows.append(
                {
                    "paper": each.paper.paper, "id": judged.row.id, "what": judged.group.what, "at": judged.place,
                    "unit": judged.group.unit, "published": published_text(judged), "null": shown(judged.guess, ""),
                    "simulated": shown(judged.simulated, ""), "lowest": shown(both[0], "") if both else "",
                    "highest": shown(both[-1], "") if both else "",
                    "physical": shown(judged.physical, ""), "off": judged.off, "verdict": VERDICTS[judged.kind],
                    "moved_most": moved_text(judged), "why": judged.why if judged.kind in ("missed", "none") else "",
                }
            )  # fmt: skip
        rows += [
            {
                "paper": each.paper.paper, "id": f"{sign.one.id}-{sign.other.id}",
                "what": f"Order of two systems: {sign.group.what}", "at": sign.place, "unit": "",
                "published": sign.published, "null": sign.guess, "simulated": sign.simulated or "–", "lowest": "",
                "highest": "", "physical": "", "off": None, "verdict": VERDICTS[sign.kind], "moved_most": "", "why": "",
            }
            for sign in each.signs
        ]  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def as_json(claims: Sequence[Claims]) -> dict[str, Any]:
    """The summary, the counts of every paper, and all rows."""
    return {
        "summary": summary_sentence(claims),
        "papers": {each.paper.paper: counts_of([each])._asdict() for each in claims},
        "all": counts_of(claims)._asdict(),
        "answers": [answer_sentence(answer) for each in claims for answer in each.answers],
        "rows": [dict(row) for row in table_of(claims).rows],
    }


def shown(value: Value, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{units.significant(value)}{_gap(unit)}"


def _gap(unit: str) -> str:
    return unit if unit == "×" else f"{units.NO_BREAK}{unit}" if unit else ""


def published_text(judged: JudgedClaim, unit: str = "") -> str:
    """The published value as it is written, with a unit."""
    value = judged.row.published
    if isinstance(value, str):
        return value
    if isinstance(value, papers.PublishedBound):
        return f"{'less' if value.less_than is not None else 'more'} than {value.value:g}{_gap(unit)}"
    low, high = value if isinstance(value, tuple) else (value, None)
    rounded = f" ± {judged.rounded:g}" if judged.rounded else ""
    return f"{low:.10g}{'' if high is None else f' to {high:.10g}'}{rounded}{_gap(unit)}"


def moved_text(judged: JudgedClaim) -> str:
    """The assumptions that take most of the difference between ``physical`` and the paper's rules."""
    found = [(name, change) for name, change in judged.moved if change][:_SHOWN_STEPS]
    return "; ".join(f"{name} {'+' if change > 0 else '−'}{units.significant(abs(change))}" for name, change in found)


def ends(judged: JudgedClaim, unit: str) -> str:
    """The values for both ends of a fitted constant's interval, OOM first; empty where it has none."""
    found = interval(judged)
    texts = dict.fromkeys(each for each in (judged.simulated, *judged.ends) if isinstance(each, str) and judged.ends)
    values = dict.fromkeys(units.significant(each) for each in (*found[:1], *found[-1:]))
    return f"{' to '.join([*texts, *values])}{_gap(unit)}" if texts or found else ""


def interval(judged: JudgedClaim) -> list[float]:
    """Sorted values for a fitted constant and both ends of its interval; none where it has no interval."""
    return sorted(value for value in (judged.simulated, *judged.ends) if isinstance(value, float) and judged.ends)


def verdict(judged: JudgedClaim | JudgedSign) -> str:
    """One of `VERDICTS`; of what is not met, by how much: ``not met: 32 % below``."""
    if judged.kind != "missed" or isinstance(judged, JudgedSign) or judged.off is None:
        return VERDICTS[judged.kind]
    if judged.meets(judged.simulated):
        return "not met for all values of the fitted constant"
    side = "above" if judged.off > 0 else "below"
    return f"not met: {abs(judged.off):.0%}".replace("%", f"{units.NO_BREAK}%") + f" {side}"


_FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "shown": shown, "published": published_text, "moved": moved_text, "verdict": verdict, "ends": ends,
        "sentence": lambda text: sentence(capital(text)),
        "plain": lambda value: f"{value:g}",
    }
)  # fmt: skip
