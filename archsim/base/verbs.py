"""Every verb's options, declared once: ``archsim COMMAND`` takes its arguments from here, ``ar.COMMAND`` its
docstring's text, messages the caller's name (`caller_name`). A default stands in the signature in `archsim.api`, too.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from textwrap import fill
from types import MappingProxyType
from typing import Any, TypeVar

from archsim.base.errors import SpecError, did_you_mean

OUTPUT, EFFORT, COMBINATION = "output", "how much to simulate", "which combination"  # headings of options in --help
SIDES = "options, each as well as it can be used"
_WIDTH = 116  # of a docstring


@dataclass(frozen=True)
class Option:
    """One option of a verb."""

    help: str  # a sentence, for --help and for the docstring
    metavar: str | None = None  # what stands for its value; None: its choices do, or the option is a switch
    flag: str = ""  # its name on the command line; '': as in Python; PLACE: it has a place, and no name
    read: Callable[[str], Any] = str  # its value from a text
    default: Any = None  # in Python, too; None: what happens without it is said in ``help``, or nothing
    choices: tuple[str, ...] = ()  # values that it may have
    many: str = ""  # "append": may be repeated; "+", "*", "?": how many words a place takes
    group: str = ""  # heading in --help
    into: str = ""  # its name among parsed arguments, if not that in Python
    gather: Callable[[str, Sequence[str]], Any] | None = None  # value from the option and all texts that were given
    only: str = ""  # of options of which one can be given alone, their common name
    is_required: bool = False  # whether the command line needs it

    @property
    def help_text(self) -> str:
        """``help`` with the default."""
        return self.help if self.default is None else f"{self.help.removesuffix('.')} (default: {self.default})."

    def of(self, **changes: Any) -> Option:
        return replace(self, **changes)


PLACE = " "
Options = Mapping[str, Option]
_FLAGS: ContextVar[Mapping[str, str]] = ContextVar("flags", default=MappingProxyType({}))  # name in Python → here


def flag_of(name: str, option: Option) -> str:
    """``--num-slots`` of ``num_slots``."""
    return option.flag or f"--{name.replace('_', '-')}"


def caller_name(name: str) -> str:
    """An option as its caller knows it: ``--best`` on the command line, ``objective`` in Python."""
    return _FLAGS.get().get(name, name)


@contextmanager
def caller_names(flags: Mapping[str, str]) -> Iterator[None]:
    """Messages name options by these flags."""
    before = _FLAGS.set(flags)
    try:
        yield
    finally:
        _FLAGS.reset(before)


_F = TypeVar("_F", bound=Callable[..., Any])


def verb(options: Options) -> Callable[[_F], _F]:
    """Documents a function by its options, below its first paragraph: ``name: meaning.``, in names of Python."""

    def document(function: _F) -> _F:
        first, gap, rest = (function.__doc__ or "").partition("\n\n")
        named = signature(function).parameters
        is_open = any(each.kind is each.VAR_KEYWORD for each in named.values())  # takes the others, too
        own = {name for name in options if name in named or (is_open and name not in ("force", "scheduler"))}
        shown = {name: each for name, each in options.items() if name in own}
        has = {name for name, each in named.items() if each.default not in (None, each.empty)}
        said = " ".join(f"{name}: {_meaning(each, name not in has)}" for name, each in shown.items())
        for name, each in sorted(options.items(), key=lambda item: -len(flag_of(*item))):
            said = said.replace(flag_of(name, each), name) if flag_of(name, each) != PLACE else said
        text = fill(said, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        function.__doc__ = f"{first}\n\n{text}{gap}{rest}"
        return function

    return document


def _meaning(option: Option, with_default: bool) -> str:
    """Its help; without the default where the signature has it."""
    before, default, after = option.help.partition(" (default: ")
    is_of_command = "reports/" in after  # Python writes no page by itself
    text = f"{before}{after.partition(')')[2]}" if default and (is_of_command or not with_default) else option.help
    return text.replace("May be repeated", "Several may be given")


# Values from texts of a command line.


def natural(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    value = natural(text)
    if value == 0:
        raise ArgumentTypeError("must be at least 1")
    return value


def worlds(text: str) -> int:
    """A whole number from 16."""
    value = natural(text)
    if value < 16:
        raise ArgumentTypeError(f"{value}: expected at least 16, so that 5 % of them is a sample")
    return value


def worlds_or_none(text: str) -> int:
    """0, or a whole number from 16."""
    return 0 if text == "0" else worlds(text)


def duration(text: str) -> str:
    """A time with its unit, as it is written."""
    from archsim.base.quantities import TIME, parse_quantity

    try:
        parse_quantity(text, TIME)
    except ValueError as error:
        raise ArgumentTypeError(str(error).replace(TIME.example, "50ms")) from None
    return text


def _number_from(least: float, ending: str = "") -> Callable[[str], float]:
    """A number in a range; an ``ending`` after it is left out."""

    def read(text: str) -> float:
        text = text.removesuffix(ending)
        try:
            value = float(text if text.isascii() else "")
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        if not least <= value <= 1e12:
            raise ArgumentTypeError(f"{text} is out of range; expected at least {least:g}")
        return value

    return read


def _share(text: str) -> float:
    value = _number_from(0.0)(text)
    if value > 1:
        raise ArgumentTypeError(f"{text} is out of range; expected a share from 0 to 1")
    return value


def named_numbers(option: str, texts: Sequence[str], example: str) -> dict[str, float]:
    """``NAME=VALUE`` texts of a repeated option, such as ``example``. Raises SpecError."""
    numbers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            numbers[name] = float(value if value.isascii() else "")
        except ValueError:
            expected = "a number" if equals else f"NAME=NUMBER, such as {example}"
            raise SpecError(f"{option} {text}: expected {expected}") from None
    return numbers


def known_value(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise SpecError for a value of an option that is none of those known."""
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise SpecError(f"{caller_name(name)}: unknown {value!r}{hint} (known: {', '.join(known)})")


