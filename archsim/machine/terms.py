"""Terms that architects write in a machine's file and that are no keys where they stand: what to write instead.

A term that is modelled has the key that says it; one that is not modelled has a sentence on the nearest that is. A key
of the place itself always comes first, so that a term here never hides one.
"""

# ruff: noqa: E501  (one row a term: a table is read across)

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MADE = "write the die's made: {node: n5, area: 814 mm2, pieces: 1, carrier: package}"
_RATE = "write the effective rate: d2d.bandwidth (each direction) times d2d.efficiency"
_MEMORY = "a memory is a tier: memory: [{kind: sram, capacity: 500 MB, bandwidth: 20 TB/s, keeps: [weights, kv, activations]}]"
_DEFECTS = "write drawn: {defects_per_cm2: 0.1, cluster: 2}, for price the coefficient defects_per_cm2 of `archsim hardware cost`"
_DRAM = "the controller's and banks' work is not modelled cycle by cycle; write its effect: hbm.efficiency (share of the bandwidth that reads reach) and hbm.latency"
_CORE = "a die is one array: write its rate as compute.peak, and what its kernels lose as compute.efficiency or a calibration"
_CACHE = "caches below the LLC are part of the measured kernels; write llc.capacity and llc.hit"
_LLC = "the LLC's bandwidth is no separate limit, and it is private to its die; write the lower of the two as hbm.bandwidth, and a shared LLC as its share of each die"
_POWER = "write power: {limit: 17 kW, die_limit: 600 W}; the clock falls where it is exceeded"
_VOLTAGE = "clock and voltage are one domain for arrays and LLC, HBM and links keep theirs; write power.die_limit, and a slower array as compute.peak"
_PDN = "loss between the board's supply and the die is not modelled; write power.limit as what reaches the dies"
_TEST = "test is a share of the price of a die (coefficient test_share) and takes no area; add its area to made.area"
_OPTICS = "light is a link with its own rate and latency: topology links, or a level of fabric: {levels: [{switch: 8, bandwidth: 900 GB/s, hop_latency: 0.3 us}]}; lasers and their power are not modelled"
_STITCH = "a piece is at most one reticle and fields are not stitched; write made.pieces, or a wafer that is not cut as made.carrier: monolithic"
_ROUTER = (
    "routers are links with a latency: d2d.hop_latency; how packets meet is the assumption contention and arbitration"
)
_FABRIC = "write topology: mesh, torus, ring or your own edges, or fabric: {levels: [...]}"
_HOST = "decision: {executor: fsm} decides without a host, executor: host on it; its link is decision.host.pcie_bandwidth and pcie_latency, and in serving the host is engine.host"
_SRAM = "more SRAM of a die is llc.capacity: 256 MiB; SRAM that holds the weights in place of HBM is hbm: {kind: sram, capacity: 1 GB, bandwidth: 80 TB/s}"
_HEAT = "write cooling: {coolant: 30 C, resistance: 0.15 K/W per die, lateral: silicon}; the resistance is of all layers from junction to coolant"
_PRICE = "price follows from area, memory and carrier; change a coefficient: `archsim hardware cost FILE --coefficient wafer_usd=20000`"
_DTYPE = "one dtype is the array's: compute: {dtype: fp8, peak: ...}; serving has precision: {products: ..., experts: ..., kv: ...}"

