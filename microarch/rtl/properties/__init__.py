"""Invariants of the components, proved by induction: a harness for each, and what it claims.

A harness is a module around a component: assumptions on its inputs, assertions on its registers and outputs.
"""
