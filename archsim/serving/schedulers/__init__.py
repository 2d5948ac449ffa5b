"""Schedulers: what a rank computes in its next iteration; one module each, and a row in ``archsim.specs.schedulers``.

A module has ``schedule(state, k, now_ns, limits)``: compiled by the registry, called for every rank ``k`` that has a
request before every iteration of its engine. It fills ``state.new[k, i]`` (tokens of the i-th running request, 0 for
none), admits waiting ones, and gives both the KV blocks for these tokens, with the parts in
``archsim.serving.scheduling``. Its parameters are ``limits.params``, in the order of its row; those of a user's own
function are keyword arguments.
"""
