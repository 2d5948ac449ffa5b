"""What comes of one run, and of a sweep: rows, energy, prices and notes?

Front: `run.Run`, `run.Job`, `run.Record`, `run.Workspace`, `plan.select`, `plan.Selection`, `simulator.Simulator`,
    `sweep.complete`, `sweep.Watcher`, `results.Results`, `prices.Coefficients`, `columns.BY_NAME`.
Units and errors: Rows are in ns, bytes, J, W and USD, as `columns` says. Runs that fail are rows with a reason,
    never gaps.
Laws:
    INV-36. Steps sum to their run (test_steps_sum_to_their_run).
    INV-37. Dies sum to their run (test_dies_sum_to_their_run).
    INV-38. A cluster gives the same bytes (test_a_cluster_gives_the_same_bytes).
    INV-39. Random experiments obey every law (test_records_of_random_experiments_obey_every_law).
Journey: `SweepPlan` → `plan.select` → `sweep.complete` → `simulator.Simulator` → `results.Results` → files.
"""
