"""GPUs on a made-up clock: the host takes time for each call, streams do what is queued in order, events see the
GPU's time.

``FakeCuda`` has the corresponding part of ``torch.cuda``; ``busy`` queues work.
"""

from contextlib import contextmanager

NS_PER_CYCLE = 0.5
CALL_NS = 5000.0  # host time of one operation
GRAPH_NS = 100_000.0  # host time of a graph launch
EVENT_NS = 1000.0


class FakeStream:
    def __init__(self, cuda, device=0):
        self.cuda, self.device, self.cuda_stream, self.free_ns = cuda, device, 7 + device, 0.0

    def wait_stream(self, other):
        self.cuda.now_ns += EVENT_NS
        self.free_ns = max(self.free_ns, other.free_ns)

    def queue(self, ns):
        """The GPU starts once the host has issued the work and earlier work is done."""
        self.free_ns = max(self.free_ns, self.cuda.now_ns) + ns


class FakeCuda:
    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, gpus=1):
        self.now_ns, self.gpus = 0.0, gpus
        self.default = [FakeStream(self, gpu) for gpu in range(gpus)]
        self.current, self.capture, self.synchronized = self.default[0], None, 0

    def busy(self, ns, stream=None):
        """One operation of this GPU time."""
        if self.capture is not None:
            self.capture.append(ns)
            return
        self.now_ns += CALL_NS
        (stream or self.current).queue(ns)

    def Stream(self, device=0):
        return FakeStream(self, device)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def Event(self, enable_timing):
        return FakeEvent(self)

    def CUDAGraph(self):
        return FakeGraph(self)

    @contextmanager
    def graph(self, graph):
        self.capture = graph.nodes
        yield
        self.capture = None

    def synchronize(self, device=0):
        assert self.capture is None, "a capture may not wait"
        self.synchronized += 1
        self.now_ns = max(self.now_ns, self.current.free_ns, self.default[device].free_ns)

    def _sleep(self, cycles):
        assert isinstance(cycles, int)
        self.busy(cycles * NS_PER_CYCLE)

    def clock_s(self):
        return self.now_ns / 1e9


class FakeEvent:
    def __init__(self, cuda):
        self.cuda, self.at_ns = cuda, None

    def record(self):
        self.cuda.now_ns += EVENT_NS
        self.cuda.current.queue(0.0)
        self.at_ns = self.cuda.current.free_ns

    def synchronize(self):
        self.cuda.now_ns = max(self.cuda.now_ns, self.at_ns)

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


class FakeGraph:
    def __init__(self, cuda):
        self.cuda, self.nodes = cuda, []

    def replay(self):
        self.cuda.now_ns += GRAPH_NS
        self.cuda.current.queue(sum(self.nodes))