_ROWS: tuple[tuple[str, str], ...] = (
    ("node process process_node technology_node tech_node tech area die_area die_size pieces chiplets tiles reticles dies_per_package package packaging interposer cowos emib foveros soic rdl rdl_layers bridge underfill wafers wafer_count carrier io_dies io_die base_die technology fab foundry transistors transistor_count chiplet chiplet_size stacked_dies 3d", _MADE),
    ("stitching reticle reticle_limit field_size field_stitching wafer_scale_stitching", _STITCH),
    ("yield yield_model defect_density defects defects_per_cm2 d0 alpha cluster clustering", _DEFECTS),
    ("dead_links weak_links slow_links failed_links dead_ports weak_ports", "write links_as_built: {dead: [[7, 8]], degraded: [{link: [3, 4], bandwidth: 50 %}]}; [3, level 0] is the port of die 3 to its switch"),
    ("redundancy spare spare_cores dead_cores repair", "write spares: {rows: 1} of dies, or dies_as_built: {harvest: {cores: 128, needed: 112}} of cores"),
    ("tsv microbump bump_pitch bonding hybrid_bonding bond_yield bond_loss", "bonds are counted by die, stack and piece and lost by the coefficient bond_loss; drawn: {bond_failure: 0.14 %} samples them; their pitch is in the link's rate, d2d.bandwidth"),
    ("sram scratchpad sram_mb sram_capacity", f"{_SRAM}; beside HBM, {_MEMORY}"),
    ("hbm", f"a generation of HBM is its rates: write hbm.bandwidth and hbm.capacity, and hbm.kind for its price and energy; {_SRAM}"),
    ("local_memory ddr ddr5 gddr gddr6 gddr7 lpddr lpddr5 lpddr5x cxl dram hbm3 hbm3e hbm4 hbm2e memories tiers memory_tiers weight_memory kv_memory activation_memory offload_memory", _MEMORY),
    ("hbm_kind memory_kind type generation", "write hbm: {kind: hbm3e}; kinds are hbm2e, hbm3, hbm3e, hbm4, gddr7, lpddr5x, cxl and sram"),
    ("stacks hbm_stacks stack_count", "write hbm.stacks_on_carrier for area and price; capacity and bandwidth are those of all stacks of a die"),
    ("stack_height channels pseudo_channels banks bank_groups row_buffer page_size page_policy trcd trp tfaw trefi trfc refresh refresh_interval scheduler queue_depth burst_length rcd cas tras timing timings read_write_turnaround turnaround retention hammer access access_granularity granularity prefetch reads writes sequential", _DRAM),
    ("ecc ecc_overhead on_die_ecc", "write capacity and bandwidth after ECC"),
    ("energy_per_bit pj_bit", "write hbm.pj_per_bit for the memory; of links and caches it is a coefficient: d2d_pj_per_bit, sram_pj_per_bit"),
    ("llc_bandwidth l2_bandwidth cache_bandwidth shared llc_sharing slices sharing bandwidth ports bytes_per_clock policy inclusive write_back partitioning", _LLC),
    ("l0 l1 l2 l1_cache shared_memory register_file registers line_size associativity replacement prefetcher mshr", _CACHE),
    ("cores core_count sms sm_count cus cu_count tensor_cores mxu systolic_array systolic pe pes dataflow simd warp_size threads sm tile_size vector_width l1_size warps occupancy issue_rate clock_mhz units alus macs mac pipeline vector scalar registers", _CORE),
    ("flops tops flop_per_s tflops throughput", "write compute.peak, dense, of the dtype: 1979 TFLOP/s"),
    ("sparsity structured_sparsity sparsity_2_4", "no multiplication is skipped; write the dense rate as compute.peak"),
    ("precision precisions dtypes formats fp4 fp8 bf16 int8 fp16 fp32 int4 peak_bf16 peak_fp8 precision_ratio accumulate accumulator", _DTYPE),
    ("frequency clock_ghz boost base_clock core_clock", "the array's clock is in compute.peak; compute.clock is that of the vector units"),
    ("guardband voltage vdd dvfs domains clock_domains power_domains p_states power_gating clock_gating", _VOLTAGE),
    ("tdp power_cap power_limit budget max_power board_power tdp_w power watts", _POWER),
    ("leakage static_power idle_power", "waiting draws idle_w_per_mm2 of a die's area, a coefficient of `archsim hardware cost`; its leakage doubles every leakage_doubles_k"),
    ("backside_power vrm vrm_loss pdn ir_drop decap conversion_loss psu", _PDN),
    ("pue facility", "the facility is not modelled; multiply power by its PUE"),
    ("dft scan bist jtag test kgd burn_in", _TEST),
    ("phy serdes lanes lane_rate gbps_per_lane pam4 ucie bow interface io_rate io symbol_rate clocking termination skew jitter eye swing crosstalk", _RATE),
    ("nvlink nvlink_bandwidth xgmi infinity_fabric ici infiniband ib roce ethernet scale_up scale_out", "links of GPUs are levels, the innermost first: fabric.levels.0.bandwidth, each direction of a GPU; of a wafer's dies, d2d.bandwidth"),
    ("fec ber crc parity retry link_retry error_rate", f"errors and their repair are an effective rate; {_RATE}, after FEC and retries, and its latency in d2d.hop_latency"),
    ("distance reach trace_length link_length", "energy of a link is d2d_pj_per_bit and the wire across a die; a longer link has its own latency in topology, or d2d.off_carrier"),
    ("optics optical photonics cpo silicon_photonics laser wavelengths", _OPTICS),
    ("router routers router_latency virtual_channels vcs buffers buffer_depth credits flit flit_size packet packet_size retry_buffer crossbar arbiter flow_control switching noc mtu", _ROUTER),
    ("links express_links torus ring bisection bisection_bandwidth interconnect network switch nvswitch nic nics radix topology hops degree fanout", _FABRIC),
    ("host cpu cpus pcie host_memory storage ssd nvme pcie_gen", _HOST),
    ("temperature thermal tim heatsink cold_plate pump fan immersion tj_max tjmax airflow warpage thermal_resistance junction coolant liquid_cooling hotspot thermal_limit heat ambient inlet dielectric microchannel vapor chamber lid tim2 throttle temp spreader", _HEAT),
    ("aging wear wear_leveling electromigration soft_errors seu mtbf reliability", "wear and soft errors are not modelled; what a lost die costs is `archsim why` with dies_as_built: {dead: [7]}"),
    ("security encryption tee", "encryption is not modelled; take its loss off d2d.efficiency and hbm.efficiency"),
    ("cost price bom usd wafer_cost wafer_price nre mask_cost margin", _PRICE),
    ("instructions isa isa_extensions compiler", "kernels are timed by fitted curves, not by instructions: a calibration has their measured times"),
    ("substrate bumps bond_pitch pitch bump bits_per_mm beachfront edge_density links_per_edge shoreline", "what has no room on the edge of a die is told by `archsim hardware cost`; write the rate of all links to a neighbour as d2d.bandwidth"),
    ("wafer_diameter wafer_size scribe scribe_line keep_out edge_exclusion", "a wafer has 300 mm and dies its whole area; what is lost to lines and edges is part of made.area"),
    ("binning bins variation process_variation speed_bins harvesting spare_dies dead_dies", "which dies are dead is dies_as_built.dead: [7, 12], how speeds differ dies_as_built.speed: {sigma: 3 %}, cores to spare dies_as_built.harvest: {cores: 128, needed: 112}; drawn: samples dead dies, spares: {rows: 1} replace them, and `archsim run FILE --die-dies 7` says what one costs"),
    ("stacked_dram v_cache cache l3 memory_pool unified_memory pim process_in_memory", f"{_MEMORY}; the LLC is llc: {{capacity: 64 MiB}}, and nothing computes in memory"),
    ("clock f_max turbo vf_curve", f"the clock of arrays is in compute.peak; compute.clock is that of the vector units; {_VOLTAGE}"),
    ("leakage_w sleep", "waiting draws idle_w_per_mm2 of a die's area, a coefficient of `archsim hardware cost`; nothing sleeps"),
    ("lifetime mttf fit_rate wearout", "wear is not modelled; what a lost die costs is `archsim run FILE --die-dies N`"),
    ("dma copy_engines dma_engines command_processor firmware barrier synchronization multicast", "what starts kernels and moves is launch: local_cp (the die itself) or gpu; how vectors move is the assumption dispatch"),
    ("reduction in_network_reduction sharp atomics", "collectives take the links' bytes; sums in switches are not modelled: write the level's bandwidth as what they leave"),
    ("tlb page_table address_translation coherence mmu", "dies have no shared addresses: a slice has a home, copies are found by the ATU (decision.atu_entries); write a slower read as hbm.latency"),
    ("link_width width lanes_per_link bandwidth_per_link gbps speed modulation protocol bidirectional replay credit ualink", f"{_RATE}, of all lanes and links to a neighbour"),
    ("link_efficiency", "write d2d.efficiency"),
    ("latency latency_ns latency_per_hop read_latency", "write d2d.hop_latency (a hop), hbm.latency (a read) or llc.hit (a hit)"),
    ("router_area arbitration qos routing adaptive_routing", f"{_ROUTER}; routes follow the topology, shortest first, and go around dead links"),
    ("dies", "write their number as mesh: {x: 5, y: 5}, for topology: ring or switch as a line, mesh: {x: 12, y: 1}, or as fabric: {levels: [...]}"),
    ("stacks_per_die bandwidth_per_stack capacity_per_stack height", "write hbm.bandwidth and hbm.capacity of all stacks of a die, and hbm.stacks_on_carrier"),
    ("pins pin_speed data_rate bus_width controllers write_bandwidth", "write hbm.bandwidth, of all pins of a die, reads and writes together"),
    ("phy_area", "the PHY's area follows from hbm.bandwidth by the coefficient hbm_mm2_per_tb_per_s; the whole die's is made.area"),
    ("price_per_gb hbm_cost hbm_price memory_cost", "write hbm.usd_per_gb"),
    ("version", "write hbm: {kind: hbm3e}"),
    ("pj_per_bit energy pj_per_flop", "energies are coefficients (d2d_pj_per_bit, sram_pj_per_bit, flop_pj): `archsim hardware cost FILE --coefficient flop_pj=0.5`; the memory's is hbm.pj_per_bit"),
    ("size", "write capacity for bytes, and the die's area as made: {area: 814 mm2}"),
    ("utilization utilisation mfu efficiency_gemm", "what kernels lose follows from the calibration; a share of peak is compute.efficiency under gemm: roofline"),
    ("fin_pitch gate_pitch metal_pitch track_height std_cell cell_library finfet gaa nanosheet euv bspdn mim_cap sram_bitcell panel glass mask masks", "a node has one area, energy and price for all that is in it: write made: {node: n5, area: 814 mm2}"),
    ("power_density heat_flux current edp rails vmin vmax bias", f"densities and currents follow from load and area, and are no limits; {_POWER}"),
    ("memory_bandwidth memory_capacity memory_size memory_latency", "write hbm.bandwidth, hbm.capacity and hbm.latency"),
    ("dynamic_power io_power phy_power hbm_power activity toggle activity_factor toggle_rate", "power follows from work by coefficients of `archsim hardware cost`: flop_pj, hbm_pj_per_bit, d2d_pj_per_bit, idle_w_per_mm2"),
    ("peak", "write compute.peak"),
    ("grid rows columns mesh_x mesh_y nodes gpus racks pods trays hosts", f"write mesh: {{x: 5, y: 5}}; {_FABRIC}"),
    ("cte bow stress", "mechanics of carriers are not modelled; their losses are the coefficient bond_loss"),
    ("spare_rows spare_columns spare_links", "write spares: {rows: 1}, {columns: 1} or {dies: 2}; links have no spares, and routes go around dead ones"),
    ("uptime availability mtbr checkpoint checkpoint_interval", "what a lost die costs is `archsim run FILE --die-dies N`; faults of engines are faults: in a file of `archsim serve`"),
    ("layers bonded hybrid_bonded", "write capacity and bandwidth of all stacks of a die; what stands on a carrier is stacks_on_carrier"),
    ("pj", "energies are coefficients: `archsim hardware cost FILE --coefficient d2d_pj_per_bit=0.5`; the memory's is hbm.pj_per_bit"),
    ("direction duplex per_direction", "d2d.bandwidth is that of each direction, and both run at once"),
    ("assoc miss_penalty write_policy eviction hit_rate mshrs", "hits follow from what is read, by slices or segments (assumption llc); write llc.capacity, ways, hit, miss and write"),
    ("density", "area follows from compute.peak by the coefficient compute_mm2_per_tflop_per_s; the whole die's is made.area"),
    ("", "it is not modelled. A machine is hbm, d2d, llc and compute of a die, mesh, topology or fabric, made, memory, power, cooling, spares and dies_as_built"),
)  # fmt: skip
TERMS: Mapping[str, str] = MappingProxyType({term: way for terms, way in _ROWS for term in terms.split() or [""]})
