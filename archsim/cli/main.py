"""The command line: a table of commands. The module of a command is imported only when that command is invoked."""

import argparse
import errno
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from archsim.base import errors, files, own_code, verbs
from archsim.cli.arguments import FAILED_RUNS, INTERRUPTED, OK, USER_ERROR, Parser, add_json, add_options, tell_renamed
from archsim.cli.streams import Kept, open_closed

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Form(NamedTuple):
    """Another question to a verb, asked by ``flag`` (``archsim why --ablate``). ``old``: its command before 0.2."""

    flag: str
    old: str
    module: str
    help: str


class Command(NamedTuple):
    """``module``: below ``archsim.cli``, with ``run_NAME(args) -> Answer | int``, and ``add_NAME(parser)`` of
    one whose options are not in `archsim.base.verbs`;
    ``module:name`` if the name is not that of the module.
    """

    name: str
    module: str
    help: str
    forms: tuple[Form, ...] = ()


class CommandGroup(NamedTuple):
    """Commands of two words, such as ``archsim trace import``; those of ``old`` were one word before 0.2."""

    name: str
    help: str
    commands: "tuple[Command | CommandGroup, ...]"
    old: tuple[str, ...] = ()


_TRACE = (
    Command("import", "trace:import_store", "read recorded routing into a store"),
    Command("info", "trace:info", "print what a store contains"),
    Command("head", "trace:head", "print the first rows of a store"),
    Command("slice", "trace:slice", "write a store with some requests of another"),
    Command("merge", "trace:merge", "write a store with all requests of several"),
    Command("sample", "trace:sample", "write a store of requests sampled at random, each at most once"),
    Command("profile", "trace:profile", "measure the patterns of recorded routing, and write a page and a CSV file"),
    Command("fit", "trace:fit", "estimate the parameters of generated routing from recorded routing"),
    Command("synth", "trace:synth", "generate routing like that of a model, and write it as .npz"),
)
_RTL = (
    Command("lockstep", "rtl:rtl_lockstep", "drive a component and its table with the same stimulus, and compare"),
    Command("formal", "rtl:rtl_formal", "prove invariants of the components by induction"),
    Command("energy", "rtl:rtl_energy", "estimate the energy of registers and clock from the activity of a run"),
    Command("synth", "rtl:rtl_synth", "map components to a cell library, for area, delay and energy"),
    Command("export", "rtl:rtl_export", "write a component as Verilog, with a test bench and timing constraints"),
)
_HARDWARE = (
    Command("area", "area", "estimate area and power of the decision hardware, beside published values"),
    Command("cost", "cost", "estimate area and price of a machine, with ranges and the best number of spare dies"),
    Command("power", "cost:power", "estimate the power of a machine at full load, against its limits"),
    Command("chips", "chips", "compare area, price and power with chips that exist"),
    Command("blocks", "blocks", "show hardware blocks as state machines, with tables and diagrams"),
    CommandGroup("rtl", "check and map the decision hardware in RTL (needs the extra `rtl`)", _RTL),
)
# What --help lists: a heading → its commands.
HEADINGS: dict[str, tuple[Command | CommandGroup, ...]] = {
    "Simulate": (
        Command("run", "run", "simulate one combination of an experiment, and draw a layer in a step as a timeline"),
        Command("sweep", "sweep", "simulate every combination of an experiment, and write a report", (
            Form("--search", "explore", "explore", "find the Pareto-optimal points of a `sweep:`"),
            Form("--figure", "figure", "sweep:figure", "write a figure of a report for print, as PDF, PNG or SVG"),
        )),
        Command("serve", "serve", "simulate requests that arrive over time, and search for a configuration"),
    ),
    "Understand": (
        Command("why", "why", "explain what limits a layer in a step, and what would help", (
            Form("--ablate", "ablate", "ablate", "show how much each modelling assumption changes a speed-up"),
            Form("--bound", "optimum", "optimum", "show how far policies are from a bound that none can beat"),
        )),
        Command("compare", "compare", "compare two designs, or two policies of an experiment", (
            Form("--engines", "engines", "engines", "compare both engines on a sample of an experiment"),
            Form("--papers", "claims", "claims", "compare published numbers of papers with simulated ones"),
            Form("--without", "worth", "worth", "say whether a block or a balancer is worth its cost"),
        )),
    ),
    "Decide": (
        Command("recommend", "recommend", "recommend how to serve a model within latency limits and a budget"),
        Command("sure", "sure", "say how sure an answer is, what it depends on, and what to measure next"),
        Command("place", "place", "make the placement of experts to deploy, from recorded loads"),
    ),
    "Describe your own": (
        Command("new", "new", "write a commented system, model or experiment to start from", (
            Form("--from", "model import", "model_import", "make a model file from a config.json or an ONNX graph"),
        )),
        Command("check", "check", "check any input file before you run it", (
            Form("--report", "verify", "check:verify", "simulate a report again, and say which numbers have changed"),
            Form("--trust", "trust", "trust", "say how far to trust a machine, by what was measured nearest to it"),
        )),
        Command("compile", "compile", "compile the kernels once, so that no later command waits for them"),
        Command("list", "list", "list the names that an experiment may use", (
            Form("--completion", "completion", "list:completion", "print a script for completion in bash, zsh or fish"),
        )),
        Command("calibrate", "calibrate", "fit curves to measurements of a GPU", (
            Form("--validate", "validate", "validate", "validate a calibration with unseen measurements"),
        )),
        CommandGroup("trace", "import, inspect and select recorded routing", _TRACE),
        CommandGroup("hardware", "show area, price, state machines and RTL of the hardware", _HARDWARE,
              ("area", "cost", "blocks", "rtl")),
    ),
}  # fmt: skip
COMMANDS = tuple(command for commands in HEADINGS.values() for command in commands)
# Spelling before version 0.2 → today's.
OLD = {
    **{form.old: f"{each.name} {form.flag}" for each in COMMANDS if isinstance(each, Command) for form in each.forms},
    **{old: f"{each.name} {old}" for each in COMMANDS if isinstance(each, CommandGroup) for old in each.old},
}
_START = """\
Start here:
  archsim sweep configs/dojo.yaml       compares five policies on a wafer of 25 dies, and writes reports/dojo/index.html
  archsim new experiment mine.yaml      writes a commented experiment for you to edit
  archsim COMMAND --help                explains the options of a command
"""


