"""How much more often experts of two layers follow each other than chance has it."""

from archsim.base.compiled import allocating


@allocating
def path_density(before, chosen, offsets, paths, out):
    """Fill out float32[token · k]: the probability of a layer's selections by paths from the layer before.

    before, chosen: int64[token, k]; paths: int64[expert, expert], without the request's own while it is looked at.
    """
    top_k = chosen.shape[1]
    of_expert = paths.sum(axis=1)
    for request in range(len(offsets) - 1):
        rows = (offsets[request], offsets[request + 1])
        _add_pairs(before, chosen, rows, -1, paths, of_expert)
        for row in range(rows[0], rows[1]):
            for rank in range(top_k):
                density = 0.0
                for parent in before[row]:
                    if of_expert[parent] > 0:
                        density += paths[parent, chosen[row, rank]] / of_expert[parent]
                out[row * top_k + rank] = density / top_k
        _add_pairs(before, chosen, rows, 1, paths, of_expert)


@allocating
def _add_pairs(before, chosen, rows, sign, paths, of_expert):
    for row in range(rows[0], rows[1]):
        for one in before[row]:
            for other in chosen[row]:
                paths[one, other] += sign
                of_expert[one] += sign
