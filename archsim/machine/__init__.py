"""What is a machine: its dies, memories, links and fabric, as designed and as built, and who decides on it?

Front: `system.SystemSpec`, `fabric.TopologySpec`, `fabric_calibrations.FabricCalibration`, `as_built.DiesAsBuiltSpec`,
    `built.as_built`, `made.MadeSpec`, `decision.DecisionSpec`, `blocks.BlockSpec`, `measured.with_measured`.
Units and errors: ns, bytes, FLOP/s, bytes/s, W, USD. What cannot be built is a `SpecError` with file, line and key.
Laws:
    INV-14. Named, by path or inline, a system is the same (test_named_path_and_inline_systems_are_the_same).
Journey: `configs/systems/dojo.yaml` → `archsim.specs.library.load_system` → `system.SystemSpec` → `built.as_built` →
    `microarch.fabric`, whose links the engine takes.
"""
