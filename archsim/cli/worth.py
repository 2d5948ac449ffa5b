"""``archsim compare --without``: whether a balancer pays, tested on held-out loads, or a block of silicon."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsim.base.errors import SpecError

if TYPE_CHECKING:
    from archsim.base.answer import Answer


def run_worth(args: argparse.Namespace) -> Answer:
    """The verdict and what it stands on. Raises ArchsimError for what does not fit."""
    from archsim.specs.file_kinds import SERVE
    from archsim.specs.library import kind_of_file

    if args.inside and not args.deployment and not Path(args.inside).is_dir() and kind_of_file(args.inside) == SERVE:
        args.inside, args.deployment = None, args.inside
    if args.inside is None and args.deployment is None:
        raise SpecError("a balancer needs --deployment. A block (prediction, allocator or speeds) needs --in")
    if args.inside is not None and (args.loads or args.deployment or args.out):
        raise SpecError("--in is for a block. --loads, --deployment and --out are for a balancer")
    print(f"reading {args.inside or args.deployment} ...", file=sys.stderr, flush=True)  # before slow imports
    import archsim as ar
    from archsim.base.host import available_cores
    from archsim.cli.printing import print_compiling
    from archsim.cli.progress import watcher

    if args.inside is None:
        print_compiling()
        print("choosing placements, serving with and without ...", file=sys.stderr, flush=True)
        return ar.worth(
            args.what,
            args.loads,
            args.deployment,
            args.overrides,
            out=args.out,
            samples=args.samples,
            jobs=args.jobs or available_cores(),
        ).as_answer()
    is_report = Path(args.inside).is_dir()
    if is_report and args.overrides:
        raise SpecError(f"{args.inside} is a report, whose runs are taken as they are. --set needs an experiment")
    print_compiling()
    with watcher() as watching:
        experiment = args.inside if is_report else ar.load(args.inside, args.overrides)
        found = ar.block_worth(args.what, experiment, args.jobs, watching, args.samples).as_answer()
    return replace(found, notes=getattr(experiment, "unread", ()))
