"""Serving with lists and dictionaries, one request at a time: slow, obvious, and without a line of ``archsim.serving``.

It follows the rules as docs/serving.md states them: vLLM admits a prompt when all of it fits. SGLang runs prompts
alone, and admits one with room for it, for its output, and for a share of what others have to come. TensorRT-LLM
promises the blocks of whole outputs. Hash ids are of single KV blocks, those of an output after those of its prompt.
Times are integers in ns, so that events at the same time stay so.
"""

from dataclasses import dataclass, field

# Of an iteration, of a token, and of any decodes or any chunks of a rank.
BASE_NS, TOKEN_NS, ATTENTION_NS = 2_000_000, 10_000, 1


@dataclass(eq=False)
class Request:
    number: int
    arrival: float
    prompt: int
    output: int
    ids: list[int] = field(default_factory=list)
    made: int = 0
    computed: int = 0
    goal: int = 0  # tokens to compute before it decodes
    private: int = 0  # blocks
    held: list[int] = field(default_factory=list)  # of the cache, in order of the prompt
    seen: int = 0  # blocks of the prompt that were looked up or offered to the cache
    hit: int = 0
    preempted: int = 0
    scheduled: float = -1
    first: float = -1
    last: float = -1

    @property
    def asks(self) -> int:
        """Tokens that it would compute now."""
        return self.prompt + self.made - self.computed

    @property
    def is_prompt(self) -> bool:
        return self.computed < self.goal


