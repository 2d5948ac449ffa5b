"""Commands and Python of the README, and shrunk copies of what they run on."""

import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.S)
NOT_RUN = ("python3", "source")  # installing and activating: this environment has both behind it


def blocks(file: str, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return [body for kind, body in _BLOCK.findall(text) if kind == language]


def commands(file: str) -> list[list[str]]:
    """The words of every shell command of a page."""
    lines = [line for block in blocks(file, "sh") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def shrunk_checkout(folder: Path) -> Path:
    """The files of a checkout that the README's commands use: experiments and models of a few layers and requests."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.ipynb"))
    mine = (ROOT / "examples" / "mine.yaml").read_text(encoding="utf-8").replace("olmoe-1b-7b", "deepseek-v3")
    (folder / "examples" / "mine.yaml").write_text(_shrunk(mine), encoding="utf-8")
    (folder / "configs" / "models").mkdir(parents=True)
    for name in ("deepseek-v3", "qwen3-235b-a22b"):
        text = (ROOT / "configs" / "models" / f"{name}.yaml").read_text(encoding="utf-8")
        text = re.sub(r"(?m)^layers: \d+", "layers: 8", text)
        text = re.sub(r"last: \d+", "last: 7", text)
        (folder / "configs" / "models" / f"{name}.yaml").write_text(text, encoding="utf-8")
    for name in ("dojo", "explore_dojo"):
        text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        (folder / "configs" / f"{name}.yaml").write_text(_shrunk(text), encoding="utf-8")
    wafer = (ROOT / "configs" / "papers" / "wafer.yaml").read_text(encoding="utf-8")
    for pattern, small in (
        (r"batch: \[4096.*\]", "batch: [16]"), (r"decode_steps: 127", "decode_steps: 1"),
        (r"models: \[deepseek-v3, .*\]", "models: [deepseek-v3]"), (r"\[base, ep, allo, .*\]", "[base, ep, allo+pred]"),
        (r"      sweep:\n        zip:\n(?:          .*\n)+", ""),
    ):  # fmt: skip
        wafer = re.sub(pattern, small, wafer)
    (folder / "configs" / "papers").mkdir()
    (folder / "configs" / "papers" / "wafer.yaml").write_text(wafer, encoding="utf-8")
    return folder


def _shrunk(text: str) -> str:
    """An experiment of small batches, one decode step, two systems' axes and three policies at most."""
    text = re.sub(r"(?m)^  batch: .*$", "  batch: [16]\n  layers: 5", text)
    text = re.sub(r"(?m)^  decode_steps: .*$", "  decode_steps: 1", text)
    text = re.sub(r"(?m)^models: .*$", "models: [deepseek-v3]", text)
    text = re.sub(r"(?m)^policies: .*$", "policies: [base, ep, allo]", text)
    return re.sub(r"(?m)^(    [\w.]+): \[([^,]*), ([^,\]]*).*$", r"\1: [\2]", text)
