"""Which of some options is best: machines, how many, divided how, each compared as well as it can be used?

A side of a comparison pins what it names; what is left is chosen for it by whole iterations, to serve as much as it can
within limits that all sides share.

Front: `options.Side`, `options.Requests`, `machines.Machine`, `frontier.Frontier`, `frontier.crossing_of`,
    `compare.compare_machines`, `compare.OptionComparison`, `door.compare_options`, `page.write_options`.
Units and errors: Times are ns, rates output tokens per second. Sides that share no model are a `SpecError`.
Laws:
    INV-64. The order turns where algebra says (test_two_machines_that_cross_do_so_where_algebra_says).
    INV-65. Twice the rates serve twice as much in half the time
       (test_a_machine_with_twice_the_rates_serves_twice_as_much_at_half_the_time).
Journey: Sides → `machines` times their options → `frontier` → samples in `compare` → the answer and its page.
"""
