"""What area, power, heat and price does a machine have?

Front: `die_area.die_area`, `decision_area.decision_parts`, `area.AreaAndPower`, `energy.run_energy`,
    `energy.Activity`, `cost.CARRIER_MM2`, `heat.Temperatures`, `technology.TECHNOLOGIES`, `memories.memory_of`,
    `estimates.Estimate`, `nodes.NODES`.
Units and errors: mm², W, J, °C and USD. Every coefficient is an `Estimate` with source and range.
Laws:
    INV-59. Every coefficient has a source and a range (test_every_coefficient_has_a_source_and_a_range).
    INV-60. Area and power never fall with experts, dies, ports or layers
       (test_area_and_power_never_fall_with_experts_dies_ports_or_layers).
    INV-61. Energy is the sum of what its coefficients give (test_energy_is_the_sum_of_what_its_coefficients_give).
Journey: A system file → pieces and memories → `die_area`, `cost`, `energy`, `heat` → `archsim hardware`.
"""
