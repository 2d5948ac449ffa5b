"""What a search writes: its table, the best as a file of `archsim serve`, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from archsim.base.files import own_folder, write_text
from archsim.serving.answers import configuration, page, results, runs
from archsim.show.plots import Colours, PlotAxis, Points
from archsim.show.units import significant
from archsim.specs.serving_files import Serving

MOST_ON_PAGE = 200


def pareto_plots(
    names: Sequence[str], points: Sequence[tuple[float, float]], goodputs: Sequence[float], best: Sequence[int],
    kind: str = "most goodput",
) -> list[Points]:  # fmt: skip
    """Every configuration by a user's speed and a device's throughput (``points``), ``best`` marked as ``kind``."""
    if not names:
        return []
    users = "tokens/s of a user", "output tokens/s per device"
    on_front = set(page.front(points))
    rows = [
        {
            "user": user, "device": device, "configuration": name,
            "kind": kind if at in best else "no other is better in both" if at in on_front else "others",
            "goodput": significant(goodput),
        }
        for at, (name, (user, device), goodput) in enumerate(zip(names, points, goodputs, strict=True)) if user == user
    ]  # fmt: skip
    colours = {kind: "--p3", "no other is better in both": "--p2", "others": "--p0"}
    return [
        Points(
            question="What does speed for a user cost in throughput?", rows=rows[::-1], x=PlotAxis("user", users[0]),
            y=PlotAxis("device", users[1]), colours=Colours("kind", colours), size=70,
            tips=(
                ("configuration", "configuration"), ("goodput", "goodput /s"), ("user", users[0]), ("device", users[1]),
            ),
        )
    ]  # fmt: skip


PARTIAL = "search.partial.csv"  # configurations so far, while a search runs


def write_search(serving: Serving, found: Sequence[results.ConfigurationResult], folder: Path) -> None:
    """``search.csv``, ``search.parquet``, ``best.yaml`` (a file of ``archsim serve``) and ``index.html``."""
    import yaml

    from archsim.show.rendering import render

    own_folder(folder)
    table = results.table_of(found)
    table.write_csv(folder / "search.csv")
    table.write_parquet(folder / "search.parquet")
    (folder / PARTIAL).unlink(missing_ok=True)
    files = ["search.csv", "search.parquet"]
    if said := results.answer(serving, found):
        best = configuration.with_choice(serving.given, found[0].choice)
        if serving.has_traffic and len(serving.policies) > 1:
            names = [each.name for each in serving.policies]
            best["policies"] = [serving.given["policies"][names.index(found[0].choice.policy)]]
        write_text(folder / "best.yaml", f"# {said}\n{yaml.safe_dump(best, sort_keys=False)}")
        files.append("best.yaml")
    groups, refused = results.equal_groups(found), sum(each.measures is None for each in found)
    rows = []
    for each in groups[:MOST_ON_PAGE]:
        numbers = runs.flat(each.measures)
        rate = each.highest_rate
        shown = ["–" if numbers[name] is None else significant(numbers[name]) for name, _ in page.SHOWN]
        rows.append([each.name, "–" if rate is None else significant(rate), *shown, str(len(each.choices))])
    context = {
        "model": serving.model.name, "system": serving.system.name, "points": len(found), "answer": said,
        "policies": ", ".join(policy.name for policy in serving.policies), "files": files,
        "title": "Configurations, the best first (a row holds all with the same numbers)",
        "headers": ["configuration", "highest rate /s", *(header for _, header in page.SHOWN), "configurations"],
        "rows": rows, "notes": [*results.best_sentences(serving, found)][1:] + [results.NOTATION], "texts": 1,
        "refused": refused,
        "plots": pareto_plots(
            [each.name for each in groups],
            [(each.measures.tokens_per_s_user, each.measures.output_tokens_per_s_device) for each in groups],
            [each.measures.goodput_per_s for each in groups], [0],
        ), "intervals": None,
    }  # fmt: skip
    write_text(folder / "index.html", render("serving_points.html.j2", context))
