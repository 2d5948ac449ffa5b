"""The command-line parser, which suggests the nearest valid word, and the arguments and types that commands share."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archsim.base.errors import SpecError, did_you_mean

_REQUIRED = "the following arguments are required: "
_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<choices>.*)\)")

CHOSEN = ("policy", "system", "model", "batch", "assumptions")
_CHOSEN_TOLD = {"batch": "batch size", "assumptions": "assumption set"}


class Parser(argparse.ArgumentParser):
    """argparse's parser, with the nearest command, choice or option in its messages.

    Subparsers are of this class, too. ``group`` of an argument: the heading that it stands below in ``--help``.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._headings: dict[str, argparse._ArgumentGroup] = {}
        self._options: list[str] = []
        self._before: dict[str, str] = {}  # option as it was called → as it is called now
        super().__init__(*args, **settings)
        self._positionals.title = "arguments"
        if help_of := self._option_string_actions.get("-h"):
            help_of.help = "Show this help and exit."

    def add_argument(self, *names: Any, group: str = "", **settings: Any) -> argparse.Action:
        if group and group not in self._headings:
            self._headings[group] = self.add_argument_group(group)
        if group:
            action = self._headings[group].add_argument(*names, **settings)
        else:
            action = super().add_argument(*names, **settings)
        long = [name for name in action.option_strings if name.startswith("--")]
        self._options += long
        return action

    def spelled_before(self, old: str, now: str) -> None:
        """``old``: what the option ``now`` was called in version 0.1; it works until version 0.3."""
        self._before[old] = now

    def parse_known_args(self, args=None, namespace=None):
        """Exits with a message if an argument is left over: the command knows its options, its parents do not."""
        words = []
        for word in sys.argv[1:] if args is None else args:
            old, equals, value = word.partition("=")
            if (now := self._before.get(old)) is not None:
                tell_renamed(f"{self.prog} {old}", f"{self.prog} {now}")
                word = f"{now}{equals}{value}"
            words.append(word)
        found, left = super().parse_known_args(words, namespace)
        if left:
            word = left[0].partition("=")[0]
            hint = did_you_mean(word, self._options) if word.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return found, left

    def _help_of(self, name: str) -> str:
        """The help of an argument, by its metavar or by its options as messages of argparse join them."""
        option = name.split("/")[-1]
        for each in self._actions:
            if option in each.option_strings or (each.metavar or each.dest) == name:
                return each.help or ""
        return ""

    def error(self, message: str) -> Any:
        missing = message.partition(_REQUIRED)[2].split(", ")
        if len(missing) > 1:
            message += "".join(f"\n  {each}: {self._help_of(each)}" for each in missing)
        elif lacking := [each for each in self._actions if (each.metavar or each.dest) == missing[0]]:
            choices = lacking[0].choices
            message += f". Give one of {', '.join(choices)}" if choices else f". {lacking[0].help or ''}"
        if choice := _CHOICE.search(message):
            message += did_you_mean(choice["given"], re.findall(r"[\w.+-]+", choice["choices"]))
        super().error(message)


def tell_renamed(old: str, now: str) -> None:
    """Tell a terminal that a spelling has changed; scripts that read stderr see nothing."""
    if sys.stderr.isatty():
        print(f"note: `{old}` is `{now}` now; the old spelling works until version 0.3", file=sys.stderr)


OUTPUT, EFFORT, COMBINATION = "output", "how much to simulate", "which combination"  # headings of options in --help


def below(parser: argparse._ActionsContainer, group: str) -> dict[str, Any]:
    """The setting that puts an argument below a heading; none for a group, which is one itself."""
    return {"group": group} if isinstance(parser, Parser) else {}


def add_experiment(parser: argparse.ArgumentParser, meaning: str = "The experiment") -> None:
    """``FILE`` (or the name of a shipped experiment) and ``--set``."""
    parser.add_argument(
        "file", metavar="FILE", help=f"{meaning}. Give a path, or a name that `archsim list experiments` prints."
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="Override a key, such as workload.batch=[64] or systems.0.d2d.bandwidth=2TB/s. May be repeated.",
    )


def add_chosen(parser: argparse.ArgumentParser, default: str = "its first") -> None:
    """Options that choose one combination of an experiment: CHOSEN; ``default``: which, without."""
    for name in CHOSEN:
        kind, metavar = (positive, "N") if name == "batch" else (str, "LABEL" if name == "assumptions" else "NAME")
        text = f"Which {_CHOSEN_TOLD.get(name, name)} of the experiment to take (default: {default})."
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text, **below(parser, COMBINATION))


