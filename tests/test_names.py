"""What stands between backticks exists: modules, files, functions, fields and keys, in sources and in the manual."""

import builtins
import re
from functools import cache
from pathlib import Path

from support.source import Piece, pieces

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("archsim", "microarch", "calibration")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
MANUAL = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
TICKED = re.compile(r"`+([^`\n]+)`+")
# Names of other programs and of their files, which our text quotes.
ELSEWHERE = frozenset(
    {
        "ARCHCOL1", "DeepseekV3", "EXPERT_STATISTIC_PATH", "If", "Mux", "PortArgs.init_new", "SKIP", "aiperf",
        "_get_and_verify_max_len", "deepseek_v3", "eplb_config", "gpu_name", "guidellm", "importlib.metadata",
        "inferencex", "init_trivial", "llm_args.py", "mmlu", "mmlu_zh", "per_pass", "per_token", "read_table",
        "scheduler_reserve_full_isl", "server_args.py", "stat_approx", "zh",
    }
)  # fmt: skip
# Parts of names that stand for many, such as the columns ``NAME_p05``; and units that a message says not to use.
PARTS = re.compile(r"_\w+|(name|COLUMN)_\w+|\w+_N|G(bit|bps|Bps)|D\.\.2D|h\d+")
FILES = re.compile(r"[\w.]+\.(html|json|yaml|csv)")


@cache
def pieces_of(file: Path) -> list[Piece]:
    return pieces(file.read_text(encoding="utf-8"))


@cache
def words_of(file: Path) -> frozenset[str]:
    """Words of the code of a file, and of its texts that are no docstrings."""
    text, at, code = file.read_text(encoding="utf-8"), 0, []
    for piece in pieces_of(file):
        if piece.kind in ("comment", "docstring"):
            code.append(text[at : piece.at])
            at = piece.end
    return frozenset(re.findall(r"\w+", " ".join([*code, text[at:]])))


@cache
def keys() -> frozenset[str]:
    """Words of the generated reference: keys of files, columns, options."""
    texts = [*(ROOT / "docs" / "schemas").glob("*.json"), ROOT / "docs" / "reference.md", ROOT / "docs" / "results.md"]
    return frozenset(word for file in texts for word in re.findall(r"\w+", file.read_text(encoding="utf-8")))


def module_file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def dotted_exists(name: str) -> bool:
    """Whether ``archsim.room.module.name`` is a module of the packages, or a name in one."""
    module, rest = name, ""
    while module and (module_file(module) is None or (rest and module in PACKAGES and module != "archsim")):
        module, _, last = module.rpartition(".")
        rest = f"{last}.{rest}".strip(".")
    file = module_file(module) if module else None
    if file is None:
        return ROOT.joinpath(*name.split(".")).is_dir()  # a room without a front
    return not rest or all(re.search(rf"\b{part}\b", file.read_text(encoding="utf-8")) for part in rest.split("."))


def test_names_in_docstrings_and_comments_exist():
    wrong, everywhere = [], keys() | dir_of_builtins() | defined()
    for file in SOURCES:
        for piece in pieces_of(file):
            if piece.kind not in ("comment", "docstring"):
                continue
            for ticked in TICKED.findall(piece.text):
                name = ticked.strip().removesuffix("()")
                if not re.fullmatch(r"[A-Za-z_][\w.]*\w", name) or name in ELSEWHERE:
                    continue
                if PARTS.fullmatch(name) or FILES.fullmatch(name):
                    continue
                first, _, rest = name.removeprefix("ar.").partition(".")
                if first in PACKAGES and rest:
                    good = dotted_exists(name) or (ROOT / name).exists()
                else:
                    parts = name.removeprefix("ar.").split(".")
                    good = all(part in everywhere or part.isdigit() or part in words_of(file) for part in parts)
                if not good:
                    wrong.append(f"{file.relative_to(ROOT)}:{piece.line} `{name}`")
    assert wrong == [], "\n".join(wrong)


DEFINITION = re.compile(
    r"\b(?:def|class|as) (\w+)|^\s*(\w+(?:, \w+)+) =|\b(\w+)(?:: [^=\n]+)? ?:?=(?!=)|\bfor ([\w, ()]+) in\b"
    r"|^\s+(\w+): ",
    re.MULTILINE,
)


@cache
def defined() -> frozenset[str]:
    """Names of functions, classes, fields and constants of any module, and texts that are one word: keys and values."""
    found: set[str] = set()
    for file in SOURCES:
        found.update((file.stem, file.parent.name))
        for groups in DEFINITION.findall(file.read_text(encoding="utf-8")):
            found.update(word for names in groups for word in re.findall(r"\w+", names))
        found.update(each.text for each in pieces_of(file) if each.text.isidentifier())
    return frozenset(found)


@cache
def dir_of_builtins() -> frozenset[str]:
    return frozenset({*dir(builtins), *dir(str), *dir(dict), *dir(tuple)})


def test_modules_and_files_of_the_manual_exist():
    wrong = []
    for file in MANUAL:
        if file.name == "CHANGELOG.md":  # of earlier versions, too
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for name in re.findall(r"`((?:archsim|microarch|calibration|tests|benchmarks)(?:\.\w+)+)`", line):
                if not dotted_exists(name):
                    wrong.append(f"{file.relative_to(ROOT)}:{number} `{name}`")
            for name in re.findall(r"`((?:archsim|microarch|calibration|tests|benchmarks|docs)/[\w./]+\.\w+)`", line):
                if "NAME" not in name and not (ROOT / name).exists() and not (file.parent / name).exists():
                    wrong.append(f"{file.relative_to(ROOT)}:{number} `{name}`")
    assert wrong == [], "\n".join(wrong)


def test_reprs_say_their_own_class():
    """A text that begins like a constructor, ``Name(``, in a class of that name."""
    wrong = []
    for file in SOURCES:
        text = file.read_text(encoding="utf-8")
        for piece in pieces_of(file):
            begins = re.match(r"([A-Z]\w+)\(", piece.text) if piece.kind == "f-string" else None
            if begins:
                above = re.findall(r"^\s*class (\w+)|^(?=[a-zA-Z_])", text[: piece.at], re.MULTILINE)
                if above[-1] and above[-1] != begins[1]:
                    wrong.append(f"{file.relative_to(ROOT)}:{piece.line} {begins[1]}")
    assert wrong == [], "\n".join(wrong)


def test_the_rules_detect_what_is_missing():
    assert dotted_exists("archsim.engine.loop.Replay") and not dotted_exists("archsim.engine.loop.Nothing")
    assert not dotted_exists("archsim.nowhere.loop")
