"""Digests of what users see: a table of commands, run in one process, with what each prints and writes.

    python benchmarks/baseline.py OUT [--like OLD] [--only NAME ...]

A refactoring that moves or simplifies code must leave every line equal. Run keys, code digests, versions, folders and
times of this machine are left out, since they may change without a change of a number. ``--like`` compares with the
lines of an earlier version (``OLD/baseline.txt``) and ends with status 1 where one differs; the files are kept in OUT,
so that a difference can be looked at.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
ONE_LAYER = ["--set", "workload.layers=1"]
EXPERIMENTS = sorted(  # a search is a row of its own
    file.stem
    for file in (ROOT / "configs").glob("*.yaml")
    if not file.stem.startswith(("explore_", "serve_", "design_space", "validate_"))
)
SMALL = [*ONE_LAYER, "--set", "workload.batch=[64]", "--set", "workload.decode_steps=2"]
SEARCHED = ["--set", "model=qwen3-30b-a3b", "--set", "precision={products: bf16, experts: bf16}", "--set",
            "search={devices: 2, max_num_seqs: [8, 64], max_num_batched_tokens: [2048]}", "--set",
            "requests={concurrency: 8, input: {fixed: 700}, output: {fixed: 20}, count: 24}"]  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    **{name: ["sweep", name, *ONE_LAYER, "--out", "OUT"] for name in EXPERIMENTS},
    "mine": ["sweep", "examples/mine.yaml", *ONE_LAYER, "--out", "OUT"],
    "validate_copies": ["sweep", "validate_h100_copies", "--out", "OUT"],
    "run": ["run", "dojo", "--policy", "allo", *SMALL, "--step", "1", "--layer", "55", "--timeline", "OUT/step.json"],
    "why": ["why", "dojo", *SMALL],
    "ablate": ["why", "--ablate", "dojo", *SMALL, "--out", "OUT"],
    "bound": ["why", "--bound", "dojo", *SMALL, "--out", "OUT"],
    "engines": ["compare", "--engines", "dojo", *SMALL, "--sample", "2"],
    "interpreted": ["compare", "--engines", "dojo", *SMALL, "--sample", "1", "--interpreted", "--steps", "1"],
    "sure": ["sure", "dojo", "--samples", "16", *SMALL, "--out", "OUT"],
    "search": ["sweep", "--search", "explore_dojo", "--set", "explore.event_runs=4", *ONE_LAYER, "--out", "OUT"],
    "papers": ["compare", "--papers", "--recorded", "--out", "OUT"],
    "served": ["recommend", "qwen3-30b-a3b", "--on", "h200:2", "--ttft", "2s", "--tpot", "50ms", "--out", "OUT"],
    "compare": ["compare", "ep", "allo", "--in", "dojo", *SMALL, "--out", "OUT"],
    "place": ["place", "examples/loads.npz", "--model", "olmoe-1b-7b", "--system", "dojo", "--ranks", "8", "--policy",
              "craft", "--slots", "8", "--out", "OUT"],
    "serve_dojo": ["serve", "serve_dojo", "--set", "requests.count=40", "--out", "OUT"],
    "serve_h200": ["serve", "serve_h200", "--set", "requests.count=40", "--out", "OUT"],
    "serve_search": ["serve", "serve_h200", "--search", *SEARCHED, "--jobs", "2", "--out", "OUT"],
    "serve_rates": ["serve", "serve_h200", "--search", *SEARCHED[:6], "--set", "requests.count=20", "--jobs", "1",
                    "--out", "OUT"],
    "serve_axes": ["serve", "serve_h200", "--set", "requests.count=40", "--set",
                   "sweep={grid: {requests.arrivals.rate: [2/s, 4/s], scheduler.max_num_seqs: [16, 64], "
                   "utilisation: [0.9, 0.2]}}", "--out", "OUT"],
    "serve_sure": ["serve", "serve_h200", "--samples", "16", "--set", "requests.count=20", "--out", "OUT"],
    "serve_compare": ["serve", "serve_h200", "--compare", "OUT/../serve_h200/bench.json", "--set",
                      "requests.count=40"],
    "serve_calibrate": ["serve", "serve_h200", "--calibrate", "OUT/../serve_h200/bench.json", "--set",
                        "requests.count=40"],
    "calibrate": ["calibrate", "examples/gpu_times", "--peak", "bf16=600TFLOP/s", "--hbm", "2.4TB/s", "--out",
                  "OUT/x900.yaml"],
    "validate": ["calibrate", "--validate", "--with", "OUT/../calibrate/x900.yaml", "examples/gpu_times", "--out",
                 "OUT"],
    "trace_import": ["trace", "import", "examples/requests.jsonl", "--model", "olmoe-1b-7b", "--out", "OUT/store"],
    "trace_info": ["trace", "info", "OUT/../trace_import/store"],
    "trace_profile": ["trace", "profile", "OUT/../trace_import/store", "--model", "olmoe-1b-7b", "--out", "OUT"],
    "model_config": ["new", "--from", "examples/config.json", "--out", "OUT/model.yaml"],
    "model_onnx": ["new", "--from", "examples/model.onnx", "--out", "OUT/graph.yaml"],
    "area": ["hardware", "area", "dojo"],
    "cost": ["hardware", "cost", "dojo", "--json"],
    "blocks": ["hardware", "blocks"],
    "lockstep_pdu": ["hardware", "rtl", "lockstep", "pdu", "--events", "200"],
    "lockstep_sorter": ["hardware", "rtl", "lockstep", "sorter", "--events", "200"],
    "check": ["check", "dojo"],
    "check_serve": ["check", "serve_dojo"],
    **{f"list_{kind}": ["list", kind] for kind in ("experiments", "systems", "models", "policies", "assumptions")},
}  # fmt: skip
LEFT_OUT = re.compile(
    r"\b[0-9a-f]{12,64}\b|\d+(\.\d+)? ?(s|ms|min)\b( of CPU| left)?|archsim \d\S*|\d+ (MB|MiB|GB) of memory"
)
DIGESTED = {".csv", ".parquet", ".yaml", ".html", ".json", ".md", ".bin"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, help="folder of an earlier version")
    parser.add_argument("--only", nargs="*", default=[], help="names of commands; `messages`, `help`")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["ARCHSIM_CACHE"] = str(out / "cache")
    os.chdir(ROOT)
    lines = []
    for name, command in COMMANDS.items():
        if not arguments.only or name in arguments.only:
            lines += commanded(name, command, out)
    if not arguments.only or "messages" in arguments.only:
        lines += messages(out)
    if not arguments.only or "help" in arguments.only:
        lines += helps()
    (out / "baseline.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.like is None:
        return 0
    before = set((arguments.like / "baseline.txt").read_text(encoding="utf-8").splitlines())
    different = [line for line in lines if line not in before]
    print("\n".join(f"DIFFERENT {line}" for line in different) or f"{len(lines)} lines, all equal")
    return int(bool(different))


def ran(command: list[str]) -> tuple[int | str, str]:
    """Status and output of a command, run in this process."""
    from archsim.cli.main import main as archsim

    said, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(errors):
        try:
            status: int | str = archsim(command)
        except SystemExit as end:
            status = str(end.code)
    return status, said.getvalue() + (errors.getvalue() if status else "")


def plain(text: str, out: Path) -> str:
    return LEFT_OUT.sub("…", text.replace(str(out), "OUT").replace(str(ROOT), "."))


def commanded(name: str, command: list[str], out: Path) -> list[str]:
    folder = out / name
    folder.mkdir(exist_ok=True)
    status, said = ran([word.replace("OUT", str(folder)) for word in command])
    text = plain(said, out)
    (out / f"{name}.txt").write_text(text, encoding="utf-8")
    lines = [f"{name} status={status} output={digest(text.encode())}"]
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if "runs" in inside.parts or file.name == "manifest.json":
            continue  # named by run keys, which depend on the code; their numbers stand in the tables
        if file.is_file() and file.suffix in DIGESTED:
            lines.append(f"{name} {inside} {digest(content(file, out))}")
    for line in lines:
        print(line, flush=True)
    return lines


def content(file: Path, out: Path) -> bytes:
    """What of a file must stay equal: the values of a table without run keys, or its text."""
    if file.suffix in (".csv", ".parquet"):
        import pandas as pd

        try:
            table = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
        except ValueError:
            return b"empty"
        return plain(table.drop(columns=[each for each in ("run",) if each in table]).to_csv(index=False), out).encode()
    if file.suffix == ".bin":
        return file.read_bytes()
    return plain(file.read_text(encoding="utf-8"), out).encode()


def messages(out: Path) -> list[str]:
    """Messages for the bad experiments of the tests."""
    import yaml
    from support.bad_experiments import GOOD

    rows = yaml.safe_load((ROOT / "tests/support/bad_experiments.yaml").read_text(encoding="utf-8"))
    lines = []
    for number, (name, old, new, *_) in enumerate(rows):
        file = out / "bad.yaml"
        file.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
        status, said = ran(["check", str(file)])
        lines.append(f"message {number} {name}: status={status} {digest(plain(said, out).encode())}")
    return lines


def helps() -> list[str]:
    """Help of every command and form, and of the spellings before version 0.2."""
    from archsim.cli.main import OLD, every_command

    lines = []
    for words in [name for name, _ in every_command()] + list(OLD):
        status, said = ran([*words.split(), "--help"])
        lines.append(f"help {words}: status={status} {digest(said.encode())}")
    return lines


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
