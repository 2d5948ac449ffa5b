"""What stands between backticks exists: modules, files, functions, fields and keys, in sources and in the manual."""

import ast
import builtins
import io
import re
import tokenize
from functools import cache
from pathlib import Path

from support.source import parsed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("archsim", "microarch", "calibration")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
MANUAL = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
TICKED = re.compile(r"`+([^`\n]+)`+")
# Names of other programs and of their files, which our text quotes.
ELSEWHERE = frozenset(
    {
        "ARCHCOL1",
        "DeepseekV3",
        "EXPERT_STATISTIC_PATH",
        "If",
        "Mux",
        "PortArgs.init_new",
        "SKIP",
        "aiperf",
        "_get_and_verify_max_len",
        "deepseek_v3",
        "eplb_config",
        "gpu_name",
        "guidellm",
        "importlib.metadata",
        "inferencex",
        "init_trivial",
        "llm_args.py",
        "mmlu",
        "mmlu_zh",
        "per_pass",
        "per_token",
        "read_table",
        "scheduler_reserve_full_isl",
        "server_args.py",
        "stat_approx",
        "zh",
    }
)
# Parts of names that stand for many, such as the columns ``NAME_p05``; and units that a message says not to use.
PARTS = re.compile(r"_\w+|(name|COLUMN)_\w+|\w+_N|G(bit|bps|Bps)|D\.\.2D|h\d+")
FILES = re.compile(r"[\w.]+\.(html|json|yaml|csv)")


@cache
def words_of(file: Path) -> frozenset[str]:
    """Identifiers of the code of a file, and words of its texts that are no docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documents = {id(node.body[0].value) for node in ast.walk(tree) if documented(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "arg", "attr", "name", "asname", "module"):
            if isinstance(text := getattr(node, field, None), str):
                found.update(text.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            found.update(re.findall(r"\w+", node.value))
    return frozenset(found)


def documented(node: ast.AST) -> bool:
    holds = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
    return holds and ast.get_docstring(node) is not None


@cache
def keys() -> frozenset[str]:
    """Words of the generated reference: keys of files, columns, options."""
    texts = [*(ROOT / "docs" / "schemas").glob("*.json"), ROOT / "docs" / "reference.md", ROOT / "docs" / "results.md"]
    return frozenset(word for file in texts for word in re.findall(r"\w+", file.read_text(encoding="utf-8")))


def texts_of(file: Path, tree: ast.Module) -> list[tuple[int, str]]:
    """(line, text) of comments and docstrings."""
    text = file.read_text(encoding="utf-8")
    found = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    return found + [
        (node.body[0].lineno, ast.get_docstring(node, clean=False)) for node in ast.walk(tree) if documented(node)
    ]


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
    wrong = []
    for file, tree in parsed(SOURCES).items():
        for line, text in texts_of(file, tree):
            for ticked in TICKED.findall(text):
                name = ticked.strip().removesuffix("()")
                if not re.fullmatch(r"[A-Za-z_][\w.]*\w", name) or name in ELSEWHERE:
                    continue
                if PARTS.fullmatch(name) or FILES.fullmatch(name):
                    continue
                first, _, rest = name.removeprefix("ar.").partition(".")
                known = words_of(file) | keys() | dir_of_builtins() | defined()
                if first in PACKAGES and rest:
                    good = dotted_exists(name) or (ROOT / name).exists()
                else:
                    good = all(part in known or part.isdigit() for part in name.removeprefix("ar.").split("."))
                if not good:
                    wrong.append(f"{file.relative_to(ROOT)}:{line} `{name}`")
    assert wrong == [], "\n".join(wrong)


@cache
def defined() -> frozenset[str]:
    """Names of functions, classes, fields and constants of any module, and texts that are one word: keys and values."""
    found: set[str] = set()
    for file, tree in parsed(SOURCES).items():
        found |= {file.stem}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
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
    wrong = [
        f"{file.relative_to(ROOT)}:{text.lineno} {begins[1]}"
        for file, tree in parsed(SOURCES).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for text in ast.walk(node)
        if isinstance(text, ast.JoinedStr) and text.values and isinstance(text.values[0], ast.Constant)
        if (begins := re.match(r"([A-Z]\w+)\(", str(text.values[0].value))) and begins[1] != node.name
    ]
    assert wrong == [], "\n".join(wrong)


def test_the_rules_detect_what_is_missing():
    assert dotted_exists("archsim.engine.loop.Replay") and not dotted_exists("archsim.engine.loop.Nothing")
    assert not dotted_exists("archsim.nowhere.loop")