class Rank:
    def __init__(self, rules: dict, blocks: int):
        self.rules, self.blocks = rules, blocks
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.holders: dict[int, int] = {}  # cached block → requests that hold it
        self.unheld: list[int] = []  # cached blocks that nobody holds; the one to evict first is first
        self.seen_waiting, self.since_look = 0, 0
        self.new: dict[Request, int] = {}

    # KV blocks

    def size(self, tokens: int) -> int:
        return -(-tokens // self.rules["block_tokens"])

    def free(self) -> int:
        return self.blocks - len(self.holders) - sum(each.private for each in self.running)

    def take(self, request: Request, tokens: int) -> bool:
        """Blocks for so many tokens of a running request."""
        more = max(self.size(tokens) - len(request.held) - request.private, 0)
        if more > self.free() + len(self.unheld):
            return False
        while more > self.free():
            del self.holders[self.unheld.pop(0)]
        request.private += more
        return True

    def leave(self, request: Request) -> None:
        """Give all blocks back; the end of a prompt is evicted first."""
        for block in reversed(request.held):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.unheld.append(block)
        request.held, request.private, request.seen = [], 0, 0
        self.running.remove(request)

    def shared(self, request: Request) -> list[int]:
        found = []
        for block in request.ids[: (request.prompt - 1) // self.rules["block_tokens"]]:
            if block not in self.holders:
                break
            found.append(block)
        return found if self.rules["prefix_caching"] else []

    def offer(self, request: Request) -> None:
        """Blocks that are full become cached, unless they are: of the prompt, and of an output that has ids."""
        full = request.computed // self.rules["block_tokens"]
        for block in request.ids[request.seen : full] if self.rules["prefix_caching"] else ():
            if block not in self.holders:
                self.holders[block] = 1
                request.held.append(block)
                request.private -= 1
        request.seen = max(request.seen, min(full, len(request.ids)))

    # Steps of a schedule

    def admit(self, now: float, budget: int, promised: int, whole: bool | str) -> int:
        """The first waiting request; 0: it waits. ``whole``: blocks of the ``prompt``, of the ``output`` besides, or of
        a ``clipped`` one.
        """
        request = self.waiting[0]
        shared = self.shared(request)
        start = len(shared) * self.rules["block_tokens"]
        left = request.prompt + request.made - start
        if left > budget and not self.rules["chunked_prefill"]:
            return 0
        new = min(left, budget)
        needed = start + new
        if whole == "prompt":
            needed = request.prompt + request.made
        if whole == "output":
            needed = request.prompt + request.output
        if whole == "clipped":  # SGLang keeps room for 4,096 tokens of an output at most
            needed = request.prompt + min(request.output, request.made + 4096)
        idle = sum(block in self.unheld for block in shared)
        if self.size(needed) - len(shared) + promised > self.free() + len(self.unheld) - idle:
            return 0
        self.waiting.pop(0)
        self.running.append(request)
        request.goal = request.prompt + request.made
        for block in shared:
            if not self.holders[block]:
                self.unheld.remove(block)
            self.holders[block] += 1
        request.held, request.seen, request.computed = list(shared), len(shared), start
        assert self.take(request, start + new)
        if request.scheduled < 0:
            request.scheduled = now
            request.hit = start
        self.new[request] = new
        return new

    def run_all(self, budget: int) -> int:
        """Running requests in order; who finds no block drives the last one out. The budget left; 0 after that."""
        drove_out = False
        for request in list(self.running):
            new = min(request.asks, budget)
            while new and request in self.running and not self.take(request, request.computed + new):
                last = self.running[-1]
                self.leave(last)
                last.computed = 0
                last.preempted += 1
                self.waiting.insert(0, last)
                self.seen_waiting += 1
                drove_out = True
            if new and request in self.running:
                self.new[request] = new
                budget -= new
        return 0 if drove_out else budget

    def schedule(self, now: float) -> None:
        self.new = {}
        if self.running or self.waiting:
            getattr(self, self.rules["name"])(now)

    def may_admit(self, budget: int) -> bool:
        return budget > 0 and bool(self.waiting) and len(self.running) < self.rules["max_num_seqs"]

    def vllm_v1(self, now: float) -> None:
        budget = self.run_all(self.rules["max_num_batched_tokens"])
        while self.may_admit(budget):
            new = self.admit(now, budget, 0, "prompt" if self.rules["reserve_full_isl"] else False)
            if not new:
                break
            budget -= new

    def sglang(self, now: float) -> None:
        budget = self.rules["max_num_batched_tokens"]
        if self.since_look >= self.rules["poll_every"] or not self.running:
            self.seen_waiting, self.since_look = len(self.waiting), 0
        kept = sum(self.size(int(self.rules["kept_share"] * min(each.output - each.made, 4096)))
                   for each in self.running)  # fmt: skip
        for request in self.running:
            new = min(request.asks, budget)
            if request.is_prompt and new and self.take(request, request.computed + new):
                self.new[request] = new
                budget -= new
        while self.may_admit(budget) and self.seen_waiting:
            later = min(self.waiting[0].output - self.waiting[0].made, 4096)
            new = self.admit(now, budget, kept, "clipped")
            if not new:
                break
            budget -= new
            kept += self.size(later)
            self.seen_waiting -= 1
        if self.new:
            self.since_look = self.rules["poll_every"]
        else:
            self.since_look += 1
            self.run_all(10**9)

    def trtllm(self, now: float) -> None:
        budget = self.rules["max_num_batched_tokens"]
        for request in self.running:
            new = min(request.asks, budget)
            if new and self.take(request, request.computed + new):
                self.new[request] = new
                budget -= new
        while self.may_admit(budget):
            promised = sum(
                self.size(each.prompt + each.output) - len(each.held) - each.private for each in self.running
            )
            new = self.admit(now, budget, promised, "output")
            if not new:
                break
            budget -= new

    def duration(self) -> int:
        """Of its part of an iteration. Kernels of batches that mix both take a chunk of one token for a decode."""
        decodes = [
            each for each in self.new
            if not each.is_prompt or (self.rules["name"] == "vllm_v1" and each.asks == 1 and each.computed)
        ]  # fmt: skip
        return (
            TOKEN_NS * sum(self.new.values())
            + ATTENTION_NS * bool(decodes)
            + ATTENTION_NS * (len(decodes) < len(self.new))
        )


def serve(rows, rules: dict, blocks: int, ranks: int, instances: int, clients: int = 0) -> list[Request]:
    """``rows``: (arrival ns, prompt, output, ids). Requests go to the rank that has fewest, from the last choice on."""
    requests = [Request(at, *row) for at, row in enumerate(rows)]
    engines = [[Rank(rules, blocks) for _ in range(ranks)] for _ in range(instances)]
    every = [rank for engine in engines for rank in engine]
    ends: dict[int, float] = {}
    to_come = [(each.arrival, each) for each in requests[: clients or None]]
    later = requests[clients:] if clients else []
    turn = 0
    while to_come or ends:
        now = min([arrival for arrival, _ in to_come[:1]] + list(ends.values()))
        while to_come and to_come[0][0] <= now:
            request = to_come.pop(0)[1]
            order = every[turn:] + every[:turn]
            rank = min(order, key=lambda each: len(each.waiting) + len(each.running))
            turn = (every.index(rank) + 1) % len(every)
            rank.waiting.append(request)
        for at in sorted(each for each, end in ends.items() if end <= now)[:1]:
            del ends[at]
            for rank in engines[at]:
                for request in list(rank.running):
                    _finish(rank, request, now)
                    if request.made == request.output:
                        rank.leave(request)
                        if later:
                            later[0].arrival = now
                            to_come.append((now, later.pop(0)))
        if min([arrival for arrival, _ in to_come[:1]] + list(ends.values()), default=now + 1) <= now:
            continue  # an arrival goes before the next end at the same time, and all go before iterations begin
        for at, engine in enumerate(engines):
            if at in ends:
                continue
            for rank in engine:
                rank.schedule(now)
            if any(rank.new for rank in engine):
                ends[at] = now + BASE_NS + max(rank.duration() for rank in engine)
    return requests


def _finish(rank: Rank, request: Request, now: float) -> None:
    """Count what a request has computed in the iteration that is over."""
    new = rank.new.get(request, 0)
    if not new:
        return
    request.computed += new
    rank.offer(request)
    if request.computed == request.prompt + request.made:
        request.made += 1
        request.last = now
        if request.made == 1:
            request.first = now
