"""When does every weight, vector and GEMM of a step start and end?

Front: `loop.Replay`, `loop.RunOutcome`, `engine.EventEngine`, `analytic.engine.AnalyticalEngine`,
    `interpreted.engine.InterpretedEngine`, `demand.RunDemand`, `fabrics.build_fabric`, `machine.slice_bytes`,
    `execution.Execution`, `moves.Sizes`, `flows.simulation.simulate_flows`, `state.UNITS`.
Units and errors: Times are ns on the clock of the machine, which leaves decisions out; traffic is bytes. A broken
    law of a record names the record.
Laws:
    INV-28. A faster die never slows a run (test_a_faster_die_never_slows_a_run).
    INV-29. Parts of a time sum to it (test_parts_of_a_time_sum_to_it).
    INV-30. Copies never take more than the room there is (test_copies_never_take_more_than_the_room_there_is).
    INV-31. Skewed traffic is never faster (test_skewed_traffic_is_never_faster).
Journey: `StepDemand` → the policy's `Plan` → `work` → kernels of `event`, `archsim.engine.analytic` or `interpreted` →
    `StepTimes`.
"""