# ``--out`` follows one rule:
#
# - a command that makes a page writes it into ``reports/NAME`` or ``reports/NAME-KIND`` (`add_report`);
# - a command whose result is a file of data writes it into the current folder, named after what it is made from
#   (`add_file`); what stands there already is left as it is;
# - a command that answers in the terminal writes nothing (`add_out`).
#
# ``--out`` names another place, in each of the three.


def add_report(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out`` of a page. default: as shown in the help, ``reports/NAME-KIND``."""
    add_out(parser, f"Folder to write the page to (default: {default}).")


def add_out(parser: argparse.ArgumentParser, meaning: str) -> None:
    """``--out`` of a folder, and ``--force``, which `archsim.cli.main` heeds."""
    parser.add_argument("--out", metavar="DIR", help=meaning, **below(parser, OUTPUT))
    parser.add_argument(
        "--force", action="store_true", help="Write into --out even if it holds files that archsim did not write.",
        **below(parser, OUTPUT),
    )  # fmt: skip


def add_file(parser: argparse.ArgumentParser, meaning: str, default: str, metavar: str = "FILE") -> None:
    """``--out`` of a file of data, or of a folder of such files; without it: `file_out`. default: as in the help."""
    text = f"{meaning} (default: {default} in the current folder)."
    parser.add_argument("--out", metavar=metavar, help=text, **below(parser, OUTPUT))


def file_out(out: str | None, default: str) -> Path:
    """``--out``, or ``default`` in the current folder. Raises SpecError if something has that name already: only a
    place that was asked for is written again.
    """
    if out is not None:
        return Path(out)
    path = Path(re.sub(r"[^\w.+=-]+", "_", default))
    if path.exists():
        raise SpecError(f"{path} exists already and is left as it is. Give --out to write there or elsewhere")
    return path


def stem_of(source: str) -> str:
    """A name for what is made from a file or folder: ``requests`` of ``data/requests.tar.gz``."""
    return Path(source).resolve().name.partition(".")[0] or "archsim"


def add_jobs(
    parser: argparse._ActionsContainer, meaning: str = "How many runs to simulate in parallel", cluster: bool = True
) -> None:
    """``--jobs``, and ``--scheduler`` where a ``cluster`` may do the work (`archsim.cli.main` heeds it)."""
    text = f"{meaning} (default: the number of cores)."
    parser.add_argument("--jobs", type=positive, metavar="N", help=text, **below(parser, EFFORT))
    if cluster:
        text = "Simulate on this Dask cluster, such as tcp://host:8786, in place of --jobs."
        parser.add_argument("--scheduler", metavar="ADDRESS", help=text, **below(parser, EFFORT))


def add_json(parser: argparse._ActionsContainer) -> None:
    """``--json``: the command sets ``args.result``, which `archsim.cli.main` prints."""
    text = "Print the result as JSON, and nothing else, on stdout."
    parser.add_argument("--json", action="store_true", help=text, **below(parser, OUTPUT))


def add_samples(parser: argparse.ArgumentParser, default: int | None = None, sentence: str = "") -> None:
    """``--samples`` of worlds in which numbers with a range are drawn. ``sentence``: what happens without it, where
    it may be 0, too.
    """
    kind = worlds_or_none if sentence else worlds
    sentence = sentence or (
        f"default: {default}" if default else "default: none. `archsim sure` gives the whole answer"
    )
    parser.add_argument(
        "--samples", type=kind, default=default, metavar="N",
        help=f"Draw all numbers that have a range N times, and say how sure the answer is ({sentence}).",
        **below(parser, EFFORT),
    )  # fmt: skip


def add_store_out(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out``, ``--replace`` and ``--jobs`` of a command that writes a store."""
    add_file(parser, "Folder to write the store to", default, "DIR")
    parser.add_argument(
        "--replace", action="store_true", help="Replace an existing store, once all input has been read.",
        **below(parser, OUTPUT),
    )  # fmt: skip
    add_jobs(parser, "How many threads to use", cluster=False)


def positive(text: str) -> int:
    """A whole number from 1."""
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def worlds(text: str) -> int:
    """A whole number from 16."""
    value = natural(text)
    if value < 16:
        raise argparse.ArgumentTypeError(f"{value}: expected at least 16, so that 5 % of them is a sample")
    return value


def worlds_or_none(text: str) -> int:
    """0, or a whole number from 16."""
    return 0 if text == "0" else worlds(text)


def natural(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


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


OK = 0
DIFFERS = 1  # a check found what it was asked to look for
FAILED_RUNS = 1  # some runs failed; the others are kept
USER_ERROR = 2  # the input is at fault
UNREAD = 3  # measured tables that nothing reads
INTERRUPTED = 130  # 128 + SIGINT, as shells count
