"""Finish times of flows on a mesh the slow and obvious way, with the interpreter's max–min."""

from archsim.engine.interpreted.max_min import fair_rates


def xy_route(mesh, src, dst, port_limited):
    """Resources of a route as names, which have an order: links (from, to) in coordinates, and ports where they are
    limited.
    """
    x_dies, _ = mesh
    (x, y), (to_x, to_y) = (src % x_dies, src // x_dies), (dst % x_dies, dst // x_dies)
    route = [((src,), "in")] if port_limited else []
    while x != to_x:
        step = 1 if to_x > x else -1
        route.append(((x, y), (x + step, y)))
        x += step
    while y != to_y:
        step = 1 if to_y > y else -1
        route.append(((x, y), (x, y + step)))
        y += step
    return route + ([((dst,), "out")] if port_limited else [])


def finish_times(mesh, flows, link, hop_ns, port=None):
    """Finish times of (src, dst, size > 0, start) with src != dst; ``link`` and ``port`` in bytes/ns."""
    routes = [xy_route(mesh, src, dst, port is not None) for src, dst, _, _ in flows]
    capacity = {r: port if r[1] in ("in", "out") else link for route in routes for r in route}
    left = [float(size) for _, _, size, _ in flows]
    done = [None] * len(flows)
    now = 0.0
    while None in done:
        under_way = [i for i, (_, _, _, start) in enumerate(flows) if start <= now and done[i] is None]
        rates = fair_rates([routes[i] for i in under_way], capacity)
        ends = [now + left[i] / rate for i, rate in zip(under_way, rates, strict=True)]
        until = min(ends + [start for _, _, _, start in flows if start > now])
        for i, rate, end in zip(under_way, rates, ends, strict=True):
            left[i] -= rate * (until - now)
            if end <= until or left[i] <= 1e-12 * flows[i][2]:
                done[i] = end
        now = until
    hops = [abs(s % mesh[0] - d % mesh[0]) + abs(s // mesh[0] - d // mesh[0]) for s, d, _, _ in flows]
    return [end + h * hop_ns for end, h in zip(done, hops, strict=True)]
