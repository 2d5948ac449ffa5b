"""``archsim list``: the names that an experiment may use; ``--completion``: a script that completes them in a shell."""

from __future__ import annotations

import argparse

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
         "--like": "traffic", "--with": "calibrations", "--in": ""}  # fmt: skip


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
    from archsim.specs.config_files import named_files

    if before and before[-1] in NAMES:
        return _names(NAMES[before[-1]])
    parser = _parser_of(before)
    actions = parser._actions
    below = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
    if below:
        return list(below[0].choices)
    if begun.startswith("-"):
        return [option for action in actions for option in action.option_strings if option.startswith("--")]
    choices = [str(choice) for action in actions if not action.option_strings for choice in action.choices or ()]
    takes_file = any(action.dest in ("file", "a", "b") for action in actions)
    return choices or (list(named_files("")) if takes_file and begun and "/" not in begun else [])


def _names(kind: str) -> list[str]:
    from archsim.specs.assumptions import shipped_sets
    from archsim.specs.config_files import named_files
    from archsim.specs.policies import PRESETS

    others = {"policies": PRESETS, "assumptions": shipped_sets()}
    return list(others[kind] if kind in others else named_files(kind))


def _parser_of(words: list[str]) -> argparse.ArgumentParser:
    """The parser of the command that these words invoke."""
    from archsim.cli.main import parser_of

    parser: argparse.ArgumentParser = parser_of(words)
    for word in words:
        below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not below or word not in below[0].choices:
            return parser
        parser = below[0].choices[word]
    return parser
