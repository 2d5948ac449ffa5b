"""The command-line parser, which suggests the nearest valid word, and the arguments and types that commands share."""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archsim.base import verbs
from archsim.base.errors import SpecError, did_you_mean
from archsim.base.verbs import OUTPUT, PLACE, Option, Options, flag_of

# Options that other commands have, or that one expects → the key that says it in an experiment, in a deployment and in
# a machine.
_OF_EXPERIMENT = {
    "--batch": "workload.batch=[{}]", "--model": "models=[{}]", "--policy": "policies=[{}]", "--system": "systems=[{}]",
}  # fmt: skip
_OF_DEPLOYMENT = {
    "--batch": "max_num_seqs={}", "--model": "model={}", "--policy": "policies=[{}]", "--system": "system={}",
}  # fmt: skip
_OF_MACHINE = {
    "--node": "made.node={}", "--area": "made.area={}", "--spares": "spares.dies={}", "--mesh": "mesh={}",
    "--topology": "topology={}",
}  # fmt: skip
_REQUIRED = "the following arguments are required: "
_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<choices>.*)\)")
# Option → what else it is called, by engines and by people.
_WORDS: Mapping[str, str] = MappingProxyType({
    "--on": "gpu gpus gpu-type n-gpus machine system hardware device devices", "--rate": "qps rps request-rate load",
    "--input": "isl input-len input-tokens prompt prompt-tokens", "--output": "osl output-len output-tokens max-tokens",
    "--tpot": "itl tbt inter-token-latency", "--e2e": "latency e2el deadline", "--precision": "dtype quantization",
    "--usd": "budget cost max-cost price-limit", "--watts": "power power-limit", "--pools": "disaggregated disagg pd",
    "--drafts": "mtp speculation num-speculative-tokens", "--best": "objective optimise optimize goal",
    "--stages": "pp pipeline", "--requests": "trace dataset", "--out": "output-dir folder", "--jobs": "workers cores",
})  # fmt: skip


class Parser(argparse.ArgumentParser):
    """argparse's parser, with nearest names in messages. ``group`` of an argument: its heading in ``--help``."""

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
            meant = (option for option in self._options if word[2:] in _WORDS.get(option, "").split())
            hint = did_you_mean(next(meant, word), self._options) if word.startswith("--") else ""
            of_deployment = self.prog.endswith("serve") or getattr(found, "deployment", None)
            keys = _OF_DEPLOYMENT if of_deployment else _OF_EXPERIMENT
            keys = _OF_MACHINE if " hardware " in self.prog else keys
            if word in keys and "--set" in self._options and not self.prog.endswith(" check"):  # of any file
                _, equals, value = left[0].partition("=")
                value = value if equals else next(iter(left[1:]), "--")
                value = ("N" if word == "--batch" else "NAME") if value.startswith("--") else value
                value += "mm2" if word == "--area" and value.replace(".", "", 1).isdecimal() else ""
                hint = f"; write --set {keys[word].format(value)}"
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


def below(parser: argparse._ActionsContainer, group: str) -> dict[str, Any]:
    """The setting that puts an argument below a heading; none for a group, which is one itself."""
    return {"group": group} if isinstance(parser, Parser) and group else {}


def add_options(parser: argparse.ArgumentParser, options: Options) -> None:
    """A verb's arguments, as `archsim.base.verbs` declares them; None if not given (`options_from`)."""
    alone: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for name, option in options.items():
        own: Any = parser
        if option.only:
            own = alone.setdefault(option.only, alone.get(option.only) or parser.add_mutually_exclusive_group())
        _add(own, name, option)
    parser.set_defaults(flags={name: flag_of(name, each).strip() or name for name, each in options.items()})


def _add(parser: argparse._ActionsContainer, name: str, option: Option) -> None:
    settings: dict[str, Any] = {"help": option.help_text, **below(parser, option.group)}
    if option.metavar is None and not option.choices:
        settings |= {"action": "store_true"}
    else:
        settings |= {} if option.metavar is None else {"metavar": option.metavar}
        settings |= {"choices": option.choices} if option.choices else {}
        settings |= {} if option.read is str else {"type": option.read}
        settings |= {} if option.default is None else {"default": option.default}
        if option.many == "append":
            settings |= {"action": "append", "default": []}
        elif option.many:
            settings["nargs"] = option.many
    if option.flag == PLACE:
        parser.add_argument(option.into or name, **settings)
    else:
        settings |= {"required": True} if option.is_required else {}
        parser.add_argument(flag_of(name, option), dest=option.into or name, **settings)


def options_from(args: argparse.Namespace, options: Options, *left_out: str) -> dict[str, Any]:
    """Options of a verb that were given, by their names in Python; without those that are ``left_out``."""
    found = {}
    for name, option in options.items():
        value = getattr(args, option.into or name)
        if option.gather is not None:
            value = option.gather(flag_of(name, option), value)
        if value is not None and name not in (*left_out, "force", "scheduler"):
            found[name] = value
    return found


def add_experiment(parser: argparse.ArgumentParser, meaning: str = "The experiment") -> None:
    """``FILE`` (or the name of a shipped experiment) and ``--set``."""
    for name, option in verbs.file(meaning).items():
        _add(parser, name, option)


# ``--out`` follows one rule:
#
# - a command that makes a page writes it into ``reports/NAME`` or ``reports/NAME-KIND`` (`add_report`);
# - a command whose result is a file of data writes it into the current folder, named after what it is made from
#   (`add_file`); what stands there already is left as it is;
# - a command that answers in the terminal writes nothing (`add_out`).
#
# ``--out`` names another place, in each of the three.


def add_report(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out`` of a page, and ``--force``. default: as shown in the help, ``reports/NAME-KIND``."""
    add_out(parser, f"Folder to write the page to (default: {default}).")


def add_out(parser: argparse.ArgumentParser, meaning: str) -> None:
    """``--out`` of a folder, and ``--force``."""
    for name, option in verbs.out(meaning).items():
        _add(parser, name, option)


def add_file(parser: argparse.ArgumentParser, meaning: str, default: str, metavar: str = "FILE") -> None:
    """``--out`` of a file of data, or of a folder of such files; without it: `file_out`. default: as in the help."""
    text = f"{meaning} (default: {default} in the current folder)."
    parser.add_argument("--out", metavar=metavar, help=text, **below(parser, OUTPUT))


def file_out(out: str | None, default: str) -> Path:
    """``--out``, or ``default`` in the current folder. Raises SpecError if ``default`` is there already."""
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
    for name, option in verbs.jobs(meaning, cluster).items():
        _add(parser, name, option)


def add_json(parser: argparse._ActionsContainer) -> None:
    """``--json``: the command sets ``args.result``, which `archsim.cli.main` prints."""
    text = "Print the result as JSON, and nothing else, on stdout."
    parser.add_argument("--json", action="store_true", help=text, **below(parser, OUTPUT))


def add_store_out(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out``, ``--replace`` and ``--jobs`` of a command that writes a store."""
    add_file(parser, "Folder to write the store to", default, "DIR")
    parser.add_argument(
        "--replace", action="store_true", help="Replace an existing store, once all input has been read.",
        **below(parser, OUTPUT),
    )  # fmt: skip
    add_jobs(parser, "How many threads to use", cluster=False)


OK = 0
DIFFERS = 1  # a check found what it was asked to look for
FAILED_RUNS = 1  # some runs failed; the others are kept
USER_ERROR = 2  # the input is at fault
UNREAD = 3  # measured tables that nothing reads
INTERRUPTED = 130  # 128 + SIGINT, as shells count
