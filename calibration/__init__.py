"""Which parameters follow from measurements on real GPUs and meshes of chips?

Front: `fit.calibrate.calibrate_gpus`, `fit.mesh.fit_meshes`, `measurements.reading.read_measurements`,
    `measurements.reading.Measurements`, `measurements.mesh.read_meshes`, `measurements.peaks.Peaks`,
    `measurements.consensus.consensus`, `measurements.datasheets.Nominal`, `measurements.schema.TABLES`.
Units and errors: Tables are in the units of `measurements.schema`; fitted times are ns. A file that is refused is a
    `CalibrationError` and takes no table away.
Laws:
    INV-62. The newest version of a source is taken (test_the_newest_version_is_taken_everywhere).
    INV-63. Builds and node counts are never pooled
       (test_ranks_of_one_node_and_of_two_and_their_builds_are_never_pooled).
    INV-22. Times grow with work (test_the_law_never_falls_with_more_work).
Journey: CSV files of a GPU → `read_measurements` → `consensus` of repeats → one fit for each section → a
    calibration file.
"""
