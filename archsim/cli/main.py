"""The command line: a table of commands. The module of a command is imported only when that command is invoked."""

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base.errors import ArchsimError, FailedRuns, printable
from archsim.base.files import claim, refuse_foreign, refuse_no_place
from archsim.base.own_code import code_told
from archsim.cli.arguments import FAILED_RUNS, INTERRUPTED, OK, USER_ERROR, Parser

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(NamedTuple):
    """``module``: below ``archsim.cli``, with ``add_NAME(parser)`` and ``run_NAME(args) -> int``; ``module:name``
    if the name is not that of the module.
    """

    name: str
    module: str
    help: str


class Group(NamedTuple):
    """Commands of two words, such as ``archsim trace import``."""

    name: str
    help: str
    commands: tuple[Command, ...]


_TRACE = (
    Command("import", "trace:import_store", "read recorded routing into a store"),
    Command("info", "trace:info", "print what a store contains"),
    Command("head", "trace:head", "print the first rows of a store"),
    Command("slice", "trace:slice", "write a store with some requests of another"),
    Command("merge", "trace:merge", "write a store with all requests of several"),
    Command("sample", "trace:sample", "write a store of requests drawn at random, each at most once"),
    Command("profile", "trace:profile", "measure the patterns of recorded routing; a page and a CSV"),
    Command("fit", "trace:fit", "estimate the parameters of generated routing from recorded routing"),
    Command("synth", "trace:synth", "generate routing like a model's; writes a token-level .npz"),
)
_RTL = (
    Command("lockstep", "hardware:rtl_lockstep", "drive a component and its table with one stimulus"),
    Command("formal", "hardware:rtl_formal", "prove invariants of the components by induction"),
    Command("energy", "hardware:rtl_energy", "energy of registers and clock, by the activity of a run"),
    Command("synth", "hardware:rtl_synth", "map components to a cell library: area, delay, energy"),
    Command("export", "hardware:rtl_export", "a component as Verilog, with a test bench and timing constraints"),
)
COMMANDS: tuple[Command | Group, ...] = (
    Command("sweep", "sweep", "run every combination of an experiment and report on it"),
    Command("run", "run", "run one combination of an experiment; optionally write a timeline of one step"),
    Command("why", "why", "what limits a step, and what would help; without a step, the worst ones"),
    Command("ablate", "why:ablate", "effect of each assumption: from one set to another, one at a time and in a chain"),
    Command("explore", "sweep:explore", "search the points of a `sweep:` for the Pareto-optimal designs"),
    Command("compare", "compare", "two designs, or two policies of an experiment, side by side"),
    Command("engines", "compare:engines", "run a sample of an experiment on both engines and print how they differ"),
    Command("optimum", "why:optimum", "how far every policy's steps are from a lower bound over all allocations"),
    Command("figure", "sweep:figure", "a figure of a report for print: PDF, PNG or SVG (extra `figures`)"),
    Command("verify", "check:verify", "run a report again from its manifest, and say which numbers moved"),
    Command("place", "place", "choose a placement from recorded loads and write it for SGLang, vLLM and TensorRT-LLM"),
    Command("worth", "compare:worth", "whether a balancer pays on a deployment, by recorded loads held out in time"),
    Command("serve", "serve", "requests over time: TTFT, TPOT, goodput; compare, calibrate, search"),
    Command("claims", "compare:claims", "published numbers of papers beside runs: met or not, and why"),
    Command("area", "hardware:area", "area and power of the decision hardware, beside the published"),
    Command("cost", "hardware:cost", "die area, machine price and energy coefficients, with ranges"),
    Command("check", "check", "check an experiment, system, model, assumption set, calibration or traffic file"),
    Command("new", "new", "write a commented system, model or experiment to start from"),
    Command("list", "list", "list the names that an experiment may use"),
    Command("completion", "list:completion", "print a script that completes commands and names in bash, zsh or fish"),
    Command("blocks", "hardware:blocks", "hardware blocks as state machines: tables, parameters, diagrams"),
    Group("rtl", "the decision hardware in RTL (extra `rtl`): lockstep with its tables, proofs, synthesis", _RTL),
    Group("model", "make models from exported graphs and from config.json", (
        Command("import", "new:model_import", "make a model file from an ONNX graph or a config.json"),
    )),
    Group("trace", "recorded routing: import it into a store, inspect it, select from it", _TRACE),
    Command("calibrate", "calibrate", "fit a calibration to measurements of a GPU"),
    Command("validate", "calibrate:validate", "compare a calibration with measurements, held-out ones included"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or with the message on stderr 2 if the input or the machine is at fault, 1 if
    some runs failed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parse(words)
    from archsim.cli.progress import heartbeat  # loads rich, which --help does not wait for

    try:
        if isinstance(getattr(arguments, "out", None), str) and arguments.out:
            arguments.out = _out_checked(arguments.out)
        if hasattr(arguments, "force") and arguments.out:
            (claim if arguments.force else refuse_foreign)(Path(arguments.out))
        with heartbeat(f"archsim {words[0]}"), code_told(sys.stderr):
            status = _as_json(arguments) if getattr(arguments, "json", False) else arguments.run(arguments)
        sys.stdout.flush()  # here, where a full disk can be told
        return status
    except ArchsimError as error:
        print(printable(str(error)), file=sys.stderr)
        return FAILED_RUNS if isinstance(error, FailedRuns) else USER_ERROR
    except BrokenPipeError:
        # The reader of our output is gone (`archsim list models | head`); nothing more may be written at exit.
        _drop_output()
        return OK
    except OSError as error:
        print(printable(_host_told(error, getattr(arguments, "out", None))), file=sys.stderr)
        _drop_output()
        return USER_ERROR
    except KeyboardInterrupt:
        # Commands that resume say so themselves.
        print("\ninterrupted; unfinished work is not kept", file=sys.stderr)
        return INTERRUPTED


def _out_checked(out: str) -> str:
    """``--out`` with ``~`` expanded, which shells leave in ``--out=~/name``. Raises ArchsimError for a place where
    nothing can be written, before any work is done for it.
    """
    try:
        path = Path(out).expanduser()
    except RuntimeError:
        raise ArchsimError(f"--out {out}: no home folder of this user is known; write it in full") from None
    refuse_no_place(path)
    return str(path) + "/" * out.endswith("/")  # calibrate: a new folder, not a file


def _as_json(arguments: argparse.Namespace) -> int:
    """Run a command with ``--json``: what it prints goes to stderr, its ``result`` to stdout."""
    from archsim.cli.printing import print_json

    with redirect_stdout(sys.stderr):
        code = arguments.run(arguments)
    print_json(getattr(arguments, "result", None))
    return code


def _host_told(error: OSError, out: str | None) -> str:
    """What the machine refuses: room on a disk, or a file. Raises the error again if it has no number: a defect."""
    if error.errno is None:
        raise error
    if error.errno in _FULL:
        return (
            f"{error.filename or out or 'a disk'}: {error.strerror}; what was finished before is kept: make room, then "
            "give the same command again"
        )
    return f"{error.filename or out or 'the current folder'}: cannot be read or written: {error.strerror}"


def _drop_output() -> None:
    """Nothing more is written to stdout, not at exit either."""
    if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(words: list[str]) -> argparse.Namespace:
    """The arguments, with the function that runs the command as ``run``."""
    return parser_of(words).parse_args(words)


def parser_of(words: list[str]) -> Parser:
    """The parser, with the arguments of the one command that ``words`` invoke."""
    parser = Parser(prog="archsim", description="Simulates MoE serving on chiplet, wafer-scale and multi-GPU machines.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    _fill(parser, "COMMAND", COMMANDS, words)
    return parser


def _fill(parser: argparse.ArgumentParser, metavar: str, commands: Sequence[Command | Group], words: list[str]) -> None:
    """Add all commands; import and fill in only the one that ``words`` invokes."""
    below = parser.add_subparsers(required=True, metavar=metavar)
    for command in commands:
        own = below.add_parser(command.name, help=command.help)
        if words[:1] != [command.name]:
            continue
        if isinstance(command, Group):
            _fill(own, "ACTION", command.commands, words[1:])
            continue
        name, _, action = command.module.partition(":")
        module: Any = importlib.import_module(f"archsim.cli.{name}")
        getattr(module, f"add_{action or name}")(own)
        own.set_defaults(run=getattr(module, f"run_{action or name}"))


class _Version(argparse.Action):
    """Prints the version; ``importlib.metadata`` is imported only for that."""

    def __call__(self, parser, *_) -> None:
        from archsim import __version__

        print(f"archsim {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
