"""Options, compared as well as each can be used.

An option is a machine, how many of them, how their dies are divided into engines, the batch and the policy. A side of a
comparison pins some of that: a system its machine, an experiment its machine, model, policies and batches. What is left
is chosen for it by whole iterations, to serve as much as it can within limits that all sides share.

`archsim.search.options` reads sides, `archsim.search.machines` times their options, `archsim.search.frontier` has the
curves, their crossing and the highest rate at a limit, `archsim.search.compare` draws the worlds and answers, and
`archsim.search.page` writes the answer. Times are in ns, rates in output tokens a second.
"""
