"""Slow and obvious: what a batch asks for, straight from the words of the rules. Lists and dictionaries only."""

from collections import defaultdict


def oracle_demand(trace, requests, decode_steps, dies):
    """Demand of a batch of requests of a Trace, as a list over steps of dictionaries.

    Each step: tokens {(layer, expert): n}, first_seen {layer: [experts]}, origins {(layer, die, expert): n} and heat
    {(layer, i, j): n}, the heatmap as of that step. Also has_prefill.
    """
    batch = [_iterations(trace, request) for request in requests]
    last = max((t for iterations in batch for t in iterations if t <= decode_steps), default=-1)
    steps = []
    heat = defaultdict(int)
    for t in range(last + 1):
        step = {"tokens": defaultdict(int), "first_seen": defaultdict(list), "origins": defaultdict(int)}
        for position, iterations in enumerate(batch):
            for row in iterations.get(t, []):
                for layer, chosen in enumerate(row):
                    for expert in chosen:
                        step["tokens"][layer, expert] += 1
                        step["origins"][layer, position * dies // len(batch), expert] += 1
                        if expert not in step["first_seen"][layer]:
                            step["first_seen"][layer].append(expert)
            for before, after in _pairs(iterations, t):
                for layer in range(len(before)):
                    for i in before[layer]:
                        for j in after[layer]:
                            heat[layer, i, j] += 1
        steps.append({**step, "heat": dict(heat)})
    prefills = [len(iterations[0]) for iterations in batch if iterations.get(0)]
    return steps, max(prefills, default=0) > 1


def oracle_top_fraction(counts, fraction):
    """The ⌈fraction·E⌉ last of the ascending order by (count, id). fraction: a fractions.Fraction."""
    keep = -(-len(counts) * fraction.numerator // fraction.denominator)
    return set(sorted(range(len(counts)), key=lambda e: (counts[e], e))[-keep:])


def oracle_top_positive(counts, n):
    """The n largest counts above zero; the lowest id wins ties."""
    positive = [e for e in range(len(counts)) if counts[e] > 0]
    return set(sorted(positive, key=lambda e: (-counts[e], e))[:n])


def _iterations(trace, request):
    """{iteration: [row, ...]} of one request; a row is a list over layers of lists of expert ids."""
    rows = defaultdict(list)
    for token in range(trace.request_offsets[request], trace.request_offsets[request + 1]):
        rows[int(trace.iteration[token])].append(trace.experts[token].tolist())
    return rows


def _pairs(iterations, t):
    """Pairs (token, next token) that iteration t adds to the heatmap."""
    if t == 0:
        return list(zip(iterations.get(0, []), iterations.get(0, [])[1:], strict=False))
    if t == 1 or not iterations.get(t) or not iterations.get(t - 1):
        return []
    return [(iterations[t - 1][0], iterations[t][0])]
