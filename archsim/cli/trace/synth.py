"""``archsim trace synth``: generate routing like a model's."""

import argparse

from archsim.cli.arguments import natural, positive
from archsim.cli.exit_codes import OK


def add(parser: argparse.ArgumentParser) -> None:
    preset = parser.add_mutually_exclusive_group(required=True)
    preset.add_argument(
        "preset", nargs="?", metavar="PRESET", help="name in configs/traffic, or a .yaml written by archsim trace fit"
    )
    preset.add_argument("--like", metavar="PRESET", help="same as the positional PRESET")
    parser.add_argument("--model", metavar="NAME", help="model by name or file (default: the preset's model)")
    parser.add_argument("--requests", type=positive, default=64, metavar="N", help="number of requests (default: 64)")
    parser.add_argument("--seed", type=natural, default=0, metavar="N")
    parser.add_argument("--out", required=True, metavar="FILE", help=".npz to write")


def run(args: argparse.Namespace) -> int:
    from archsim.workload.generated.files import generate_trace

    trace = generate_trace(args.preset or args.like, args.model, args.requests, args.seed, args.out)
    print(f"{args.out}: {trace.requests} requests, {len(trace.experts)} tokens")
    return OK
