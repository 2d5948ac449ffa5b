"""How do requests fare over time, with arrivals, a scheduler, KV blocks and the clock of an engine, and which
deployment serves them best?

Front: `serving.serve`, `serving.deploy`, `outcome.Deployment`, `serving.simulate_requests`,
    `file_requests.requests_of`, `measures.Measures`, `requests.Requests`, `simulate.Served`, `deployment.Built`,
    `answers.recommend.recommend`, `expert_groups.WITH_KERNELS`, `deployment.build`.
Units and errors: Times are ns, rates requests or tokens per second. What cannot be served is a `SpecError` before
    the clock starts.
Laws:
    INV-43. Tokens are conserved and equal runs are equal (test_tokens_are_conserved_and_equal_runs_are_equal).
    INV-44. Too little KV preempts and still ends (test_too_little_kv_preempts_and_still_ends).
    INV-45. What can never be served is refused (test_what_can_never_be_served_is_refused).
Journey: A serve file → `serving.deploy` tabulates iterations → the clock in `loop` → `measures.Measures` → TTFT,
    TPOT, goodput, W.
"""
