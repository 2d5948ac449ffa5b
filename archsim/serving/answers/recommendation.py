"""What a recommendation says: its sentences, its table, and the files that start the engines of the best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archsim.base.tables import INTEGER, REAL, TEXT, Shown, Table
from archsim.base.units import NS_PER_MS, NS_PER_S
from archsim.iteration.layers import has_experts
from archsim.model.checkpoints import is_hub_id
from archsim.serving.answers import question
from archsim.serving.answers.chances import factors_of
from archsim.serving.answers.configuration import SIZES, Configuration, describe_sizes, with_choice
from archsim.serving.answers.highest_rate import TIMES, WITHIN
from archsim.serving.answers.kubernetes import llm_d_values, manifests
from archsim.serving.answers.race import RESIDENCES
from archsim.serving.answers.start import BOTH, DECODE, OPTIONS_OF, PREFILL, Started, gpus_of_host, options_file, script
from archsim.serving.file_requests import requests_of
from archsim.serving.measures import Measures
from archsim.serving.power import Upkeep
from archsim.show.units import interval, percent, significant

if TYPE_CHECKING:
    import pandas

FULL_REQUESTS = 2000  # of the run that is shown, at least


@dataclass(frozen=True, eq=False)
class Recommended:
    """One configuration that was compared."""

    kind: question.SearchedServing
    choice: Configuration  # with instances on all GPUs of its offer, or as many as the asked rate needs
    rate_per_s: float  # requests a second of all instances
    low: float  # 10th percentile of the rate of a real system, requests a second
    high: float  # 90th percentile
    probability: float  # that it is the best of those compared
    upkeep: Upkeep  # J an output token and W a GPU, on average over a run
    usd_per_million: float  # USD of a million output tokens; nan: the price of a GPU is unknown
    limited: np.ndarray  # float64[TIMES] shares of requests within each limit, at slightly more than its rate
    meets: float = 1.0  # share of the draws in which it meets the asked rate; 1 without one
    # (tokens/s of the median user, output tokens/s per device, requests/s) at rates around its own
    frontier: tuple[tuple[float, float, float], ...] = ()
    fewer: tuple[int, ...] = ()  # devices that meet the asked rate in half of the draws, and without a draw

    @property
    def devices(self) -> int:
        return self.choice.devices

    @property
    def sizes(self) -> str:
        """``4 x attention TP 8, experts EP 8``."""
        return describe_sizes(self.choice)

    def row(self) -> dict[str, Any]:
        """COLUMNS of it."""
        return {
            "engine": self.kind.engine, "gpu": self.kind.offer.gpu, "gpus": self.devices,
            "precision": self.kind.precision, **self.choice.sizes, "rate_per_s": self.rate_per_s,
            "rate_low_per_s": self.low, "rate_high_per_s": self.high, "probability": self.probability,
            "usd_per_million_output_tokens": self.usd_per_million, "j_per_output_token": self.upkeep.j_per_token[0],
            "w_per_gpu": self.upkeep.w_per_gpu[0], "sizes": self.sizes, "meets_rate": self.meets,
            "gpus_in_half": self.fewer[0], "gpus_without_samples": self.fewer[1],
        }  # fmt: skip


COLUMNS = {
    "engine": TEXT, "gpu": TEXT, "gpus": INTEGER, "precision": TEXT, **dict.fromkeys(SIZES, INTEGER),
    "rate_per_s": REAL, "rate_low_per_s": REAL, "rate_high_per_s": REAL,
    "probability": REAL, "usd_per_million_output_tokens": REAL, "j_per_output_token": REAL, "w_per_gpu": REAL,
    "sizes": TEXT, "meets_rate": REAL, "gpus_in_half": INTEGER, "gpus_without_samples": INTEGER,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Recommendation(Shown):
    """The configurations that were compared, the best first."""

    asked: question.Asked
    best: Recommended  # the most likely best
    others: tuple[Recommended, ...]  # in order of probability, then of what was asked
    # Of one engine of the best, or of its pools, at LOADED of its rate, or at the asked rate; rates are of all engines.
    measures: Measures
    configurations: int  # sizes and limits that were looked at
    simulated: int  # runs
    refused: tuple[tuple[str, str], ...]  # (engine and sizes, why none of them runs)
    ended: bool  # whether Ctrl-C ended the race
    notes: tuple[str, ...]  # what a reader has to know

    @property
    def started(self) -> list[Started]:
        return started_of(self.best)

    @property
    def table(self) -> Table:
        return Table(dict(COLUMNS), tuple(each.row() for each in (self.best, *self.others)))

    def to_pandas(self) -> pandas.DataFrame:
        return self.table.to_pandas()

    def __repr__(self) -> str:
        return f"Recommendation({answer(self)})"

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "answer": answer(self), "why": list(why(self)), "best": self.best.row(),
            "compared": [each.row() for each in (self.best, *self.others)],
            "configurations": self.configurations, "simulated_runs": self.simulated, "ended": self.ended,
            "measures": self.measures, "start": start_script(self.best), "serve_file": serve_file(self),
            "notes": list(self.notes),
        }  # fmt: skip


LOADED = 0.95  # of the highest rate, at which the best is served to be shown


def shown_rate(asked: question.Asked, best: Recommended) -> float:
    """Requests a second of all engines, at which the best is shown."""
    return min(asked.rate, best.rate_per_s) if asked.rate else LOADED * best.rate_per_s


def enough_requests(users: float) -> int:
    """Requests of a run in which so many users are served at a time."""
    return int(max(FULL_REQUESTS, RESIDENCES * users if users < inf else 0))


def answer(found: Recommendation) -> str:
    best, asked = found.best, found.asked
    joules = f"{significant(best.upkeep.j_per_token[0], 2)} J per output token"
    end = {
        question.THROUGHPUT: "it is the fastest", question.PRICE: "it is the cheapest",
        question.ENERGY: f"its {joules} are the least",
    }[asked.objective]  # fmt: skip
    assumed = " (assumed, as no limit was given)" if asked.assumed else ""
    ratio = ""
    if best.choice.prefill:
        decode = best.choice.instances - best.choice.prefill
        part = gcd(best.choice.prefill, decode)
        ratio = f", {best.choice.prefill // part} to prefill for {decode // part} to decode"
    limits = f"{question.describe_limits(asked)}{assumed} for {percent(WITHIN)} of them"
    gpus, engine = f"{best.devices:,} {best.kind.offer.gpu.upper()}", question.NAMES[best.kind.engine]
    sizes = f"({best.sizes}{ratio}, {_describe_precision(best)})"
    chance = f"with {percent(best.probability)} probability {end} of {found.configurations} configurations."
    said = (
        f"{asked.model_name} takes {gpus} to answer {asked.rate:,g} requests per second in {percent(best.meets)} "
        f"of samples{_describe_fewer(best)}, with {limits}. Serve it with {engine} {sizes}: it could answer "
        f"{_describe_rate(best)}, and {chance}"
        if asked.rate
        else f"Serve {asked.model_name} with {engine} on {gpus} {sizes}: it answers {_describe_rate(best)}"
        f"{_users(found)} with {limits}, and {chance}"
    )
    return (
        f"{said} Let each rank run up to {best.choice.max_num_seqs} requests and "
        f"{best.choice.max_num_batched_tokens:,} tokens per step.{''.join(_best_of_asked(found))}"
    )


def _describe_rate(each: Recommended) -> str:
    """``42 requests per second (36 to 50 in 80 % of samples)``."""
    rate, low, high = interval(each.rate_per_s, each.low, each.high)
    return f"{rate} requests per second ({low} to {high} in {percent(0.8)} of samples)"


def _users(found: Recommendation) -> str:
    """``, from about 310 users at a time``: its rate times the time of a request (Little's law)."""
    users = found.best.rate_per_s * found.measures.e2e.mean * NS_PER_MS / NS_PER_S
    if found.asked.rate or not 0 < users < inf:
        return ""
    return f", from about {float(f'{users:.2g}'):,.0f} users at a time,"


def _describe_fewer(best: Recommended) -> str:
    """`` (184 in half of them)``: devices that answer the asked rate there; '' where they are as many."""
    half, _ = best.fewer
    return "" if half == best.devices else f" ({half:,} in half of them)"


def _best_of_asked(found: Recommendation) -> Iterator[str]:
    """Of pools and precisions that are asked for and are not the answer: the best, and what it answers."""
    asked, best, others = found.asked, found.best, found.others
    named: dict[str, list[Recommended]] = {}
    if asked.pools and not best.choice.prefill:
        named["Pools are not better: the best ratio"] = [each for each in others if each.choice.prefill]
    for name in asked.precisions:
        if name != best.kind.precision:
            named[f"In {name} the best"] = [each for each in others if each.kind.precision == name]
    for begin, some in named.items():
        for each in sorted(some, key=lambda each: (-each.probability, -each.rate_per_s / each.devices))[:1]:
            yield (
                f" {begin} is {question.NAMES[each.kind.engine]} ({each.sizes}), which answers {_describe_rate(each)} "
                f"on {each.devices} {each.kind.offer.gpu.upper()}."
            )


def _describe_precision(each: Recommended) -> str:
    """``weights in FP8, KV in BF16``."""
    dtypes, model, recipe = each.kind.weights, each.kind.serving.model, each.kind.recipe
    weights = (
        recipe
        if recipe != each.kind.precision
        else f"GEMMs in {dtypes.products}, experts in {dtypes.experts}"
        if has_experts(model) and dtypes.products != dtypes.experts
        else f"weights in {dtypes.products}"
    )
    return f"{weights}{dtypes.kept_words}, KV in {dtypes.kv}"


def why(found: Recommendation) -> Iterator[str]:
    """Sentences: the range, what limits it, what others lose, price and energy."""
    best, asked, measures = found.best, found.asked, found.measures
    factors = factors_of(best.kind, best.choice)
    by = (
        f"by {factors.groups} groups of measurements of {question.NAMES[best.kind.engine]}"
        if factors.groups
        else "by the errors for measured pools"
        if best.choice.prefill
        else "by the errors for measured pools, as nothing was measured of this engine"
    )
    rate, low, high = interval(best.rate_per_s, best.low, best.high)
    yield (
        f"The simulation says {rate} requests/s. With 80 % probability, a real system of this kind would serve {low} "
        f"to {high}, {by}."
    )
    names = dict(zip(TIMES, ("the time to first token", "the time per output token", "the whole time"), strict=True))
    bound = [name for name in TIMES if name in asked.slo]
    worst = min(bound, key=lambda name: best.limited[TIMES.index(name)])
    share = best.limited[TIMES.index(worst)]
    kept = f"only {share:.0%}" if share >= 0.005 else "hardly any"
    yield (
        f"The limit is {names[worst]}. With slightly more requests, {kept} of them would keep it."
        if share < 1 else "The limit is its throughput. With more requests, a queue would grow."
    )  # fmt: skip
    preempted = {0: "no request is preempted", 1: "1 request is preempted"}
    yield (
        f"At {'the requested rate' if asked.rate else f'{LOADED:.0%} of that rate'}, the mean TTFT is "
        f"{measures.ttft.mean:,.0f} ms and the mean TPOT {measures.tpot.mean:.1f} ms. The KV cache is at most "
        f"{measures.kv_peak:.0%} full, and "
        f"{preempted.get(measures.preemptions, f'{measures.preemptions:,} requests are preempted')}."
    )
    said = set()
    for other in found.others:
        key = other.kind.engine, other.kind.precision, other.kind.offer.gpu
        mine = best.kind.engine, best.kind.precision, best.kind.offer.gpu
        if key in said or (key == mine and "sizes" in said):
            continue
        said.add("sizes" if key == mine else key)
        yield f"{_beside(best, other, asked)}."
    joule, watt = best.upkeep.j_per_token, best.upkeep.w_per_gpu
    if (rent := best.kind.offer.rent) is not None:
        yield (
            f"A million output tokens cost {best.usd_per_million:.2f} USD, if an hour of a GPU costs "
            f"{rent.usd_per_hour:.2f} USD ({rent.low:.2f} to {rent.high:.2f})."
        )
    yield (
        "An output token takes {} J ({} to {}), with its prompt included. A GPU draws {} W ({} to {}) on average "
        "over the simulated run, its start and end included. Hosts and cooling are not counted."
    ).format(*interval(*joule), *interval(*watt))


def _beside(best: Recommended, other: Recommended, asked: question.Asked) -> str:
    gpus = f"{other.devices} {other.kind.offer.gpu.upper()}"
    what = f"{question.NAMES[other.kind.engine]} on {gpus} ({other.sizes}, {other.kind.precision})"
    here, there = best.rate_per_s / best.devices, other.rate_per_s / other.devices
    change = there / here - 1
    many = f"{abs(change):.0%} {'fewer' if change < 0 else 'more'}" if abs(change) >= 0.005 else "as many"
    serves = f"serves {many} requests per GPU in the simulation"
    if asked.objective == question.PRICE and best.kind.offer.rent is not None:
        serves += f" at {other.usd_per_million:.2f} USD per million tokens"
    return f"{what} {serves}. It is the best with a probability of {other.probability:.0%}"


def started_of(best: Recommended) -> list[Started]:
    kind, choice = best.kind, best.choice
    spec = kind.serving.spec
    one = Started(
        kind.engine, kind.serving.model, choice.parallel, kind.weights, choice.instances,
        max_num_seqs=choice.max_num_seqs, max_num_batched_tokens=choice.max_num_batched_tokens, role=BOTH,
        chunked_prefill=bool(spec.scheduler.chunked_prefill), utilisation=spec.utilisation,
        checkpoint=spec.model if is_hub_id(spec.model) else "", drafts=choice.draft_tokens or 0,
    )  # fmt: skip
    if not choice.prefill:
        return [one]
    decode = one._replace(
        parallel=choice.decode or choice.parallel, instances=choice.instances - choice.prefill, role=DECODE,
        max_num_seqs=choice.decode_seqs or choice.max_num_seqs,
    )  # fmt: skip
    return [one._replace(instances=choice.prefill, role=PREFILL), decode]


def start_script(best: Recommended) -> str:
    return script(started_of(best), gpus_of_host(best.kind.offer.system))


def serve_file(found: Recommendation) -> dict[str, Any]:
    """The best as a file of ``archsim serve`` at its rate; of engines on several machines, one machine's share."""
    best, asked = found.best, found.asked
    choice = best.choice
    given = question.file_of(asked, best.kind.offer, best.kind.engine, best.kind.dtypes, best.kind.drafts)
    share = of_one_machine(best) / choice.instances
    choice, rate = choice._replace(instances=of_one_machine(best)), share * shown_rate(asked, best)
    if "arrivals" in given["requests"]:
        given["requests"]["count"] = enough_requests(rate * found.measures.e2e.mean * NS_PER_MS / NS_PER_S)
        given["requests"]["arrivals"] = {"rate": f"{rate:.4g}/s"}
    else:
        given["requests"]["speed"] = float(f"{rate / _offered_rate(found):.4g}")
    return with_choice(given, choice)


def of_one_machine(best: Recommended) -> int:
    """Engines that its system has devices for; all where it has pools, which share one."""
    choice = best.choice
    most = best.kind.offer.system.dies // choice.parallel.devices
    return choice.instances if choice.prefill else min(choice.instances, most)


def _offered_rate(found: Recommendation) -> float:
    return requests_of(found.best.kind.serving).offered_per_s


def write_recommendation(found: Recommendation, folder: Path, loads: Sequence[Path] = ()) -> list[Path]:
    """The files to start the best with: ``serve.yaml``, ``start.sh``, ``index.html``, ``kubernetes.yaml``,
    ``llm-d.yaml``, TensorRT-LLM's options, a placement where ``loads`` were recorded, ``recommendation.json`` and
    ``configurations.csv``. Raises PlacementError and TraceError for loads.
    """
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    started, written = started_of(found.best), []

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)

    rest = "\n".join(f"# {line}" for line in why(found))
    engines, name = of_one_machine(found.best), found.best.kind.offer.system.name
    if engines < found.best.choice.instances:
        rest += f"\n# This file has the {engines} of its {found.best.choice.instances} engines that fit on one {name}."
    write("serve.yaml", f"# {answer(found)}\n{rest}\n{yaml.safe_dump(serve_file(found), sort_keys=False)}")
    write("start.sh", start_script(found.best))
    of_host = gpus_of_host(found.best.kind.offer.system)
    if objects := manifests(started, of_host):
        write("kubernetes.yaml", yaml.safe_dump_all(objects, sort_keys=False))
    if values := llm_d_values(started, of_host):
        write("llm-d.yaml", yaml.safe_dump(values, sort_keys=False))
    for each in started:
        if options := options_file(each):
            write(OPTIONS_OF.format(role=each.role), options)
    if loads:
        from archsim.serving.answers.place import place_experts, write_placed
        from archsim.serving.answers.recorded_loads import read_history

        model, ranks = found.asked.model, (found.best.choice.decode or found.best.choice.parallel).sizes().ep
        slots = -(-model.experts // ranks) * ranks
        placed = place_experts(
            read_history(list(loads), model), model, found.best.kind.offer.system, "eplb", slots, ranks, 0.25, None
        )
        written += write_placed(placed, folder / "placement").files
    found.table.write_csv(folder / "configurations.csv")
    written.append(folder / "configurations.csv")
    from archsim.base.files import write_text

    rows = [each.row() for each in (found.best, *found.others)]
    write_text(folder / "index.html", page_of(found, sorted(each.relative_to(folder).as_posix() for each in written)))
    document = {"answer": answer(found), "why": list(why(found)), "compared": rows, "notes": list(found.notes)}
    write_text(folder / "recommendation.json", json.dumps(document, indent=1, ensure_ascii=False))
    return [*written, folder / "recommendation.json", folder / "index.html"]


def page_of(found: Recommendation, files: Sequence[str]) -> str:
    """The page: the answer, configurations by the speed of a user and the throughput of a GPU, and why."""
    from archsim.serving.answers.search_page import pareto_plots
    from archsim.show.rendering import render

    every = (found.best, *found.others)
    names = [
        f"{question.NAMES[each.kind.engine]} on {each.devices} {each.kind.offer.gpu.upper()}, {each.sizes}"
        for each in every
    ]
    at = [(name, point) for name, each in zip(names, every, strict=True) for point in each.frontier]
    plots = pareto_plots(
        [name for name, _ in at], [point[:2] for _, point in at], [point[2] for _, point in at],
        range(len(found.best.frontier)), "recommended",
    )  # fmt: skip
    rows = [
        [name, significant(each.rate_per_s), f"{significant(each.low)}–{significant(each.high)}",
         percent(each.probability)] for name, each in zip(names, every, strict=True)
    ]  # fmt: skip
    return render("serving_points.html.j2", {
        "model": found.asked.model.name, "system": ", ".join(dict.fromkeys(each.kind.offer.gpu for each in every)),
        "points": found.configurations, "answer": answer(found), "policies": "all engines that were considered",
        "files": files, "title": "The best, and what comes close", "rows": rows, "texts": 1, "refused": 0,
        "headers": ["configuration", "requests/s", "80 % range", "best with"], "notes": [*why(found), *found.notes],
        "plots": plots, "intervals": None,
    })  # fmt: skip
