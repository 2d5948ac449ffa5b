"""Spoils files of all kinds and looks for crashes, hangs and refusals without a place.

``python tests/fuzz --seconds 60 --seed 1`` tries every target in turn until the time is over, and prints a table; what
it finds is kept below ``--keep``, one folder each with the mutant, the command and what was said. The same seed and
number give the same mutant on every machine. Ends with status 1 if anything was found.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
BATCH = 50
BOUND_BYTES = 1 << 30


def main() -> int:
    """Fuzz, print, keep what is found."""
    from fuzz.targets import TARGETS

    args = _arguments(list(TARGETS))
    if args.child:
        return _child(args)
    sums: dict[str, list[int]] = {}
    found: list[dict] = []
    with suppress(KeyboardInterrupt):  # what was found until then is told
        _campaign(args, args.targets or list(TARGETS), sums, found)
    print(f"{'target':<14}{'mutants':>9}{'accepted':>10}{'refused':>9}{'found':>7}{'MB':>7}")
    for name, (accepted, refused, faults, most) in sums.items():
        print(f"{name:<14}{accepted + refused + faults:>9}{accepted:>10}{refused:>9}{faults:>7}{most / 1e6:>7.0f}")
    for each in found:
        print(f"found: {each['target']} {each['number']}: archsim {each['command']}: {_last(each['said'])}")
        _keep(Path(args.keep), each)
    heavy = [name for name, (*_, most) in sums.items() if most > BOUND_BYTES]
    if heavy:
        print(f"above {BOUND_BYTES >> 20} MiB: {', '.join(heavy)}")
    return 1 if found or heavy else 0


def _campaign(args: argparse.Namespace, names: list[str], sums: dict[str, list[int]], found: list[dict]) -> None:
    """Fill ``sums`` (target → accepted, refused, found, most bytes) and ``found``, batch by batch."""
    began_s, first = time.monotonic(), 0
    while time.monotonic() - began_s < args.seconds and (args.mutants is None or first < args.mutants):
        for name in names:
            batch = _batch(name, args.seed, first)
            total = sums.setdefault(name, [0, 0, 0, 0])
            sums[name] = [*map(sum, zip(total[:3], batch["counts"], strict=True)), max(total[3], batch["bytes"])]
            found += batch["found"]
        first += BATCH


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--mutants", type=int, help="of each target, instead of until the time is over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="+", choices=names)
    parser.add_argument("--keep", default="build/fuzz", help="folder for what is found")
    parser.add_argument("--child", nargs=2, metavar=("TARGET", "FIRST"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _batch(name: str, seed: int, first: int) -> dict:
    """A batch in a process of its own: its memory is seen, and its end is not ours."""
    command = [sys.executable, str(ROOT / "tests" / "fuzz"), "--seed", str(seed), "--child", name, str(first)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        lost = {"target": name, "number": first, "file": "", "command": "", "said": ended.stderr, "content": ""}
        return {"counts": [0, 0, 1], "bytes": 0, "found": [lost]}
    return json.loads(ended.stdout.splitlines()[-1])


def _child(args: argparse.Namespace) -> int:
    from fuzz.campaign import fuzz
    from fuzz.targets import TARGETS

    name, first = args.child[0], int(args.child[1])
    with TemporaryDirectory() as folder:
        report = fuzz(name, TARGETS[name], Path(folder), args.seed, first, BATCH)
    found = [each._replace(content=each.content.hex())._asdict() for each in report.found]
    counts = [report.accepted, report.refused, len(found)]
    print(json.dumps({"counts": counts, "bytes": report.most_bytes, "found": found}))
    return 0


def _last(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1][:200] if lines else "nothing was said"


def _keep(folder: Path, each: dict) -> None:
    own = folder / f"{each['target']}-{each['number']}"
    own.mkdir(parents=True, exist_ok=True)
    (own / (each["file"] or "lost")).write_bytes(bytes.fromhex(each["content"]))
    (own / "said.txt").write_text(f"archsim {each['command']}\n{each['said']}")


if __name__ == "__main__":
    sys.exit(main())
