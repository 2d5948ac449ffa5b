"""The command-line parser, which suggests the nearest valid word; arguments and types that commands share."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archsim.base.errors import SpecError, did_you_mean

# ---- arguments

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<choices>.*)\)")

CHOSEN = ("policy", "system", "model", "batch", "assumptions")
_CHOSEN_TOLD = {"batch": "batch size", "assumptions": "assumption set"}


class Parser(argparse.ArgumentParser):
    """argparse's parser, with the nearest command, choice or option in its messages.

    Subparsers are of this class, too.
    """

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        long = [name for name in action.option_strings if name.startswith("--")]
        self._options = [*getattr(self, "_options", ()), *long]
        return action

    def spelled_before(self, old: str, now: str) -> None:
        """``old``: what the option ``now`` was called in version 0.1; it works until version 0.3."""
        self._before = getattr(self, "_before", {}) | {old: now}

    def parse_known_args(self, args=None, namespace=None):
        """Exits with a message if an argument is left over: the command knows its options, its parents do not."""
        args = [self._as_spelled_now(word) for word in (sys.argv[1:] if args is None else args)]
        found, left = super().parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            hint = did_you_mean(word, self._options) if word.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return found, left

    def _as_spelled_now(self, word: str) -> str:
        old, equals, value = word.partition("=")
        now = getattr(self, "_before", {}).get(old)
        if now is None:
            return word
        tell_renamed(f"{self.prog} {old}", f"{self.prog} {now}")
        return f"{now}{equals}{value}"

    def error(self, message: str) -> Any:
        if choice := _CHOICE.search(message):
            message += did_you_mean(choice["given"], re.findall(r"[\w.+-]+", choice["choices"]))
        super().error(message)


def tell_renamed(old: str, now: str) -> None:
    """Tell a terminal that a spelling has changed; scripts that read stderr are not told."""
    if sys.stderr.isatty():
        print(f"note: `{old}` is `{now}` now; the old spelling works until version 0.3", file=sys.stderr)


def add_experiment(parser: argparse.ArgumentParser, meaning: str = "experiment") -> None:
    """``FILE`` (or the name of a shipped experiment) and ``--set``."""
    parser.add_argument("file", metavar="FILE", help=f"{meaning}; a path, or a name of `archsim list experiments`")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="override a key, such as workload.batch=[64] or systems.0.d2d.bandwidth=2TB/s; repeatable",
    )


def add_chosen(parser: argparse.ArgumentParser, default: str = "its first") -> None:
    """Options that choose one combination of an experiment: CHOSEN; ``default``: which, without."""
    for name in CHOSEN:
        kind, metavar = (positive, "N") if name == "batch" else (str, "LABEL" if name == "assumptions" else "NAME")
        told = f"{_CHOSEN_TOLD.get(name, name)} of the experiment (default: {default})"
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=told)


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
    add_out(parser, f"folder of the page (default: {default})")


def add_out(parser: argparse.ArgumentParser, meaning: str) -> None:
    """``--out`` of a folder, and ``--force``, which `archsim.cli.main` heeds."""
    parser.add_argument("--out", metavar="DIR", help=meaning)
    parser.add_argument("--force", action="store_true", help="write into --out although it holds files of others")


def add_file(parser: argparse.ArgumentParser, meaning: str, default: str, metavar: str = "FILE") -> None:
    """``--out`` of a file of data, or of a folder of such files; without it: `file_out`. default: as in the help."""
    parser.add_argument("--out", metavar=metavar, help=f"{meaning} (default: {default} in the current folder)")


def file_out(out: str | None, default: str) -> Path:
    """``--out``, or ``default`` in the current folder. Raises SpecError if something has that name already: only a
    place that was asked for is written again.
    """
    if out is not None:
        return Path(out)
    path = Path(re.sub(r"[^\w.+=-]+", "_", default))
    if path.exists():
        raise SpecError(f"{path} exists already and is left as it is; give --out to write there or elsewhere")
    return path


def stem_of(source: str) -> str:
    """A name for what is made from a file or folder: ``requests`` of ``data/requests.tar.gz``."""
    return Path(source).resolve().name.partition(".")[0] or "archsim"


def add_jobs(parser: argparse._ActionsContainer, meaning: str = "runs in parallel") -> None:
    parser.add_argument("--jobs", type=positive, metavar="N", help=f"{meaning} (default: number of cores)")


def add_json(parser: argparse._ActionsContainer) -> None:
    """``--json``: the command sets ``args.result``, which `archsim.cli.main` prints."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else on stdout")


def add_samples(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """``--samples`` of worlds in which numbers with a range are drawn."""
    told = f"default: {default}" if default else "default: none; `archsim sure` has the whole answer"
    parser.add_argument(
        "--samples", type=worlds, default=default, metavar="N",
        help=f"draw all numbers that have a range N times, and say how sure the answer is ({told})",
    )  # fmt: skip


def add_store_out(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out``, ``--replace`` and ``--jobs`` of a command that writes a store."""
    add_file(parser, "folder of the store", default, "DIR")
    parser.add_argument(
        "--replace", action="store_true", help="replace an existing store, once all input has been read"
    )
    add_jobs(parser, "threads")


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
        raise argparse.ArgumentTypeError(f"{value}: expected at least 16, so that 5 % of them can be told")
    return value


def natural(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def named_numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """``NAME=VALUE`` texts of a repeated option. Raises SpecError."""
    numbers = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            numbers[name] = float(value if value.isascii() else "")
        except ValueError:
            expected = "a number" if equals else "KEY=VALUE, such as hbm_pj_per_bit=5"
            raise SpecError(f"{option} {text}: expected {expected}") from None
    return numbers


# ---- exit_codes
# Exit codes of commands.

OK = 0
DIFFERS = 1  # a check found what it was asked to look for
FAILED_RUNS = 1  # some runs failed; the others are kept
USER_ERROR = 2  # the input is at fault
UNREAD = 3  # measured tables that nothing reads
INTERRUPTED = 130  # 128 + SIGINT, as shells count
