"""How long does a kernel or a transfer take that somebody measured?

Front: `tables.CalibrationSpec`, `laws.Laws`, `tables.LawMissing`, `tables.GemmTable`, `tables.MoeTable`,
    `tables.TransferTable`, `tables.AttentionTable`, `gemm.Rates`, `transfers.law_of`, `mesh.EndpointLaw`,
    `die.DieFactors`, `calibration_files.calibration_named`.
Units and errors: Times are ns at nominal rates of the measured GPU; a law is read as an efficiency at these. What
    nobody measured is `LawMissing`.
Laws:
    INV-22. A law never falls with more work (test_the_law_never_falls_with_more_work).
    INV-23. Twice the bandwidth halves what is limited by it (test_twice_the_bandwidth_halves_what_is_limited_by_it).
    INV-24. The order of points has no effect (test_the_same_points_in_any_order_give_the_same_law).
Journey: A calibration file → `tables.CalibrationSpec` → `laws.Laws` → `gemm`, `moe`, `attention`, `transfers` → ns
    for each size.
"""
