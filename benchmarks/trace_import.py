"""Speed of importing and reading traces: ``python benchmarks/trace_import.py [FOLDER OF REQUESTS]``.

Without a folder, generates requests of the shape of DeepSeek-V3 and Llama-4, minified and indented as in the data set.
Prints MB/s per core (CPU time, one job) of an import from files to a store, of json.load of the same files, the ratio
of store size to JSON size, peak memory for two amounts of JSON, and the time to read a batch of 4,096 requests from a
store and to aggregate it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from archsim.engine.demand import build_run_demand
from archsim.specs.library import load_model
from archsim.traffic import open_trace
from archsim.traffic.formats.importing import import_sources
from archsim.traffic.frames import write_frames
from archsim.traffic.store_writer import write_tokens, writing
from archsim.traffic.trace_store import Entry, Shape, open_store, row_columns

PROMPT, DECODE = 60, 128
REQUESTS = 12
BATCH = 4096
MINIFIED, INDENTED = {"separators": (",", ":")}, {"indent": 4}


class Quiet:
    def read(self, requests, size):
        pass

    def problem(self, message):
        print(message)


def routing(model, tokens, rng):
    """int16[token, layer, k]: distinct experts, some more popular than others."""
    noise = rng.gumbel(size=(tokens, len(model.moe_layer_ids), model.experts))
    popularity = rng.normal(0, 0.7, (len(model.moe_layer_ids), model.experts))
    return np.argpartition(-(noise + popularity), model.top_k, axis=2)[:, :, : model.top_k].astype(np.int16)


def write_requests(folder, model, requests, style):
    rng = np.random.default_rng(0)
    name = model.aliases[0]
    folder = folder / "org" / name / "set" / "subject"
    folder.mkdir(parents=True)
    for number in range(requests):
        experts = routing(model, PROMPT + DECODE, rng)
        steps = [experts[:PROMPT], *(experts[row : row + 1] for row in range(PROMPT, len(experts)))]
        column = {layer: index for index, layer in enumerate(model.moe_layer_ids)}
        data = [
            {str(layer): rows[:, column[layer]].tolist() if layer in column else None for layer in range(model.layers)}
            for rows in steps
        ]
        (folder / f"{number}.json").write_text(json.dumps(data, **style))


def cpu_seconds(work):
    before = time.process_time()
    work()
    return time.process_time() - before


def import_speed(folder, model, name):
    files = sorted(folder.rglob("*.json"))
    size = sum(file.stat().st_size for file in files)
    with tempfile.TemporaryDirectory() as out:
        import_sources([files[0]], Path(out) / "warm", model, 1, "stop", Quiet(), False)
        mine = cpu_seconds(lambda: import_sources([folder], Path(out) / "store", model, 1, "stop", Quiet(), False))
        store = sum(about["bytes"] for about in open_store(Path(out) / "store").files)
    plain = cpu_seconds(lambda: [json.load(file.open("rb")) for file in files])
    print(
        f"{name:24s} {size / 1e6:8.1f} MB  import {size / mine / 1e6:6.0f} MB/s  json.load {size / plain / 1e6:6.0f} "
        f"MB/s"
        f"  store 1/{size / store:.0f}"
    )


def peak_mib(folder, copies):
    """Peak memory of importing ``copies`` copies of a folder, in a separate process."""
    code = (
        "import sys, resource, shutil, tempfile; from pathlib import Path;"
        "sys.path.insert(0, sys.argv[3]); from trace_import import Quiet; from archsim.specs.library import "
        "load_model;"
        "from archsim.traffic.formats.readers import import_sources; out = tempfile.mkdtemp(); root = Path(out) / "
        "'in';"
        "[shutil.copytree(sys.argv[1], root / f'org/DeepSeek-V3/set/s{n}') for n in range(int(sys.argv[2]))];"
        "import_sources([root], Path(out) / 'store', load_model('deepseek-v3'), 2, 'stop', Quiet(), False);"
        "shutil.rmtree(out); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    subject = next(folder.rglob("0.json")).parent
    command = [sys.executable, "-c", code, str(subject), str(copies), str(Path(__file__).parent)]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def batch_speed(out):
    """Read a batch from a store of 4,096 requests of DeepSeek-V3's shape, on the first and on a warm opening."""
    model, rng = load_model("deepseek-v3"), np.random.default_rng(0)
    rows = DECODE + 1
    iteration = np.tile(np.arange(rows, dtype=np.int16), 64)
    experts = rng.integers(0, model.experts, (64 * rows, len(model.moe_layer_ids), model.top_k)).astype(np.int16)
    write_frames(out / "rows.col", row_columns(experts, iteration, model.experts), {})
    shape = Shape.of(model, "DeepSeek-V3", model.moe_layer_ids)
    entries = [Entry("", "", n, out / "rows.col", n % 64 * rows, rows, 1) for n in range(BATCH)]
    with writing(out / "store", False):
        write_tokens(out / "store", shape, entries, os.cpu_count())
    os.environ["ARCHSIM_CACHE"] = str(out / "cache")
    for state in ("first", "warm"):
        begin = time.perf_counter()
        trace = open_trace(out / "store", model)
        opened = time.perf_counter()
        selections = sum(piece.experts.size for piece in trace.steps(np.arange(BATCH), DECODE - 1))
        read = time.perf_counter()
        print(
            f"batch of {BATCH}, {state}: opened in {opened - begin:.2f} s, {selections / 1e6:.0f} M ids read in "
            f"{read - opened:.2f} s"
        )
    build_run_demand(trace, 4, 2, 0, predictor=lambda heat, changed, out: None)
    begin = time.perf_counter()
    build_run_demand(trace, BATCH, DECODE - 1, 0, predictor=lambda heat, changed, out: None)
    taken = time.perf_counter() - begin
    print(f"counts and heatmap pairs of it: {taken:.1f} s; of 16,384 requests four times that, {4 * taken:.1f} s")


def main():
    if len(sys.argv) > 1:
        return import_speed(Path(sys.argv[1]), None, Path(sys.argv[1]).name)
    with tempfile.TemporaryDirectory() as root:
        for name in ("llama-4-maverick", "deepseek-v3"):
            for style_name, style in (("minified", MINIFIED), ("indented", INDENTED)):
                folder = Path(root) / f"{name} {style_name}"
                write_requests(folder, load_model(name), REQUESTS, style)
                import_speed(folder, load_model(name), folder.name)
        folder = Path(root) / "deepseek-v3 indented"
        for copies in (2, 8):
            print(f"peak of importing {copies} copies of it: {peak_mib(folder, copies)} MiB, 2 jobs")
        batch_speed(Path(root))


if __name__ == "__main__":
    main()
