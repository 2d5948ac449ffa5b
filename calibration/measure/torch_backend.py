"""Measures on NVIDIA GPUs with PyTorch: CUDA graphs and events, warmed up, operands rotated past the L2."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable

from calibration.measure.backend import Machine, MeasureError, Point, PointError, Timing

WARM_UPS, REPEATS = 3, 20
LEAST_REPLAY_US = 200.0  # a replay is long against the resolution of events (0.5 us)
MOST_CALLS = 2000  # of one operation in a replay
MOST_COPIES = 64  # of operands
MOST_MEMORY_SHARE = 0.8  # of the free memory
CLOCKS_EVERY_S = 2.0
QUERY = "clocks.sm,clocks.mem,power.draw"


class TorchBackend:
    """``calibration.measure.backend.Backend`` on this machine's GPUs. Raises MeasureError without torch or CUDA."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise MeasureError("measuring needs PyTorch with CUDA: see pytorch.org for how to install it") from error
        if not torch.cuda.is_available():
            raise MeasureError("PyTorch finds no CUDA device here: measure on the machine that has the GPUs")
        self._torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.machine = Machine(
            gpu_name=properties.name,
            gpus=torch.cuda.device_count(),
            library="torch",
            library_version=f"{torch.__version__} cuda {torch.version.cuda}",
            driver=_smi("driver_version") or "unknown",
            has_fp8=(properties.major, properties.minor) >= (8, 9) and hasattr(torch, "float8_e4m3fn"),
            l2_bytes=getattr(properties, "L2_cache_size", 50 * 2**20),
            free_bytes=torch.cuda.mem_get_info(0)[0],
        )
        self._clocks, self._clocks_at = {}, -CLOCKS_EVERY_S

    def time(self, kind: str, point: Point) -> Timing:
        """Median and percentiles of REPEATS replays. Raises PointError where the point is not possible here."""
        torch = self._torch
        try:
            times_us, notes = getattr(self, f"_time_{kind}")(point)
        except torch.cuda.OutOfMemoryError:
            raise PointError("not enough memory on the GPU") from None
        except (RuntimeError, NotImplementedError) as error:
            raise PointError(f"PyTorch refuses: {str(error).splitlines()[0]}") from None
        finally:
            torch.cuda.empty_cache()
        tenths = statistics.quantiles(times_us, n=10, method="inclusive")
        return Timing(statistics.median(times_us), tenths[0], tenths[-1], len(times_us), self._read_clocks() | notes)

    def _read_clocks(self) -> dict[str, str]:
        if time.monotonic() - self._clocks_at >= CLOCKS_EVERY_S:
            cells = [cell.strip() for cell in _smi(QUERY).split(",")]
            names = ("sm_clock_mhz", "mem_clock_mhz", "power_w")
            self._clocks = {name: cell for name, cell in zip(names, cells, strict=False) if _is_number(cell)}
            self._clocks_at = time.monotonic()
        return self._clocks

    def _check_memory(self, needed_bytes: int) -> None:
        if needed_bytes > MOST_MEMORY_SHARE * self.machine.free_bytes:
            raise PointError("not enough memory on the GPU")

    def _copies_past_l2(self, operand_bytes: int) -> int:
        """Copies of an operand such that it is out of the L2 again when its turn comes."""
        return min(MOST_COPIES, max(2, -(-2 * self.machine.l2_bytes // operand_bytes) + 1))

    # Timing: ``operation(i)`` does the i-th call.

    def _graph_us(self, operation: Callable[[int], None], cycle: int = 1) -> list[float]:
        """Time of one call in a CUDA graph of a multiple of `cycle` calls."""
        torch = self._torch
        calls = self._calls(operation, cycle)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                operation(i)
        return self._events_us(graph.replay, calls)

    def _stream_us(self, operation: Callable[[int], None], cycle: int = 1) -> list[float]:
        """Time of one call, back to back on a stream."""
        calls = self._calls(operation, cycle)
        return self._events_us(lambda: [operation(i) for i in range(calls)], calls)

    def _calls(self, operation: Callable[[int], None], cycle: int) -> int:
        for i in range(max(WARM_UPS, cycle)):
            operation(i)
        self._synchronize()
        begin = time.perf_counter()
        for i in range(cycle):
            operation(i)
        self._synchronize()
        one_us = (time.perf_counter() - begin) * 1e6 / cycle
        return cycle * max(1, min(MOST_CALLS // cycle, round(LEAST_REPLAY_US / one_us / cycle + 0.5)))

    def _events_us(self, replay: Callable[[], object], calls: int) -> list[float]:
        torch, times = self._torch, []
        for repeat in range(WARM_UPS + REPEATS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            replay()
            end.record()
            end.synchronize()
            if repeat >= WARM_UPS:
                times.append(begin.elapsed_time(end) * 1e3 / calls)
        return times

    def _clock_us(self, operation: Callable[[int], None]) -> list[float]:
        """Time of one call by the host's clock, all GPUs waited for at the end of a batch of calls."""
        calls, times = self._calls(operation, 1), []
        for repeat in range(WARM_UPS + REPEATS):
            self._synchronize()
            begin = time.perf_counter()
            for i in range(calls):
                operation(i)
            self._synchronize()
            if repeat >= WARM_UPS:
                times.append((time.perf_counter() - begin) * 1e6 / calls)
        return times

    def _synchronize(self) -> None:
        for device in range(self.machine.gpus):
            self._torch.cuda.synchronize(device)

    # One function per table of the schema.

    def _time_gemm(self, point: Point):
        torch = self._torch
        m, n, k, fp8 = point["m"], point["n"], point["k"], point["dtype"] == "fp8"
        if fp8 and not self.machine.has_fp8:
            raise PointError(f"{self.machine.gpu_name} or this PyTorch has no FP8")
        width = 1 if fp8 else 2
        copies = self._copies_past_l2(n * k * width)
        self._check_memory(copies * n * k * width + m * k * 2 + m * n * 2)
        dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        inputs = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).to(dtype)
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16).to(dtype) for _ in range(copies)]
        if fp8:
            one = torch.ones((), device="cuda")

            def multiply(i: int) -> None:
                torch._scaled_mm(inputs, weights[i % copies].t(), one, one, out_dtype=torch.bfloat16)
        else:
            output = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

            def multiply(i: int) -> None:
                torch.mm(inputs, weights[i % copies].t(), out=output)

        return self._graph_us(multiply, copies), {"weight_copies": copies}

    def _time_moe(self, point: Point):
        """Permute, grouped gate-up product, SwiGLU, grouped down product, weighted sum; experts of rank 0."""
        torch = self._torch
        if not hasattr(torch, "_grouped_mm"):
            raise PointError("this PyTorch has no grouped product (torch._grouped_mm, 2.8 or later)")
        hidden, ffn, experts = point["hidden"], point["ffn"], point["experts"] // point["ep"]
        self._check_memory(experts * 3 * hidden * ffn * 2)
        tokens, rows, ends = _rank_of_balanced(point)
        if not rows:
            raise PointError("the first rank has no tokens")
        of_expert = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        used = {
            "tokens_rank": tokens,
            "active_experts_rank": sum(rows_of > 0 for rows_of in of_expert),
            "max_tokens_per_expert": max(of_expert),
        }
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        inputs, rows = torch.randn(tokens, hidden, **kind), torch.tensor(rows, device="cuda")
        ends = torch.tensor(ends, device="cuda", dtype=torch.int32)
        gate_up = torch.randn(experts, 2 * ffn, hidden, **kind).transpose(1, 2)
        down = torch.randn(experts, hidden, ffn, **kind).transpose(1, 2)
        share, output = torch.rand(len(rows), 1, **kind), torch.zeros(tokens, hidden, **kind)

        def layer(i: int) -> None:
            both = torch._grouped_mm(inputs.index_select(0, rows), gate_up, offs=ends)
            inner = torch.nn.functional.silu(both[:, :ffn]) * both[:, ffn:]
            output.zero_().index_add_(0, rows, torch._grouped_mm(inner, down, offs=ends) * share)

        return self._graph_us(layer), used

    def _time_p2p(self, point: Point):
        torch, src, dst, size = self._torch, int(point["src"]), int(point["dst"]), point["bytes"]
        if self.machine.gpus < 2:
            raise PointError("copies between GPUs need two of them; this machine has one")
        if max(src, dst) >= self.machine.gpus:
            raise PointError(f"there is no GPU {max(src, dst)}")
        if not torch.cuda.can_device_access_peer(src, dst):
            raise PointError(f"GPU {src} has no peer access to GPU {dst}")
        self._check_memory(2 * size)
        here, there = (torch.empty(size, device=f"cuda:{gpu}", dtype=torch.uint8) for gpu in (src, dst))
        if point["direction"] == "uni":
            with torch.cuda.device(src):
                return self._stream_us(lambda i: there.copy_(here, non_blocking=True)), {}
        back_from, back_to = torch.empty_like(there), torch.empty_like(here)
        streams = torch.cuda.Stream(src), torch.cuda.Stream(dst)

        def both(i: int) -> None:
            with torch.cuda.stream(streams[0]):
                there.copy_(here, non_blocking=True)
            with torch.cuda.stream(streams[1]):
                back_to.copy_(back_from, non_blocking=True)

        return self._clock_us(both), {}

    def _time_hostpath(self, point: Point):
        torch, size, direction = self._torch, point["bytes"], point["direction"]
        self._check_memory(2 * size)
        pinned = point["pinned"] == "1"
        host = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        device = [torch.empty(size, device="cuda", dtype=torch.uint8) for _ in range(2)]
        if direction == "bi":
            streams = torch.cuda.Stream(), torch.cuda.Stream()

            def copy(i: int) -> None:
                with torch.cuda.stream(streams[0]):
                    device[0].copy_(host[0], non_blocking=True)
                with torch.cuda.stream(streams[1]):
                    host[1].copy_(device[1], non_blocking=True)

            return self._clock_us(copy), {}
        target, origin = (device[0], host[0]) if direction == "h2d" else (host[0], device[0])
        if pinned:
            return self._stream_us(lambda i: target.copy_(origin, non_blocking=True)), {}
        return self._clock_us(lambda i: target.copy_(origin)), {}

    def _time_launch(self, point: Point):
        """A kernel that reads and writes half of its bytes each."""
        torch = self._torch
        cells = torch.zeros(max(1, point["kernel_bytes"] // 8), device="cuda")
        if point["kind"] == "stream":
            return self._stream_us(lambda i: cells.add_(1.0), 100), {}
        if point["kind"] == "graph_node":
            return self._graph_us(lambda i: cells.add_(1.0), 100), {}

        def launch_and_wait(i: int) -> None:
            cells.add_(1.0)
            torch.cuda.synchronize()

        return self._clock_us(launch_and_wait), {}

    def _time_memory(self, point: Point):
        """Passes over the working set; latency from a chain of dependent loads in one thread."""
        torch, size, op = self._torch, point["working_set_bytes"], point["op"]
        self._check_memory(2 * size)
        if op == "chase":
            return self._chase_us(size), {}
        arrays = {"read": 1, "write": 1, "copy": 2, "triad": 3}[op]
        a, b, c = (torch.ones(size // arrays // 4, device="cuda") if i < arrays else None for i in range(3))
        total = torch.zeros((), device="cuda")
        passes = {
            "read": lambda i: torch.sum(a, dim=0, out=total),
            "write": lambda i: a.fill_(1.0),
            "copy": lambda i: b.copy_(a),
            "triad": lambda i: torch.add(a, b, alpha=2.0, out=c),
        }
        return self._graph_us(passes[op], 2), {}

    def _chase_us(self, size: int) -> list[float]:
        """Time of one load: a random ring over the lines of the working set, followed by one thread."""
        try:
            from calibration.measure.chase import LINE_BYTES, LOADS, chase
        except ImportError:
            raise PointError("latency needs Triton, which comes with PyTorch on Linux") from None
        torch = self._torch
        order = torch.randperm(size // LINE_BYTES, device="cuda")
        ring = torch.zeros(size // 8, device="cuda", dtype=torch.int64)
        stride = LINE_BYTES // 8
        ring[order * stride] = order.roll(-1) * stride
        place = torch.zeros(1, device="cuda", dtype=torch.int64)
        return [time_us / LOADS for time_us in self._stream_us(lambda i: chase(ring, place))]


def _rank_of_balanced(point: Point) -> tuple[int, list[int], list[int]]:
    """Of the first rank: (tokens, their row of every token-expert pair in the order of experts, end of each expert's
    rows). Tokens choose evenly spaced experts, one further with each token."""
    experts, top_k = point["experts"], point["top_k"]
    of_expert: list[list[int]] = [[] for _ in range(experts // point["ep"])]
    tokens: dict[int, int] = {}
    for token in range(point["tokens_total"]):
        for rank in range(top_k):
            expert = (token + rank * experts // top_k) % experts
            if expert < len(of_expert):
                of_expert[expert].append(tokens.setdefault(token, len(tokens)))
    ends = [sum(map(len, of_expert[: i + 1])) for i in range(len(of_expert))]
    return len(tokens), [row for rows in of_expert for row in rows], ends


def _smi(query: str) -> str:
    """First line of nvidia-smi's answer; '' where there is none."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _is_number(cell: str) -> bool:
    try:
        return float(cell) >= 0
    except ValueError:
        return False
