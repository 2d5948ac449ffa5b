"""Random ``physical`` systems under a policy, with links as drawn or faster."""

from archsim.specs.library import load_assumptions
from archsim.specs.policies import PRESETS, PolicySpec
from support.random_points import changed, random_point

ROOM = 4  # times the HBM of the point, which fits under other assumptions


def run_ns(number: int, name: str, faster: float, **assumptions) -> float:
    """Time of all steps of point ``number`` on the event engine. ``name``: a preset, or an allocation; ``faster``: the
    factor on the bandwidth of links.
    """
    point = random_point(number, "shared")
    d2d, hbm = point.system.d2d, point.system.hbm
    links = {"bandwidth_bytes_per_s": d2d.bandwidth_bytes_per_s * faster}
    system = changed(point.system, {"d2d": links, "hbm": {"capacity_bytes": hbm.capacity_bytes * ROOM}})
    parts = PRESETS[name] if name in PRESETS else {**PRESETS["ep"], "allocation": name}
    policy = PolicySpec(name=name.replace(":", "-").replace(".", "-"), **parts)
    run = point._replace(system=system, policy=policy, assumptions=load_assumptions("physical", **assumptions)).run()
    return float(run.step_ns.sum())