def every_command(
    commands: "Sequence[Command | CommandGroup]" = COMMANDS, before: str = ""
) -> Iterator[tuple[str, str]]:
    """Words of every command and form, such as ``trace info`` or ``why --bound``, and the module that it is in."""
    for each in commands:
        if isinstance(each, CommandGroup):
            yield from every_command(each.commands, f"{before}{each.name} ")
            continue
        yield before + each.name, each.module
        for form in each.forms:
            yield f"{before}{each.name} {form.flag}", form.module


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or with the message on stderr 2 if the input or the machine is at fault, 1 if
    some runs failed. A reader that leaves (`archsim list models | head`) is no fault, but a full disk is.
    """
    open_closed()
    sys.stdout, sys.stderr = out, err = Kept(sys.stdout), Kept(sys.stderr)
    status: int | SystemExit
    try:
        status = _run(argv)
    except SystemExit as end:  # of the parser
        status = end
    finally:
        sys.stdout = out.end()
        if (lost := out.failed) is not None and lost.errno != errno.EPIPE:
            print(f"stdout: {lost.strerror}. What the command prints is lost, but not its files", file=err)
        sys.stderr = err.end()
    if lost is not None and lost.errno != errno.EPIPE:
        return USER_ERROR
    if isinstance(status, SystemExit):
        raise status
    return status


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        parser_of(["--help"]).print_help()
        return OK
    words = _as_spelled_now(words)
    arguments = parser_of(words).parse_args(words)
    from archsim.cli.heartbeat import heartbeat  # loads rich, which --help does not wait for

    try:
        if isinstance(getattr(arguments, "out", None), str) and arguments.out:
            arguments.out = _out_checked(arguments.out)
        if getattr(arguments, "force", False) and not arguments.out:
            raise errors.ArchsimError(
                "--force: it lets archsim write among the files of the folder that --out names. Give --out DIR, too, "
                "or leave --force out"
            )
        if hasattr(arguments, "force") and arguments.out:
            (files.claim if arguments.force else files.refuse_foreign)(Path(arguments.out))
        file = getattr(arguments, "file", None)
        first = f"reading {file}" if isinstance(file, str) else f"starting {arguments.command}"
        named = verbs.caller_names(getattr(arguments, "flags", {}))
        with heartbeat(first), own_code.code_note(sys.stderr), named, _where(arguments):
            return _as_json(arguments) if getattr(arguments, "json", False) else _ran(arguments)
    except errors.ArchsimError as error:
        print(errors.spaced(errors.printable(str(error))), file=sys.stderr)
        return FAILED_RUNS if isinstance(error, errors.FailedRuns) else USER_ERROR
    except OSError as error:
        print(errors.printable(_host_message(error, getattr(arguments, "out", None))), file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt as end:
        print(f"\nInterrupted. {str(end) or 'Unfinished work is not kept.'}", file=sys.stderr)
        return INTERRUPTED


def _where(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Where jobs are done: on the cluster of ``--scheduler``, or here."""
    if (scheduler := getattr(arguments, "scheduler", None)) is None:
        return nullcontext()
    from archsim.runs.executor import on_cluster

    return on_cluster(scheduler)


