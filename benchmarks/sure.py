"""What `archsim sure` takes: 256 worlds of five policies on the wafer (DeepSeek-V3, batch 8,192), on one core.

`python benchmarks/sure.py [SAMPLES]` prints processor seconds and memory beside their bounds; status 1 beyond them. As
machines differ, the time is also printed as events of a bare heap in plain Python that take as long here.
"""

import resource
import sys
import time
from tempfile import TemporaryDirectory

from timing import heap_events_per_s

import archsim as ar
from archsim.runs.sweep import Unwatched

MOST_S, MOST_BYTES, SAMPLES = 300.0, 1.5e9, 256
CHOSEN = {"model": "deepseek-v3", "batch": 8192, "assumptions": "physical"}


class First(Unwatched):
    """Notes when the first estimate was given."""

    def __init__(self):
        self.began_s, self.said_s = time.monotonic(), None

    def phase(self, text):
        if "worlds" in text and self.said_s is None:
            self.said_s = time.monotonic() - self.began_s
            print(f"{text} (after {self.said_s:.1f} s, {time.process_time():.1f} s of the processor)", flush=True)


def main() -> int:
    samples, watcher = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES, First()
    with TemporaryDirectory() as folder:
        found = ar.sure("configs/dojo.yaml", samples, folder, jobs=1, watcher=watcher, **CHOSEN)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds, n_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(found.sentence)
    for place in found.places:
        for each in place.pairs:
            print(each)
        for each in place.indices[:6]:
            print(each)
        for option in place.options:
            print(option)
    scale = samples / SAMPLES
    print(f"{seconds:.0f} s of processor time (at most {MOST_S * scale:.0f}), {n_bytes / 1e9:.2f} GB (at most 1.5)")
    print(f"as long as {seconds * heap_events_per_s() / 1e6:,.0f} million events of a bare heap")
    return int(seconds > MOST_S * scale or n_bytes > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
