"""The page of a paper's claims, and the summary over all papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from archsim.base.case import Case, errors, frame_of
from archsim.base.errors import capital, sentence
from archsim.base.files import own_folder, write_text
from archsim.base.sums import sum
from archsim.base.tables import REAL, TEXT, Table
from archsim.evidence.claims import OWN, PHYSICAL, Claims
from archsim.evidence.judged_claims import AnswerCells, JudgedClaim, JudgedSign, Value
from archsim.show import plots, rendering, units
from archsim.specs import papers

if TYPE_CHECKING:
    import pandas

LARGEST = 3  # misses that a summary names
_SHOWN_STEPS = 2  # assumptions beside a difference
COLUMNS = MappingProxyType(
    {
        "paper": TEXT, "id": TEXT, "what": TEXT, "at": TEXT, "unit": TEXT, "published": TEXT, "null": TEXT,
        "null_model": TEXT, "skill": REAL, "mechanism": TEXT, "simulated": TEXT, "lowest": TEXT, "highest": TEXT,
        "physical": TEXT, "off": REAL, "verdict": TEXT, "moved_most": TEXT, "why": TEXT,
    }
)  # fmt: skip

_LEAST_SKILL = -99.0  # as a table has it, of what a null model meets exactly
VERDICTS = MappingProxyType(
    {
        "reproduced": "reproduced", "better": "better than a guess", "missed": "no better than a guess", "fit": "fit",
        "follows": "follows from other numbers", "none": "no value",
    }
)  # fmt: skip


class VerdictCounts(NamedTuple):
    """The counts of one paper, or of all."""

    numbers: int  # that the papers publish
    judged: int  # independent ones with a simulated value
    reproduced: int  # judged ones with a skill above 0.5, inside the paper's rounding or spread
    skilled: int  # judged ones with that skill, reproduced or not
    mechanisms: int  # skilled ones that test a mechanism
    fit: int  # that a constant was fitted on
    fit_missed: int  # fitted ones that are outside of the paper's rounding and spread
    follows: int  # that follow from others
    none: int  # of which the runs show no value
    outside: int  # that are out of scope
    signs: int  # orders of two systems
    signs_better: int  # right where the null model's is wrong
    signs_met: int  # right ones, all


def counts_of(claims: Sequence[Claims]) -> VerdictCounts:
    of = {kind: [each for paper in claims for each in paper.of(kind)] for kind in VERDICTS}
    skilled = [*of["reproduced"], *of["better"]]
    signs = [each.kind for paper in claims for each in paper.signs if each.kind != "none"]
    signs_better = signs.count("better")
    return VerdictCounts(
        numbers=sum(each.numbers for each in claims), judged=len(skilled) + len(of["missed"]),
        reproduced=len(of["reproduced"]), skilled=len(skilled), mechanisms=sum(each.mechanism for each in skilled),
        fit=len(of["fit"]), fit_missed=sum(not each.within for each in of["fit"]), follows=len(of["follows"]),
        none=len(of["none"]), outside=sum(len(each.outside) for each in claims), signs=len(signs),
        signs_better=signs_better, signs_met=signs_better + signs.count("as null"),
    )  # fmt: skip


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, JudgedClaim]]:
    """Rows farthest from the published value, in it, or in the error of the worst null model where that is larger."""

    def far(found: tuple[Claims, JudgedClaim]) -> float:
        judged = found[1]
        scales = [judged.error(null) for null in judged.nulls.values()] + [abs(judged.nearest(judged.simulated) or 0.0)]
        scale = max(filter(math.isfinite, scales), default=0.0)
        return judged.error(judged.simulated) / scale if scale else 0.0

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    missed = [each for each in missed if math.isfinite(far(each))]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def paper_sentence(claims: Claims) -> str:
    """What a paper's page begins with."""
    found = counts_of([claims])
    if not claims.judged:
        return f"No number of this paper can be tested: all {found.numbers} are out of scope, for the reasons below."
    return (
        f"archsim predicts {found.skilled} of {found.judged} independent numbers of this paper better than a guess "
        f"(skill above 0.5). {found.mechanisms} of these numbers test a mechanism, and {found.reproduced} are "
        f"reproduced: the error is inside the paper's rounding or spread.{_headline(claims)}"
    )


def _headline(claims: Claims) -> str:
    """The first independent number of the paper's file, of those about mechanisms if there are any, with its range."""
    independent = [each for each in claims.judged if each.kind in ("reproduced", "better", "missed")]
    first = next((each for each in independent if each.mechanism), next(iter(independent), None))
    if first is None:
        return ""
    unit, at, both = first.group.unit, f" ({first.place})" if first.place else "", ends(first, "")
    return (
        f" {capital(first.group.what)}{at}: simulated {shown(first.simulated, unit)}{f' ({both})' if both else ''}, "
        f"published {published_text(first, unit)}."
    )


def summary_sentence(claims: Sequence[Claims]) -> str:
    found = counts_of(claims)
    said = [
        f"{found.reproduced} of {found.judged} independent published numbers are reproduced.",
        f"{found.skilled} have a skill above 0.5 against the best null model, and {found.mechanisms} of these test a "
        "mechanism.",
        f"{found.fit} further numbers were fitted, of which {found.fit_missed} are missed, {found.follows} follow from "
        f"others, and {found.outside} of all {found.numbers} are out of scope.",
    ]
    if found.signs:
        said.append(
            f"Of {found.signs} orders of two systems, {found.signs_met} are right, {found.signs_better} of them where "
            "the null model is wrong."
        )
    return " ".join(said)