def _out_checked(out: str) -> str:
    """``--out`` with ``~`` expanded. Raises ArchsimError for a place where nothing can be written."""
    try:
        path = Path(out).expanduser()
    except RuntimeError:
        raise errors.ArchsimError(f"--out {out}: no home folder of this user is known. Write it in full") from None
    files.refuse_no_place(path)
    return str(path) + "/" * out.endswith("/")  # calibrate: a new folder, not a file


def _ran(arguments: argparse.Namespace) -> int:
    found = arguments.run(arguments)
    if isinstance(found, int):
        return found
    from archsim.cli.printing import print_answer, result_of

    print_answer(found)
    arguments.result = result_of(found)
    return found.status


def _as_json(arguments: argparse.Namespace) -> int:
    """Run a command with ``--json``: what it prints goes to stderr, its ``result`` to stdout."""
    from archsim.cli.printing import print_json

    with redirect_stdout(sys.stderr):
        code = _ran(arguments)
    print_json(getattr(arguments, "result", None))
    return code


def _host_message(error: OSError, out: str | None) -> str:
    """What the machine refuses: room on a disk, or a file. Raises the error again if it has no number: a defect."""
    if error.errno is None:
        raise error
    if error.errno in _FULL:
        return (
            f"{error.filename or out or 'a disk'}: {error.strerror}. What was finished before is kept. Make room, then "
            "give the same command again"
        )
    return f"{error.filename or out or 'the current folder'}: cannot be read or written: {error.strerror}"


def _as_spelled_now(words: list[str]) -> list[str]:
    """Words of an old spelling in today's; a terminal is shown the new one, scripts that read stderr are not."""
    for old, now in OLD.items():
        known = old.split()
        if words[: len(known)] == known:
            tell_renamed(f"archsim {old}", f"archsim {now}")
            return [*now.split(), *words[len(known) :]]
    return words


def parser_of(words: list[str]) -> Parser:
    """The parser with arguments of the command that ``words`` invoke, whose function is ``run``."""
    lines = ["archsim simulates how fast a machine serves a mixture-of-experts model, and what limits it."]
    for heading, commands in HEADINGS.items():
        lines += ["", f"{heading}:", *(f"  {each.name:<11} {each.help}" for each in commands)]
    parser = Parser(
        prog="archsim", usage="archsim COMMAND ...", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join(lines), epilog=_START,
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, nargs=0, help="Print the version and exit.")
    _fill(parser, "COMMAND", COMMANDS, words, argparse.SUPPRESS)
    return parser


def _fill(
    parser: argparse.ArgumentParser, metavar: str, commands: Sequence[Command | CommandGroup], words: list[str],
    shown: str | None = None,
) -> None:  # fmt: skip
    """Add all commands; import and fill in only the one that ``words`` invokes, without the flag of its form."""
    below = parser.add_subparsers(required=True, metavar=metavar, help=shown, prog=parser.prog)
    for command in commands:
        invoked = words[:1] == [command.name]
        if isinstance(command, CommandGroup):
            own = below.add_parser(command.name, help=command.help, description=errors.capital(f"{command.help}."))
            if invoked:
                _fill(own, "ACTION", command.commands, words[1:])
            continue
        form = next((each for each in command.forms if invoked and each.flag in words), None)
        prog, others = f"{parser.prog} {command.name}" + (f" {form.flag}" if form else ""), None
        if command.forms and not form:
            sentences = (f"  {prog} {each.flag:<14} {each.help}" for each in command.forms)
            others = "\n".join(("other questions (add --help for their options):", *sentences))
        own = below.add_parser(
            command.name, prog=prog, help=command.help, formatter_class=argparse.RawDescriptionHelpFormatter,
            description=errors.capital(f"{form.help if form else command.help}."), epilog=others,
        )  # fmt: skip
        if not invoked:
            continue
        if form:
            words.remove(form.flag)
        name, _, action = (form or command).module.partition(":")
        module: Any = importlib.import_module(f"archsim.cli.{name}")
        if (options := verbs.OF_COMMANDS.get((form or command).module)) is not None:
            add_options(own, options)
        else:
            getattr(module, f"add_{action or name}")(own)
        if (form or command).module != "list:completion":  # its result is a script
            add_json(own)
        own.set_defaults(run=getattr(module, f"run_{action or name}"), command=prog)


class _Version(argparse.Action):
    """Prints the version; ``importlib.metadata`` is imported only for that."""

    def __call__(self, parser, *_) -> None:
        from archsim import __version__

        print(f"archsim {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
