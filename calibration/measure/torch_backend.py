"""Measures on NVIDIA GPUs with PyTorch: CUDA graphs and events, warmed up, operands rotated past the L2."""

import statistics

from calibration.measure.backend import MeasuredMachine, MeasuredTime, MeasureError, Point, PointError
from calibration.measure.driver import BYTES_PER_CELL, Driver
from calibration.measure.points import POWER_READ_BYTES, POWER_SIDE
from calibration.measure.stopwatch import CYCLES_PER_S, Stopwatch, smi
from calibration.measurements.schema import IDLE_US

MOST_COPIES = 64  # copies of operands
MOST_MEMORY_SHARE = 0.8  # share of free memory
UNKNOWN_L2_BYTES = 50 * 2**20  # if PyTorch does not report it; H100
STREAM_LAUNCHES = 1000  # between two events
GROUPED_ARCHITECTURES = (9, 10)  # elsewhere torch._grouped_mm waits for the host, which a graph cannot capture


class TorchBackend:
    """``calibration.measure.backend.Backend`` on this machine's GPUs. Raises MeasureError without torch or CUDA."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise MeasureError("measuring needs PyTorch with CUDA: see pytorch.org for how to install it") from error
        if not torch.cuda.is_available():
            raise MeasureError("PyTorch finds no CUDA device: run this on a machine with NVIDIA GPUs")
        self._torch = torch
        properties = torch.cuda.get_device_properties(0)
        uuid = getattr(properties, "uuid", None)
        gpu = f"GPU-{uuid}" if uuid else "0"  # GPU 0 of this process need not be GPU 0 of the driver
        self._architecture = properties.major
        self.machine = MeasuredMachine(
            gpu_name=properties.name,
            gpus=torch.cuda.device_count(),
            library="torch",
            library_version=f"{torch.__version__} cuda {torch.version.cuda}",
            driver=smi("driver_version", gpu) or "unknown",
            has_fp8=(properties.major, properties.minor) >= (8, 9)
            and hasattr(torch, "float8_e4m3fn")
            and hasattr(torch, "_scaled_mm"),
            l2_bytes=getattr(properties, "L2_cache_size", UNKNOWN_L2_BYTES),
            free_bytes=torch.cuda.mem_get_info(0)[0],
        )
        self._gpu, self._watch = gpu, Stopwatch(torch, gpu)
        try:
            self._driver = Driver()
        except OSError as error:
            raise MeasureError(f"measuring needs NVIDIA's driver: {error}") from error

    def time(self, kind: str, point: Point) -> MeasuredTime:
        """Median and percentiles. Raises PointError if this point, MeasureError if no further one can be measured."""
        problem = None
        try:
            times_us, notes = getattr(self, f"_time_{kind}")(point)
        except PointError:
            raise
        except self._torch.cuda.OutOfMemoryError:
            problem = "not enough memory on the GPU"
        except Exception as error:  # an error at one point must not stop the others
            problem = f"PyTorch or CUDA refuses: {type(error).__name__}: {_first_line(error)}"
        self._clear(kind, point, problem)
        if problem:
            raise PointError(problem)
        tenths = statistics.quantiles(times_us, n=10, method="inclusive")
        return MeasuredTime(
            statistics.median(times_us), tenths[0], tenths[-1], len(times_us), self._watch.clocks | notes
        )

    def _clear(self, kind: str, point: Point, problem: str | None) -> None:
        torch = self._torch
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()
        except RuntimeError as error:
            where = " ".join(f"{name}={value}" for name, value in point.items())
            message = f"{kind} {where}: {problem or _first_line(error)}; this process cannot use the GPU any more"
            raise MeasureError(f"{message}: run again, or measure the other tables if that point fails again") from None

    def _check_memory(self, needed_bytes: int) -> None:
        if needed_bytes > MOST_MEMORY_SHARE * self.machine.free_bytes:
            raise PointError("not enough memory on the GPU")

    def _copies_past_l2(self, operand_bytes: int) -> int:
        """Number of copies of an operand such that each is out of the L2 when its turn comes."""
        return min(MOST_COPIES, max(2, -(-2 * self.machine.l2_bytes // operand_bytes) + 1))

    # One function per table of the schema.

    def _time_gemm(self, point: Point):
        multiply, copies = self._product(point)
        kernel = "_scaled_mm, fast accumulation" if point["dtype"] == "fp8" else "mm"
        return self._watch.graph_us(multiply, copies), {"weight_copies": copies, "kernel": kernel}

    def _product(self, point: Point):
        """A function that multiplies with the next copy of the weights, and the number of copies."""
        torch = self._torch
        m, n, k, fp8 = point["m"], point["n"], point["k"], point["dtype"] == "fp8"
        if fp8 and not self.machine.has_fp8:
            raise PointError(f"{self.machine.gpu_name} or this PyTorch has no FP8")
        width = 1 if fp8 else 2
        copies = self._copies_past_l2(n * k * width)
        self._check_memory(copies * n * k * width + n * k * 2 + m * k * 2 + m * n * 2)
        dtype = torch.float8_e4m3fn if fp8 else torch.bfloat16
        inputs = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).to(dtype)
        weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16).to(dtype) for _ in range(copies)]
        if fp8:
            one = torch.ones((), device="cuda")

            def multiply(i: int) -> None:
                other = weights[i % copies].t()  # row-major times column-major
                torch._scaled_mm(inputs, other, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
        else:
            output = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

            def multiply(i: int) -> None:
                torch.mm(inputs, weights[i % copies].t(), out=output)

        return multiply, copies

    def _time_power(self, point: Point):
        """Steady work, with the power that it draws."""
        work = point["work"]
        if not smi("power.draw", self._gpu):
            raise PointError("nvidia-smi does not report the power that this GPU draws")
        if work == "idle":
            return [IDLE_US, IDLE_US], self._watch.idle_clocks()
        if work == "product":
            operation, copies = self._product({**point, "n": POWER_SIDE, "k": POWER_SIDE})
        else:
            operation, copies = self._read(waits=work == "read_and_wait"), 1
        return self._watch.steady_us(operation, copies), self._watch.clocks

    def _read(self, waits: bool):
        """A function that reads from HBM, and then waits for as long."""
        torch = self._torch
        cells, total = torch.ones(POWER_READ_BYTES // 4, device="cuda"), torch.zeros((), device="cuda")
        read_us = statistics.median(self._watch.graph_us(lambda i: torch.sum(cells, dim=0, out=total)))
        cycles = int(read_us * 1e-6 * CYCLES_PER_S)

        def read(i: int) -> None:
            torch.sum(cells, dim=0, out=total)
            if waits:
                torch.cuda._sleep(cycles)

        return read

    def _time_moe(self, point: Point):
        """Permute, gate-up, SwiGLU, down, weighted sum; experts of rank 0, its tokens as ``tokens_seen`` says."""
        torch = self._torch
        if not hasattr(torch, "_grouped_mm"):
            raise PointError("this PyTorch has no grouped GEMM (torch._grouped_mm, 2.8 or later)")
        if self._architecture not in GROUPED_ARCHITECTURES:
            raise PointError("PyTorch has a native grouped GEMM only on Hopper and Blackwell (sm_90, sm_100)")
        hidden, ffn, experts = point["hidden"], point["ffn"], point["experts"] // point["ep"]
        tokens, rows, ends = _rank_of_balanced(point)
        of_expert = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        active = sum(rows_of > 0 for rows_of in of_expert)
        received = len(set(rows))
        used = {"tokens_rank": received, "active_experts_rank": active, "max_tokens_per_expert": max(of_expert)}
        expert_bytes, row_bytes = 3 * hidden * ffn * 2, (3 * hidden + 5 * ffn) * 2
        copies = self._copies_past_l2(active * expert_bytes)
        needed = experts * expert_bytes + len(rows) * row_bytes + 2 * tokens * hidden * 2
        self._check_memory(needed)
        if needed + (copies - 1) * experts * expert_bytes > MOST_MEMORY_SHARE * self.machine.free_bytes:
            copies = 1  # the layer is so large that even the experts in use evict each other from the L2
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        inputs, rows = torch.randn(tokens, hidden, **kind), torch.tensor(rows, device="cuda")
        ends = torch.tensor(ends, device="cuda", dtype=torch.int32)
        gate_up = [torch.randn(experts, 2 * ffn, hidden, **kind).transpose(1, 2) for _ in range(copies)]
        down = [torch.randn(experts, hidden, ffn, **kind).transpose(1, 2) for _ in range(copies)]
        share, output = torch.rand(len(rows), 1, **kind), torch.zeros(tokens, hidden, **kind)

        def layer(i: int) -> None:
            both = torch._grouped_mm(inputs.index_select(0, rows), gate_up[i % copies], offs=ends)
            inner = torch.nn.functional.silu(both[:, :ffn]) * both[:, ffn:]
            output.zero_().index_add_(0, rows, torch._grouped_mm(inner, down[i % copies], offs=ends) * share)

        return self._watch.graph_us(layer, copies), used

    def _time_p2p(self, point: Point):
        torch, src, dst, size = self._torch, int(point["src"]), int(point["dst"]), point["bytes"]
        if self.machine.gpus < 2:
            raise PointError("copies between GPUs need two GPUs; this machine has one")
        if max(src, dst) >= self.machine.gpus:
            raise PointError(f"there is no GPU {max(src, dst)}")
        if not torch.cuda.can_device_access_peer(src, dst):
            raise PointError(f"GPU {src} has no peer access to GPU {dst}")
        pairs = [(src, dst), (dst, src)] if point["direction"] == "bi" else [(src, dst)]
        self._check_memory(len(pairs) * size)
        ways = []
        for origin_gpu, target_gpu in pairs:
            origin, target = (
                torch.zeros(size, device=f"cuda:{gpu}", dtype=torch.uint8) for gpu in (origin_gpu, target_gpu)
            )
            target.copy_(origin)  # PyTorch enables peer access at the first copy
            ways.append(self._way(target, origin, torch.cuda.Stream(origin_gpu)))
        torch.cuda.synchronize(src)
        torch.cuda.synchronize(dst)
        return self._watch.streams_us(ways), {}

    def _way(self, target, origin, stream):
        """A stream with the copy, which keeps both tensors alive."""
        start = self._driver.copy(target.data_ptr(), origin.data_ptr(), origin.nbytes, stream.cuda_stream)
        return stream, lambda i, held=(target, origin): start()

    def _time_hostpath(self, point: Point):
        torch, size, pinned = self._torch, point["bytes"], point["pinned"] == "1"
        directions = ("h2d", "d2h") if point["direction"] == "bi" else (point["direction"],)
        self._check_memory(len(directions) * size)
        if len(directions) * size > MOST_MEMORY_SHARE * _free_host_bytes():
            raise PointError("not enough memory on the host")
        pairs = []
        for direction in directions:
            # Pages never written would map to a single one
            host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
            device = torch.zeros(size, device="cuda", dtype=torch.uint8)
            pairs.append((device, host) if direction == "h2d" else (host, device))
        if not pinned:
            [(target, origin)] = pairs
            return self._watch.waited_us(lambda i: target.copy_(origin)), {}
        return self._watch.streams_us([self._way(target, origin, torch.cuda.Stream()) for target, origin in pairs]), {}

    def _time_launch(self, point: Point):
        """A kernel that reads half of its bytes and writes half; PyTorch's in a graph, else the driver's."""
        torch, watch = self._torch, self._watch
        cells = torch.zeros(max(1, point["kernel_bytes"] // BYTES_PER_CELL), device="cuda")
        if point["kind"] == "graph_node":
            return watch.graph_us(lambda i: cells.add_(1.0), 100), {}
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        start = self._driver.touch(cells.data_ptr(), cells.numel(), stream.cuda_stream)
        with torch.cuda.stream(stream):
            if point["kind"] == "stream":
                return watch.host_bound_us(lambda i: start(), STREAM_LAUNCHES), {}

            def launch_and_wait(i: int) -> None:
                start()
                self._driver.wait(stream.cuda_stream)

            return watch.waited_us(launch_and_wait), {}

    def _time_memory(self, point: Point):
        """Passes over the working set; latency from a chain of dependent loads in one thread."""
        torch, size, op = self._torch, point["working_set_bytes"], point["op"]
        self._check_memory(2 * size)
        if op == "chase":
            return self._chase_us(size), {}
        arrays = {"read": 1, "write": 1, "copy": 2, "triad": 3}[op]
        a, b, c = (torch.ones(size // arrays // 4, device="cuda") if i < arrays else torch.zeros(()) for i in range(3))
        total = torch.zeros((), device="cuda")
        passes = {
            "read": lambda i: torch.sum(a, dim=0, out=total),
            "write": lambda i: a.fill_(1.0),
            "copy": lambda i: b.copy_(a),
            "triad": lambda i: torch.add(a, b, alpha=2.0, out=c),
        }
        return self._watch.graph_us(passes[op], 2), {}

    def _chase_us(self, size: int) -> list[float]:
        """Time of one load: a random ring over the lines of the working set, followed by one thread."""
        try:
            from calibration.measure.chase import LINE_BYTES, LOADS, chase
        except ImportError:
            raise PointError("latency needs Triton, which is part of PyTorch on Linux") from None
        torch = self._torch
        order = torch.randperm(size // LINE_BYTES, device="cuda")
        ring = torch.zeros(size // 8, device="cuda", dtype=torch.int64)
        stride = LINE_BYTES // 8
        ring[order * stride] = order.roll(-1) * stride
        place = torch.zeros(1, device="cuda", dtype=torch.int64)
        ring.sum()  # warm the L2, however few lines the chain has visited
        way = torch.cuda.Stream(), lambda i: chase(ring, place)
        return [time_us / LOADS for time_us in self._watch.streams_us([way])]


def _rank_of_balanced(point: Point) -> tuple[int, list[int], list[int]]:
    """For the first rank: (tokens that pass it, the row of the token of every pair in expert order, end of each
    expert's rows). A token without an expert there has a row if the rank sees all tokens of the group.

    Tokens choose evenly spaced experts, shifted by one per token; few tokens also start evenly spaced, so that no rank
    receives more than its share (as in the collectors that archsim.laws.moe follows)."""
    experts, top_k, total = point["experts"], point["top_k"], point["tokens_total"]
    received = point["tokens_seen"] == "received"
    of_expert: list[list[int]] = [[] for _ in range(experts // point["ep"])]
    tokens: dict[int, int] = {}
    stride = -(-experts // top_k)
    for token in range(total):
        first = token if total >= stride else token * stride // total
        for rank in range(top_k):
            expert = (first + rank * stride) % experts
            if expert < len(of_expert):
                of_expert[expert].append(tokens.setdefault(token, len(tokens)) if received else token)
    ends = [sum(map(len, of_expert[: i + 1])) for i in range(len(of_expert))]
    return len(tokens) if received else total, [row for rows in of_expert for row in rows], ends


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _free_host_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 2**63
