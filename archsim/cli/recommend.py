"""``archsim recommend``: what to serve a model with, within limits and a budget."""

import argparse
import sys
from pathlib import Path

from archsim.cli import arguments, heartbeat


def add_recommend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="The model, by name, also of Hugging Face (Qwen/Qwen3-32B-FP8), or by file."
    )
    parser.add_argument(
        "--on", action="append", required=True, metavar="GPU:N",
        help="GPUs that may be used, such as h200:32, or a system by name or file. Without a number: one node, or as "
        "many GPUs as --usd or --watts allow. May be repeated, to compare GPUs.",
    )  # fmt: skip
    parser.add_argument("--ttft", metavar="TIME", help="Limit of the time to first token, such as 2s.")
    parser.add_argument("--tpot", metavar="TIME", help="Limit of the time per output token, such as 50ms.")
    parser.add_argument("--e2e", metavar="TIME", help="Limit of the time from arrival to last token, such as 30s.")
    parser.add_argument(
        "--input",
        type=_tokens,
        metavar="N",
        help="Mean number of prompt tokens (default: 1024, or fewer for a model of few positions).",
    )
    parser.add_argument(
        "--output",
        type=_tokens,
        metavar="N",
        help="Mean number of output tokens (default: 512, or fewer for a model of few positions).",
    )
    parser.add_argument("--requests", metavar="FILE", help="A trace of requests, instead of --input and --output.")
    parser.add_argument("--rate", type=_rate, default=0.0, metavar="N",
            help="Requests a second that must be served. The cheapest GPUs that can are found (default: as many "
            "requests as possible).")  # fmt: skip
    parser.add_argument("--usd", type=_budget, metavar="N", help="Budget, in USD an hour.")
    parser.add_argument(
        "--watts", type=_budget, metavar="N", help="Budget of power, in W, with every GPU at its limit."
    )
    parser.add_argument(
        "--price", action="append", default=[], metavar="GPU=USD", help="Price of an hour of a GPU. May be repeated."
    )
    parser.add_argument("--engine", action="append", default=[], metavar="NAME", help="Consider only this engine: "
                        "vllm, sglang or trtllm. May be repeated (default: all).")  # fmt: skip
    parser.add_argument("--precision", action="append", default=[], metavar="NAME",
                        help="Consider only this precision: bf16, fp8, nvfp4 or mxfp4. May be repeated (default: the "
                        "usual ones of the GPU).")  # fmt: skip
    parser.add_argument("--best", metavar="WHAT",
            help="What counts as best: throughput, price or energy (default: throughput on one GPU, price with --rate "
            "or several GPUs).")  # fmt: skip
    parser.add_argument(
        "--pools", action="store_true", help="Consider pools of engines that only prefill or only decode, too."
    )
    for name, text in (
        ("--stages", "Consider pipelines of so many stages, too."),
        ("--context", "Consider ranks that share the tokens of a request, so many of them, too (vLLM)."),
        ("--drafts", "Consider so many draft tokens (MTP) per decode, too."),
    ):
        parser.add_argument(
            name, action="append", default=[], type=arguments.positive, metavar="N", help=f"{text} May be repeated."
        )
    parser.add_argument(
        "--acceptance", type=_share, metavar="SHARE", help="Probability that a draft is accepted, such as 0.8."
    )
    parser.add_argument("--loads", action="append", default=[], metavar="FILE",
                        help="Recorded loads of experts, from which a placement is made. May be repeated.")  # fmt: skip
    arguments.add_jobs(parser, "How many processes to use")
    arguments.add_out(parser, "Folder to write files to that start it (default: nothing is written).")


def run_recommend(args: argparse.Namespace) -> int:
    """Recommend, and print the answer, the table and the reasons. Raises ArchsimError."""
    print("reading ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.base.errors import SpecError
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.studies.serving.recommendation import answer, start_script, why

    if args.loads and not args.out:
        raise SpecError("--loads: a placement is written to a file. Give --out DIR, too")
    print_compiling("serving")
    found = ar.recommend(
        args.model, args.on, ttft=args.ttft, tpot=args.tpot, e2e=args.e2e, input_tokens=args.input,
        output_tokens=args.output, requests=args.requests, rate=args.rate, usd_per_hour=args.usd, watts=args.watts,
        prices=arguments.named_numbers("--price", args.price, "h200=2.5"),
        engines=args.engine, precisions=args.precision,
        objective=args.best, pools=args.pools, stages=args.stages, context=args.context, drafts=args.drafts,
        acceptance=args.acceptance, jobs=args.jobs, report=heartbeat.begins, out=args.out, loads=args.loads,
    )  # fmt: skip
    args.result = found.as_json()
    print(answer(found))
    _print_table(found)
    for sentence in why(found):
        print(f"- {sentence}")
    if args.out:
        print(f"Written to {args.out}: {', '.join(sorted(each.name for each in Path(args.out).iterdir()))}")
    else:
        print("Start it with these lines (--out DIR writes them, and a file for `archsim serve`):")
        print(*(line for line in start_script(found.best).splitlines() if line and not line.startswith("#!")), sep="\n")
    print_notes(found.notes)
    return arguments.OK


def _print_table(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.report.units import interval
    from archsim.studies.serving.question import NAMES

    numbers = ("GPUs", "requests/s", "80 % range", "USD/M tokens", "J/token", "best with")
    table = grid("engine", "sizes", "precision", "limits", title="the best, and what comes close", numbers=numbers)
    for each in (found.best, *found.others):
        usd = "–" if each.usd_per_million != each.usd_per_million else f"{each.usd_per_million:.2f}"
        rate, low, high = interval(each.rate_per_s, each.low, each.high)
        joules = interval(*each.upkeep.j_per_token)[0]
        table.add_row(
            NAMES[each.kind.engine], each.sizes, each.kind.precision,
            f"{each.choice.max_num_seqs} / {each.choice.max_num_batched_tokens}",
            f"{each.devices} {each.kind.offer.gpu}", rate, f"{low} to {high}",
            usd,
            joules, f"{each.probability:.0%}",
        )  # fmt: skip
    console().print(table)


def _tokens(text: str) -> float:
    return _number(text, 1.0)


def _rate(text: str) -> float:
    return _number(text.removesuffix("/s"), 1e-6)


def _share(text: str) -> float:
    value = _number(text, 0.0)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range; expected a share from 0 to 1")
    return value


def _budget(text: str) -> float:
    return _number(text, 1e-6)


def _number(text: str, least: float) -> float:
    try:
        value = float(text if text.isascii() else "")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not least <= value <= 1e12:
        raise argparse.ArgumentTypeError(f"{text} is out of range; expected at least {least:g}")
    return value
