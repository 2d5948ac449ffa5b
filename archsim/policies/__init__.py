"""Where do experts live, which die computes which pair, and what does deciding cost?

Front: `registry.build_policy`, `allocation.Plan`, `allocation.StepView`, `allocation.Effort`, `placement.Placement`,
    `heatmap.Predictor`, `eplb.eplb`, `remap.remap`, `libra.libra_plan`, `craft.craft_budget`, `lina.lina_fit`,
    `load.balancedness`.
Units and errors: Rules are pure functions over arrays: tokens by expert and die, slots, bytes. A function of a user
    that breaks the contract is an `ArchsimError` with its name.
Laws:
    INV-25. Tokens are conserved and no die is loaded more than before
       (test_libra_shard_conserves_tokens_and_never_loads_more).
    INV-26. Every pair is executed once (test_every_pair_is_executed_once_and_no_load_beats_its_ceilings).
    INV-27. Nothing moves between equal placements (test_nothing_moves_between_equal_placements).
Journey: `policies: [allo]` → `registry.build_policy` → `StepView` → the rule → `Plan` and `Effort`, which the
    engine charges.
"""
