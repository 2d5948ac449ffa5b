# ruff: noqa: E501  (one row a case: a table is read across)
"""A valid experiment, and every change of one place in it that is refused, with the exact message."""

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
    "(known: a100_cluster, a30_node, b200_node, b300_node, cloudmatrix384, dojo, dojo_enhanced, dojo_x4, gb200_nvl72, "
    "gb300_nvl72, h100_cluster, h100_node, h200_cluster, h200_node, h20_cluster, h800_cluster, isca26_dojo, "
    "isca26_tsmc_sow, mi355x_node, rtx_pro_6000_pair, sow_x, tsmc_sow, v100_node, vr_nvl144; or the path of a YAML "
    "file, or a mapping)"
)
PRESET_NAMES = (
    "(known: base, ep, allo, allo-paper, allo-charged, allo-lp, pred, allo+pred, eplb, lplb, eplb+lplb, waterfill, "
    "eplb+waterfill, craft, lina, libra, harmoeny, capacity_drop, capacity_reroute, expert_drop, remap, dup; "
)
KNOWN_PRESETS = f"{PRESET_NAMES}or a mapping)"

# (what is replaced in GOOD, by what, the message after "bad.yaml:")
CHANGED = {
    "unknown key": ("bandwidth: 1 TB/s", "bandwith: 1 TB/s", "10: systems.0.d2d.bandwith: unknown key; did you mean 'bandwidth'?"),
    "unknown key at the top": ("engine: event", "engin: event", "29: engin: unknown key; did you mean 'engine'?"),
    "unknown key like no other": (
        "engine: event",
        "zzz: event",
        "29: zzz: unknown key (known: name, systems, models, workload, policies, assumptions, engine, parallel, "
        "precision, columns, details)",
    ),
    "attribute name instead of key": ("bandwidth: 1 TB/s", "bandwidth_bytes_per_s: 1 TB/s", "10: systems.0.d2d.bandwidth_bytes_per_s: unknown key; did you mean 'bandwidth'?"),
    "duplicate key": ("x: 2, y: 3", "x: 2, x: 3", "5: systems.0.mesh.x: duplicate key; first given in line 5"),
    "missing key": ("  mesh: {x: 2, y: 3}\n", "", "3: systems.0.mesh: required key is missing; expected mesh: {x: 5, y: 5}, or fabric: {levels: [{switch: 8, ...}]}"),
    "missing workload": ("workload:", "manifest:", "1: workload: required key is missing"),
    "wrong dimension": ("bandwidth: 1 TB/s", "bandwidth: 200 ns", "10: systems.0.d2d.bandwidth: '200 ns' is a time; expected a bandwidth such as '3.35 TB/s'"),
    "no unit": ("capacity: 80 GB", "capacity: 80", "8: systems.0.hbm.capacity: 80 has no unit; expected a size such as '80 GB'"),
    "no unit, as text": ("capacity: 80 GB", "capacity: '80'", "8: systems.0.hbm.capacity: '80' has no unit; expected a size such as '80 GB'"),
    "unknown unit": (
        "peak: 1000 TFLOP/s",
        "peak: 1000 TFLOPS",
        "12: systems.0.compute.peak: '1000 TFLOPS': unknown unit 'TFLOPS'; "
        "expected a compute rate such as '989 TFLOP/s'; did you mean 'TFLOP/s'?",
    ),
    "no quantity": ("capacity: 80 GB", "capacity: plenty", "8: systems.0.hbm.capacity: 'plenty' is not a number with a unit; expected a size such as '80 GB'"),
    "quantity as a list": ("capacity: 80 GB", "capacity: [80 GB]", "8: systems.0.hbm.capacity: expected a size such as '80 GB', not a list"),
    "negative": ("capacity: 80 GB", "capacity: -80 GB", "8: systems.0.hbm.capacity: must be positive, not '-80 GB'"),
    "zero": ("bandwidth: 1 TB/s", "bandwidth: 0 TB/s", "10: systems.0.d2d.bandwidth: must be positive, not '0 TB/s'"),
    "absurd": ("bandwidth: 1 TB/s", "bandwidth: 3350 TB/s", "10: systems.0.d2d.bandwidth: '3350 TB/s' is not plausible for a bandwidth here; expected 1 GB/s to 1 PB/s"),
    "absurd time": (
        "bandwidth: 1 TB/s",
        "bandwidth: 1 TB/s\n    hop_latency: 200 s",
        "11: systems.0.d2d.hop_latency: '200 s' is not plausible for a time here; expected 1e-6 ns to 1 ms",
    ),
    "part of a byte": ("capacity: 80 GB", "capacity: 1234567.8 B", "8: systems.0.hbm.capacity: '1234567.8 B' is not a whole number of bytes"),
    "not a number": ("capacity: 80 GB", "capacity: .nan", "8: systems.0.hbm.capacity: '.nan' is not a number with a unit; expected a size such as '80 GB'"),
    "infinite": ("capacity: 80 GB", "capacity: .inf GB", "8: systems.0.hbm.capacity: '.inf GB' is not a number with a unit; expected a size such as '80 GB'"),
    "efficiency above one": ("capacity: 80 GB", "capacity: 80 GB\n    efficiency: 110 %", "9: systems.0.hbm.efficiency: '110 %' is not at least 0.0001 and at most 1"),
    "efficiency of a dead part": ("capacity: 80 GB", "capacity: 80 GB\n    efficiency: 1e-300", "9: systems.0.hbm.efficiency: 1e-300 is not at least 0.0001 and at most 1"),
    "all HBM reserved": ("capacity: 80 GB", "capacity: 80 GB\n    reserved: 1", "9: systems.0.hbm.reserved: 1 is not at least 0 and below 1"),
    "no dies": ("x: 2", "x: 0", "5: systems.0.mesh.x: 0 is out of range; expected 1 to 64"),
    "octal": ("x: 2", "x: 017", "5: systems.0.mesh.x: expected an integer, not the text '017'"),
    "sexagesimal": ("x: 2", "x: 1:30", "5: systems.0.mesh.x: expected an integer, not the text '1:30'"),
    "truth as number": ("x: 2", "x: true", "5: systems.0.mesh.x: expected an integer, not true"),
    "part of a die": ("x: 2", "x: 2.5", "5: systems.0.mesh.x: expected an integer, not the number 2.5"),
    "mesh as text": ("mesh: {x: 2, y: 3}", "mesh: 2 by 3", "5: systems.0.mesh: expected two sides such as 5x5, or {x: 5, y: 5}, not '2 by 3'"),
    "unknown dtype": (
        "dtype: fp8",
        "dtype: fp18",
        "13: systems.0.compute.dtype: unknown value 'fp18'; did you mean 'fp8'? (valid: fp8, fp8_block, fp16, bf16, "
        "nvfp4, mxfp4, mxfp4_mxfp8, int4)",
    ),
    "number as name": ("name: tiny", "name: 7", "15: models.0.name: expected text, not the number 7; put it in quotes: '7'"),
    "name that is no file name": (
        "name: good",
        "name: ../up",
        "1: name: '../up' is not a name; names are letters, digits and . _ + - (they become file names), at most 80 "
        "of them, "
        "and begin with a letter or digit",
    ),
    "top-k above experts": ("top_k: 2", "top_k: 9", "22: models.0.top_k: 9 experts per token exceed the model's 8 experts"),
    "MoE layer out of range": ("last: 3", "last: 4", "18: models.0.moe_layers: last MoE layer 4 is out of range; a model of 4 layers has 0 to 3"),
    "MoE layers backwards": ("first: 1, last: 3", "first: 3, last: 1", "18: models.0.moe_layers.last: last layer 1 is before the first, 3"),
    "no experts": ("experts: 8", "experts: 0", "21: models.0.experts: 0 is out of range; expected 1 to 32767"),
    "batch 0": ("batch: [4, 8]", "batch: 0", "25: workload.batch: 0 is out of range; expected 1 to 10000000"),
    "batch 0 in a list": ("batch: [4, 8]", "batch: [4, 0]", "25: workload.batch.1: 0 is out of range; expected 1 to 10000000"),
    "no batch": ("batch: [4, 8]", "batch: []", "25: workload.batch: needs at least one item"),
    "batch twice": ("batch: [4, 8]", "batch: [4, 4]", "25: workload.batch: batch 4 is listed twice"),
    "no decode steps": ("decode_steps: 2", "decode_steps: 0", "26: workload.decode_steps: 0 is out of range; expected 1 to 32766"),
    "no such trace": (
        "trace: {synthetic: {prompt_tokens: 4}}",
        "trace: synthetic",
        "24: workload.trace: no such file or directory: 'synthetic' (searched *); "
        "for generated traffic, write {synthetic: {}}",
    ),
    "trace as number": ("trace: {synthetic: {prompt_tokens: 4}}", "trace: 5", "24: workload.trace: expected the path of a trace, or {synthetic: {...}}, not the number 5"),
    "unknown key of synthetic traffic": ("prompt_tokens: 4", "promt_tokens: 4", "24: workload.trace.synthetic.promt_tokens: unknown key; did you mean 'prompt_tokens'?"),
    "unknown kind of traffic": ("{synthetic: {prompt_tokens: 4}}", "{sinthetic: {prompt_tokens: 4}}", "24: workload.trace.sinthetic: unknown key; did you mean 'synthetic'?"),
    "probability above one": ("prompt_tokens: 4", "stickiness: 1.5", "24: workload.trace.synthetic.stickiness: 1.5 is out of range; expected 0 to 1"),
    "unknown policy": ("[base, allo]", "[base, alo]", f"27: policies.1: unknown policy 'alo'; did you mean 'allo'? {KNOWN_PRESETS}"),
    "policy twice": ("[base, allo]", "[base, base]", "27: policies: policy 'base' is listed twice"),
    "policy as text": ("[base, allo]", "base", "27: policies: expected a list, not the text 'base'; write [base]"),
    "unknown parameter": (
        "[base, allo]",
        "[{name: mine, preset: allo, allocation: {block_token: 64}}]",
        "27: policies.0.allocation.block_token: unknown parameter; did you mean 'block_tokens'?",
    ),
    "parameter out of range": (
        "[base, allo]",
        "[{name: mine, preset: allo, allocation: {block_tokens: 0}}]",
        "27: policies.0.allocation.block_tokens: 0 is out of range; expected 1 to 1e+09",
    ),
    "unknown rule": (
        "[base, allo]",
        "[{name: mine, preset: allo, allocation: isca}]",
        "27: policies.0.allocation.name: unknown allocation 'isca'; did you mean 'isca26'? "
        "(known: first_seen, home, isca26, paper, copy_aware, charged, lp, even, hashed, nearest, static, lplb, libra, "
        "harmoeny; or your own function as package.module:function)",
    ),
    "both ways to say how many": (
        "[base, allo]",
        "[{name: mine, preset: pred, prediction: {top_n: 4, top_fraction: 0.2}}]",
        "27: policies.0.prediction.top_n: give either top_fraction or top_n, not both",
    ),
    "unknown preset": ("[base, allo]", "[{name: mine, preset: al}]", f"27: policies.0.preset: unknown preset 'al'; did you mean 'allo'? {PRESET_NAMES}or no preset)"),
    "like an unknown system": (
        "- name: small\n",
        "- {like: dojoo, name: mine}\n- name: small\n",
        f"3: systems.0.like: unknown system 'dojoo'; did you mean 'dojo'? {KNOWN_SYSTEMS}",
    ),
    "like another without a name": ("- name: small\n", "- {like: dojo, mesh: {x: 2}}\n- name: small\n", "3: systems.0: needs its own name, as it changes system 'dojo'"),
    "wrong key under another system": ("- name: small\n", "- {like: dojo, name: mine, mesh: {z: 2}}\n- name: small\n", "3: systems.0.mesh.z: unknown key (known: x, y)"),
    "changed preset without a name": ("[base, allo]", "[{preset: pred, prediction: {top_n: 4}}]", "27: policies.0: needs its own name, as it changes prediction of preset 'pred'"),
    "module that is not there": (
        "[base, allo]",
        "[{name: mine, allocation: 'no_such_module:allocate'}]",
        "27: policies.0.allocation.name: cannot import module 'no_such_module': "
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "function that is not there": (
        "[base, allo]",
        "[{name: mine, allocation: 'os.path:joint'}]",
        "27: policies.0.allocation.name: module 'os.path' has no function 'joint'; did you mean 'join'?",
    ),
    "constant instead of a function": ("[base, allo]", "[{name: mine, allocation: 'os.path:sep'}]", "27: policies.0.allocation.name: 'os.path:sep' is not a function but str"),
    "unknown assumption set": (
        "assumptions: physical",
        "assumptions: phsyical",
        "28: assumptions: unknown assumption set 'phsyical'; did you mean 'physical'? "
        "(known: physical, published; or a mapping {set: ..., field: value})",
    ),
    "unknown assumption": ("assumptions: physical", "assumptions: {contentoin: shared}", "28: assumptions.contentoin: unknown key; did you mean 'contention'?"),
    "unknown value of an assumption": (
        "assumptions: physical",
        "assumptions: [published, {set: physical, contention: none}]",
        "28: assumptions.1.contention: unknown value 'none' (valid: shared, reserved)",
    ),
    "unknown value of gemm": (
        "assumptions: physical",
        "assumptions: {gemm: calibrate}",
        "28: assumptions.gemm: unknown value 'calibrate'; did you mean 'calibrated'? (valid: tables, roofline, "
        "calibrated, grouped)",
    ),
    "own set that leaves fields open": (
        "assumptions: physical",
        "assumptions: {set: mine, contention: shared}",
        "28: assumptions.set: unknown assumption set 'mine' (known: physical, published; your own set must give every "
        "field; "
        "missing: execution, arbitration, reads, capacity, memory, activations, dispatch, overlap, combine, "
        "transfer_software, decision_cost, heatmap_update, weights, llc, hops, source, gemm, numbering, order, tables, "
        "copy_writes, prediction_rows, migration, throughput, ties)",
    ),
    "assumptions twice": ("assumptions: physical", "assumptions: [physical, {set: physical, contention: shared}]", "28: assumptions: assumption set 'physical' is listed twice"),
    "unknown engine": ("engine: event", "engine: evnt", "29: engine: unknown value 'evnt'; did you mean 'event'? (valid: event, analytical, interpreted)"),
    "unclosed bracket": ("x: 2, y: 3}", "x: 2, y: 3", "6: invalid YAML: expected ',' or '}', but got ':'"),
    "tag": ("x: 2", "x: !!python/name:os.system 2", "5: systems.0.mesh.x: YAML tags are not supported: tag:yaml.org,2002:python/name:os.system"),
    "key that is a list": ("engine: event", "[a, b]: event", "29: a key must be text"),
    "two documents": ("engine: event", "engine: event\n---\nname: b", "30: invalid YAML: but found another document"),
    "tabs": ("engine: event", "engine:\n\tevent", "30: invalid YAML: found character '\\t' that cannot start any token"),
}
