"""The optimum of a tiny step by trying every allocation: which die runs each single token.

It knows nothing of programmes or multipliers: for every expert it lists all ways to hand its tokens out, adds up what
each loads in plain loops over routes, and takes the best of all combinations.
"""

import itertools

import numpy as np


def best_time(
    tokens_at, home, token_ns, read_ns, fetch_ns, vector_ns, moved_ns, route, dies, links, floor, copied, cached
):
    """Least over all allocations of the fullest resource, ns.

    tokens_at[expert][die]: tokens that live there; copied, cached[expert]: sets of (die, slice) in an HBM and in an
    LLC; route(src, dst): links; fetch_ns, moved_ns: a slice and a hidden vector on one link; floor: float64[resource],
    HBMs first, then arrays, then links.
    """
    totals = np.array([floor])
    for expert, at in enumerate(tokens_at):
        options = np.unique(
            [
                _load(
                    expert,
                    given,
                    home,
                    token_ns,
                    read_ns,
                    fetch_ns,
                    vector_ns,
                    moved_ns,
                    route,
                    dies,
                    links,
                    copied,
                    cached,
                )
                for given in _ways(at, dies)
            ],
            axis=0,
        )
        totals = (totals[:, None] + options[None]).reshape(-1, totals.shape[1])
        totals = np.unique(totals.round(6), axis=0)
    return totals.max(axis=1).min()


def _ways(at, dies):
    """All matrices tokens[lives][runs] that hand out each token once."""
    rows = [[each for each in itertools.product(range(count + 1), repeat=dies) if sum(each) == count] for count in at]
    return itertools.product(*rows)


def _load(expert, given, home, token_ns, read_ns, fetch_ns, vector_ns, moved_ns, route, dies, links, copied, cached):
    load, source, asked = np.zeros(2 * dies + links), home[expert], set()
    for runs in range(dies):
        count = sum(row[runs] for row in given)
        if count == 0:
            continue
        load[dies + runs] += count * token_ns[expert]
        for part in range(3):
            if (runs, part) in cached[expert]:
                continue
            if runs == source or (runs, part) not in copied[expert]:
                if (source, part) not in cached[expert]:
                    asked.add(part)
                for link in route(source, runs):
                    load[2 * dies + link] += fetch_ns
            else:
                load[runs] += read_ns
        for lives, row in enumerate(given):
            if lives != runs:
                load[runs] += 2 * row[runs] * vector_ns
                for link in [*route(lives, runs), *route(runs, lives)]:
                    load[2 * dies + link] += row[runs] * moved_ns
    load[source] += len(asked) * read_ns
    return load
