"""The command line: a table of commands. The module of a command is imported only when that command is invoked."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from archsim.base.errors import ArchsimError
from archsim.cli.arguments import Parser
from archsim.cli.exit_codes import INTERRUPTED, OK, USER_ERROR


class Command(NamedTuple):
    """``module``: below ``archsim.cli``, with ``add(parser)`` and ``run(args) -> int``."""

    name: str
    module: str
    help: str


class Group(NamedTuple):
    """Commands of two words, such as ``archsim trace import``."""

    name: str
    help: str
    commands: tuple[Command, ...]


_TRACE = (
    Command("import", "trace.import_store", "read recorded routing into a store"),
    Command("info", "trace.info", "what a store holds"),
    Command("head", "trace.head", "the first rows of a store"),
    Command("slice", "trace.slice", "a store of some of the requests of another"),
    Command("merge", "trace.merge", "a store of all requests of several"),
    Command("sample", "trace.sample", "a store of requests drawn at random, each at most once"),
    Command("profile", "trace.profile", "measure the patterns of recorded routing; a page and a CSV"),
    Command("fit", "trace.fit", "estimate the parameters of generated routing from recorded routing"),
    Command("synth", "trace.synth", "generate routing like that of a model; a token-level .npz"),
)
COMMANDS: tuple[Command | Group, ...] = (
    Command("sweep", "sweep", "run every combination of an experiment and report on it"),
    Command("run", "run", "run one combination of an experiment; with a timeline of one step"),
    Command("ablate", "ablate", "what each assumption is worth: from one set to another, one at a time and in a chain"),
    Command("explore", "explore", "search the points of a `sweep:` for the Pareto-optimal designs"),
    Command("compare", "compare", "run a sample of an experiment on both engines and print how they differ"),
    Command("engines", "compare", "the same as compare"),
    Command("optimum", "optimum", "how far every policy's steps are from a lower bound over all allocations"),
    Command("area", "area", "area and power of the tables and cores that decide, beside the published"),
    Command("cost", "cost", "area of a die, price of a machine, and the coefficients of energy, with ranges"),
    Command("check", "check", "check an experiment, system, model, assumption set, calibration or traffic file"),
    Command("list", "list", "list what an experiment may name"),
    Command("blocks", "blocks", "hardware blocks as state machines: tables, parameters, diagrams"),
    Group("model", "models from exported graphs", (
        Command("import", "model_import", "make a model file of an ONNX graph; weights are not read"),
    )),
    Group("trace", "recorded routing: import it into a store, inspect it, select from it", _TRACE),
    Command("calibrate", "calibrate", "fit measurements of a GPU"),
    Command("validate", "validate", "judge a calibration by measurements, held-out ones included"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or 2 with the message on stderr where the input is at fault."""
    arguments = _parse(list(sys.argv[1:] if argv is None else argv))
    try:
        return arguments.run(arguments)
    except ArchsimError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        # The reader of our output has gone (`archsim list models | head`); nothing more may be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        # Commands that resume say so themselves.
        print("\ninterrupted; what had not ended is not kept", file=sys.stderr)
        return INTERRUPTED


def _parse(words: list[str]) -> argparse.Namespace:
    """The arguments, with the function that runs the command as ``run``."""
    parser = Parser(prog="archsim", description="Simulates MoE serving on chiplet, wafer-scale and multi-GPU machines.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _fill(parser, "COMMAND", COMMANDS, words)
    return parser.parse_args(words)


def _fill(parser: argparse.ArgumentParser, metavar: str, commands: Sequence[Command | Group], words: list[str]) -> None:
    """Name all commands; import and fill in the one that ``words`` invoke."""
    below = parser.add_subparsers(required=True, metavar=metavar)
    for command in commands:
        own = below.add_parser(command.name, help=command.help)
        if words[:1] != [command.name]:
            continue
        if isinstance(command, Group):
            _fill(own, "ACTION", command.commands, words[1:])
            continue
        module: Any = importlib.import_module(f"archsim.cli.{command.module}")
        module.add(own)
        own.set_defaults(run=module.run)


class _Version(argparse.Action):
    """Prints the version; ``importlib.metadata`` is imported only then."""

    def __call__(self, parser, *_) -> None:
        from archsim import __version__

        print(f"archsim {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
