"""Which links does a machine have, and which way does every message take?

Front: `topology.build_topology`, `fabric.Fabric`, `fabric.Graph`, `fabric.LinkClass`, `fabric.narrowest`,
    `grid.build_mesh`, `levels.build_levels`, `as_built.punch`, `extent.extent`, `described.build_own`.
Units and errors: Bandwidths are bytes per ns, latencies ns. A die that is cut off is `as_built.CutOff`.
Laws:
    INV-57. Maps without coordinates have a place for every node
       (test_maps_without_coordinates_have_a_place_for_every_node).
    INV-58. Every level has its own links and law (test_every_level_has_its_own_links_and_law).
Journey: `topology: torus` → `topology.build_topology` → edges and routes → `as_built.punch` takes dead parts away →
    `Fabric`.
"""
