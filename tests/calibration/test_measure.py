"""Measuring without a GPU: the stopwatch on a made-up one, and the whole backend with PyTorch on the CPU, if it is there."""  # noqa: E501

import ctypes
from types import SimpleNamespace

import pytest
from support.fake_gpu import CALL_NS, FakeCuda

from archsim.specs.library import load_model
from calibration.measure import stopwatch
from calibration.measure.backend import MeasureError, PointError
from calibration.measure.points import PLANS
from calibration.measure.stopwatch import REPEATS, Stopwatch
from calibration.measure.torch_backend import TorchBackend, _rank_of_balanced


@pytest.fixture
def cuda(monkeypatch):
    cuda = FakeCuda(gpus=2)
    clock = SimpleNamespace(perf_counter=cuda.clock_s, monotonic=cuda.clock_s)
    monkeypatch.setattr(stopwatch, "time", clock)
    monkeypatch.setattr(stopwatch, "_smi_process", lambda query, gpu: None)
    return cuda


@pytest.fixture
def watch(cuda):
    return Stopwatch(SimpleNamespace(cuda=cuda), "0")


class TestStopwatch:
    @pytest.mark.parametrize("ns", (700.0, 2000.0, 40_000.0, 3e6))
    def test_a_slow_host_does_not_show(self, cuda, watch, ns):
        """The host takes 5 us for a call, whatever the GPU takes."""
        times = watch.graph_us(lambda i: cuda.busy(ns), 3)
        assert times == pytest.approx([ns / 1e3] * REPEATS, rel=1e-9)
        stream = cuda.Stream()
        times = watch.streams_us([(stream, lambda i: cuda.busy(ns, stream))])
        assert times == pytest.approx([ns / 1e3] * REPEATS, rel=1e-9)

    def test_two_streams_at_once_take_as_long_as_the_slower_one(self, cuda, watch):
        first, second = cuda.Stream(0), cuda.Stream(1)
        ways = [(first, lambda i: cuda.busy(3000.0, first)), (second, lambda i: cuda.busy(8000.0, second))]
        assert watch.streams_us(ways) == pytest.approx([8.0] * REPEATS, rel=0.01)

    def test_launches_as_fast_as_the_host_can(self, cuda, watch):
        times = watch.host_bound_us(lambda i: cuda.busy(100.0), 1000)
        assert times == pytest.approx([CALL_NS / 1e3] * REPEATS, rel=1e-3)

    def test_launch_and_wait(self, cuda, watch):
        def call(i):
            cuda.busy(100.0)
            cuda.synchronize()

        assert watch.waited_us(call) == pytest.approx([CALL_NS / 1e3 + 0.1] * REPEATS)

    @pytest.mark.parametrize("cycle", (1, 7, 64))
    def test_a_graph_holds_whole_cycles(self, cuda, watch, cycle):
        """Each operand is used as often as the others."""
        captured = []

        def call(i):
            if cuda.capture is not None:
                captured.append(i % cycle)
            cuda.busy(1000.0)

        watch.graph_us(call, cycle)
        assert {captured.count(k) for k in range(cycle)} == {len(captured) // cycle} and len(captured) >= 1000 - cycle

    def test_clocks_are_read_while_the_gpu_works(self, cuda, watch, monkeypatch):
        class Smi:
            returncode = 0
            polls = 3

            def poll(self):
                self.polls -= 1
                return 0 if self.polls < 0 else None

            def communicate(self, timeout):
                return "1980, 2619, [N/A]\n", None

        monkeypatch.setattr(stopwatch, "_smi_process", lambda query, gpu: Smi())
        calls = []
        watch.host_bound_us(lambda i: (calls.append(i), cuda.busy(100.0)), 10)
        assert watch.clocks == {"sm_clock_mhz": "1980", "mem_clock_mhz": "2619"}
        assert len(calls) == 10 * (REPEATS + 3 + 3)


class FakeDriver:
    """Copies memory of the host; kernels do nothing."""

    def __init__(self, cuda):
        self.cuda = cuda

    def copy(self, target, origin, size_bytes, stream):
        def start():
            ctypes.memmove(target, origin, size_bytes)
            self.cuda.busy(1000.0 + size_bytes / 300)

        return start

    def touch(self, cells, count, stream):
        return lambda: self.cuda.busy(1000.0)

    def wait(self, stream):
        self.cuda.synchronize()


@pytest.fixture
def backend(cuda, monkeypatch):
    """TorchBackend with tensors on the CPU; every function that PyTorch calls takes the made-up GPU a microsecond."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.overrides import TorchFunctionMode

    class OnHost(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            keywords = dict(keywords or {})
            if str(keywords.get("device", "")).startswith("cuda"):
                keywords["device"] = "cpu"
            keywords.pop("pin_memory", None)
            cuda.busy(1000.0)
            return function(*arguments, **keywords)

    for name in ("Stream", "stream", "Event", "CUDAGraph", "graph", "synchronize", "_sleep"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, L2_cache_size=2**15, uuid="0-1")
    replaced = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "get_device_properties": lambda gpu: properties,
        "mem_get_info": lambda gpu: (2**24, 2**24),
        "can_device_access_peer": lambda src, dst: True,
        "empty_cache": lambda: None,
    }
    for name, function in replaced.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr("calibration.measure.driver.Driver", lambda: FakeDriver(cuda))
    with OnHost():
        yield TorchBackend()


SMALL = {
    "gemm": lambda point: point["m"] in (1, 129),
    "moe": lambda point: point["tokens_total"] in (1, 16),
    "p2p": lambda point: point["bytes"] <= 2**14,
    "hostpath": lambda point: point["bytes"] <= 2**8,
    "launch": lambda point: point["kernel_bytes"] <= 2**16,
    "memory": lambda point: point["working_set_bytes"] <= 2**20 and point["op"] != "chase",
}


class TestBackendOnTheCpu:
    @pytest.mark.parametrize("kind", PLANS)
    def test_every_kind_of_point_runs(self, backend, monkeypatch, kind):
        monkeypatch.setattr(stopwatch, "MOST_CALLS", 4)
        monkeypatch.setattr(stopwatch, "MOST_STREAM_CALLS", 4)
        models = [load_model("olmoe-1b-7b").model_copy(update={"hidden": 64, "expert_ffn": 32})]
        points = [point for point in PLANS[kind](models, 2) if SMALL[kind](point)]
        assert len(points) >= 2
        for point in points:
            timing = backend.time(kind, point)
            assert (
                0 < timing.p10_us <= timing.median_us * 1.0001 <= timing.p90_us * 1.0002 and timing.repeats == REPEATS
            )

    def test_a_point_that_fails_is_told_and_the_next_is_measured(self, backend, monkeypatch):
        point = {"kind": "stream", "kernel_bytes": 8}
        for error in (RuntimeError(""), ValueError("two\nlines"), TypeError("no such argument"), MemoryError()):
            with monkeypatch.context() as broken:
                broken.setattr(backend, "_time_launch", lambda point, error=error: (_ for _ in ()).throw(error))
                with pytest.raises(PointError, match=type(error).__name__):
                    backend.time("launch", point)
        assert backend.time("launch", point).median_us > 0

    def test_a_gpu_that_is_lost_ends_the_session(self, backend, monkeypatch):
        torch = backend._torch
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: 700")))
        with pytest.raises(MeasureError, match=r"launch kind=stream kernel_bytes=8: CUDA error: 700; this process"):
            backend.time("launch", {"kind": "stream", "kernel_bytes": 8})

    def test_weights_that_do_not_fit_are_left_out(self, backend):
        point = {"dtype": "bf16", "m": 1, "n": 28672, "k": 8192}
        with pytest.raises(PointError, match="not enough memory on the GPU"):
            backend.time("gemm", point)

    def test_copies_arrive(self, backend):
        torch = backend._torch
        origin, target = torch.arange(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8)
        stream, start = backend._way(target, origin, torch.cuda.Stream())
        start(0)
        assert torch.equal(origin, target)


def test_balanced_ranks_have_their_share():
    """As the fits take it (archsim.laws.moe): pairs = tokens top_k / EP, on as many experts as there are pairs."""  # noqa: E501
    for experts, top_k, ep in ((256, 8, 8), (256, 8, 32), (128, 1, 128), (64, 8, 8)):
        fewest = max(1, ep // top_k)  # tokens of all ranks: from a pair a rank on
        for total in (fewest * 2**i for i in range(5)):
            point = {"experts": experts, "top_k": top_k, "ep": ep, "tokens_total": total, "tokens_seen": "received"}
            tokens, rows, ends = _rank_of_balanced(point)
            every, same, _ = _rank_of_balanced(point | {"tokens_seen": "group"})
            assert every == total and max(same) < total and len(set(same)) == tokens
            active = sum(end > begin for begin, end in zip([0, *ends], ends, strict=False))
            assert len(rows) == ends[-1] == total * top_k // ep
            assert active == min(experts // ep, len(rows)) and len(set(rows)) == tokens
