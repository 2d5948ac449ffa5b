"""Placement rules as a user would write them."""

from archsim.policies.placement import Placement


def replicated(experts, dies, layers):
    """Expert e on die e mod D, with a replica on the next die in every second layer."""
    holders = [[[e % dies, (e + 1) % dies][: 1 + layer % 2] for e in range(experts)] for layer in range(layers)]
    return Placement.of_holders(holders, dies)
