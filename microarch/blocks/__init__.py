"""Which states does every block of a die pass through, and how long is each?

Front: `block.TransitionTable`, `block.NextState`, `block.codes`, `request.State`, `request.Event`, `global_cp.State`,
    `pdu.decide`, `atu.look_up`, `llc.holds`, `hbm.keep`, `table_sizes.TableDesign`, `catalogue.TABLES`.
Units and errors: Latencies are ns, ports bits. A block that breaks the contract of tables is an `ArchsimError` with
    its state.
Laws:
    INV-54. Every block keeps the contract (test_every_block_keeps_the_contract).
    INV-55. Whole tables reach every state and drain (test_whole_tables_reach_every_state_and_drain).
    INV-56. One block serves a state of a request (test_every_state_of_a_request_is_served_by_one_block).
Journey: A request → its block's transition table → kernels, the interpreter and RTL, which are held equal to it.
"""
