"""Executions: how the plan of a step becomes work, by name; the assumption ``execution`` chooses one.

Each is a module with ``build(setup) -> Execution`` (``archsim.engine.executions.execution``), and a value of that assumption.
"""
