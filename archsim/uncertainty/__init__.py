"""How sure is a result: which numbers are uncertain, and what follows for a headline?

Front: `sure.find_sure`, `worlds.Worlds`, `worlds.draws_of`, `propagation.propagate`, `system_quantities.economics_of`,
    `estimate.interval`, `estimate.pair`, `estimate.order`, `estimate.Index`, `ranges.quick_worlds`.
Units and errors: A range is the middle 90 % of samples unless it says otherwise. Too few samples are refused.
Laws:
    INV-40. A linear case has the closed form (test_a_linear_case_has_the_closed_form).
    INV-41. An order is sure or a tie (test_an_order_is_sure_or_a_tie).
    INV-42. Equal names give equal samples (test_draws_are_the_same_for_the_same_names_and_few_are_refused).
Journey: Ranges of files and calibrations → `worlds.draws_of` → every sample runs → `estimate.interval` → the
    sentence.
"""