def answer_sentence(found: AnswerCells) -> str:
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
        "sentence": paper_sentence(claims), "picture": picture_of(claims), "figure": figure_of(claims),
        "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", rendering.render("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


_LEAST, _MOST = 0.1, 10.0  # ends of the figure's axis; what lies beyond is drawn at the end
_DOT = MappingProxyType(
    {"reproduced": "--p4", "better": "--p2", "missed": "--p7", "fit": "--p6", "follows": "--p0"}
)  # fmt: skip


def figure_of(claims: Claims) -> plots.Bars | None:
    """The paper's figure, drawn again; None where it has none, or nothing was simulated."""
    figure = claims.paper.figure
    if figure is None or not claims.bars:
        return None
    rows = [
        {
            "name": claims.paper.name_of(figure.by, value), "part": part, "value": found,
            "label": shown(found, figure.unit), "tip": shown(found, figure.unit),
        }
        for value, part, found in claims.bars
    ]  # fmt: skip
    parts = dict(zip(figure.parts, plots.KINDS, strict=False))
    return plots.Bars(
        question=f"{figure.name} ({figure.place})", rows=rows, y="name", x=plots.PlotAxis("value", figure.unit),
        colours=plots.Colours("part", parts), tips=(("name", figure.by), ("part", "part"), ("tip", "simulated")),
        label="label" if len(parts) == 1 else "none",
    )  # fmt: skip


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
                "skill": skill_text(judged),
            })  # fmt: skip
    if not rows:
        return None
    return plots.Points(
        question="How near are simulated values to published ones?", rows=rows, named="group",
        x=plots.PlotAxis("ratio", "simulated over published, ×", "~g", log=True, low=_LEAST, high=_MOST),
        y=plots.PlotAxis("group", ""),
        colours=plots.Colours("kind", _DOT, "against the best null model"),
        tips=(
            ("row", "value"), ("published", "published"), ("simulated", "simulated"), ("kind", "verdict"),
            ("null", "best null model"), ("skill", "skill"),
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
    write_text(folder / "index.html", rendering.render("claims_summary.html.j2", context, _FILTERS))
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
                    "null_model": judged.best_null[0], "mechanism": "yes" if judged.mechanism else "",
                    "skill": None if judged.skill is None else max(judged.skill, _LEAST_SKILL),
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
                "published": sign.published, "null": sign.guess, "null_model": "", "skill": None, "mechanism": "",
                "simulated": sign.simulated or "–", "lowest": "", "highest": "", "physical": "", "off": None,
                "verdict": SIGN_VERDICTS[sign.kind], "moved_most": "", "why": "",
            }
            for sign in each.signs
        ]  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def cases_of(claims: Sequence[Claims]) -> pandas.DataFrame:
    """A row a number beside the nearest published one; fitted ones count as seen, those that follow are left out."""
    found = []
    for each in claims:
        for judged in each.judged:
            value, nearest = judged.simulated, judged.nearest(judged.simulated)
            if nearest and isinstance(value, float) and judged.kind != "follows":
                ends = interval(judged) or [math.nan]
                what = f"{judged.row.id} {judged.place}".strip()
                found.append(Case(
                    f"paper {each.paper.paper}", judged.group.what, what, judged.group.unit, nearest, value,
                    judged.row.fit, ends[0], ends[-1],
                ))  # fmt: skip
    return frame_of(found)


def as_json(claims: Sequence[Claims]) -> dict[str, Any]:
    """The summary, errors of fitted and of other numbers by paper, counts of every paper, and all rows."""
    return {
        "summary": summary_sentence(claims),
        "errors": errors(cases_of(claims), ["source", "seen"]).to_dict("records"),
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


SIGN_VERDICTS = MappingProxyType(
    {"better": "right, where the null is wrong", "as null": "right", "missed": "wrong", "none": "no value"}
)


def verdict(judged: JudgedClaim | JudgedSign) -> str:
    """One of `VERDICTS`, with how far off it is: ``no better than a guess: 32 % below``; ``fit, and missed``."""
    if isinstance(judged, JudgedSign):
        return SIGN_VERDICTS[judged.kind]
    if judged.kind == "follows":
        return f"follows from {', '.join(judged.row.follows)}"
    missed = judged.kind in ("missed", "better") or (judged.kind == "fit" and not judged.within)
    text = VERDICTS[judged.kind] + (", and missed" if missed and judged.kind == "fit" else "")
    if not missed or not judged.off:
        return text
    side = "above" if judged.off > 0 else "below"
    return f"{text}: {abs(judged.off):.0%}".replace("%", f"{units.NO_BREAK}%") + f" {side}"


def skill_text(judged: JudgedClaim) -> str:
    """The skill with two digits; a row where the null model is exact and archsim is not has none."""
    if judged.skill is None or math.isinf(judged.skill):
        return "–"
    return f"{judged.skill:.2f}".replace("-", "−")


_FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "shown": shown, "published": published_text, "moved": moved_text, "verdict": verdict, "ends": ends,
        "skill": skill_text,
        "sentence": lambda text: sentence(capital(text)),
        "plain": lambda value: f"{value:g}",
    }
)  # fmt: skip