# Options that verbs share.

OVERRIDES = Option(
    "Override a key, such as workload.batch=[64] or systems.0.d2d.bandwidth=2TB/s. May be repeated.", "KEY.PATH=VALUE",
    "--set", many="append",
)  # fmt: skip
FORCE = Option("Write into --out even if it holds files that archsim did not write.", group=OUTPUT)
SCHEDULER = Option(
    "Simulate on this Dask cluster, such as tcp://host:8786, in place of --jobs.", "ADDRESS", group=EFFORT
)
PRICES = Option(
    "Price of an hour of a GPU. May be repeated.",
    "GPU=USD",
    "--price",
    many="append",
    gather=partial(named_numbers, example="h200=2.5"),
)


def file(meaning: str = "The experiment") -> Options:
    """An experiment, and overrides of its keys."""
    where = "Give a path, or a name that `archsim list experiments` prints."
    return {"experiment": Option(f"{meaning}. {where}", "FILE", PLACE, into="file"), "overrides": OVERRIDES}


def choice_options(default: str = "its first", **defaults: str) -> dict[str, Option]:
    """Those that choose one combination of an experiment; ``default``: which, without, and of each in ``defaults``."""
    said = {"policy": "policy", "system": "system", "model": "model", "batch": "batch size",
            "assumptions": "assumption set"}  # fmt: skip
    found = {
        name: Option(
            f"Which {what} of the experiment to take (default: {defaults.get(name, default)}).",
            "LABEL" if name == "assumptions" else "NAME", group=COMBINATION,
        )
        for name, what in said.items()
    }  # fmt: skip
    return found | {"batch": found["batch"].of(metavar="N", read=positive)}


CHOSEN = tuple(choice_options())


def out(meaning: str = "", default: str = "") -> Options:
    """The folder of a page (``default``: as shown in the help), or of files."""
    text = f"Folder to write the page to (default: {default})." if default else meaning
    return {"out": Option(text, "DIR", group=OUTPUT), "force": FORCE}


def jobs(meaning: str = "How many runs to simulate in parallel", cluster: bool = True) -> Options:
    """How many processes; a ``cluster`` may do the work in their place (`archsim.cli.main` heeds it)."""
    own = {"jobs": Option(f"{meaning} (default: the number of cores).", "N", read=positive, group=EFFORT)}
    return own | {"scheduler": SCHEDULER} if cluster else own


_DRAW = "Sample all numbers that have a range N times, and say how sure the answer is"


