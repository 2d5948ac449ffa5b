"""``archsim list``: the names that an experiment may use; ``--completion``: a script that completes them in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from archsim.cli.arguments import OK


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("experiments", "systems", "models", "policies", "assumptions", "calibrations", "traffic")
    )


def run_list(args: argparse.Namespace) -> int:
    from archsim.cli.heartbeat import begins

    begins(f"reading the {args.what} that there are")
    from archsim.specs.describe import listing  # takes a second to load

    print(listing(args.what))
    args.result = {"what": args.what, "names": _names("" if args.what == "experiments" else args.what)}
    return OK


SCRIPTS = {
    "bash": """_archsim() {
    COMPREPLY=($(archsim list --completion --words "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null))
    [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o filenames -F _archsim archsim
""",
    "zsh": """#compdef archsim
_archsim() {
    local -a found
    found=(${(f)"$(archsim list --completion --words $((CURRENT - 1)) "${words[@]:1}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _archsim archsim
""",
    "fish": """function __archsim
    set -l given (commandline -opc)[2..] (commandline -ct)
    archsim list --completion --words (count $given) $given 2>/dev/null
end
complete -c archsim -a '(__archsim)'
""",
}
NAMES = {"--system": "systems", "--model": "models", "--policy": "policies", "--assumptions": "assumptions",
         "--like": "traffic", "--with": "calibrations", "--in": "", "model": "models", "sides": "systems",
         "file": "", "papers": "papers"}  # fmt: skip
OF_FILES = ("file", "sides")  # places where a file of the user's own stands as often


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), help="The shell whose script is printed.")
    parser.add_argument("--words", nargs=argparse.REMAINDER, metavar="WORD", help=argparse.SUPPRESS)


def run_completion(args: argparse.Namespace) -> int:
    """Print the script of a shell, or what may stand at a word of a command line."""
    from archsim.base.errors import SpecError

    if args.words:
        found = completions(args.words[1:], int(args.words[0]))
        print("\n".join(found))
        return OK
    if args.shell is None:
        raise SpecError("give a shell: bash, zsh or fish. For bash: source <(archsim list --completion bash)")
    print(SCRIPTS[args.shell], end="")
    return OK


def completions(words: list[str], at: int) -> list[str]:
    """What may stand at a place of a command line: words after ``archsim``, place from 1."""
    before, begun = words[: at - 1], words[at - 1] if at <= len(words) else ""
    return [each for each in _possible(before, begun) if each.startswith(begun)]


def _possible(before: list[str], begun: str) -> list[str]:
    parser, rest = _parser_of(list(before))
    by_option = {option: action for action in parser._actions for option in action.option_strings}
    if before and before[-1] in NAMES and before[-1].startswith("--"):  # also of commands as they were called before
        return _names(NAMES[before[-1]])
    if before and (asked := by_option.get(before[-1])) and asked.nargs != 0:
        return _values(asked, rest[:-1], begun)
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if below:
        return list(below[0].choices)
    if begun.startswith("-"):
        return [option for option in by_option if option.startswith("--")] + _forms(before)
    values = {at + 1 for at, word in enumerate(rest) if word in by_option and by_option[word].nargs != 0}
    given = [word for at, word in enumerate(rest) if at not in values and not word.startswith("-")]
    places = [action for action in parser._actions if not action.option_strings]
    if not places or len(given) >= len(places) and places[-1].nargs not in ("*", "+"):
        return []
    return _values(places[min(len(given), len(places) - 1)], given, begun)


def _forms(before: list[str]) -> list[str]:
    """Flags that ask another question of the command, such as ``--search``, where none is given yet."""
    from archsim.cli.main import COMMANDS, Command

    [forms] = [each.forms for each in COMMANDS if isinstance(each, Command) and [each.name] == before[:1]] or [()]
    flags = [form.flag for form in forms]
    return [] if set(flags) & set(before) else flags


def _values(action: argparse.Action, given: list[str], begun: str) -> list[str]:
    """What an option or a place may be. ``given``: the words at the places before it."""
    name = (action.option_strings or [action.dest])[-1]
    if action.choices:
        return [str(choice) for choice in action.choices]
    if name in OF_FILES and (not begun or "/" in begun):
        return []  # the shell completes files
    if name in NAMES:
        return _names(NAMES[name])
    found = _OTHERS.get(name)
    return found(given) if found else []


def _blocks(given: list[str]) -> list[str]:
    from archsim.questions.block_worth import BLOCKS
    from archsim.serving.answers.placement_choices import POLICIES

    return [*BLOCKS, *(each for each in POLICIES if each != "none")]


def _figures(given: list[str]) -> list[str]:
    from archsim.show.printed_figures import names_of

    return list(names_of(Path(given[0])))


def _machines(given: list[str]) -> list[str]:
    from archsim.specs.library import known_gpus

    return [*known_gpus(), *_names("systems")]


def _of_question(name: str) -> Callable[[list[str]], list[str]]:
    def found(given: list[str]) -> list[str]:
        from archsim.serving.answers import question

        return list(getattr(question, name))

    return found


_OTHERS: dict[str, Callable[[list[str]], list[str]]] = {
    "what": _blocks, "name": _figures, "--on": _machines, "--engine": _of_question("ENGINES"),
    "--precision": _of_question("PRECISIONS"), "--best": _of_question("OBJECTIVES"),
}  # fmt: skip


def _names(kind: str) -> list[str]:
    from archsim.base.config_files import named_files
    from archsim.specs.assumptions import shipped_sets
    from archsim.specs.policies import PRESETS

    others = {"policies": PRESETS, "assumptions": shipped_sets()}
    return list(others[kind] if kind in others else named_files(kind))


def _parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the command that these words invoke, and the words after that; without the flag of a form."""
    from archsim.cli.main import parser_of

    parser: argparse.ArgumentParser = parser_of(words)
    for at, word in enumerate(words):
        below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not below or word not in below[0].choices:
            return parser, words[at:]
        parser = below[0].choices[word]
    return parser, []
