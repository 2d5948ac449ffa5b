"""Which question does somebody ask of runs: why, what is it worth, how far from the optimum?

Front: `comparison.Comparison`, `why.Why`, `ablation.ablated_experiment`, `optimum.measure_optimum`, `worth.Worth`,
    `checking.Checked`, `verify.verify`.
Units and errors: A study returns a record with its numbers in the units of runs. A question that its inputs do not
    answer is a `SpecError`.
Laws:
    INV-46. Causes sum to a decode step (test_causes_sum_to_a_decode_step).
Journey: Runs or files → one study → sentences, figures and tables → `archsim.show`.
"""
