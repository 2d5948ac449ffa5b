"""A valid experiment, and every change of one place in it that is refused, with the exact message."""

from pathlib import Path

import yaml

GOOD = """\
name: good
systems:
- name: small
  source: test
  mesh: {x: 2, y: 3}
  hbm:
    bandwidth: 2 TB/s
    capacity: 80 GB
  d2d:
    bandwidth: 1 TB/s
  compute:
    peak: 1000 TFLOP/s
    dtype: fp8
models:
- name: tiny
  source: test
  layers: 4
  moe_layers: {first: 1, last: 3}
  hidden: 64
  expert_ffn: 32
  experts: 8
  top_k: 2
workload:
  trace: {synthetic: {prompt_tokens: 4}}
  batch: [4, 8]
  decode_steps: 2
policies: [base, allo]
assumptions: physical
engine: event
"""

KNOWN_SYSTEMS = (
    "(known: a100_cluster, a30_node, b200_cluster, b200_node, b300_cluster, b300_node, blackhole_galaxy, "
    "blackhole_line8, blackhole_ring8, cloudmatrix384, dojo, dojo_enhanced, dojo_x4, gb200_nvl72, gb300_nvl72, "
    "h100_cluster, h100_node, h100_pcie_node, h200_cluster, h200_node, h20_cluster, h800_cluster, "
    "isca26_dojo, isca26_tsmc_sow, lpu576, mi300x_node, mi355x_node, rtx_pro_6000_pair, sow_x, tpu7x_2x2x4, tsmc_sow, "
    "v100_node, vr_nvl144, wse3, wse3_cluster; or the path of a YAML file, or a mapping)"
)
PRESET_NAMES = (
    "(known: base, ep, allo, allo-paper, allo-lp, pred, allo+pred, eplb, lplb, eplb+lplb, waterfill, "
    "eplb+waterfill, craft, lina, libra, harmoeny, capacity_drop, capacity_reroute, expert_drop, "
    "eplb_async, separate, affine, by_task, metro, remap, dup; "
)

# Name → (what is replaced in GOOD, by what, the message after "bad.yaml:").
_ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CHANGED = {
    name: (old, new, message.replace("<known systems>", KNOWN_SYSTEMS).replace("<known presets>", PRESET_NAMES))
    for name, old, new, message in _ROWS
}
