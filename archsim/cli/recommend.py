"""``archsim recommend``: what to serve a model with, within limits and a budget."""

import argparse
import sys
from pathlib import Path

from archsim.cli.arguments import OK, add_jobs, add_out, named_numbers
from archsim.cli.progress import doing


def add_recommend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model by name or file")
    parser.add_argument(
        "--on", action="append", required=True, metavar="GPU:N",
        help="GPUs that may be used, such as h200:32, or a system by name or file; repeatable, to compare GPUs",
    )  # fmt: skip
    parser.add_argument("--ttft", metavar="TIME", help="limit of the time to first token, such as 2s")
    parser.add_argument("--tpot", metavar="TIME", help="limit of the time per output token, such as 50ms")
    parser.add_argument("--e2e", metavar="TIME", help="limit of the time from arrival to last token")
    parser.add_argument("--input", type=_tokens, default=1024, metavar="N", help="mean tokens of prompts (1024)")
    parser.add_argument("--output", type=_tokens, default=512, metavar="N", help="mean tokens of outputs (512)")
    parser.add_argument("--requests", metavar="FILE", help="a trace of requests, in place of --input and --output")
    parser.add_argument("--rate", type=_rate, default=0.0, metavar="N", help="requests a second that must be served; "
                        "the cheapest GPUs that do so are found (default: as many as possible)")  # fmt: skip
    parser.add_argument("--usd", type=_budget, metavar="N", help="budget, USD an hour")
    parser.add_argument("--watts", type=_budget, metavar="N", help="budget, W of GPUs at their limits")
    parser.add_argument("--price", action="append", default=[], metavar="GPU=USD", help="an hour of a GPU; repeatable")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME",
                        help="vllm, sglang or trtllm; repeatable (default: all)")  # fmt: skip
    parser.add_argument("--precision", action="append", default=[], metavar="NAME",
                        help="bf16, fp8, nvfp4 or mxfp4; repeatable (default: the usual ones of the GPU)")  # fmt: skip
    parser.add_argument("--best", metavar="WHAT", help="throughput, price or energy (default: throughput on one GPU, "
                        "price with --rate or several GPUs)")  # fmt: skip
    parser.add_argument("--pools", action="store_true", help="also pools of engines that only prefill or decode")
    parser.add_argument("--loads", action="append", default=[], metavar="FILE",
                        help="recorded loads of experts, from which a placement is chosen; repeatable")  # fmt: skip
    add_jobs(parser, "processes")
    add_out(parser, "folder of the files to start it with (default: nothing is written)")


def run_recommend(args: argparse.Namespace) -> int:
    """Recommend, and print the answer, the table and the reasons. Raises ArchsimError."""
    print("reading ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.base.errors import SpecError
    from archsim.cli.printing import print_compiling, print_notes
    from archsim.studies.serving.recommend import answer, why
    from archsim.studies.serving.start import script

    if args.loads and not args.out:
        raise SpecError("--loads: a placement is a file: give --out DIR to have it written")
    print_compiling()
    found = ar.recommend(
        args.model, args.on, ttft=args.ttft, tpot=args.tpot, e2e=args.e2e, input_tokens=args.input,
        output_tokens=args.output, requests=args.requests, rate=args.rate, usd_per_hour=args.usd, watts=args.watts,
        prices=named_numbers("--price", args.price), engines=args.engine, precisions=args.precision,
        objective=args.best, pools=args.pools, jobs=args.jobs, told=doing, out=args.out, loads=args.loads,
    )  # fmt: skip
    args.result = found.as_json()
    print(answer(found))
    _print_table(found)
    for sentence in why(found):
        print(f"- {sentence}")
    if args.out:
        print(f"files: {', '.join(sorted(each.name for each in Path(args.out).iterdir()))} in {args.out}")
    else:
        print("start it with (--out DIR writes this, and a file of `archsim serve`):")
        print(*(line for line in script(found.started).splitlines() if line and not line.startswith("#!")), sep="\n")
    print_notes(found.notes)
    return OK


def _print_table(found) -> None:
    from archsim.cli.printing import console, grid
    from archsim.studies.serving.recommend import NAMES

    numbers = ("GPUs", "requests/s", "80 % range", "USD/M tokens", "J/token", "best with")
    table = grid("engine", "sizes", "precision", "limits", title="the best, and what comes near", numbers=numbers)
    for each in (found.best, *found.others):
        usd = "–" if each.usd_per_million != each.usd_per_million else f"{each.usd_per_million:.2f}"
        table.add_row(
            NAMES[each.kind.engine], each.sizes, each.kind.precision,
            f"{each.choice.max_num_seqs} / {each.choice.max_num_batched_tokens}",
            f"{each.devices} {each.kind.offer.gpu}", f"{each.rate_per_s:.3g}", f"{each.low:.3g} to {each.high:.3g}",
            usd,
            f"{each.upkeep.j_per_token[0]:.2f}", f"{each.probability:.0%}",
        )  # fmt: skip
    console().print(table)


def _tokens(text: str) -> float:
    return _number(text, 1.0)


def _rate(text: str) -> float:
    return _number(text.removesuffix("/s"), 1e-6)


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
