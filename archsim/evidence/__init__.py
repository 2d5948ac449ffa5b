"""What was measured or published, and how far is what archsim says from it: by group, and seen by a fit or not?

Front: `page.Evidence`, `calibrations.validate_calibration`, `meshes.validate_meshes`,
    `serving.accuracy.validate_served`, `serving.calibrate.calibrate_host`, `known_chips.known_figures`,
    `trust.trust`, `claims.judge_paper`, `claims_page.write_claims`.
Units and errors: A case has its unit; an error is predicted / measured - 1, a share. Measurements that cannot be are
    a `TraceError`, a GPU without any is a `CalibrationError`.
Laws:
    INV-47. A further null model never helps a paper's row (test_a_further_null_model_never_helps).
    INV-48. A case is seen where its time is in the fit, whatever run it came in through
       (test_a_case_is_in_the_fit_by_its_time_and_not_by_the_name_of_its_run).
Journey: Measurements or published numbers → cases of a source → one table of errors → sentences, page and JSON.
"""
