"""What is asked of a served machine: a run with its page, loads around it, a search of configurations, a
recommendation, a placement from recorded loads, a user's own measurement.
"""
