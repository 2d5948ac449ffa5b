"""Executions: how the plan of a step becomes work, by name; the assumption ``execution`` chooses one."""
