"""The page of a paper's claims, and the summary over all papers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from archsim.base.files import own_folder, write_text
from archsim.base.tables import REAL, TEXT, Table
from archsim.report.rendering import rendered
from archsim.report.units import NO_BREAK, significant
from archsim.studies.claims.evaluate import Answered, Judged, Value
from archsim.studies.claims.study import OWN, PHYSICAL, Claims

LARGEST = 3  # misses that a summary names
_SHOWN_STEPS = 2  # assumptions beside a difference
COLUMNS = MappingProxyType(
    {
        "paper": TEXT, "id": TEXT, "what": TEXT, "at": TEXT, "unit": TEXT, "published": TEXT, "simulated": TEXT,
        "physical": TEXT, "off": REAL, "verdict": TEXT, "moved_most": TEXT, "why": TEXT,
    }
)  # fmt: skip


class Counts(NamedTuple):
    """Of one paper, or of all."""

    numbers: int
    rows: int
    met: int
    missed: int
    fit: int
    none: int
    outside: int


def counts_of(claims: Sequence[Claims]) -> Counts:
    kinds = [sum(len(each.of(kind)) for each in claims) for kind in ("met", "missed", "fit", "none")]
    outside = sum(len(each.outside) for each in claims)
    return Counts(sum(each.numbers for each in claims), sum(kinds[:3]), *kinds, outside)


def largest_misses(claims: Sequence[Claims]) -> list[tuple[Claims, Judged]]:
    """Those farthest from the published value, in tolerances: a gain near 0 has no ratio worth naming."""

    def far(found: tuple[Claims, Judged]) -> float:
        return found[1].tolerances

    missed = [(each, judged) for each in claims for judged in each.of("missed")]
    return sorted(missed, key=far, reverse=True)[:LARGEST]


def summary_sentence(claims: Sequence[Claims]) -> str:
    """How many of the published numbers have a row, and how many of those that were not fitted are met."""
    found = counts_of(claims)
    return (
        f"{found.rows} of {found.numbers} published numbers have a row; {found.met} of {found.met + found.missed} that "
        f"were not fitted are met; {found.outside} are out of scope"
    )


def answer_sentence(found: Answered) -> str:
    """The answer's sentence, with what was simulated."""
    told = {}
    for key, name in (("paper", OWN), ("physical", PHYSICAL)):
        for what, cells, mean in found.rows:
            if what.endswith(name):
                at = what.removesuffix(f", {name}").replace(" ", "_")
                listed = [shown(each, found.answer.unit) for each in cells]
                told[f"{key}_{at}"] = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
                told[f"{key}_{at}_mean"] = shown(mean, found.answer.unit)
    return found.answer.says.format_map(told)


def write_claims(claims: Claims, folder: Path) -> Path:
    """``index.html`` and ``claims.csv`` of one paper."""
    own_folder(folder)
    table_of([claims]).write_csv(folder / "claims.csv")
    groups = [(group, [each for each in claims.judged if each.group is group]) for group in claims.paper.claims]
    context = {
        "claims": claims, "paper": claims.paper, "counts": counts_of([claims]), "groups": groups,
        "sentence": summary_sentence([claims]), "answers": [(each, answer_sentence(each)) for each in claims.answers],
    }  # fmt: skip
    write_text(folder / "index.html", rendered("claims.html.j2", context, _FILTERS))
    return folder / "index.html"


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
    write_text(folder / "index.html", rendered("claims_summary.html.j2", context, _FILTERS))
    return folder / "index.html"


def table_of(claims: Sequence[Claims]) -> Table:
    rows = [
        {
            "paper": each.paper.paper, "id": judged.row.id, "what": judged.group.what, "at": place_of(judged),
            "unit": judged.group.unit, "published": published(judged), "simulated": shown(judged.simulated, ""),
            "physical": shown(judged.physical, ""), "off": judged.off, "verdict": judged.kind,
            "moved_most": moved(judged), "why": "" if judged.kind in ("met", "fit") else judged.why,
        }
        for each in claims
        for judged in each.judged
    ]  # fmt: skip
    return Table(COLUMNS, tuple(rows))


def shown(value: Value, unit: str) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{significant(value)}{_gap(unit)}"


def published(judged: Judged, unit: str = "") -> str:
    """The published value as it is written, with a unit."""
    value = judged.row.published
    if isinstance(value, str):
        return value
    low, high = value if isinstance(value, tuple) else (value, None)
    return f"{low:g}{'' if high is None else f' to {high:g}'}{_gap(unit)}"


def place_of(judged: Judged) -> str:
    """What a row is of, beside its group: ``policy libra, batch 32``."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in judged.row.at.items())


def moved(judged: Judged) -> str:
    """The assumptions that take most of the difference between ``physical`` and the paper's rules."""
    found = [(name, change) for name, change in judged.moved if change][:_SHOWN_STEPS]
    return "; ".join(f"{name} {'+' if change > 0 else '−'}{significant(abs(change))}" for name, change in found)


def verdict(judged: Judged) -> str:
    """``met``, ``32 % below``; whether it was fitted."""
    told = {"fit": "fit", "none": "no value", "met": "met"}.get(judged.kind)
    if told is not None:
        return told
    if judged.off is None:
        return "not met"
    side = "above" if judged.off > 0 else "below"
    return f"not met: {abs(judged.off):.0%}".replace("%", f"{NO_BREAK}%") + f" {side}"


def _gap(unit: str) -> str:
    return unit if unit == "×" else f"{NO_BREAK}{unit}" if unit else ""


_FILTERS = MappingProxyType(
    {"shown": shown, "published": published, "place": place_of, "moved": moved, "verdict": verdict}
)
