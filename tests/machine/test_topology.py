"""Laws of topologies: links, routes, and what a run does with links of different classes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import sampled
from support.fabrics import TOPOLOGIES
from support.html_page import whole_report
from support.report_folder import die_row, link_row
from support.small_runs import scenario_of
from support.tiny import tiny

from archsim.base.errors import ArchsimError
from archsim.engine.machine import build_machine
from archsim.laws.wafer import Defects, Draw, good_cores, harvested_yield, unbonded, yield_of
from archsim.machine.built import as_built
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import sweep
from archsim.show.maps import MOST_LINKS, MappedRun, die_map
from archsim.show.page import write_report
from archsim.specs.library import load_experiment, load_planned
from microarch.fabric.fabric import link_rank, narrowest, per_route
from microarch.fabric.grid import build_mesh
from microarch.fabric.topology import BUILDERS, Edge, build_topology

SIDES = st.tuples(st.integers(1, 5), st.integers(1, 5))
NUMBERINGS = st.sampled_from(["row_major", "column_major"])


def tree_edges(dies: int) -> tuple[Edge, ...]:
    """A tree and a few more edges, with latencies."""
    rng = np.random.default_rng(dies)
    pairs = {(int(rng.integers(0, die)), die) for die in range(1, dies)}
    pairs |= {tuple(sorted(rng.choice(dies, 2, replace=False).tolist())) for _ in range(dies // 2) if dies > 1}
    return tuple(Edge(a, b, float(rng.integers(1, 9))) for a, b in sorted(pairs))


def built(name, sides, numbering="row_major"):
    return build_topology(name, *sides, numbering, tree_edges(sides[0] * sides[1]) if name == "edges" else ())


@given(name=st.sampled_from(sorted(BUILDERS)), sides=SIDES, numbering=NUMBERINGS)
def test_routes_lead_from_die_to_die_by_the_fewest_links(name, sides, numbering):
    mesh = built(name, sides, numbering)
    nodes = mesh.nodes
    assert nodes >= mesh.dies >= 1
    distance = np.full((nodes, nodes), nodes + 1)
    np.fill_diagonal(distance, 0)
    distance[mesh.link_src, mesh.link_dst] = 1
    for middle in range(nodes):  # Floyd and Warshall
        distance = np.minimum(distance, distance[:, middle, None] + distance[middle])
    for src in range(mesh.dies):
        for dst in range(mesh.dies):
            route = mesh.route(src, dst)
            stops = [src, *mesh.link_dst[route].tolist()]
            assert stops[:-1] == mesh.link_src[route].tolist() and stops[-1] == dst
            assert len(route) == distance[src, dst] and len(set(stops)) == len(stops)
            assert mesh.hops[src, dst] == sum(stop < mesh.dies for stop in stops[1:])


@given(name=st.sampled_from(sorted(BUILDERS)), sides=SIDES)
def test_every_link_has_one_the_other_way_on_the_same_edge(name, sides):
    mesh = built(name, sides)
    links = {
        (s, d): (e, c) for s, d, e, c in zip(mesh.link_src, mesh.link_dst, mesh.link_edge, mesh.link_class, strict=True)
    }
    assert len(links) == mesh.links == 2 * mesh.edges
    assert all(links[d, s] == own for (s, d), own in links.items())
    assert sorted(np.bincount(mesh.link_edge, minlength=mesh.edges)) == [2] * mesh.edges


@pytest.mark.parametrize("name", ["ring", "torus", "fully_connected", "edges"])
def test_two_dies_are_linked_alike_in_every_topology(name):
    two, plain = build_topology(name, 2, 1, "row_major", (Edge(0, 1, 1.0),)), build_mesh(2, 1)
    for array in ("hops", "link_src", "link_dst", "link_edge", "link_class", "route_ptr", "route_links"):
        assert np.array_equal(getattr(two, array), getattr(plain, array)), array


@given(sides=SIDES, numbering=NUMBERINGS)
def test_a_torus_is_never_longer_than_a_mesh_and_even_everywhere(sides, numbering):
    torus, mesh = built("torus", sides, numbering), built("mesh", sides, numbering)
    assert (torus.hops <= mesh.hops).all()
    assert len(set(torus.hops.sum(axis=1).tolist())) == 1  # no die is in the middle
    assert np.array_equal(torus.hops, torus.hops.T)
    small = max(sides) <= 2
    assert np.array_equal(torus.route_links, mesh.route_links) == (small or torus.links == mesh.links)


@given(dies=st.integers(2, 24))
def test_all_are_neighbours_where_all_are_connected(dies):
    others = ~np.eye(dies, dtype=bool)
    for name, links in (("fully_connected", dies * (dies - 1)), ("switch", 2 * dies)):
        mesh = build_topology(name, dies, 1, "row_major")
        assert mesh.links == links and (mesh.hops[others] == 1).all()
    ring = build_topology("ring", dies, 1, "row_major")
    assert ring.hops.max() == dies // 2 and ring.links == (2 if dies == 2 else 2 * dies)
    assert ring.link_dst[ring.route(0, dies // 2)][0] == 1, "half way round goes up"


def test_a_list_goes_by_links_then_latency_then_number():
    square = build_topology(
        "edges", 4, 1, "row_major", (Edge(0, 1, 5.0), Edge(1, 3, 5.0), Edge(0, 2, 5.0), Edge(2, 3, 1.0))
    )
    assert square.link_dst[square.route(0, 3)].tolist() == [2, 3]
    assert square.link_dst[square.route(1, 2)].tolist() == [3, 2]
    even = build_topology(
        "edges", 4, 1, "row_major", (Edge(0, 1, 1.0), Edge(1, 3, 1.0), Edge(0, 2, 1.0), Edge(2, 3, 1.0))
    )
    assert even.link_dst[even.route(0, 3)].tolist() == [1, 3]
    assert even.link_dst[even.route(1, 2)].tolist() == [0, 2]


@given(name=st.sampled_from(sorted(BUILDERS)), sides=SIDES, seed=st.integers(0, 99))
def test_properties_of_routes_are_those_of_their_links(name, sides, seed):
    mesh = built(name, sides)
    of_link = np.random.default_rng(seed).choice([0.1, 0.7, 3.0], mesh.links)
    total, least = per_route(mesh, of_link), narrowest(mesh, of_link, here=7.0)
    for src in range(mesh.dies):
        for dst in range(mesh.dies):
            own = of_link[mesh.route(src, dst)]
            assert total[src, dst] == pytest.approx(own.sum())
            assert least[src, dst] == own.min(initial=7.0 if src == dst else np.inf)
    assert np.array_equal(
        per_route(built("mesh", sides), np.full(built("mesh", sides).links, 0.1)), built("mesh", sides).hops * 0.1
    )


def test_an_order_of_links_rises_along_routes_or_is_refused():
    for name in ("mesh", "fully_connected", "switch"):
        mesh = built(name, (4, 3))
        rank = link_rank(mesh)
        assert all((np.diff(rank[mesh.route(s, d)]) > 0).all() for s in range(12) for d in range(12))
    for name in ("ring", "torus"):
        with pytest.raises(ValueError, match="cycle"):
            link_rank(built(name, (5, 3)))


def one_run(folder, topology, contention, *more):
    changes = [
        "systems=[{name: small, source: made up, mesh: 3x2, hbm: {bandwidth: 2 TB/s, capacity: 4 GB}, "
        f"d2d: {{bandwidth: 1 TB/s}}, compute: {{peak: 300 TFLOP/s, dtype: fp16}}, topology: {topology}}}]",
        "workload.batch=24",
        "policies=[allo+pred]",
        f"assumptions={{set: physical, contention: {contention}}}",
        *more,
    ]
    run = prepare(tiny(folder, *changes)).runs[0]
    return run, Simulator().replay(run)


@pytest.mark.parametrize("contention", ["shared", "reserved"])
def test_links_of_a_class_like_d2d_change_nothing(tmp_path, contention):
    like_d2d = "{bandwidth: 1 TB/s, hop_latency: 200 ns}"
    topology = f"{{name: mesh, horizontal: {like_d2d}, vertical: {like_d2d}}}"
    plain, same = (one_run(tmp_path, each, contention)[1].run() for each in ("mesh", topology))
    slower = one_run(tmp_path, "{name: mesh, vertical: {bandwidth: 100 GB/s, hop_latency: 2 us}}", contention)[1].run()
    assert np.array_equal(plain.step_ns, same.step_ns)
    assert slower.decode_ns > plain.decode_ns


def test_round_robin_is_refused_where_routes_go_in_a_circle(tmp_path):
    round_robin = "assumptions={set: physical, arbitration: round_robin}"
    experiment = tiny(tmp_path, "systems.0.topology=torus", "systems.0.mesh=5x1", round_robin)
    with pytest.raises(
        ArchsimError, match="small: arbitration: round_robin has no steady state on a fabric of 5 × 1 torus"
    ):
        sweep(experiment, tmp_path / "out", jobs=1)
    run, engine = one_run(tmp_path, "switch", "shared", "assumptions={set: physical, arbitration: round_robin}")
    assert engine.run().decode_ns > 0


def test_machines_of_a_topology_share_its_arrays(tmp_path):
    one, other = (tiny(tmp_path, "systems.0.topology=torus", f"systems.0.d2d.bandwidth={rate} TB/s") for rate in (1, 2))
    meshes = [
        build_machine(scenario_of(each.systems[0], each.models[0], each.policies[0], each.assumptions[0]))[1]
        for each in (one, other)
    ]
    for array in ("hops", "link_src", "route_ptr", "route_links"):
        assert getattr(meshes[0], array) is getattr(meshes[1], array)


def test_a_resolved_topology_is_read_back(tmp_path):
    for topology in (*TOPOLOGIES, "mesh"):
        system = tiny(tmp_path, f"systems.0.topology={topology}").systems[0]
        written = system.model_dump(mode="json", by_alias=True)
        assert type(system).model_validate(written, context={"from_yaml": True}) == system


def drawing(name, sides):
    mesh = built(name, sides)
    x, y = mesh.node_x.tolist(), mesh.node_y.tolist()
    dies = [die_row(die, x=x[die], y=y[die]) for die in range(mesh.dies)]
    links = [
        link_row(src, dst, src_x=x[src], src_y=y[src], dst_x=x[dst], dst_y=y[dst])
        for src, dst in zip(mesh.link_src.tolist(), mesh.link_dst.tolist(), strict=True)
    ]
    return mesh, die_map("map", [MappedRun({}, dies, links)])


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_topology_is_drawn(name):
    mesh, drawn = drawing(name, (4, 3))
    assert len(drawn.links) == mesh.links and len(drawn.rows) == mesh.dies
    assert len(drawn.switches) == len(mesh.node_x) - mesh.dies
    ends = {(each["x_at"], each["y_at"], each["x_to"], each["y_to"]) for each in drawn.links}
    assert len(ends) == mesh.links  # no link lies on another


def test_a_map_of_many_links_has_those_between_neighbours():
    mesh, drawn = drawing("fully_connected", (7, 6))
    assert mesh.links > MOST_LINKS and len(drawn.links) == build_mesh(7, 6).links


def test_a_report_names_topologies_and_draws_them(tmp_path):
    switch = "systems.1.topology=switch"
    classes = "systems.0.topology={name: mesh, vertical: {bandwidth: 300 GB/s}}"
    experiment = tiny(tmp_path, classes, switch, "workload.batch=12", "policies=[base]", "assumptions=physical")
    sweep(experiment, tmp_path / "out", jobs=1)
    write_report(tmp_path / "out")
    page = whole_report(tmp_path / "out")
    assert "<td>2 × 2, switch</td>" in page and "<td>3 × 2, mesh</td>" in page
    assert "not a die" in page  # the switch


# ---- What a system says of its dies and links as they are built: what counts, and what is refused, with its place.

EXPERIMENT = {
    "name": "as_built",
    "models": ["deepseek-v3"],
    "workload": {"trace": {"synthetic": {}}, "batch": [64], "context": 376},
    "policies": ["ep"],
}


def system(**keys):
    return load_experiment(EXPERIMENT | {"systems": [{"like": "dojo", "name": "wafer"} | keys]}).systems[0]


def test_nothing_written_is_nothing_stored():
    perfect = system()
    assert perfect.built is None and perfect.dies == perfect.sites == 25
    assert not {"dies_as_built", "links_as_built", "spares", "drawn"} & set(perfect.model_dump(by_alias=True))


def test_dead_dies_are_none_of_the_machine():
    found = system(dies_as_built={"dead": [7, 12]})
    assert (found.dies, found.sites, found.shape) == (23, 25, "23 dies of 5 × 5 mesh")
    assert 7 not in found.built.living and 12 not in found.built.living


def test_spare_rows_keep_the_shape_of_the_mesh():
    found = system(dies_as_built={"dead": [7]}, spares={"rows": 1})
    assert found.shape == "5 × 4 of 5 × 5 mesh" and found.built.sides == (5, 4)
    assert [found.built.living[row * 5 + 2] for row in range(4)] == [2, 12, 17, 22]  # column 2 has moved up
    assert [found.built.living[row * 5 + 1] for row in range(4)] == [1, 6, 11, 16]


def test_spare_dies_are_the_slowest():
    table = [[1.0, 1.0]] * 3 + [[0.9, 1.0]]
    found = system(dies_as_built={"speed": {"table": table}}, spares={"dies": 1})
    assert found.built.idle == (3,) and found.dies == 24


def test_a_table_of_speeds_is_read_and_kept(tmp_path):
    (tmp_path / "speeds.csv").write_text("die,speed,hbm\n0,97 %,1\n24,1.05,0.9\n")
    file = tmp_path / "wafer.yaml"
    file.write_text(
        "name: w\nsystems: [{like: dojo, name: w, dies_as_built: {speed: {table: speeds.csv}}}]\n"
        "models: [deepseek-v3]\nworkload: {trace: {synthetic: {}}, batch: [64], context: 376}\npolicies: [ep]\n"
    )
    built = load_experiment(file).systems[0].built
    assert (built.array[0], built.array[1], built.array[24], built.hbm[24]) == (0.97, 1.0, 1.05, 0.9)


def test_wafers_are_an_axis_and_equal_numbers_draw_equal_wafers():
    drawn = {"link_failure": "1 %", "wafers": 3}
    plan = load_planned(EXPERIMENT | {"systems": ["dojo", {"like": "dojo", "name": "wafer", "drawn": drawn}]})
    assert plan.combinations == 6
    assert [len({id(plan.point(at).system) for at in range(first, 6, 2)}) for first in (0, 1)] == [1, 3]


def test_more_defects_kill_more_dies_of_the_same_draw():
    def dead(density, **more):
        drawn = {"defects_per_cm2": density, "die_area": "600 mm2", "core_area": "400 mm2", "wafers": 2, "wafer": 1}
        return system(drawn=drawn, **more).built

    few, many = dead(0.1), dead(0.3)
    assert set(few.dead) < set(many.dead)
    harvested = dead(0.3, dies_as_built={"harvest": {"cores": 128, "needed": 112}})
    assert set(harvested.dead) < set(many.dead)
    assert min(harvested.array) < 1 and all(1 - 16 / 128 <= speed <= 1 for speed in harvested.array)


def test_the_yield_of_draws_is_that_of_the_price():
    plain = Defects(0.2, 2.0, 600.0)
    alive = good_cores(Draw(1, 0), 20_000, plain) > 0
    assert alive.mean() == pytest.approx(yield_of(600.0, 0.2, 2.0), abs=0.01)
    cored = Defects(0.2, 2.0, 600.0, 400.0, 64, 62)
    share = harvested_yield(600.0, 400.0, 0.2, 2.0, 64, 62)
    good = good_cores(Draw(1, 0), 20_000, cored)
    assert (good > 0).mean() == pytest.approx(share, abs=0.01)
    assert np.all((good == 0) | (good >= 62 / 64))
    assert harvested_yield(600.0, 400.0, 0.2, 2.0, 1, 1) == pytest.approx(yield_of(600.0, 0.2, 2.0), rel=1e-9)


@pytest.mark.parametrize("side", sampled([1, 2, 64], lambda side: side == 2))
def test_clusters_of_defects_across_dies_have_the_variance_of_their_closed_form(side):
    """Dies of a cluster die together: 25 dies vary by 6 without clusters, by 24 with one a wafer."""
    from archsim.laws.wafer import yield_of

    drawn = {"defects_per_cm2": 0.2, "die_area": "600 mm2", "core_area": "1 mm2", "wafers": 400, "cluster_side": side}
    drawn |= {"cluster": 1.0}
    made = system(mesh={"x": 6, "y": 6}, drawn=drawn)
    living = [
        as_built(made.model_copy(update={"drawn": made.drawn.model_copy(update={"wafer": wafer})})).living
        for wafer in range(400)
    ]
    # Given the rate, dies are independent: two of a cluster both live with the yield of a die of twice the area.
    one, both = (yield_of(area, 0.2, 1.0) for area in (600.0, 1200.0))
    mean, variance = 36 * one, 36 * (one * (1 - one) + (min(side, 6) ** 2 - 1) * (both - one**2))
    counts = np.array([len(each) for each in living])
    assert counts.mean() == pytest.approx(mean, abs=4 * (variance / 400) ** 0.5)
    assert counts.var() == pytest.approx(variance, rel=0.25)


def test_failed_bonds_are_dead_dies_that_routes_live_with():
    """As many as (1 - failing)^bonds says; more that fail kill more of the same draw, and no carrier is lost."""
    from archsim.runs.plan import with_areas
    from archsim.runs.prices import build_costs

    assert unbonded(Draw(0, 0), 20_000, 5, 0.02).mean() == pytest.approx(1 - 0.98**5, abs=0.01)
    few, many = (system(drawn={"bond_failure": share, "seed": 3}) for share in ("1 %", "6 %"))
    assert with_areas(few).drawn.bonds == 1 + 4  # a piece, and four stacks
    assert set(with_areas(few).built.dead) < set(with_areas(many).built.dead)
    assert build_costs(with_areas(few)).usd["bonding"] == 0 < build_costs(system()).usd["bonding"]
