"""Times of GPU work, between two events on the GPU. PyTorch is passed in, never imported.

The GPU is kept busy while the host enqueues the work, so that it runs without gaps however slow the host is: a
spinning kernel comes first, then event, work and event (as in NVIDIA's nvbandwidth).
"""

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

WARM_UPS, REPEATS = 3, 20
LEAST_REPLAY_US = 1000.0  # long compared with the resolution of events (0.5 us) and the start of a graph
MOST_CALLS = 2000  # calls of one operation per graph
MOST_STREAM_CALLS = 128  # calls per stream: the driver queue has about a thousand entries and blocks the host when full
EVENT_US = 0.5  # resolution of events (CUDA runtime API, cudaEventElapsedTime)
CYCLES_PER_S = 2e9  # highest SM clock; at a lower clock the GPU spins for longer
FIRST_LEAD_S, MOST_LEAD_S = 1e-3, 1e-2  # lead of the host over the GPU
CLOCKS_EVERY_S = 2.0
CLOCKS = {"sm_clock_mhz": "clocks.sm", "mem_clock_mhz": "clocks.mem", "power_w": "power.draw"}
SMI_PATIENCE_S = 10.0
SETTLE_S, READINGS = 2.0, 7  # nvidia-smi's power is the mean of a second


class Stopwatch:
    """``operation(i)`` performs the i-th call; times are us per call, one per repeat.

    ``clocks``: GPU clocks and power, read every few seconds while the GPU repeats the last timed work.
    """

    def __init__(self, torch: Any, gpu: str) -> None:
        self._torch, self._gpu = torch, gpu
        self.clocks: dict[str, str] = {}
        self._clocks_at = -CLOCKS_EVERY_S

    def graph_us(self, operation: Callable[[int], object], cycle: int = 1) -> list[float]:
        """Times calls in a CUDA graph with a multiple of ``cycle`` calls."""
        return self._events_us(*self._graph(operation, cycle))

    def steady_us(self, operation: Callable[[int], object], cycle: int = 1) -> list[float]:
        """Calls in a CUDA graph without a pause, once clocks and power settled; ``clocks``: medians of that time."""
        replay, calls = self._graph(operation, cycle)
        settled = time.monotonic() + SETTLE_S
        while time.monotonic() < settled:
            self._span_us(replay, 0.0)
        times, readings = [], []
        for _ in range(READINGS):
            replays = self._read_clocks(lambda: times.append(self._span_us(replay, 0.0) / calls), at_once=True)
            if replays and self.clocks:
                readings.append(self.clocks)
        names = [name for name in CLOCKS if readings and all(name in each for each in readings)]
        self.clocks = {name: f"{statistics.median(float(each[name]) for each in readings):.6g}" for name in names}
        return times

    def idle_clocks(self) -> dict[str, str]:
        """Clocks and power of a GPU that does nothing."""
        time.sleep(SETTLE_S)
        self._read_clocks(lambda: time.sleep(1e-3), at_once=True)
        return self.clocks

    def _graph(self, operation: Callable[[int], object], cycle: int) -> tuple[Callable[[], object], int]:
        """Replays a CUDA graph, and the calls in it."""
        torch = self._torch
        calls = self._calls(operation, cycle, MOST_CALLS)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                operation(i)
        return graph.replay, calls

    def streams_us(self, ways: Sequence[tuple[Any, Callable[[int], object]]]) -> list[float]:
        """Back to back on one or several streams, each with its operation: time of one call on all of them."""
        torch, first = self._torch, ways[0][0]
        others = [stream for stream, _ in ways[1:]]

        def one(i: int) -> None:
            for _, operation in ways:
                operation(i)

        def replay(calls: int) -> None:
            for stream in others:
                stream.wait_stream(first)
            for i in range(calls):
                one(i)
            for stream in others:
                first.wait_stream(stream)

        for stream, _ in ways:
            torch.cuda.synchronize(stream.device)  # operands are ready
        with torch.cuda.stream(first):
            replay(WARM_UPS)
            calls = _calls_for(min(self._span_us(lambda: replay(1)) for _ in range(WARM_UPS)), 1, MOST_STREAM_CALLS)
            return self._events_us(lambda: replay(calls), calls)

    def host_bound_us(self, operation: Callable[[int], object], calls: int) -> list[float]:
        """Times calls on the current stream, made as fast as the host can."""
        return self._events_us(lambda: [operation(i) for i in range(calls)], calls, ahead=False)

    def waited_us(self, operation: Callable[[int], object]) -> list[float]:
        """Times operations that are complete when they return, with the host's clock."""
        for i in range(WARM_UPS):
            operation(i)
        calls = _calls_for(_host_us(operation, 1), 1, MOST_CALLS)
        times = [_host_us(operation, calls) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
        self._read_clocks(lambda: operation(0))
        return times

    def _calls(self, operation: Callable[[int], object], cycle: int, most: int) -> int:
        for i in range(max(WARM_UPS, cycle)):
            operation(i)
        self._torch.cuda.synchronize()
        spans = [self._span_us(lambda: [operation(i) for i in range(cycle)]) for _ in range(WARM_UPS)]
        return _calls_for(min(spans) / cycle, cycle, most)

    def _events_us(self, replay: Callable[[], object], calls: int, ahead: bool = True) -> list[float]:
        lead_s, times = FIRST_LEAD_S, []
        for _ in range(WARM_UPS + REPEATS):
            began = time.perf_counter()
            times.append(self._span_us(replay, lead_s if ahead else 0.0) / calls)
            lead_s = min(MOST_LEAD_S, max(FIRST_LEAD_S, 1.5 * (self._enqueued - began)))
        self._read_clocks(replay)
        return times[WARM_UPS:]

    def _span_us(self, work: Callable[[], object], lead_s: float = FIRST_LEAD_S) -> float:
        """Time from start to end of ``work`` on the GPU, which spins for ``lead_s`` before."""
        torch = self._torch
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if lead_s:
            torch.cuda._sleep(int(lead_s * CYCLES_PER_S))
        begin.record()
        work()
        end.record()
        self._enqueued = time.perf_counter()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def _read_clocks(self, replay: Callable[[], object], at_once: bool = False) -> int:
        """Repeats ``replay`` while the clocks are read, which is done every few seconds or at once; how often."""
        if not at_once and time.monotonic() - self._clocks_at < CLOCKS_EVERY_S:
            return 0
        replays = 0
        query = _smi_process(",".join(CLOCKS.values()), self._gpu)
        deadline = time.monotonic() + SMI_PATIENCE_S
        while query and query.poll() is None and time.monotonic() < deadline:
            replay()
            self._torch.cuda.synchronize()
            replays += 1
        cells = [cell.strip() for cell in _answer(query).split(",")]
        self.clocks = {name: cell for name, cell in zip(CLOCKS, cells, strict=False) if _is_number(cell)}
        self._clocks_at = time.monotonic()
        return replays


def _calls_for(one_us: float, cycle: int, most: int) -> int:
    """A multiple of ``cycle``, long enough for a replay and at most ``most``, but at least one cycle."""
    cycles = round(LEAST_REPLAY_US / max(one_us, EVENT_US) / cycle + 0.5)
    return cycle * max(1, min(most // cycle, cycles))


def _host_us(operation: Callable[[int], object], calls: int) -> float:
    begin = time.perf_counter()
    for i in range(calls):
        operation(i)
    return (time.perf_counter() - begin) * 1e6 / calls


def smi(query: str, gpu: str) -> str:
    """First line of nvidia-smi's output for a GPU (index or UUID); '' if there is none."""
    return _answer(_smi_process(query, gpu))


def _smi_process(query: str, gpu: str) -> subprocess.Popen | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _answer(process: subprocess.Popen | None) -> str:
    if process is None:
        return ""
    try:
        lines = process.communicate(timeout=SMI_PATIENCE_S)[0].splitlines()
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return ""
    return lines[0] if lines and process.returncode == 0 else ""


def _is_number(cell: str) -> bool:
    try:
        return float(cell) >= 0
    except ValueError:
        return False