def samples(default: str, read: Callable[[str], int] = worlds_or_none) -> Options:
    """How many worlds. ``default``: what happens without it."""
    return {"samples": Option(f"{_DRAW} ({default}).", "N", read=read, group=EFFORT)}


# Options of every verb, in the order of its help.

RECOMMEND: Options = {
    "model": Option(
        "The model, by name, also of Hugging Face (Qwen/Qwen3-32B-FP8), or by file.", "MODEL", PLACE
    ),
    "on": Option(
        "GPUs that may be used, such as h200:32, or a system by name or file. Without a number: one node, or as many "
        "GPUs as --rate needs, or --usd or --watts allow. May be repeated, to compare GPUs.", "GPU:N", many="append",
        is_required=True,
    ),
    "ttft": Option("Limit of the time to first token, such as 2s.", "TIME"),
    "tpot": Option("Limit of the time per output token, such as 50ms.", "TIME"),
    "e2e": Option("Limit of the time from arrival to last token, such as 30s.", "TIME"),
    "input_tokens": Option(
        "Mean number of prompt tokens (default: 1024, or fewer for a model of few positions).", "N", "--input",
        read=_number_from(1.0),
    ),
    "output_tokens": Option(
        "Mean number of output tokens (default: 512, or fewer for a model of few positions).", "N", "--output",
        read=_number_from(1.0),
    ),
    "requests": Option("A trace of requests, instead of --input and --output.", "FILE"),
    "rate": Option(
        "Requests a second that must be served. The cheapest GPUs that can are found (default: as many requests as "
        "possible).", "N", read=_number_from(1e-6, "/s"),
    ),
    "usd_per_hour": Option("Budget, in USD an hour.", "N", "--usd", read=_number_from(1e-6)),
    "watts": Option("Budget of power, in W, with every GPU at its limit.", "N", read=_number_from(1e-6)),
    "prices": PRICES,
    "engines": Option(
        "Consider only this engine: vllm, sglang or trtllm. May be repeated (default: all).", "NAME", "--engine",
        many="append",
    ),
    "precisions": Option(
        "Consider only this precision: bf16, fp8, nvfp4 or mxfp4. May be repeated (default: the usual ones of the "
        "GPU).", "NAME", "--precision", many="append",
    ),
    "objective": Option(
        "What counts as best: throughput, price or energy (default: throughput on one GPU, price with --rate or "
        "several GPUs).", "WHAT", "--best",
    ),
    "pools": Option("Consider pools of engines that only prefill or only decode, too."),
    "stages": Option(
        "Consider pipelines of so many stages, too. May be repeated.", "N", read=positive, many="append"
    ),
    "context": Option(
        "Consider ranks that share the tokens of a request, so many of them, too (vLLM). May be repeated.", "N",
        read=positive, many="append",
    ),
    "drafts": Option(
        "Consider so many draft tokens (MTP) per decode, too. May be repeated.", "N", read=positive, many="append"
    ),
    "acceptance": Option("Probability that a draft is accepted, such as 0.8.", "SHARE", read=_share),
    "overrides": OVERRIDES.of(
        help="Override a key of every machine, such as system.hbm.bandwidth=2TB/s. May be repeated."
    ),
    "loads": Option(
        "Recorded loads of experts, from which a placement is made. May be repeated.", "FILE", many="append"
    ),
    **jobs("How many processes to use"),
    **out("Folder to write files to that start it (default: nothing is written)."),
}  # fmt: skip
COMPARE: Options = {
    "sides": Option(
        "A system, by name or file, with :N for N machines; a GPU with :N for N GPUs; an experiment; a file of "
        "`archsim serve`; or the folder of a report. With --in, a policy or a system of that experiment.",
        "SIDE", PLACE, many="+",
    ),
    "inside": Option("The experiment that the sides are policies or systems of.", "FILE", "--in"),
    "tpot": Option("Limit of the time per output token, such as 50ms.", "TIME", read=duration, group=SIDES),
    "ttft": Option("Limit of the time to first token, such as 2s.", "TIME", read=duration, group=SIDES),
    "rate": Option(
        "Requests a second that must be served: how many machines of each side do that.", "N", group=SIDES
    ),
    "equal": Option(
        "Budget of the comparison: machines, devices, usd, w or mm2 (default: machines).", "WHAT", group=SIDES
    ),
    "vary": Option(
        "Compare values of a key of each side, such as d2d.bandwidth=[1,2,4]TB/s, or "
        "chunked_prefill=[true,false], precision=[fp8,nvfp4] or redundant_experts=[0,32] of a deployment. May be "
        "repeated: of one machine, it says which of the keys is worth more for the same budget.", "KEY=[VALUES]",
        many="append", group=SIDES,
    ),
    "input_tokens": Option("Number of prompt tokens of a request.", "N", "--input", read=positive, group=SIDES),
    "output_tokens": Option("Number of output tokens of a request.", "N", "--output", read=positive, group=SIDES),
    "prices": PRICES.of(group=SIDES),
    **choice_options(),
    "model": Option(
        "Which model is served, or taken of the experiment (default: its first; of machines, deepseek-v3, or where it "
        "does not fit, the largest that does).", "NAME", group=COMBINATION,
    ),
    "overrides": OVERRIDES.of(help="Override a key of all sides. May be repeated."),
    **out("Folder to write the page to (default: reports/A-B-…)."),
    **samples("default: 32 of machines, 32 quick ones of two designs, 16 of deployments, which need some; 0: none"),
    **jobs(),
}  # fmt: skip
SURE: Options = {
    **file("The experiment, or a file of `archsim serve`"), **choice_options("all of them"),
    "samples": Option(f"{_DRAW}.", "N", read=worlds, default=256, group=EFFORT),
    "seed": Option("Take other samples.", "N", read=natural, default=0, group=EFFORT),
    **out(default="reports/NAME-sure"), **jobs(),
}  # fmt: skip
SWEEP: Options = {
    **file("The experiment, or the manifest.yaml of a report"), **out(default="reports/NAME"), **jobs(),
    **samples("default: 32 quick ones, of the runs that the first sentence names; 0: none"),
    "dry_run": Option("Print the runs, and whether each fits in memory, without simulating them."),
    "point": Option("Print point N of a `sweep:` as an experiment.", "N", read=natural),
}  # fmt: skip
SERVE: Options = {
    **file("The deployment and its requests"),
    "requests": Option("A trace of requests, in place of those of the file.", "FILE"),
    "rate": Option("Requests per second, in place of those of the file.", "N", read=_number_from(1e-6, "/s")),
    "users": Option("Users who wait for one answer before they ask again, in place of a rate.", "N", read=positive),
    "ttft": Option("Limit of the time to first token, such as 2s.", "TIME", read=duration),
    "tpot": Option("Limit of the time per output token, such as 50ms.", "TIME", read=duration),
    **out(default="reports/NAME, or reports/NAME-search with --search"), **jobs(),
    **samples("default: 16, of a file with `sweep:` of at most 8 runs that are near the best; 0: none"),
    "timeline": Option(
        "Write a timeline of the first policy's run to this file, for Perfetto.", "FILE", group=OUTPUT
    ),
    "compare": Option(
        "Compare the simulation with a result of `vllm bench serve`.", "BENCH.json", only="another question"
    ),
    "calibrate": Option(
        "Fit the time of the host to a result of `vllm bench serve`.", "BENCH.json", only="another question"
    ),
    "search": Option("Find the parallel sizes and batch limits with the most goodput.", only="another question"),
}  # fmt: skip
RUN: Options = {
    **file(), **choice_options(),
    **samples("default: 32 quick ones; 0: none. `archsim sure` gives the whole answer"),
    "phase": Option(
        "Time only the dispatch or the combine of hidden vectors, with a row for each iteration and layer.",
        choices=("dispatch", "combine"),
    ),
    "law": Option(
        "With --phase, also give the time by a measured kernel, such as blackhole/replay-2026-09-11.",
        "MACHINE/VERSION",
    ),
    "step": Option("Which step (iteration) the timeline shows. 0 is the prefill.", "N", read=natural),
    "layer": Option("Which layer the timeline shows.", "N", read=natural),
    "die_dies": Option(
        "Compare the decode step before and after die N fails, and say what has to move.", "N", read=natural
    ),
    "timeline": Option(
        "Write a timeline of that layer in that step to this file, for Perfetto.", "FILE", group=OUTPUT
    ),
}  # fmt: skip
WHY: Options = {
    **file("The experiment, a file of `archsim serve`, or the folder of a report"),
    **choice_options(),
    "step": Option("Explain a layer of this iteration (0: prefill).", "N", read=natural),
    "layer": Option("Explain this layer in a step, as the model numbers it.", "N", read=natural),
    "worst": Option("How many of the slowest layer-steps to list.", "N", read=positive, default=10),
}
ABLATE: Options = {
    **file(),
    "start": Option("The assumption set to start from.", "SET", "--from", default="published"),
    "end": Option("The assumption set to end at.", "SET", "--to", default="physical"),
    **out(default="reports/NAME-ablation"), **jobs(),
}  # fmt: skip
BOUND: Options = {
    **file(), **out(default="reports/NAME-optimum"), **jobs(),
    "steps": Option(
        "How many layer-steps of a run to bound. They are spread evenly.", "N", read=positive, default=200
    ),
}  # fmt: skip
ENGINES: Options = {
    **file(),
    "sample": Option("How many runs to pick at random.", "N", "--runs", positive, 40),
    "interpreted": Option("Compare every column with engine: interpreted, which is slow."),
    "steps": Option("The most decode steps of a run to simulate.", "N", read=positive, default=3),
}
EXPLORE: Options = {
    **file("An experiment with `sweep:` and `explore:`"), **out(default="reports/NAME-exploration"), **jobs(),
    "samples": Option("How many samples to take, for objectives such as throughput.p10.", "N", read=int),
}  # fmt: skip
VERIFY: Options = {
    "report": Option("Folder of a report of sweep or serve, or its manifest.yaml.", "REPORT", PLACE), **jobs(),
}  # fmt: skip
TRUST: Options = {
    **file("The experiment, or a system, by name or file"),
    **choice_options(assumptions="physical", batch="its largest", policy="ep", model="the first that fits"),
}  # fmt: skip
PLACEMENT: Options = {
    "loads": Option("Recorded loads: a dump of an engine, a matrix of loads or a store.", "LOADS", PLACE, many="+"),
    "model": Option("The model, by name or file.", "NAME", is_required=True),
    "system": Option("The system, by name or file. Every die is a rank.", "NAME", is_required=True),
    "policy": Option("How experts are placed: none, eplb, craft, remap or dup.", "NAME", default="eplb"),
    "slots": Option(
        "Slots of a layer beyond one for each expert.", "N", read=natural, default=0, only="number of slots"
    ),
    "num_slots": Option("All slots of a layer together.", "N", read=positive, only="number of slots"),
    "ranks": Option(
        "Number of ranks of expert parallelism (default: the dies of the system).", "N", read=positive
    ),
    "tokens": Option("Tokens of an iteration, for loads summed over iterations.", "N", read=positive),
    **out("Folder to write files for serving engines to (default: nothing is written)."),
}  # fmt: skip
WORTH: Options = {
    "what": Option(
        "A balancer (eplb, craft, remap or dup) or a block of silicon (prediction, allocator or speeds).", "WHAT", PLACE
    ),
    "loads": Option(
        "For a balancer: recorded loads, as `archsim place` takes them (default: those of the traffic that is known of "
        "the model).", "LOADS", many="+",
    ),
    "deployment": Option("For a balancer: a deployment with one engine, as `archsim serve` takes it.", "FILE"),
    "inside": Option(
        "For a block: the experiment, or the folder of a report, whose policies are compared.", "FILE", "--in"
    ),
    "overrides": OVERRIDES.of(
        help="Override a key of the deployment or experiment, such as requests.count=200. May be repeated."
    ),
    **out("For a balancer: folder to write the files to deploy to (default: nothing is written)."),
    **samples("default: 16 of a balancer, none of a block; 0: none"), **jobs(),
}  # fmt: skip

# Module of a command, as `archsim.cli.main` names it → its options.
OF_COMMANDS: Mapping[str, Options] = {
    "run": RUN, "sweep": SWEEP, "explore": EXPLORE, "serve": SERVE, "why": WHY, "ablate": ABLATE, "optimum": BOUND,
    "compare": COMPARE, "worth": WORTH, "recommend": RECOMMEND, "sure": SURE, "place": PLACEMENT,
    "check:verify": VERIFY, "trust": TRUST,
}  # fmt: skip
