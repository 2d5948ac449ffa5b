"""Executions: named strategies that turn the plan of a step into work; the assumption ``execution`` selects one.

Each is a module with ``build(setup) -> Execution`` (``archsim.engine.executions.execution``), and a value of that
assumption.
"""
