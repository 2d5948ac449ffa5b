"""What does one iteration of a model compute, move and keep, and how long does it take?

Front: `times.IterationLaws`, `times.iteration_times`, `times.Batches`, `times.batches_of`, `memory.memory_fit`,
    `memory.Fit`, `overlap.Rest`, `overlap.ExpertLayer`, `layers.has_experts`, `collectives.gathered_ns`,
    `misfit.refuse_misfit`.
Units and errors: Times are ns, memory is bytes of one rank. A layout that does not fit is a `SpecError` with both
    numbers.
Laws:
    INV-32. Parts sum to the iteration and layers to their part
       (test_parts_sum_to_the_iteration_and_layers_to_their_part).
    INV-33. Longer contexts and more requests are never faster
       (test_longer_contexts_and_more_requests_are_never_faster).
    INV-34. More memory never leaves less room (test_more_memory_never_leaves_less).
    INV-35. Runs and served engines have one iteration (test_runs_and_served_engines_have_one_iteration_of_a_gpu).
Journey: Model, machine and batch → `times.IterationLaws` → attention, experts, collectives, host → `iteration_ns`.
"""
