"""What may a file say, and what does it mean?

Front: `library.load_experiment`, `library.load_system`, `library.load_model`, `serving_files.load_serving`,
    `experiment.ExperimentSpec`, `plan.SweepPlan`, `scenario.Scenario`, `policies.PolicySpec`,
    `assumptions.AssumptionsSpec`.
Units and errors: Specs are in base units. Every error is a `SpecError` with file, line, key, what was expected and
    the nearest valid name.
Laws:
    INV-15. A resolved experiment loads again as an equal one (test_resolved_experiment_loads_again_as_an_equal_one).
    INV-16. What a command does not read, it says
       (test_every_command_that_reads_an_experiment_tells_what_it_does_not_read).
Journey: `configs/dojo.yaml` → `library.load_experiment` → a `SweepPlan` → one `Scenario` for each point.
"""
